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
) -> None:
    """Say what takes memory on one device, what fits it and the largest microbatch, any integer.

    Exit code 1: the workload does not fit the device.
    """
    from sizer.answers.memory_breakdown import memory

    try:
        found = memory(
            config_argument(config),
            device=device,
            config_format=config_format,
            stack=stack,
            loss=loss,
            weight_dtype=weight_dtype,
            **given(workload),
        )
    except InputError as error:
        raise option_error(error) from None
    write_answer("memory", found, format_, output)
    if not found.memory.fits:
        raise SystemExit(1)
