"""`sizer deploy`."""

from __future__ import annotations

import click

from shapes.engines import ALIASES, ENGINES, FORMATS
from sizer.cli.numbers import COUNT
from sizer.cli.options import config_argument, config_options, device_option, output_options, write_answer


@click.command()
@click.argument("config")
@device_option
@click.option("--tp", type=COUNT, default=1, show_default=True, help="Tensor-parallel ranks.")
@click.option("--ep", type=COUNT, default=1, show_default=True, help="Ranks that experts are spread over, whole.")
@click.option(
    "--recipe", default="bf16", show_default=True, metavar="NAME", help=f"Format: {', '.join((*FORMATS, *ALIASES))}."
)
@click.option("--engine", "engines", multiple=True, metavar="NAME", help=f"Only these of {', '.join(ENGINES)}.")
@config_options
@output_options("deploy")
@click.pass_context
def command(
    context: click.Context,
    config: str,
    device: str,
    tp: int,
    ep: int,
    recipe: str,
    engines: tuple[str, ...],
    config_format: str | None,
    format_: str,
    output: str | None,
) -> None:
    """Say whether engines load CONFIG over so many ranks, pad it, fall back or refuse it, with each line's source.

    Exit status: 0 if no engine refuses it, 1 if one does, 2 for what cannot be read.
    """
    from sizer.answers.deploy import deploy

    found = deploy(
        config_argument(config),
        tp=tp,
        ep=ep,
        recipe=recipe,
        device=device,
        engines=engines,
        config_format=config_format,
    )
    write_answer("deploy", found, format_, output)
    context.exit(0 if found.ok else 1)
