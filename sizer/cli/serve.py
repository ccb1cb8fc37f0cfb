"""`sizer lsp` and `sizer mcp`: servers on standard input and output, each with the extra that it needs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

import click

from shapes.errors import InputError


def _serving(name: str, text: str, run: Callable[[Any], None]) -> click.Command:
    """The command that runs the server of ``sizer.servers.NAME``."""

    @click.command(name, help=f"{text} on standard input and output (needs sizer[{name}]).")
    def command() -> None:
        try:
            served = import_module(f"sizer.servers.{name}")
        except ModuleNotFoundError as error:
            raise InputError(f"needs {error.name}: pip install 'sizer[{name}]'", where=f"sizer {name}") from None
        run(served.server(version("sizer")))

    return command


lsp = _serving("lsp", "Serve findings to editors: the Language Server Protocol", lambda server: server.start_io())
mcp = _serving("mcp", "Serve check, search, price and diff to agents: MCP", lambda server: server.run())
