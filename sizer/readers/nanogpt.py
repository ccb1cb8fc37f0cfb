"""nanoGPT: a Python file of assignments or a saved GPTConfig."""

from shapes.frozen import replace

from . import layouts
from .reading import FORMATS, Config, Reading

NAME = "nanogpt"

_TABLE = FORMATS[NAME]


def read(config: Config, where: str) -> Reading:
    """Absent keys are train.py's for a file that it runs, which a note says, else GPTConfig's."""
    start, known = str(config.get("init_from")), _TABLE["pretrained"]
    vocab = _TABLE["vocabularies"].get(str(config.get("dataset")), 50304)
    run = not config.keys().isdisjoint(_TABLE["trainer"])
    own = {**_TABLE["training"], **known.get(start, {"vocab_size": vocab})} if run else {}
    of_train = f"absent keys are train.py's: no bias, {vocab:,} tokens"
    notes = (f"the sizes are those of {start} (init_from)" if start in known else of_train,) * run
    reading = layouts.read(NAME, _TABLE["defaults"] | own | config, where)
    return replace(reading, notes=(*reading.notes, *notes, *config.get("_notes", ())))
