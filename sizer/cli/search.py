"""`sizer search`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import click

from shapes.errors import InputError
from sizer.cli.executors import executors, ray_options
from sizer.cli.numbers import COUNT, QUANTITY
from sizer.cli.options import (
    config_argument,
    config_options,
    given,
    option_error,
    output_options,
    stack_option,
    workload_options,
    write_answer,
)
from sizer.ending import resumable


@click.command()
@click.argument("config", required=False)
@click.option("--config", "config_option", metavar="FILE", help="The baseline's configuration (as the argument).")
@click.option(
    "--what",
    help="What varies: swiglu, experts, heads … (an unknown name lists them). [default: swiglu; model with --params]",
)
@click.option("--h", "h", type=int, help="Hidden size of the baseline.")
@click.option("--d-ff", type=int, help="Width of its MLP. [default: 8h/3]")
@click.option("--heads", type=int, help="Attention heads. [default: h/128]")
@click.option("--kv-heads", type=int, help="Key/value heads. [default: one for every head]")
@click.option("--layers", type=int, help="Layers. [default: 32]")
@click.option("--vocab", type=int, help="Vocabulary. [default: 50304]")
@click.option("--params", type=QUANTITY, help="Parameter budget of a model search.")
@click.option("--tolerance", default="1%", show_default=True, help="Largest change of parameters (1% or 0.01).")
@click.option("--range", "range_", metavar="LOW:HIGH", help="Values of the searched dimension.")
@click.option("--step", type=int, help="Every so many values. [default: every aligned one]")
@click.option("--aspect", metavar="LOW:HIGH", help="Bounds of h/L. [default: the baseline's, times or over 1.5]")
@click.option("--head-dim", "head_dims", metavar="LIST", help="Head dimensions allowed: 64,128.")
@click.option("--seq-lens", metavar="LIST", help="With microbatch: sequence lengths allowed: 2048,4096.")
@click.option("--tp-ready", type=int, help="Candidates also split over so many shards (8: a node). [default: --tp's]")
@click.option("--keep", metavar="LIST", help="What no candidate changes: head-dim,kv-ratio,layers.")
@click.option("--vary", metavar="LIST", help="With model, what may change too: kv-ratio,mla-ranks,mla-heads,window.")
@click.option(
    "--serving",
    metavar="FIELDS",
    help="Price a decode step beside each: microbatch=64,context=8k[,tp=8,dtype=fp8,kv-dtype=fp8 …]; a Pareto front.",
)
@click.option("--training-budget", metavar="SHARE", help="Longest step, over the baseline's (100%: no longer).")
@click.option("--train", "direction", flag_value="train", help="As --phase train.")
@click.option("--infer", "direction", flag_value="infer", help="As --phase infer: forward only.")
@click.option("--tokens", type=int, help="Tokens a microbatch, instead of -b and -s.")
@click.option("--misaligned", is_flag=True, help="Consider every integer, misaligned ones too.")
@click.option("--device", multiple=True, metavar="NAME", help="Target; several: good on all. [default: h100-sxm]")
@click.option(
    "--objective",
    default="time-per-parameter",
    show_default=True,
    help="step-time, layer-time, time-per-parameter or tflops.",
)
@click.option("--gemm-only", is_flag=True, help="With swiglu: the single product of the ML Engineering book.")
@click.option("--predict", "source", flag_value="predict", help="Predict for --device, whatever hardware is here.")
@click.option("--measure", "source", flag_value="measure", help="Measure here (a GPU, or this CPU).")
@ray_options
@click.option("--strategy", help="Measuring: how candidates are tried (an unknown name lists them). [default: racing]")
@click.option("--regret", help="Measuring: how far from the best is good enough. [default: 1%]")
@click.option("--confidence", type=click.FloatRange(0.5, 0.999), help="Measuring: how sure to be. [default: 0.95]")
@click.option("--time-limit", "time_limit_s", type=click.FloatRange(0, min_open=True), help="Seconds to measure for.")
@click.option("--store", metavar="FILE", help="Measurements' database. [default: SIZER_STORE, else the cache folder]")
@click.option("--top", type=int, default=5, show_default=True, help="Candidates to list.")
@click.option("--emit", is_flag=True, help="Print the best candidate as a patch of the configuration (JSON).")
@stack_option
@workload_options
@config_options
@output_options("search")
def command(
    config: str | None,
    config_option: str | None,
    tolerance: str,
    range_: str | None,
    step: int | None,
    misaligned: bool,
    aspect: str | None,
    head_dims: str | None,
    seq_lens: str | None,
    tp_ready: int | None,
    keep: str | None,
    vary: str | None,
    serving: str | None,
    training_budget: str | None,
    direction: str | None,
    device: tuple[str, ...],
    source: str | None,
    ray: str | None,
    on: str | None,
    regret: str | None,
    config_format: str | None,
    emit: bool,
    format_: str,
    output: str | None,
    **options: Any,
) -> None:
    """Find faster neighbouring dimensions of a baseline: CONFIG, or --h, or --params.

    With a GPU at hand times are measured, by racing; without one they are predicted for --device (`sizer devices`).
    A measured search that is stopped goes on where it was when it is started again.
    """
    from shapes.measure.presence import accelerator_here
    from sizer.readers import read_config
    from sizer.searching import search
    from sizer.searching.patch import of_file
    from sizer.searching.space import Limits

    if direction is not None:
        if options["phase"] not in (None, direction):
            raise InputError(f"expected --{options['phase']} or another --phase", key=f"--{direction}")
        options["phase"] = direction
    named = config if config is not None else config_option
    low, high = _bounds(range_, "--range", int)
    ends = _bounds(aspect, "--aspect", float)
    limits = Limits(
        _share(tolerance, "--tolerance"),
        low,
        high,
        step,
        misaligned,
        aspect=(ends[0] or 1e-9, ends[1] or 1e9) if aspect is not None else None,
        head_dims=_list(head_dims, "--head-dim"),
        seq_lens=_list(seq_lens, "--seq-lens"),
        tp_ready=tp_ready,
        keep=_names(keep),
        vary=_names(vary),
    )
    if ray is not None and source == "predict":
        raise InputError("expected --measure with it", key="--ray", value=ray)
    measure: Any = source == "measure" or ray is not None or (source is None and not device and accelerator_here())
    if ray is not None or on is not None:
        measure = executors(ray, on)
    try:
        reading = None if named is None else read_config(config_argument(named), config_format=config_format)
        with resumable() as may_stop, _progress("measuring" if measure else "pricing", may_stop) as progress:
            result = search(
                reading,
                device=device or None,
                limits=limits,
                measure=measure,
                regret=_share(regret, "--regret") if regret is not None else None,
                progress=progress,
                serving=_fields(serving, "--serving") if serving is not None else None,
                training_budget=_share(training_budget, "--training-budget") if training_budget is not None else None,
                **given(options),
            )
    except InputError as error:
        raise option_error(error) from None
    if emit and format_ not in ("text", "json"):
        raise InputError("expected json, a patch's only format, with --emit", key="--format", value=format_)
    if emit:
        write_answer("search --emit", of_file(result, reading) if reading is not None else result, None, output)
        return
    write_answer("search", result, format_, output)


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


def _share(text: str, option: str) -> float:
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


def _fields(text: str, option: str) -> dict[str, Any]:
    """KEY=VALUE between commas: fields of a workload, numbers as the other options take them."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals:
            raise InputError("expected KEY=VALUE between commas", key=option, value=part)
        name = key.strip().replace("-", "_")
        try:
            words = name in ("dtype", "kv_dtype", "attention", "recipe")
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
