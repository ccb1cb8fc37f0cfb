"""`sizer rules`."""

from __future__ import annotations

import click


@click.command()
@click.option("--format", "format_", type=click.Choice(["text", "markdown", "json"]), default="text", show_default=True)
def command(format_: str) -> None:
    """List the rules; `sizer explain CODE` prints one's page."""
    from sizer.rules import RULES, catalogue

    lines = [(rule.CODE, rule.SLUG, (rule.__doc__ or "").strip().splitlines()[0]) for rule in RULES]
    if format_ == "markdown":
        click.echo(catalogue(), nl=False)
    elif format_ == "json":
        import json

        click.echo(json.dumps([{"code": code, "slug": slug, "summary": text} for code, slug, text in lines], indent=2))
    else:
        from tabulate import tabulate

        click.echo(tabulate(lines, ("code", "slug", "asks that"), tablefmt="simple"))
