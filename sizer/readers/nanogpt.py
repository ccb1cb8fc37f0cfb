"""nanoGPT: a Python file of assignments or a saved GPTConfig."""

from shapes.frozen import replace
from sizer.readers import layouts
from sizer.readers.reading import FORMATS, Config, Names, Reading, Values

NAME = "nanogpt"

_TABLE = FORMATS[NAME]


def _defaults(config: Config) -> tuple[Values, Names]:
    """The values of absent keys, and a note on them: train.py's defaults for a file that it runs, else GPTConfig's."""
    defaults = _TABLE["defaults"]
    if not any(name in config for name in _TABLE["trainer"]):
        return defaults, ()
    start, data = config.get("init_from", "scratch"), config.get("dataset", "openwebtext")
    if isinstance(start, str) and start in _TABLE["pretrained"]:
        sizes = {"vocab_size": 50257, "bias": True, **_TABLE["pretrained"][start]}
        return {**defaults, **_TABLE["training"], **sizes}, (f"the sizes are those of {start} (init_from)",)
    vocab = _TABLE["vocabularies"].get(str(data), defaults["vocab_size"])
    said = f"absent keys are train.py's: no bias, {vocab:,} tokens"
    return {**defaults, **_TABLE["training"], "vocab_size": vocab}, (said,)


def read(config: Config, where: str) -> Reading:
    defaults, notes = _defaults(config)
    reading = layouts.read(NAME, {**defaults, **config}, where)
    return replace(reading, notes=(*reading.notes, *notes))
