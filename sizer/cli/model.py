"""Commands that answer a question about one configuration: `sizer ops`, `memory`, `deploy`, `plan` and `mfu`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shapes.engines import ALIASES, ENGINES, FORMATS, USES
from shapes.errors import InputError, positive_int
from shapes.workload import option_of
from sizer.cli.numbers import seconds
from sizer.cli.options import (
    MODELS,
    Asked,
    config_options,
    declared,
    device_option,
    given,
    output_options,
    price_option,
    read_standard_input,
    several,
    stack_option,
    subcommand,
    trace_option,
    workload_option,
    workload_options,
    write_answer,
)

if TYPE_CHECKING:
    from sizer.answers.mfu import StepTimes
    from sizer.subject import Subject


@subcommand()
@click.argument("config", shell_complete=MODELS)
@device_option
@stack_option
@declared("ops")
@workload_options
@config_options
@trace_option
@output_options("ops")
def ops(asked: Asked) -> None:
    """List every operator CONFIG runs in a step: shapes, FLOPs, predicted time and what bounds it."""
    from sizer.answers.operator_table import ops

    said = asked.named("device", "trace", "stack", "config_format")
    table = replace(ops(asked.source(), **said, **asked.workload), **asked.named("sort", "top"))
    if asked.explain is not None:
        write_answer("ops --explain", table.named(asked.explain), asked.format_, asked.output)
    else:
        write_answer("ops", table, asked.format_, asked.output)


@subcommand()
@click.argument("config", shell_complete=MODELS)
@device_option
@stack_option
@workload_options
@declared("memory")
@config_options
@output_options("memory")
def memory(asked: Asked) -> None:
    """Say what takes memory on one device, what fits it and the largest microbatch, any integer.

    Exit code 1: the workload does not fit the device.
    """
    from sizer.answers.memory_breakdown import memory

    said = asked.named("device", "config_format", "stack", "loss", "weight_dtype", "memory_utilization")
    found = memory(asked.source(), **said, **asked.workload)
    write_answer("memory", found, asked.format_, asked.output)
    if not found.memory.fits:
        raise SystemExit(1)


@subcommand()
@click.argument("config", shell_complete=MODELS)
@device_option
@declared("deploy", recipes=(*FORMATS, *ALIASES), engines=(*ENGINES, *USES))
@config_options
@output_options("deploy")
def deploy(asked: Asked) -> None:
    """Say whether CONFIG fits so many ranks, and which engines load it, pad it, fall back or refuse it, with sources.

    Exit status: 0 if no engine refuses it, 1 if one does, 2 for what cannot be read.
    """
    from sizer.answers.deploy import deploy

    said = asked.named("tp", "ep", "device", "engines", "config_format")
    found = deploy(asked.source(), recipe=asked.runs_in, **said)
    write_answer("deploy", found, asked.format_, asked.output)
    if not found.ok:
        raise SystemExit(1)


#: Fields of the workload that a plan does not find itself.
_TAKEN = ("s", "images", "dtype", "attention", "optimizer", "precision", "implementation", "finetune")
#: What the file says of its own split does not bind a plan.
_FOUND: dict[str, Any] = dict.fromkeys(("t", "p", "d", "e", "b", "cp", "vpp"), 1) | {
    "zero": 0,
    "dtype": "bf16",
    "attention": "auto",
}


@subcommand()
@click.argument("config", shell_complete=MODELS)
@device_option
@workload_option("gpus", help="Devices.", rare=False)
@workload_option("global_batch", help="Sequences a step, over all devices.", rare=False)
@stack_option
@declared("plan")
@price_option
@several(*(workload_option(field) for field in _TAKEN))
@workload_option("phase", hidden=True)
@config_options
@output_options("plan")
def plan(asked: Asked) -> None:
    """List the fastest ways to spread a training step over N devices, as far as the cost model can tell."""
    from shapes.device import load_device
    from shapes.step.stack import default_stack, load_stack
    from sizer.answers.plan import plan
    from sizer.subject import read_subject

    chosen = asked.workload
    _demand(asked, "plan", "--gpus 64", "--global-batch 1024")
    if chosen.pop("phase", "train") != "train":
        expected = "expected training: how serving is spread is what `sizer check --phase decode --tp N` prices, N by N"
        raise InputError(expected, key="--phase")
    split = {name: chosen.pop(name) for name in ("gpus", "global_batch")}
    memory = {name: chosen.pop(name, None) for name in ("optimizer", "precision", "implementation")}
    # Without a stack named memory is counted as `memory` and `check` count it for the same file.
    subject = read_subject(asked.source(), **asked.named("config_format", "stack"), **_FOUND | chosen)
    model = subject.whole()
    memory["implementation"] = memory["implementation"] or subject.implementation
    found = plan(
        model,
        load_device(asked.device),
        base=subject.workload,
        stack=asked.stack or default_stack(subject.reading.format if subject.reading else None, split["gpus"] > 1),
        **asked.named("tokens", "price"),
        loss=None if asked.stack is None else load_stack(asked.stack).loss,
        **split,
        **memory,
    )
    write_answer("plan", replace(found, top=asked.top), asked.format_, asked.output)


@subcommand()
@click.argument("config", required=False, shell_complete=MODELS)
@device_option
@stack_option
@declared("mfu")
@workload_options
@config_options
@output_options("mfu")
def mfu(asked: Asked) -> None:
    """Turn a measured step time into TFLOPS, MFU and HFU, by every usual way of counting.

    --gpus and --global-batch are needed; --explain asks for the layout (--microbatch, --tp, --pp, --zero …) too.
    """
    from shapes.device import load_device
    from sizer.answers.mfu import (
        MfuAnswer,
        check_possible,
        counts,
        explain_step,
        parameters_count,
        positive_amounts,
        utilization,
    )

    model = [] if asked.config is not None or asked.params is not None else ["CONFIG (or --params 8B)"]
    _demand(asked, "mfu", *model, "--gpus 64", "--global-batch 1024", "--step-time 12.7")
    gpus, global_batch = (
        positive_int(asked.workload[key], option_of(key), maximum=2**31) for key in ("gpus", "global_batch")
    )
    # How a file stores its weights or splits its run does not bind what was measured.
    run = {"dtype": "bf16", "checkpointing": "none", **asked.workload}
    dtype, checkpointing = run["dtype"], run["checkpointing"]
    times = _times(asked.step_time)
    step_s = times if isinstance(times, float) else times.median_s
    positive_amounts(step_time=step_s)
    target = load_device(asked.device)
    explanation = None
    if asked.config is not None:
        subject = _subject(asked, run)
        s = subject.workload.s
        found = counts(subject.whole(), s, global_batch, checkpointing, subject.workload)
        explanation = explain_step(subject, target, step_s) if asked.explain else None
    else:
        s = positive_int(run.get("s", 4096), "--sequence", maximum=2**31)
        found = (parameters_count(_parameters(asked), s, global_batch, checkpointing),)
    log = None if isinstance(times, float) else times
    rows = tuple(utilization(count, step_s, gpus, target, dtype) for count in found)
    # The causal count leaves nothing in that a kernel may skip.
    check_possible(rows[1:2] or rows, step_s, gpus, target, dtype)
    answer = MfuAnswer(step_s, gpus, global_batch, s, target, dtype, checkpointing, rows, log, explanation)
    write_answer("mfu", answer, asked.format_, asked.output)


def _parameters(asked: Asked) -> float:
    """The parameters of a model of which nothing else is known."""
    found: float | None = asked.params
    if found is None or asked.explain:
        raise InputError("expected a configuration" + ("" if asked.explain else " or --params"), key="CONFIG")
    if not 0 < found < 1e18:
        raise InputError("expected a positive number of parameters", key="--params", value=found)
    return found


def _demand(asked: Asked, command: str, *words: str) -> None:
    """InputError that names all of ``words``, options with an example of their values, that were not said."""
    said = {option_of(key) for key in given(asked.workload | {"step_time": vars(asked).get("step_time")})}
    missing = [word for word in words if word.partition(" ")[0] not in said]
    if missing:
        raise InputError(f"expected {' and '.join(missing)} with it", where=f"sizer {command}")


def _subject(asked: Asked, run: dict[str, Any]) -> Subject:
    """The model that was run, by its named sizes; InputError for what was not training."""
    from sizer.subject import read_subject

    # Counts are of a whole step, whose microbatch only its explanation asks for.
    layout = run if asked.explain else {**run, "b": 1}
    subject = read_subject(asked.source(), **asked.named("config_format", "stack"), **layout)
    if subject.workload.decode:
        raise InputError("expected train: `sizer check` has a decode step's utilisation", key="--phase", value="decode")
    subject.whole()
    return subject


def _times(said: str) -> float | StepTimes:
    """Seconds as they were given, or those that a log holds."""
    from shapes.files import read_bounded
    from sizer.answers.mfu import MAX_LOG_BYTES, read_step_times

    if (found := seconds(said)) is not None:
        return found
    if said == "-":
        return read_step_times(read_standard_input(), "<stdin>")
    if not Path(said).exists():
        raise InputError("expected a time (12.7, 800ms), or the log of a run", key="--step-time", value=said)
    data = read_bounded(said, MAX_LOG_BYTES)
    if len(data) > MAX_LOG_BYTES:
        raise InputError(f"expected a log of at most {MAX_LOG_BYTES // 2**20} MiB", where=said)
    return read_step_times(data.decode("utf-8", "replace"), said)
