"""`sizer lsp`."""

from __future__ import annotations

from importlib.metadata import version

import click

from shapes.errors import InputError


@click.command()
def command() -> None:
    """Serve findings to editors: the Language Server Protocol on standard input and output (needs sizer[lsp])."""
    try:
        from sizer.servers.lsp import server
    except ModuleNotFoundError as error:
        raise InputError(f"needs {error.name}: pip install 'sizer[lsp]'", where="sizer lsp") from None
    server(version("sizer")).start_io()
