"""`sizer mfu`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shapes.dtypes import DTYPES
from shapes.errors import InputError, positive_int
from sizer.cli.options import (
    config_argument,
    config_options,
    device_option,
    output_options,
    read_standard_input,
    write_answer,
)

if TYPE_CHECKING:
    from shapes.model import ModelShape
    from sizer.answers.mfu import Count, StepTimes


@click.command()
@click.argument("config", required=False)
@device_option
@click.option("--step-time", type=float, metavar="SECONDS", help="Seconds of one optimizer step.")
@click.option("--log", metavar="FILE", help="Read step times from a log (- for standard input) and use their median.")
@click.option("--gpus", type=int, required=True, help="Devices the step ran on.")
@click.option("--global-batch", type=int, required=True, help="Sequences a step, over all devices.")
@click.option("-s", "--sequence", "s", type=int, help="Tokens a sequence. [default: the file's, or 4096]")
@click.option("--dtype", type=click.Choice(DTYPES), default="bf16", show_default=True, help="Of the products.")
@click.option(
    "--checkpointing", type=click.Choice(["none", "selective", "full"]), default="none", show_default=True,
    help="What was recomputed: HFU counts it, MFU does not.",
)  # fmt: skip
@click.option("--params", type=float, metavar="N", help="Parameters, where there is no CONFIG: 6ND alone.")
@config_options
@output_options("mfu")
def command(
    config: str | None,
    device: str,
    step_time: float | None,
    log: str | None,
    gpus: int,
    global_batch: int,
    s: int | None,
    dtype: str,
    checkpointing: Any,
    params: float | None,
    config_format: str | None,
    format_: str,
    output: str | None,
) -> None:
    """Turn a measured step time into TFLOPS, MFU and HFU, by every usual way of counting."""
    from shapes.device import load_device
    from sizer.answers.mfu import MfuAnswer, check_step_time, counts, parameters_count, utilization

    positive_int(gpus, "--gpus", maximum=2**31)
    positive_int(global_batch, "--global-batch", maximum=2**31)
    times = _times(step_time, log)
    seconds = times.median_s if times else check_step_time(step_time if step_time is not None else 0.0)
    target = load_device(device)
    found: tuple[Count, ...]
    if config is not None:
        model, s = _model(config, config_format, s)
        found = counts(model, s, global_batch, checkpointing)
    elif params is not None:
        if not 0 < params < 1e18:
            raise InputError("expected a positive number of parameters", key="--params", value=params)
        s = positive_int(s if s is not None else 4096, "--sequence", maximum=2**31)
        found = (parameters_count(params, s, global_batch, checkpointing),)
    else:
        raise InputError("expected a configuration or --params", key="CONFIG")
    rows = tuple(utilization(count, seconds, gpus, target, dtype) for count in found)
    answer = MfuAnswer(seconds, gpus, global_batch, s, target, dtype, checkpointing, rows, times)
    write_answer("mfu", answer, format_, output)


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


def _model(config: str, config_format: str | None, s: int | None) -> tuple[ModelShape, int]:
    from sizer.subject import read_subject

    asked: dict[str, Any] = {} if s is None else {"s": s}
    subject = read_subject(config_argument(config), config_format=config_format, **asked)
    if subject.model is None:
        raise InputError("expected a model type that sizer reads; a traced model has no named sizes", where=config)
    return subject.model, subject.workload.s
