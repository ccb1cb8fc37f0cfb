"""Measurements of one device -> the [cost], [error] and [provenance] tables of its file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np

from shapes.calibrate.data import Products, Record, held_out, products
from shapes.calibrate.device_file import gemm_table
from shapes.calibrate.fitting import bounds, fit_closed_form, grouped
from shapes.cost.alignment import Booleans
from shapes.cost.constants import GemmConstants, gemm_constants
from shapes.device import Device
from shapes.dtypes import BYTES
from shapes.frozen import frozen
from shapes.json_form import Values, plain

#: How far a refined constant may stray from where it was, in log units: what differs between relatives.
PRIOR = 0.15
#: Stated, not measured: no public table holds fused elementwise kernels.
STATED = {"memory_bound": 0.15}

Progress = Callable[[str], None]
#: Products that may be seen, the device, the dtype and a seed -> constants.
Fit = Callable[[Products, Device, str, int], GemmConstants]


@frozen
class Calibration:
    """What a calibration found: the owned tables of a device file, and a line for each error."""

    device: str
    cost: dict[str, Any]
    error: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def tables(self) -> dict[str, Values]:
        return {"cost": self.cost, "error": self.error, "provenance": self.provenance}


def calibrate(
    device: Device,
    records: Sequence[Record],
    *,
    seed: int = 0,
    fit: Fit | None = None,
    data: str | None = None,
    progress: Progress = lambda _: None,
) -> Calibration:
    """Pull ``device``'s constants towards ``records``.

    Errors are those of constants that have not seen the held-out n, which are the constants returned. ``fit`` is what
    is done to the products that may be seen (`refine`); ``data`` says where the records are from.
    """
    cost, error = plain(device.cost), {**STATED, **plain(device.errors)}
    provenance: dict[str, Any] = {
        # Constants that are not fitted anew stay, and so does what they were fitted on.
        **{dtype: table for dtype, table in plain(device.provenance).items() if dtype in cost},
        "data": data or "; ".join(sorted({record.source for record in records})),
        "date": date.today().isoformat(),
        "seed": seed,
        "held_out": "30% of the n values whole; of the sequence lengths for attention",
    }
    for dtype, group in grouped(records, "dtype").items():
        measured = products(group, dtype)
        if dtype not in device.peak_flops or len(measured) == 0:
            continue
        hidden = held_out(measured.n, seed)
        constants = (fit or refine)(measured[~hidden], device, dtype, seed)
        cost[dtype], error[dtype] = gemm_table(constants), _errors(measured, constants, dtype, hidden)
        provenance[dtype] = _provenance(measured, group, hidden)
        figures = ", ".join(f"{name} {value:.1%}" for name, value in error[dtype].items())
        progress(f"{device.name} {dtype}: error on held-out n: {figures}")
    return Calibration(device.name, cost, error, provenance)


def _provenance(measured: Products, group: Sequence[Record], hidden: Booleans) -> Values:
    return {
        "shapes": len(measured),
        "sources": sorted({record.source for record in group}),
        "held_out_n": [int(n) for n in np.unique(measured.n[hidden])],
    }


def _errors(measured: Products, constants: GemmConstants, dtype: str, hidden: Booleans) -> dict[str, float]:
    """Mean error by regime on the rows that the fit has not seen."""
    off, large = measured.errors(constants, BYTES[dtype], max(2, BYTES[dtype])), measured.large
    return {
        name: round(float(off[rows & hidden].mean()), 4)
        for name, rows in (("large", large), ("small", ~large))
        if (rows & hidden).any()
    }


def refine(measured: Products, device: Device, dtype: str, seed: int = 0) -> GemmConstants:
    """The device's present (or borrowed) constants, pulled towards measured products: the more, the further.

    The correction tables stay; both sets move, the small one by the same factors. Cells go: their bounds on growth hold
    of the constants that they were fitted over.
    """
    present = replace(gemm_constants(device, dtype)[0], cells=None)
    sizes = (BYTES[dtype], max(2, BYTES[dtype]))
    limits = {}
    for name, (low, high) in bounds(device, dtype).items():
        now = getattr(present, name)
        limits[name] = (0.5 * now if 0 < now <= low else low, 2 * now if now >= high else high)
    refined = fit_closed_form(measured, present, limits, sizes, starts=1, seed=seed, prior=PRIOR)
    small = present.small
    if small is None:
        return refined
    rates = ("flops_per_s", "bandwidth_bytes_per_s", "cache_bandwidth_bytes_per_s", "launch_s")
    moved = {name: getattr(small, name) * getattr(refined, name) / getattr(present, name) for name in rates}
    return replace(refined, small=replace(small, **moved))
