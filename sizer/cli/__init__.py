"""The command line: a command's module is loaded only when it is called, so that `sizer check` answers in a blink."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from shapes.errors import InputError
from shapes.package import DISTRIBUTION

#: (command, its module [and what it is called there], one line for `sizer --help`): help must not import every command.
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("check", "sizer.cli.check", "Check configurations against the hardware and price each finding."),
    ("diff", "sizer.cli.diff", "Price a change of configurations: two files, or a git revision."),
    ("ops", "sizer.cli.model:ops", "List every operator a configuration runs, with shapes and predicted times."),
    ("search", "sizer.cli.search", "Find faster neighbouring dimensions, measured or predicted."),
    ("memory", "sizer.cli.model:memory", "Say what takes memory, what fits and the largest microbatch."),
    ("mfu", "sizer.cli.model:mfu", "Turn a measured step time into TFLOPS, MFU and HFU."),
    ("plan", "sizer.cli.model:plan", "List the fastest ways to spread a model over N devices."),
    ("deploy", "sizer.cli.model:deploy", "Say which engines load a configuration, pad it, fall back or refuse it."),
    ("bench", "sizer.cli.bench", "Measure operators, a configuration or a suite on the device at hand."),
    ("calibrate", "sizer.cli.calibrate", "Fit a device's cost constants from measurements."),
    ("store", "sizer.cli.store", "List, export, import, merge or prune stored measurements."),
    ("devices", "sizer.cli.lookup:devices", "List the known accelerators."),
    ("rules", "sizer.cli.lookup:rules", "List the rules."),
    ("explain", "sizer.cli.lookup:explain", "Print one rule's page."),
    ("lsp", "sizer.cli.lookup:lsp", "Serve findings to editors (Language Server Protocol)."),
    ("mcp", "sizer.cli.lookup:mcp", "Serve check, search, price and diff to agents (Model Context Protocol)."),
)

#: What `sizer --help` shows first.
EXAMPLES = (
    ("sizer check config.json", "What do my dimensions cost on an H100?"),
    ("sizer search --h 4096", "Which SwiGLU width near 8h/3 is fast?"),
    ("sizer diff --git main", "What does my branch's change cost?"),
)

#: (what people come for, the commands that answer it).
GROUPS = (
    ("Check and compare", ("check", "diff", "ops", "deploy")),
    ("Search and plan", ("search", "plan", "memory", "mfu")),
    ("Measure", ("bench", "calibrate", "store")),
    ("Look up", ("devices", "rules", "explain")),
    ("Serve editors and agents", ("lsp", "mcp")),
)


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is run, and turns InputError into exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, _, _ in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for name, module, _ in COMMANDS:
            if name == cmd_name:
                where, _, attribute = module.partition(":")
                command: click.Command = getattr(import_module(where), attribute or "command")
                return command
        return None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches  # only a mistake pays for it

            near = get_close_matches(args[0], self.list_commands(ctx), 1)
            raise click.UsageError(
                f"{error.format_message()}{f' Did you mean {near[0]}?' if near else ''}", ctx
            ) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            formatter.write_dl(EXAMPLES)
        texts = {name: text for name, _, text in COMMANDS}
        grouped = {name for _, names in GROUPS for name in names}
        rest = tuple(name for name in texts if name not in grouped)
        for title, names in (*GROUPS, ("Other", rest)):
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name, texts[name]) for name in names])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except InputError as error:
            click.echo(f"sizer: {error}", err=True)
            ctx.exit(2)
        except click.UsageError as error:
            # One line, as for every other mistake: click's own message is four.
            from sizer.cli.options import usage_text

            where = error.ctx.command_path if error.ctx is not None else "sizer"
            click.echo(f"sizer: {usage_text(error)} ({where} --help)", err=True)
            ctx.exit(2)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(None, "-V", "--version", package_name=DISTRIBUTION)
def main() -> None:
    """Size transformer architectures for the hardware that will train them."""
