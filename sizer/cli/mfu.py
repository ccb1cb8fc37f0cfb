"""`sizer mfu`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shapes.errors import InputError, positive_int
from shapes.workload import option_of
from sizer.cli.numbers import QUANTITY
from sizer.cli.options import (
    Asked,
    config_options,
    device_option,
    option,
    output_options,
    read_standard_input,
    stack_option,
    subcommand,
    workload_options,
    write_answer,
)

if TYPE_CHECKING:
    from sizer.answers.mfu import StepTimes
    from sizer.subject import Subject


@subcommand()
@click.argument("config", required=False)
@device_option
@stack_option
@option("--step-time", type=float, metavar="SECONDS", help="Seconds of one optimizer step.")
@option("--log", metavar="FILE", help="Read step times from a log (- for standard input) and use their median.")
@option("--params", type=QUANTITY, metavar="N", help="Parameters, where there is no CONFIG: 6ND alone.")
@option("--explain", is_flag=True, help="Predicted parts of the step in its layout, and causes of the difference.")
@workload_options
@config_options
@output_options("mfu")
def command(asked: Asked) -> None:
    """Turn a measured step time into TFLOPS, MFU and HFU, by every usual way of counting.

    --gpus and --global-batch are needed; --explain asks for the layout (--microbatch, --tp, --pp, --zero …) too.
    """
    from shapes.device import load_device
    from sizer.answers.mfu import (
        MfuAnswer,
        check_possible,
        check_step_time,
        counts,
        parameters_count,
        utilization,
    )

    gpus, global_batch = (_needed(asked, key) for key in ("gpus", "global_batch"))
    # How a file stores its weights or splits its run does not bind what was measured.
    run = {"dtype": "bf16", "checkpointing": "none", **asked.workload}
    dtype, checkpointing = run["dtype"], run["checkpointing"]
    times = _times(asked.step_time, asked.log)
    seconds = times.median_s if times else check_step_time(asked.step_time or 0.0)
    target = load_device(asked.device)
    explanation = None
    if asked.config is not None:
        subject = _subject(asked, run)
        assert subject.model is not None
        s = subject.workload.s
        found = counts(subject.model, s, global_batch, checkpointing, subject.workload)
        if asked.explain:
            from sizer.answers.mfu import explain_step

            explanation = explain_step(subject, target, seconds)
    elif asked.params is not None and not asked.explain:
        if not 0 < asked.params < 1e18:
            raise InputError("expected a positive number of parameters", key="--params", value=asked.params)
        s = positive_int(run.get("s", 4096), "--sequence", maximum=2**31)
        found = (parameters_count(asked.params, s, global_batch, checkpointing),)
    else:
        raise InputError("expected a configuration" + ("" if asked.explain else " or --params"), key="CONFIG")
    rows = tuple(utilization(count, seconds, gpus, target, dtype) for count in found)
    # The causal count leaves nothing in that a kernel may skip; Megatron's equation is of a GPT, and so left out.
    check_possible(rows[1:2] or rows, seconds, gpus, target, dtype)
    answer = MfuAnswer(seconds, gpus, global_batch, s, target, dtype, checkpointing, rows, times, explanation)
    write_answer("mfu", answer, asked.format_, asked.output)


def _needed(asked: Asked, key: str) -> int:
    option = option_of(key)
    if key not in asked.workload:
        raise InputError("expected a number: utilization is a whole step's, over all devices", key=option)
    return positive_int(asked.workload[key], option, maximum=2**31)


def _subject(asked: Asked, run: dict[str, Any]) -> Subject:
    """The model that was run, by its named sizes; InputError for what was not training."""
    from sizer.subject import read_subject

    # Counts are of a whole step, whose microbatch only its explanation asks for.
    layout = run if asked.explain else {**run, "b": 1}
    subject = read_subject(asked.source(asked.config), config_format=asked.config_format, stack=asked.stack, **layout)
    if subject.workload.decode:
        raise InputError("expected train: `sizer check` has a decode step's utilisation", key="--phase", value="decode")
    if subject.model is None:
        raise InputError(
            "expected a model type that sizer reads; a traced model has no named sizes", where=asked.config
        )
    return subject


def _times(step_time: float | None, log: str | None) -> StepTimes | None:
    from shapes.files import read_bounded
    from sizer.answers.mfu import MAX_LOG_BYTES, read_step_times

    if (step_time is None) == (log is None):
        raise InputError("expected either --step-time or --log", key="--step-time", value=step_time)
    if log is None:
        return None
    if log == "-":
        return read_step_times(read_standard_input(), "<stdin>")
    data = read_bounded(log, MAX_LOG_BYTES)
    if len(data) > MAX_LOG_BYTES:
        raise InputError(f"expected a log of at most {MAX_LOG_BYTES // 2**20} MiB", where=log)
    return read_step_times(data.decode("utf-8", "replace"), log)
