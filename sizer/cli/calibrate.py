"""`sizer calibrate`: fit a device's constants to measurements."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shapes.errors import InputError
from sizer.cli.options import say, write_answer

if TYPE_CHECKING:
    from shapes.calibrate import Record


@click.command("calibrate")
@click.option("--device", metavar="NAME", help="Whose constants. [default: h100-sxm; with --quick what is here]")
@click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="PATH",
    help="Measurements: parquet, CSV, JSONL or sizer's database. Repeatable.",
)
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

    The present constants (or a relative's) are pulled towards what was measured: the more products, the further.
    Reports the error on n values that the fit has not seen.
    """
    from shapes.calibrate import calibrate, write_tables
    from shapes.device import DEFAULT_DEVICE, load_device

    if bool(sources) == quick:
        raise InputError("expected --from PATH or --quick, and not both")
    tell = partial(click.echo, err=True)
    records: tuple[Record, ...] = ()
    if quick:
        from shapes.calibrate.run import measure_quick
        from shapes.measure import InProcess
        from shapes.measure.store import Store
        from sizer.checking.measured import device_at_hand

        session = InProcess()
        here = device_at_hand(session.environment, device)
        if here is None:
            raise InputError(
                f"measuring is on {session.environment.device}: expected a .toml file of it",
                key="--device",
                value=device or "none",
            )
        target = here
        dtype = "bf16" if "bf16" in target.peak_flops else "fp16"
        with Store.open(store, set_aside=True) as kept:
            records = measure_quick(dtype, largest=largest, executor=session, store=kept, progress=tell)
    else:
        target = load_device(device or DEFAULT_DEVICE)
    result = calibrate(target, sources, records=records, seed=seed, progress=tell)
    write_answer("calibrate", result)
    if write:
        write_tables(Path(target.origin), result.tables)
        say(f"wrote [cost], [error] and [provenance] of {target.origin}")
    else:
        say("nothing written (--write writes)")
