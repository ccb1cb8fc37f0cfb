"""`sizer explain`."""

from __future__ import annotations

import click


@click.command()
@click.argument("rule")
def command(rule: str) -> None:
    """Print one RULE's page, by its code or slug."""
    from sizer.rules import find_rule, page

    click.echo(page(find_rule(rule)), nl=False)
