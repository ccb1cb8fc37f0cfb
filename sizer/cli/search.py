"""`sizer search`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import click

from shapes.errors import InputError
from sizer.cli.numbers import QUANTITY
from sizer.cli.options import (
    Asked,
    config_options,
    measuring_options,
    option,
    output_options,
    several,
    stack_option,
    stated,
    subcommand,
    workload_options,
    write_answer,
)
from sizer.ending import resumable


def _share(text: str, option: str) -> float:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise InputError("expected a percentage (1%) or a share (0.01)", key=option, value=text) from None


def _confidence(text: str, option: str) -> float:
    found = _share(text, option)
    if not LEAST_SURE <= found <= MOST_SURE:
        raise InputError(f"expected a share from {LEAST_SURE} to {MOST_SURE}", key=option, value=text)
    return found


def _bounds(text: str | None, option: str, number: Callable[[str], Any]) -> tuple[Any, Any]:
    if text is None:
        return None, None
    low, colon, high = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return (number(low) if low else None, number(high) if high else None)
    except ValueError:
        raise InputError("expected LOW:HIGH, two numbers", key=option, value=text) from None


def _aspect(text: str, option: str) -> tuple[float, float]:
    low, high = _bounds(text, option, float)
    return low or 1e-9, high or 1e9


def _names(text: str, _option: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _list(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError("expected integers between commas", key=option, value=text) from None


def _whole(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError("expected an integer", key=option, value=text) from None


#: How sure a measured search can be asked to be.
LEAST_SURE, MOST_SURE = 0.5, 0.999
#: The search of one product alone, that of the ML Engineering book.
ONE_PRODUCT = "swiglu-gemm"
#: A key of ``--limit`` -> the library's keyword, and what reads its value: bounds of h/L, head dimensions and sequence
#: lengths allowed, shards that candidates also split over, what no candidate changes, what may change too, the longest
#: step over the baseline's; how far from the best is good enough when measuring, and how sure to be.
_READ: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "aspect": ("aspect", _aspect),
    "head-dim": ("head_dims", _list),
    "seq-lens": ("seq_lens", _list),
    "tp-ready": ("tp_ready", _whole),
    "keep": ("keep", _names),
    "vary": ("vary", _names),
    "training-budget": ("training_budget", _share),
    "regret": ("regret", _share),
    "confidence": ("confidence", _confidence),
}

_model, _limit = partial(option, group="Model"), partial(option, group="Limits")
_measuring = partial(option, group="Measuring", rare=True)
#: The baseline's dimensions where there is no configuration, or in place of its own.
_DIMENSIONS = several(
    _model("--h", "h", type=int, help="Hidden size of the baseline."),
    _model("--d-ff", type=int, help="Width of its MLP. [default: 8h/3]"),
    _model("--heads", type=int, help="Attention heads. [default: h/128]"),
    _model("--kv-heads", type=int, rare=True, help="Key/value heads. [default: one for every head]"),
    _model("--layers", type=int, help="Layers. [default: 32]"),
    _model("--vocab", type=int, rare=True, help="Vocabulary. [default: 50304]"),
    _model("--params", type=QUANTITY, help="Parameter budget of a model search."),
)
_LIMITS = several(
    _limit("--tolerance", default="1%", show_default=True, help="Largest change of parameters (1% or 0.01)."),
    _limit("--range", "range_", metavar="LOW:HIGH", help="Values of the searched dimension."),
    _limit("--step", type=int, help="Every so many values (1: misaligned ones too). [default: every aligned one]"),
    _limit(
        "--limit",
        "limits",
        multiple=True,
        metavar="KEY=VALUE",
        help=f"A further limit, of {', '.join(_READ)}; several allowed.",
    ),
)


@subcommand()
@click.argument("config", required=False)
@option(
    "--what",
    help="What varies: swiglu (swiglu-gemm: one product alone), experts, heads … (a wrong name lists them). "
    "[default: swiglu; model with --params]",
)
@option("--device", multiple=True, metavar="NAME", help="Target; several: good on all. [default: h100-sxm]")
@stack_option
@option(
    "--objective",
    default="time-per-parameter",
    show_default=True,
    help="step-time, layer-time, time-per-parameter or tflops.",
)
@option("--top", type=int, default=5, show_default=True, help="Candidates to list.")
@option("--emit", is_flag=True, help="Print the best candidate as a patch of the configuration (JSON).")
@_DIMENSIONS
@_LIMITS
@workload_options
@option(
    "--serving",
    metavar="FIELDS",
    group="Serving",
    help="Price a decode step for each: microbatch=64,context=8k[,tp=8,dtype=fp8,kv-dtype=fp8 …]; a Pareto front.",
)
@measuring_options
@_measuring("--strategy", help="How candidates are tried (an unknown name lists them). [default: racing]")
@config_options
@output_options("search")
def command(asked: Asked) -> None:
    """Find faster neighbouring dimensions of a baseline: CONFIG, or --h, or --params.

    With a GPU at hand times are measured, by racing; without one they are predicted for --device (`sizer devices`).
    A measured search that is stopped goes on where it was when it is started again.
    """
    from sizer.searching import search
    from sizer.searching.result import of_file
    from sizer.subject import read_model

    said, measure = _said(asked.limits), _measure(asked)
    budgets: dict[str, Any] = {name: said.get(name) for name in ("training_budget", "regret", "confidence")}
    reading = None
    if asked.config is not None:
        reading = read_model(asked.source(asked.config), config_format=asked.config_format)
    if asked.emit and asked.format_ not in ("text", "json"):
        raise InputError("expected json, a patch's only format, with --emit", key="--format", value=asked.format_)
    with resumable() as may_stop, _progress("measuring" if measure else "pricing", may_stop) as progress:
        result = search(
            reading,
            device=asked.device or None,
            limits=_limits(asked, said),
            measure=measure,
            progress=progress,
            serving=_fields(asked.serving, "--serving"),
            what="swiglu" if asked.what == ONE_PRODUCT else asked.what,
            gemm_only=asked.what == ONE_PRODUCT,
            **budgets,
            **asked.named("objective", "top", "stack", "strategy", "time_limit_s", "store"),
            **asked.named("h", "params", "d_ff", "heads", "kv_heads", "layers", "vocab"),
            **asked.workload,
        )
    if asked.emit:
        write_answer("search --emit", of_file(result, reading) if reading is not None else result, None, asked.output)
    else:
        write_answer("search", result, asked.format_, asked.output)


def _limits(asked: Asked, said: dict[str, Any]) -> Any:
    from sizer.searching.space import Limits

    low, high = _bounds(asked.range_, "--range", int)
    further: dict[str, Any] = {
        name: said.get(name) for name in ("aspect", "head_dims", "seq_lens", "tp_ready", "keep", "vary")
    }
    return Limits(_share(asked.tolerance, "--tolerance"), low, high, asked.step, **further)


def _said(texts: tuple[str, ...]) -> dict[str, Any]:
    """The limits of ``--limit``, as the library's keywords."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key not in _READ:
            raise InputError(f"expected KEY=VALUE, KEY one of {', '.join(_READ)}", key="--limit", value=text)
        name, read = _READ[key]
        found[name] = read(value, f"--limit {key}")
    return found


def _measure(asked: Asked) -> bool:
    """Whether to measure: where nobody says, if there is an accelerator."""
    from shapes.measure.backend import accelerator_here

    return asked.measure if asked.measure is not None else not asked.device and accelerator_here()


@contextmanager
def _progress(label: str, may_stop: Callable[[], None]) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, on a terminal, from the first news on; pricing and measuring have one each."""
    if not sys.stderr.isatty():
        yield lambda done, total: may_stop()
        return
    with ExitStack() as stack:
        bars: list[Any] = []

        def told(done: int, total: int) -> None:
            may_stop()
            if not bars or bars[0].length != total:
                stack.close()
                bars[:] = [stack.enter_context(click.progressbar(length=total, label=label, file=sys.stderr))]
            # What was thought settled may open again; a bar that goes back tells nobody anything.
            bars[0].update(max(0, done - bars[0].pos))

        yield told


def _fields(text: str | None, option: str) -> dict[str, Any] | None:
    """KEY=VALUE between commas: fields of a workload, numbers as the other options take them."""
    if text is None:
        return None
    for part in text.split(","):
        if "=" not in part:
            raise InputError("expected KEY=VALUE between commas", key=option, value=part)
    return dict(stated(part, option) for part in text.split(","))
