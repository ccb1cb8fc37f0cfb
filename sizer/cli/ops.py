"""`sizer ops`."""

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
    trace_options,
    workload_options,
    write_answer,
)


@subcommand()
@click.argument("config")
@device_option
@stack_option
@option("--explain", metavar="NAME", help="Say how the time of operators with NAME in their name comes about.")
@workload_options
@config_options
@trace_options
@output_options("ops")
def command(asked: Asked) -> None:
    """List every operator CONFIG runs in a step: shapes, FLOPs, predicted time and what bounds it."""
    from sizer.answers.operator_table import ops

    table = ops(
        asked.source(asked.config),
        device=asked.device,
        trace=asked.trace,
        plan=asked.plan,
        stack=asked.stack,
        config_format=asked.config_format,
        **asked.workload,
    )
    if asked.explain is not None:
        write_answer("ops --explain", table.named(asked.explain), asked.format_, asked.output)
    else:
        write_answer("ops", table, asked.format_, asked.output)
