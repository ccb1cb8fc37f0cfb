"""`sizer calibrate`: fit a device's constants to measurements."""

from __future__ import annotations

from pathlib import Path

import click

from shapes.errors import InputError
from sizer.cli.options import Command, declared, say, say_line, write_answer
from sizer.process import KEPT, working


@click.command(cls=Command)
@declared("calibrate")
def command(device: str | None, store: str | None, write: bool) -> None:
    """Fit a device's cost constants from its products in the store (`sizer bench` measures some, `sizer store import`
    adds others').

    The present constants (or a relative's) are pulled towards what was measured: the more products, the further.
    Reports the error on n values that the fit has not seen.
    """
    from shapes.calibrate import calibrate, stored_products, write_tables
    from shapes.device import load_device
    from shapes.measure.store import Store
    from sizer.cli.executors import chosen_executor

    target = load_device(device) if device is not None else None
    if target is None:
        here = chosen_executor(None, None).environment
        target = here.accelerator
    if target is None:
        raise InputError(f"here is {here.device}: expected a .toml file of it", key="--device", value="none")
    with Store.open(store, create=False) as kept:
        records = stored_products(kept, target)
        if not records:
            expected = f"expected measured products of {target.name}: `sizer bench --suite FILE` measures some"
            raise InputError(expected, where=str(kept.path))
    with working("fitting", KEPT):
        result = calibrate(target, records, progress=say_line)
    write_answer("calibrate", result)
    if write:
        write_tables(Path(target.origin), result.tables)
        say(f"wrote [cost], [error] and [provenance] of {target.origin}")
    else:
        say("nothing written (--write writes)")
