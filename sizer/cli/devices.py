"""`sizer devices`."""

from __future__ import annotations

import click

from sizer.cli.options import output_options, write_answer


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@output_options("devices")
def command(names: tuple[str, ...], format_: str, output: str | None) -> None:
    """List the known accelerators, or show all that is known of those named, with its sources.

    NAME is a device's name in any spelling, what torch.cuda.get_device_name says, or a path to a device file (.toml).
    """
    from sizer.answers.devices import devices

    write_answer("devices", devices(names), format_, output)
