"""A sweep over misaligned dimensions -> the ceilings of the kernels that serve them.

The reference of a misaligned product is the model's aligned time, scaled by how the sweep's own aligned products came
out, so that only alignment is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.calibrate.data import Record
from shapes.cost.alignment import CLASSES, AlignmentConstants, misaligned_seconds, operand_classes
from shapes.cost.constants import GemmConstants
from shapes.cost.gemm import aligned_seconds
from shapes.device import Device
from shapes.operators.types import Layout

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Triple = tuple[float, float, float]

#: Bytes per element of the products looked at: bf16 and fp16, which the sweep covers in full.
SIZE = 2
#: A class is believed from this many products on; one with fewer keeps what was known of it.
ENOUGH = 3
#: Where the fit of a kernel without a known ceiling starts: a share of the aligned kernels' speed.
START = 0.7
#: Errors by class of kernels that nobody judged.
UNKNOWN = (0.0, 0.0, 0.0)


def fit_alignment(
    records: Sequence[Record], constants: GemmConstants, before: AlignmentConstants
) -> AlignmentConstants:
    """Constants from 16-bit ``records`` (aligned ones among them) by robust least squares on log time.

    Where ``before`` knows ceilings they are fitted, else the shares of the aligned time; C's share always. A class that
    too few records have keeps what ``before`` says.
    """
    from scipy.optimize import least_squares

    groups = [_Layout.of(list(group), constants) for group in _by(records, "layout")]
    ceilings = bool(np.isfinite(before.ceiling).any())
    in_ab, in_c = (
        np.bincount(np.concatenate(own), minlength=4)[:3] >= ENOUGH
        for own in ([group.worse for group in groups], [group.of_c for group in groups])
    )
    present = before.ceiling if ceilings else before.share
    begin = np.where(np.isfinite(present), present, START * constants.flops_per_s) if ceilings else np.array(present)
    begin, scale = np.clip(begin, 0.01, None), begin if ceilings else np.ones(3)
    start = np.concatenate([begin / scale, np.clip(before.c_share, 0.01, 2.0)])

    def trial(theta: Array) -> AlignmentConstants:
        ab: Triple = tuple(np.where(in_ab, theta[:3] * scale, present).tolist())
        c_share: Triple = tuple(np.where(in_c, theta[3:], before.c_share).tolist())
        own = replace(before, family="own", tier="measured", c_share=c_share, error=UNKNOWN, error_p95=UNKNOWN)
        return replace(own, ceiling=ab) if ceilings else replace(own, share=ab)

    def residuals(theta: Array) -> Array:
        c = trial(theta)
        return np.concatenate([group.log_error(c, constants.launch_s) for group in groups])

    # A ceiling within a factor of ten of what was known, a share up to five times the aligned time, C's up to two.
    low, high = np.repeat([0.1 if ceilings else 0.0, 0.0], 3), np.repeat([10.0 if ceilings else 5.0, 2.0], 3)
    found = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.1, diff_step=1e-4)
    return trial(found.x)


def alignment_table(c: AlignmentConstants, device: Device) -> dict[str, Any]:
    """``[cost.alignment]`` of a device file: what `AlignmentConstants.from_table` reads back."""
    clock_mhz = device.compute.clock_mhz or 1000.0
    per_clock = clock_mhz * 1e6 * device.compute.units
    table: dict[str, Any] = {
        "family": c.family,
        "tier": c.tier,
        "clock_mhz": clock_mhz,
        "alone": c.alone,
        "prologue_steps": c.prologue_steps,
        "both": c.both,
    }
    rates = [value / per_clock for value in c.ceiling]
    for key, values in (("flops_per_clock_per_unit", rates), ("share", c.share), ("c_share", c.c_share)):
        named = {name: round(value, 4) for name, value in zip(CLASSES[:3], values, strict=True) if np.isfinite(value)}
        if named:
            table[key] = named
    return table


class _Layout:
    """The records of one layout as arrays, measured times scaled to the model's aligned ones."""

    def __init__(
        self, dims: tuple[Integers, Integers, Integers, Integers], layout: Any, aligned: Array, measured: Array
    ):
        self.dims, self.layout, self.aligned = dims, layout, aligned
        of_a, of_b, self.of_c = operand_classes(dims[0], dims[1], dims[2], (SIZE, SIZE, SIZE), layout)
        self.worse = np.minimum(of_a, of_b)
        straight = np.minimum(self.worse, self.of_c) == len(CLASSES) - 1
        self.log_measured = np.log(measured)
        if straight.any():
            self.log_measured -= np.median((self.log_measured - np.log(aligned))[straight])

    @classmethod
    def of(cls, records: Sequence[Record], constants: GemmConstants) -> _Layout:
        m, n, k, batch = (
            np.array([getattr(one, name) for one in records], dtype=np.int64) for name in ("m", "n", "k", "batch")
        )
        fm, fn, fk, fb = (dim.astype(float) for dim in (m, n, k, batch))
        aligned = aligned_seconds(fm, fn, fk, fb, SIZE, SIZE, constants)
        layout: Layout = records[0].layout  # type: ignore[assignment]  # reading checked it
        return cls((m, n, k, batch), layout, aligned, np.array([one.seconds for one in records]))

    def log_error(self, c: AlignmentConstants, launch_s: float) -> Array:
        extra = misaligned_seconds(self.dims, (SIZE, SIZE, SIZE), self.layout, self.aligned, launch_s, c)
        error: Array = np.log(self.aligned + sum(extra)) - self.log_measured
        return error


def by_dtype(records: Sequence[Record]) -> Mapping[str, list[Record]]:
    """Records of each dtype."""
    return {group[0].dtype: group for group in _by(records, "dtype")}


def _by(records: Sequence[Record], key: str) -> list[list[Record]]:
    ordered = sorted(records, key=lambda record: str(getattr(record, key)))
    return [list(group) for _, group in groupby(ordered, key=lambda record: str(getattr(record, key)))]
