"""`sizer deploy`."""

from __future__ import annotations

import click

from shapes.engines import ALIASES, ENGINES, FORMATS
from sizer.cli.numbers import COUNT
from sizer.cli.options import Asked, config_options, device_option, option, output_options, subcommand, write_answer


@subcommand()
@click.argument("config")
@device_option
@option("--tp", type=COUNT, default=1, show_default=True, help="Tensor-parallel ranks.")
@option("--ep", type=COUNT, default=1, show_default=True, help="Ranks that experts are spread over, whole.")
@option(
    "--recipe",
    "runs_in",
    default="bf16",
    show_default=True,
    metavar="NAME",
    help=f"Format: {', '.join((*FORMATS, *ALIASES))}.",
)
@option("--engine", "engines", multiple=True, metavar="NAME", help=f"Only these of {', '.join(ENGINES)}.")
@config_options
@output_options("deploy")
def command(asked: Asked) -> None:
    """Say whether engines load CONFIG over so many ranks, pad it, fall back or refuse it, with each line's source.

    Exit status: 0 if no engine refuses it, 1 if one does, 2 for what cannot be read.
    """
    from sizer.answers.deploy import deploy

    found = deploy(
        asked.source(asked.config),
        tp=asked.tp,
        ep=asked.ep,
        recipe=asked.runs_in,
        device=asked.device,
        engines=asked.engines,
        config_format=asked.config_format,
    )
    write_answer("deploy", found, asked.format_, asked.output)
    if not found.ok:
        raise SystemExit(1)
