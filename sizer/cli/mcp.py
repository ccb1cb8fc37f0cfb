"""`sizer mcp`."""

from __future__ import annotations

from importlib.metadata import version

import click

from shapes.errors import InputError


@click.command()
def command() -> None:
    """Serve check, search, price and diff to agents: MCP on standard input and output (needs sizer[mcp])."""
    try:
        from sizer.servers.mcp import server
    except ModuleNotFoundError as error:
        raise InputError(f"needs {error.name}: pip install 'sizer[mcp]'", where="sizer mcp") from None
    server(version("sizer")).run()
