"""`sizer search`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import click

from shapes.errors import InputError
from shapes.workload import OPTIONS
from sizer.cli.executors import chosen_executor, ray_options
from sizer.cli.numbers import COUNT, QUANTITY
from sizer.cli.options import (
    Asked,
    config_options,
    measuring_options,
    option,
    output_options,
    several,
    stack_option,
    subcommand,
    workload_options,
    write_answer,
)
from sizer.ending import resumable

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
    _model("--gemm-only", is_flag=True, rare=True, help="With swiglu: the single product of the ML Engineering book."),
)
_LIMITS = several(
    _limit("--tolerance", default="1%", show_default=True, help="Largest change of parameters (1% or 0.01)."),
    _limit("--range", "range_", metavar="LOW:HIGH", help="Values of the searched dimension."),
    _limit("--step", type=int, help="Every so many values (1: misaligned ones too). [default: every aligned one]"),
    _limit(
        "--aspect", metavar="LOW:HIGH", rare=True, help="Bounds of h/L. [default: the baseline's, times or over 1.5]"
    ),
    _limit("--head-dim", "head_dims", metavar="LIST", rare=True, help="Head dimensions allowed: 64,128."),
    _limit("--seq-lens", metavar="LIST", rare=True, help="With microbatch: sequence lengths allowed: 2048,4096."),
    _limit(
        "--tp-ready",
        type=int,
        rare=True,
        help="Candidates also split over so many shards (8: a node). [default: --tp's]",
    ),
    _limit("--keep", metavar="LIST", rare=True, help="What no candidate changes: head-dim,kv-ratio,layers."),
    _limit(
        "--vary",
        metavar="LIST",
        rare=True,
        help="With model, what may change too: kv-ratio,mla-ranks,mla-heads,window.",
    ),
    _limit(
        "--training-budget", metavar="SHARE", rare=True, help="Longest step, over the baseline's (100%: no longer)."
    ),
)


@subcommand()
@click.argument("config", required=False)
@option(
    "--what",
    help="What varies: swiglu, experts, heads … (an unknown name lists them). [default: swiglu; model with --params]",
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
@ray_options
@_measuring("--strategy", help="How candidates are tried (an unknown name lists them). [default: racing]")
@_measuring("--regret", help="How far from the best is good enough. [default: 1%]")
@_measuring("--confidence", type=click.FloatRange(0.5, 0.999), help="How sure to be. [default: 0.95]")
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

    limits, measure = _limits(asked), _measure(asked)
    reading = None
    if asked.config is not None:
        reading = read_model(asked.source(asked.config), config_format=asked.config_format)
    if asked.emit and asked.format_ not in ("text", "json"):
        raise InputError("expected json, a patch's only format, with --emit", key="--format", value=asked.format_)
    with resumable() as may_stop, _progress("measuring" if measure else "pricing", may_stop) as progress:
        result = search(
            reading,
            device=asked.device or None,
            limits=limits,
            measure=measure,
            progress=progress,
            serving=_fields(asked.serving, "--serving"),
            training_budget=_share(asked.training_budget, "--training-budget"),
            regret=_share(asked.regret, "--regret"),
            **asked.named("what", "objective", "top", "stack", "strategy", "confidence", "time_limit_s", "store"),
            **asked.named("h", "params", "d_ff", "heads", "kv_heads", "layers", "vocab", "gemm_only"),
            **asked.workload,
        )
    if asked.emit:
        write_answer("search --emit", of_file(result, reading) if reading is not None else result, None, asked.output)
    else:
        write_answer("search", result, asked.format_, asked.output)


def _limits(asked: Asked) -> Any:
    from sizer.searching.space import Limits

    low, high = _bounds(asked.range_, "--range", int)
    ends = _bounds(asked.aspect, "--aspect", float)
    return Limits(
        _share(asked.tolerance, "--tolerance") or 0.0,
        low,
        high,
        asked.step,
        aspect=(ends[0] or 1e-9, ends[1] or 1e9) if asked.aspect is not None else None,
        head_dims=_list(asked.head_dims, "--head-dim"),
        seq_lens=_list(asked.seq_lens, "--seq-lens"),
        tp_ready=asked.tp_ready,
        keep=_names(asked.keep),
        vary=_names(asked.vary),
    )


def _measure(asked: Asked) -> Any:
    """Whether, or with which executor, to measure: where nobody says, if there is an accelerator."""
    from shapes.measure.backend import accelerator_here

    if asked.ray is not None and asked.measure is False:
        raise InputError("expected --measure with it", key="--ray", value=asked.ray)
    if asked.ray is not None or asked.on is not None:
        return chosen_executor(asked.ray, asked.on)
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


def _share(text: str | None, option: str) -> float | None:
    if text is None:
        return None
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise InputError("expected a percentage (1%) or a share (0.01)", key=option, value=text) from None


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


def _fields(text: str | None, option: str) -> dict[str, Any] | None:
    """KEY=VALUE between commas: fields of a workload, numbers as the other options take them."""
    if text is None:
        return None
    found: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals:
            raise InputError("expected KEY=VALUE between commas", key=option, value=part)
        name = key.strip().replace("-", "_")
        try:
            words = name in OPTIONS and OPTIONS[name].kind is str
            found[name] = value if words else COUNT.convert(value, None, None)
        except click.UsageError:
            raise InputError("expected a number (such as 64 or 8k)", key=option, value=part) from None
    return found


def _names(text: str | None) -> tuple[str, ...] | None:
    return tuple(name.strip() for name in text.split(",")) if text is not None else None


def _list(text: str | None, option: str) -> tuple[int, ...] | None:
    try:
        return tuple(int(part) for part in text.split(",")) if text is not None else None
    except ValueError:
        raise InputError("expected integers between commas", key=option, value=text) from None
