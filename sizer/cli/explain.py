"""`sizer explain`."""

from __future__ import annotations

import click

from sizer.cli.options import write_answer


@click.command()
@click.argument("rule")
def command(rule: str) -> None:
    """Print one RULE's page, by its code or slug."""
    from sizer.rules import find_rule

    write_answer("explain", find_rule(rule))
