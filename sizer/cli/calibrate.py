"""`sizer calibrate`: fit a device's constants to measurements."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shapes.errors import InputError

if TYPE_CHECKING:
    from shapes.calibrate import Record
    from shapes.device import Device
    from shapes.measure.environment import Environment


@click.command("calibrate")
@click.option("--device", metavar="NAME", help="Whose constants. [default: h100-sxm; with --quick what is here]")
@click.option(
    "--from", "sources", multiple=True, metavar="PATH",
    help="Measurements: parquet, CSV, JSONL, sizer's database, or a folder of aiconfigurator's tables. Repeatable.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Measure about 50 chosen products on the device at hand, and refine.")
@click.option(
    "--largest", type=click.IntRange(128), default=16384, show_default=True, help="Largest side with --quick."
)
@click.option(
    "--store", metavar="FILE", help="With --quick: the database. [default: SIZER_STORE, else the user's cache]"
)
@click.option("--write", is_flag=True, help="Write the constants to the device's file.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of what is held out.")
def command(
    device: str | None, sources: tuple[str, ...], quick: bool, largest: int, store: str | None, write: bool, seed: int
) -> None:
    """Fit a device's cost constants from measurements.

    Reports the error on n values that the fit has not seen. Fewer than 1000 products refine the present constants.
    """
    from shapes.calibrate import calibrate, write_tables
    from shapes.device import load_device

    if bool(sources) == quick:
        raise InputError("expected --from PATH or --quick, and not both")
    tell = partial(click.echo, err=True)
    records: tuple[Record, ...] = ()
    if quick:
        from shapes.calibrate.quick import measure_quick
        from shapes.measure import InProcess
        from shapes.store import Store

        session = InProcess()
        target = _device_here(session.environment, device)
        dtype = "bf16" if "bf16" in target.peak_flops else "fp16"
        with Store.open(store) as kept:
            records = measure_quick(dtype, largest=largest, executor=session, store=kept, progress=tell)
    else:
        target = load_device(device or "h100-sxm")
    result = calibrate(target, sources, records=records, seed=seed, progress=tell)
    for name, error in result.error.items():
        text = ", ".join(f"{k} {v:.1%}" for k, v in error.items()) if isinstance(error, dict) else f"{error:.1%}"
        click.echo(f"{name:>20}  {text}")
    if write:
        write_tables(Path(target.origin), result.tables)
        click.echo(f"wrote [cost], [error] and [provenance] of {target.origin}")
    else:
        click.echo("nothing written (--write writes)")


def _device_here(environment: Environment, named: str | None) -> Device:
    """The device measured on: the known one at hand, or a file of the person's own. InputError where it is another."""
    from shapes.device import load_device
    from sizer.benching import device_of

    here = device_of(environment)
    if named is None or not named.endswith(".toml"):
        wanted = load_device(named).name if named is not None else None
        if here is None or wanted not in (None, here.name):
            raise InputError(
                f"measuring is on {environment.device}: expected its own name, or a .toml file of it",
                key="--device", value=named or "none",
            )  # fmt: skip
        return here
    return load_device(named)
