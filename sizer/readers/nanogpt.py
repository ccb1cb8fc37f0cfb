"""nanoGPT: a Python file of assignments or a saved GPTConfig."""

from shapes.frozen import replace
from sizer.readers import layouts
from sizer.readers.reading import FORMATS, Config, Names, Reading

NAME = "nanogpt"

_TABLE = FORMATS[NAME]


def read(config: Config, where: str) -> Reading:
    """Absent keys are train.py's for a file that it runs, which a note says, else GPTConfig's."""
    notes: Names = ()
    defaults = _TABLE["defaults"]
    if any(name in config for name in _TABLE["trainer"]):
        start, data = config.get("init_from", "scratch"), config.get("dataset", "openwebtext")
        if isinstance(start, str) and start in _TABLE["pretrained"]:
            own = {"vocab_size": 50257, "bias": True, **_TABLE["pretrained"][start]}
            said = f"the sizes are those of {start} (init_from)"
        else:
            own = {"vocab_size": _TABLE["vocabularies"].get(str(data), defaults["vocab_size"])}
            said = f"absent keys are train.py's: no bias, {own['vocab_size']:,} tokens"
        defaults, notes = {**defaults, **_TABLE["training"], **own}, (said,)
    reading = layouts.read(NAME, {**defaults, **config}, where)
    return replace(reading, notes=(*reading.notes, *notes))
