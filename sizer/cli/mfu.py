"""`sizer mfu`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shapes.errors import InputError, positive_int
from sizer.cli.numbers import QUANTITY
from sizer.cli.options import (
    config_argument,
    config_options,
    device_option,
    given,
    option_error,
    output_options,
    read_standard_input,
    stack_option,
    workload_options,
    write_answer,
)
from sizer.workload_names import option_of

if TYPE_CHECKING:
    from shapes.workload import Checkpointing
    from sizer.answers.mfu import Count, StepTimes
    from sizer.subject import Subject


@click.command()
@click.argument("config", required=False)
@device_option
@stack_option
@click.option("--step-time", type=float, metavar="SECONDS", help="Seconds of one optimizer step.")
@click.option("--log", metavar="FILE", help="Read step times from a log (- for standard input) and use their median.")
@workload_options
@click.option("--params", type=QUANTITY, metavar="N", help="Parameters, where there is no CONFIG: 6ND alone.")
@click.option(
    "--explain", is_flag=True, help="Predicted parts of the step in its layout, and causes of the difference."
)
@config_options
@output_options("mfu")
def command(
    config: str | None,
    device: str,
    stack: str | None,
    step_time: float | None,
    log: str | None,
    params: float | None,
    explain: bool,
    config_format: str | None,
    format_: str,
    output: str | None,
    **workload: Any,
) -> None:
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

    gpus, global_batch = (_needed(workload, key) for key in ("gpus", "global_batch"))
    # How a file stores its weights or splits its run does not bind what was measured.
    dtype: str = workload["dtype"] or "bf16"
    checkpointing: Checkpointing = workload["checkpointing"] or "none"
    times = _times(step_time, log)
    seconds = times.median_s if times else check_step_time(step_time if step_time is not None else 0.0)
    target = load_device(device)
    found: tuple[Count, ...]
    explanation = None
    if config is not None:
        # Counts are of a whole step, whose microbatch only its explanation asks for.
        b = workload["b"] if explain else 1
        asked = {**workload, "dtype": dtype, "checkpointing": checkpointing, "b": b}
        subject = _subject(config, config_format, stack, asked)
        if subject.workload.decode:
            raise InputError(
                "expected train: `sizer check` has a decode step's utilisation", key="--phase", value="decode"
            )
        model, s = subject.model, subject.workload.s
        if model is None:
            raise InputError("expected a model type that sizer reads; a traced model has no named sizes", where=config)
        found = counts(model, s, global_batch, checkpointing, subject.workload)
        if explain:
            from sizer.answers.mfu_explain import explain_step

            try:
                explanation = explain_step(subject, target, seconds)
            except InputError as error:
                raise option_error(error) from None
    elif params is not None and not explain:
        if not 0 < params < 1e18:
            raise InputError("expected a positive number of parameters", key="--params", value=params)
        s = positive_int(workload["s"] if workload["s"] is not None else 4096, "--sequence", maximum=2**31)
        found = (parameters_count(params, s, global_batch, checkpointing),)
    else:
        raise InputError("expected a configuration" + ("" if explain else " or --params"), key="CONFIG")
    rows = tuple(utilization(count, seconds, gpus, target, dtype) for count in found)
    # The causal count leaves nothing in that a kernel may skip; Megatron's equation is of a GPT, and so left out.
    check_possible(rows[1:2] or rows, seconds, gpus, target, dtype)
    answer = MfuAnswer(seconds, gpus, global_batch, s, target, dtype, checkpointing, rows, times, explanation)
    write_answer("mfu", answer, format_, output)


def _needed(workload: dict[str, Any], key: str) -> int:
    option = option_of(key)
    if workload[key] is None:
        raise InputError("expected a number: utilization is a whole step's, over all devices", key=option)
    return positive_int(workload[key], option, maximum=2**31)


def _subject(config: str, config_format: str | None, stack: str | None, asked: dict[str, Any]) -> Subject:
    from sizer.subject import read_subject

    try:
        source = config_argument(config)
        return read_subject(source, config_format=config_format, stack=stack, **given(asked))
    except InputError as error:
        raise option_error(error) from None


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
