"""`sizer mfu`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shapes.dtypes import DTYPES
from shapes.errors import InputError, positive_int
from sizer.cli.options import config_argument, device_option, output_options, read_standard_input, write_output

if TYPE_CHECKING:
    from shapes.device import Device
    from shapes.model import ModelShape
    from sizer.answers.mfu import Count, StepTimes, Utilization


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
@click.option("--config-format", metavar="NAME", help="The file's format. [default: detected]")
@output_options("text", "json")
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
    from sizer.answers.mfu import check_step_time, counts, parameters_count, utilization

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
    rows = [utilization(count, seconds, gpus, target, dtype) for count in found]
    render = _json if format_ == "json" else _text
    write_output(render(rows, times, seconds, gpus, global_batch, s, target, dtype, checkpointing), output)


def _times(step_time: float | None, log: str | None) -> StepTimes | None:
    from sizer.answers.mfu import read_step_times

    if (step_time is None) == (log is None):
        raise InputError("expected either --step-time or --log", key="--step-time", value=step_time)
    if log is None:
        return None
    if log == "-":
        return read_step_times(read_standard_input(), "<stdin>")
    try:
        return read_step_times(Path(log).read_text(encoding="utf-8", errors="replace"), log)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=log) from None


def _model(config: str, config_format: str | None, s: int | None) -> tuple[ModelShape, int]:
    from sizer.subject import read_subject

    asked: dict[str, Any] = {} if s is None else {"s": s}
    subject = read_subject(config_argument(config, config_format), config_format=config_format, **asked)
    if subject.model is None:
        raise InputError("expected a model type that sizer reads; a traced model has no named sizes", where=config)
    return subject.model, subject.workload.s


def _text(
    rows: list[Utilization], times: StepTimes | None, seconds: float, gpus: int, batch: int, s: int, device: Device,
    dtype: str, checkpointing: str,
) -> str:  # fmt: skip
    from tabulate import tabulate

    mamf = device.mamf_flops.get(dtype)
    achievable = f", achievable {mamf / 1e12:.1f}" if mamf else ", achievable not known"
    lines = [
        f"{seconds:.4g} s a step, {gpus} x {device.title}, global batch {batch} x {s} tokens, "
        f"checkpointing {checkpointing}",
        f"{dtype} peak {device.peak(dtype) / 1e12:.1f} TFLOPS{achievable}",
    ]
    if times is not None:
        lines.append(
            f"log: {len(times.seconds)} steps, median {times.median_s:.4g} s, mean {times.mean_s:.4g}, fastest "
            f"{min(times.seconds):.4g}, 90th percentile {times.percentile_s(90):.4g}; "
            f"{times.unread} lines without a time"
        )
    table = [
        [row.count.method, f"{row.model_tflops:.1f}", f"{row.mfu:.1%}", f"{row.hfu:.1%}", _share(row.mfu_achievable),
         _share(row.hfu_achievable)]
        for row in rows
    ]  # fmt: skip
    headers = ["count", "TFLOPS/GPU", "MFU", "HFU", "MFU of achievable", "HFU of achievable"]
    lines += ["", tabulate(table, headers, disable_numparse=True), ""]
    lines += [f"{row.count.method}: {row.count.convention}" for row in rows]
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _json(
    rows: list[Utilization], times: StepTimes | None, seconds: float, gpus: int, batch: int, s: int, device: Device,
    dtype: str, checkpointing: str,
) -> str:  # fmt: skip
    data: dict[str, Any] = {
        "schema_version": 1,
        "step_seconds": seconds,
        "gpus": gpus,
        "global_batch": batch,
        "sequence": s,
        "device": device.name,
        "dtype": dtype,
        "checkpointing": checkpointing,
        "peak_flops": device.peak(dtype),
        "achievable_flops": device.mamf_flops.get(dtype),
        "log": None
        if times is None
        else {"steps": len(times.seconds), "mean_seconds": times.mean_s, "unread": times.unread},
        "counts": [
            {
                "method": row.count.method,
                "convention": row.count.convention,
                "model_flops": row.count.model_flops,
                "hardware_flops": row.count.hardware_flops,
                "tflops_per_gpu": row.model_tflops,
                "hardware_tflops_per_gpu": row.hardware_tflops,
                "mfu": row.mfu,
                "hfu": row.hfu,
                "mfu_achievable": row.mfu_achievable,
                "hfu_achievable": row.hfu_achievable,
            }
            for row in rows
        ],
    }
    return json.dumps(data, indent=2)
