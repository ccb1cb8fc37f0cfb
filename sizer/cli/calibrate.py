"""`sizer calibrate`: fit a device's constants to measurements."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shapes.errors import InputError
from sizer.cli.options import device_option

if TYPE_CHECKING:
    from shapes.calibrate import Record


@click.command("calibrate")
@device_option
@click.option(
    "--from", "sources", multiple=True, metavar="PATH",
    help="Measurements: parquet, CSV, JSONL, sizer's database, or a folder of aiconfigurator's tables. Repeatable.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Measure about 50 chosen products on the device at hand, and refine.")
@click.option(
    "--largest", type=click.IntRange(128), default=16384, show_default=True, help="Largest side with --quick."
)
@click.option("--write", is_flag=True, help="Write the constants to the device's file.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of what is held out.")
def command(device: str, sources: tuple[str, ...], quick: bool, largest: int, write: bool, seed: int) -> None:
    """Fit a device's cost constants from measurements.

    Reports the error on n values that the fit has not seen. Fewer than 1000 products refine the present constants.
    """
    from shapes.calibrate import calibrate, write_tables
    from shapes.device import load_device

    if bool(sources) == quick:
        raise InputError("expected --from PATH or --quick, and not both")
    target = load_device(device)
    tell = partial(click.echo, err=True)
    records: tuple[Record, ...] = ()
    if quick:
        from shapes.calibrate.quick import measure_quick

        dtype = "bf16" if "bf16" in target.peak_flops else "fp16"
        records = measure_quick(dtype, largest=largest, progress=tell)
    result = calibrate(target, sources, records=records, seed=seed, progress=tell)
    for name, error in result.error.items():
        text = ", ".join(f"{k} {v:.1%}" for k, v in error.items()) if isinstance(error, dict) else f"{error:.1%}"
        click.echo(f"{name:>20}  {text}")
    if write:
        write_tables(Path(target.origin), result.tables)
        click.echo(f"wrote [cost], [error] and [provenance] of {target.origin}")
    else:
        click.echo("nothing written (--write writes)")
