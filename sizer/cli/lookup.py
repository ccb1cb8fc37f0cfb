"""`sizer devices`, `rules` and `explain`, which look something up, and the servers `lsp` and `mcp`."""

from importlib import import_module
from importlib.metadata import version

from shapes.errors import InputError
from shapes.program import DISTRIBUTION, install

from .options import Asked, subcommand


@subcommand("devices", "devices output")
def devices(asked: Asked) -> None:
    """List the known accelerators, or show all that is known of those named, with its sources.

    NAME is a device's name in any spelling, what torch.cuda.get_device_name says, or a path to a device file (.toml).
    """
    from sizer.documents.lookup import devices as found

    asked.answer(found(asked.names))


@subcommand("rules", "output")
def rules(asked: Asked) -> None:
    """List the rules; `sizer explain CODE` prints one's page."""
    from sizer.rules import RULES

    asked.answer(RULES)


@subcommand("explain", "explain output")
def explain(asked: Asked) -> None:
    """Print one RULE's page, by its code or slug."""
    from sizer.rules import find_rule

    asked.answer(find_rule(asked.rule))


def _served(name: str, **said: str) -> None:
    """Run the server of ``sizer.servers.NAME``, on standard input and output."""
    try:
        module = import_module(f"sizer.servers.{name}")
    except ModuleNotFoundError as error:
        raise InputError(f"needs {error.name}: {install(name)}", where=f"sizer {name}") from None
    module.serve(module.server(version(DISTRIBUTION), **said))


@subcommand("lsp", "")
def lsp(_asked: Asked) -> None:
    """Serve findings to editors: the Language Server Protocol on standard input and output (needs the lsp extra)."""
    _served("lsp")


@subcommand("mcp", "mcp")
def mcp(asked: Asked) -> None:
    """Serve the commands' answers to agents: MCP on standard input and output (needs the mcp extra). Writes nothing."""
    _served("mcp", root=asked.root)
