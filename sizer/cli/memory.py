"""`sizer memory`."""

from __future__ import annotations

import click

from sizer.cli.options import (
    Asked,
    config_options,
    device_option,
    option,
    output_options,
    stack_option,
    subcommand,
    workload_options,
    write_answer,
)


@subcommand()
@click.argument("config")
@device_option
@stack_option
@workload_options
@option(
    "--loss",
    group="Memory",
    help="Cross-entropy: fp32 (transformers'), in-place (Megatron's), fused (16-bit). [default: as --stack or kernels]",
)
@option(
    "--weights", "weight_dtype", metavar="DTYPE", group="Memory", help="Weights' type with --phase infer (int4 too)."
)
@config_options
@output_options("memory")
def command(asked: Asked) -> None:
    """Say what takes memory on one device, what fits it and the largest microbatch, any integer.

    Exit code 1: the workload does not fit the device.
    """
    from sizer.answers.memory_breakdown import memory

    found = memory(
        asked.source(asked.config),
        device=asked.device,
        config_format=asked.config_format,
        stack=asked.stack,
        loss=asked.loss,
        weight_dtype=asked.weight_dtype,
        **asked.workload,
    )
    write_answer("memory", found, asked.format_, asked.output)
    if not found.memory.fits:
        raise SystemExit(1)
