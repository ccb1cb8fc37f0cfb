"""The command line: a command's module is loaded only when it is called, so that `sizer check` answers in a blink."""

from typing import Any

import click

from shapes.errors import InputError
from shapes.program import DISTRIBUTION, blamed, named_function
from shapes.toml_table import nearest, table_of
from sizer.process import line

#: Examples, then headings of `sizer --help` -> command -> its module and what it is called there, and one line: help
#: must not import every command.
EXAMPLES, *_HEADED = table_of(__file__, "commands.json").items()
GROUPS: dict[str, dict[str, tuple[str, str]]] = dict(_HEADED)
COMMANDS = {name: said for listed in GROUPS.values() for name, said in listed.items()}


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is run, and turns InputError into exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = named_function(COMMANDS[cmd_name][0])
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from .options import spellings

            meant = spellings()["commands"].get(args[0].lower())
            near = [f" Did you mean {one}?" for one in ([meant] if meant else nearest(args[0], COMMANDS))]
            raise click.UsageError(error.format_message() + "".join(near), ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        listed = [(title, [(name, text) for name, (_, text) in said.items()]) for title, said in GROUPS.items()]
        for title, lines in ((EXAMPLES[0], list(EXAMPLES[1].items())), *listed):
            with formatter.section(title):
                formatter.write_dl(lines)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from .options import say_line

            say_line(f"{error.option_name}: options follow the command: sizer check config.json --tp 8 (sizer --help)")
        ctx.exit(2)

    def invoke(self, ctx: click.Context) -> object:
        try:
            with line():
                return super().invoke(ctx)
        except Exception as error:
            from .options import say_line, usage_text

            if isinstance(error, click.UsageError):  # one line, as for every other mistake: click's own message is four
                say_line(usage_text(error))
            elif said := error if isinstance(error, InputError) else blamed(error):
                say_line(str(said))
            else:
                raise
        ctx.exit(2)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(None, "-V", "--version", package_name=DISTRIBUTION)
def main() -> None:
    """Size transformer architectures for the hardware that will train them."""
