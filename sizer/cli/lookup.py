"""`sizer devices`, `rules` and `explain`, which look something up, and the servers `lsp` and `mcp`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

import click

from shapes.errors import InputError
from shapes.package import DISTRIBUTION, install
from sizer.cli.options import DEVICES, RULES, output_options, write_answer


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=DEVICES)
@output_options("devices")
def devices(names: tuple[str, ...], format_: str, output: str | None) -> None:
    """List the known accelerators, or show all that is known of those named, with its sources.

    NAME is a device's name in any spelling, what torch.cuda.get_device_name says, or a path to a device file (.toml).
    """
    from sizer.answers.devices import devices as found

    write_answer("devices", found(names), format_, output)


@click.command()
@output_options("rules")
def rules(format_: str, output: str | None) -> None:
    """List the rules; `sizer explain CODE` prints one's page."""
    from sizer.rules import RULES

    write_answer("rules", RULES, format_, output)


@click.command()
@click.argument("rule", shell_complete=RULES)
def explain(rule: str) -> None:
    """Print one RULE's page, by its code or slug."""
    from sizer.rules import find_rule

    write_answer("explain", find_rule(rule))


def _serving(name: str, text: str, run: Callable[[Any], None]) -> click.Command:
    """The command that runs the server of ``sizer.servers.NAME``, on standard input and output."""

    @click.command(name, help=f"{text} on standard input and output (needs the {name} extra).")
    def command() -> None:
        try:
            served = import_module(f"sizer.servers.{name}")
        except ModuleNotFoundError as error:
            raise InputError(f"needs {error.name}: {install(name)}", where=f"sizer {name}") from None
        run(served.server(version(DISTRIBUTION)))

    return command


lsp = _serving("lsp", "Serve findings to editors: the Language Server Protocol", lambda server: server.start_io())
mcp = _serving("mcp", "Serve check, search, price and diff to agents: MCP", lambda server: server.run())
