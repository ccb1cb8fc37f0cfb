"""`sizer rules`."""

from __future__ import annotations

import click

from sizer.cli.options import output_options, write_answer


@click.command()
@output_options("rules")
def command(format_: str, output: str | None) -> None:
    """List the rules; `sizer explain CODE` prints one's page."""
    from sizer.rules import RULES

    write_answer("rules", RULES, format_, output)
