"""`sizer search`."""

from functools import partial
from typing import Any

from shapes.errors import InputError, refuse
from shapes.frozen import Function, Named, Names, Values, given
from sizer.process import KEPT, PRICED, working

from .options import TABLES, Asked, stated, subcommand


def _ends(text: str, number: Function, low: Any = None, high: Any = None) -> tuple[Any, Any]:
    """LOW:HIGH as numbers; either may be missing."""
    first, last = text.split(":")
    return number(first) if first else low, number(last) if last else high


#: The search of one product alone, that of the ML Engineering book.
ONE_PRODUCT = "swiglu-gemm"
_READS: dict[str, Function] = {
    "ends": lambda text: _ends(text, float, 1e-9, 1e9),
    "whole ends": lambda text: _ends(text, int),
    "integers": lambda text: tuple(map(int, text.split(","))),
    "integer": int,
    "names": lambda text: tuple(map(str.strip, text.split(","))),
    "share": lambda text: float(text[:-1]) / 100 if text.endswith("%") else float(text),
}
#: A key of ``--limit`` -> the library's keyword, what reads its value, and what that is; and those of two options.
_LIMITS: Named = TABLES["further limits"]
_BOUNDS: Named = TABLES["bounds"]


def _read(limit: Names, text: str, option: str) -> Any:
    """The value that a limit's reader makes of an option's text; an InputError says what was expected."""
    _, read, expected = limit
    try:
        return _READS[read](text)
    except ValueError:
        raise InputError(f"expected {expected}", option, text) from None


@subcommand("search", "[CONFIG] search stack workload measuring config output")
def command(asked: Asked) -> None:
    """Find faster neighbouring dimensions of a baseline: CONFIG, or --h, or --params.

    With a GPU at hand times are measured, by racing; without one they are predicted for --device (`sizer devices`).
    A measured search that is stopped goes on where it was when it is started again.
    """
    from shapes.measure.backend import accelerator_here
    from sizer.searching import search
    from sizer.searching.result import of_file
    from sizer.searching.space import Limits
    from sizer.subject import read_model

    said = _said(asked.limits)
    measure = (not asked.device and accelerator_here()) if asked.measure is None else asked.measure
    low, high = _read(_BOUNDS["range"], asked.range_, "--range")
    further = {name: said.pop(name) for name in said.keys() & Limits.__match_args__}
    limits = Limits(_read(_BOUNDS["tolerance"], asked.tolerance, "--tolerance"), low, high, **further)
    reading = asked.config and read_model(asked.source(), config_format=asked.config_format, **asked.workload)
    refuse(
        asked.emit and asked.format_ not in ("text", "json"),
        "expected json, a patch's only format, with --emit",
        "--format",
        asked.format_,
    )
    with working(*(("measuring", KEPT) if measure else ("pricing", PRICED))) as tell:
        result = search(
            reading,
            device=asked.device,
            limits=limits,
            measure=measure,
            progress=tell,
            serving=_serving(asked.serving),
            what="swiglu" if asked.what == ONE_PRODUCT else asked.what,
            gemm_only=asked.what == ONE_PRODUCT,
            **said,
            **asked.named("objective", "top", "quality", "time_limit_s", "store"),
            **asked.named("h", "params", "d_ff", "heads", "kv_heads", "layers", "vocab"),
            **_planned(asked, reading, tell),
        )
    asked.answer(of_file(result, reading) if asked.emit and reading else result, " --emit" * asked.emit)


#: Fields that a plan needs.
SPREAD = {"gpus", "global_batch"}


def _planned(asked: Asked, reading: Any, tell: Any) -> Values:
    """Keywords of a search: what plans the configuration's own step among them."""
    if not asked.layouts:
        return asked.workload | asked.named("stack")
    refuse(
        asked.what != "model" or reading is None or not asked.workload.keys() >= SPREAD,
        "expected CONFIG, --what model, --gpus, --global-batch",
        "--layouts",
    )
    from sizer.answers.plan import plan_config
    from sizer.documents.plan import telling

    found = partial(
        plan_config, reading, progress=telling(tell), **given(asked.named("device", "stack")), **asked.workload
    )
    return {**given(asked.workload | dict.fromkeys(SPREAD)), "layouts": found, **asked.named("stack")}


def _said(texts: Names) -> Values:
    """The limits of ``--limit``, as the library's keywords."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        refuse(
            not equals or key not in _LIMITS, f"expected KEY=VALUE, KEY one of {', '.join(_LIMITS)}", "--limit", text
        )
        found[_LIMITS[key][0]] = _read(_LIMITS[key], value, f"--limit {key}")
    return found


def _serving(text: str | None) -> Values | None:
    """KEY=VALUE between commas: fields of a workload, numbers as the other options take them."""
    if text is None:
        return None
    for part in text.split(","):
        refuse("=" not in part, "expected KEY=VALUE between commas", "--serving", part)
    return dict(stated(part, "--serving") for part in text.split(","))
