"""`sizer ops`."""

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
    trace_options,
    workload_options,
    write_answer,
)


@click.command()
@click.argument("config")
@device_option
@stack_option
@workload_options
@config_options
@trace_options
@click.option("--explain", metavar="NAME", help="Say how the time of operators with NAME in their name comes about.")
@output_options("ops")
def command(
    config: str,
    device: str,
    stack: str | None,
    config_format: str | None,
    trace: bool,
    plan: dict[str, str] | None,
    explain: str | None,
    format_: str,
    output: str | None,
    **workload: Any,
) -> None:
    """List every operator CONFIG runs in a step: shapes, FLOPs, predicted time and what bounds it."""
    from sizer.answers.operator_table import ops

    try:
        source = config_argument(config)
        table = ops(
            source, device=device, trace=trace, plan=plan, stack=stack, config_format=config_format, **given(workload)
        )
    except InputError as error:
        raise option_error(error) from None
    if explain is not None:
        write_answer("ops --explain", table.named(explain), None, output)
        return
    write_answer("ops", table, format_, output)
