"""`sizer memory`."""

from __future__ import annotations

from typing import Any

import click

from shapes.errors import InputError
from sizer.cli.options import (
    config_argument,
    config_options,
    device_option,
    given,
    option_error,
    output_options,
    stack_option,
    workload_options,
    write_answer,
)


@click.command()
@click.argument("config")
@device_option
@workload_options
@click.option(
    "--loss",
    help="Cross-entropy: fp32 (transformers'), in-place (Megatron's), fused (16-bit). [default: as --stack or kernels]",
)
@stack_option
@click.option("--weights", "weight_dtype", metavar="DTYPE", help="Weights' type with --phase infer (int4 too).")
@config_options
@output_options("memory")
def command(
    config: str,
    device: str,
    loss: str | None,
    stack: str | None,
    weight_dtype: str | None,
    config_format: str | None,
    format_: str,
    output: str | None,
    **workload: Any,
) -> None:  # fmt: skip
    """Say what takes memory on one device, what fits it and the largest microbatch, any integer.

    Exit code 1: the workload does not fit the device.
    """
    from shapes.device import load_device
    from sizer.answers.memory_breakdown import memory_breakdown
    from sizer.batch import batch
    from sizer.subject import read_subject

    asked = given(workload)
    options: dict[str, Any] = {"loss": loss}
    if weight_dtype is not None:
        options["weight_dtype"] = weight_dtype
    try:
        subject = read_subject(config_argument(config), config_format=config_format, stack=stack, **asked)
        if subject.model is None:
            raise InputError("expected a model type that sizer reads: memory needs named sizes", where=config)
        options["implementation"] = subject.implementation
        if stack is not None and loss is None:
            options["loss"] = subject.stack.loss
        settled = subject.workload
        if settled.gpus is not None or settled.global_batch is not None:
            devices = settled.gpus or settled.t * settled.p * settled.d
            plan = batch(devices, settled.b, t=settled.t, p=settled.p, global_batch=settled.global_batch)
            if settled.d != plan.d:
                raise InputError(f"expected GPUs / (TP x PP) = {plan.d}", key="d", value=settled.d)
            options["microbatches"] = plan.microbatches if settled.global_batch is not None else None
        found = memory_breakdown(subject.model, settled, load_device(device), subject.where, **options)
    except InputError as error:
        raise option_error(error) from None
    write_answer("memory", found, format_, output)
    if not found.memory.fits:
        raise SystemExit(1)
