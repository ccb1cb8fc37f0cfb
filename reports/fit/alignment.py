"""The ceilings of the kernels that serve misaligned products, from a sweep over misaligned dimensions.

The reference of a misaligned product is the model's aligned time, scaled by how the sweep's own aligned products came
out, so that only alignment is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.calibrate import Record
from shapes.cost.constants import GemmConstants, alignment_constants, gemm_constants
from shapes.cost.corrections import CLASSES, AlignmentConstants, misaligned_seconds, moved_bytes, operand_classes
from shapes.cost.gemm import aligned_seconds, throttled
from shapes.device import Device
from shapes.frozen import frozen
from shapes.operators.types import Layout

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

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

    named = sorted({record.layout for record in records})
    layouts = [_Layout.of([one for one in records if one.layout == name], constants) for name in named]
    in_ab, in_c = (
        np.bincount(np.concatenate(own), minlength=4)[:3] >= ENOUGH
        for own in ([one.worse for one in layouts], [one.of_c for one in layouts])
    )
    ceilings = bool(np.isfinite(before.ceiling).any())
    kind, present = ("ceiling", before.ceiling) if ceilings else ("share", before.share)
    begin = np.clip(np.where(np.isfinite(present), present, START * constants.flops_per_s), 0.01, None)
    scale = begin if ceilings else np.ones(3)
    start = np.concatenate([begin / scale, np.clip(before.c_share, 0.01, 2.0)])

    def trial(theta: Array) -> AlignmentConstants:
        ab = tuple(np.where(in_ab, theta[:3] * scale, present).tolist())
        c_share = tuple(np.where(in_c, theta[3:], before.c_share).tolist())
        fitted: dict[str, Any] = {kind: ab, "c_share": c_share, "error": UNKNOWN, "error_p95": UNKNOWN}
        return replace(before, family="own", tier="measured", **fitted)

    def residuals(theta: Array) -> Array:
        c = trial(theta)
        return np.concatenate([one.log_error(c, constants) for one in layouts])

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


@frozen
class _Layout:
    """The records of one layout as arrays.

    They are m, n, k and batch, the model's aligned times, logarithms of measured ones scaled to them;
    ``worse``, ``of_c``: alignment classes of the worse of A and B, and of C.
    """

    layout: Layout
    dims: tuple[Integers, Integers, Integers, Integers]
    aligned: Array
    log_measured: Array
    worse: Integers
    of_c: Integers

    @staticmethod
    def of(records: Sequence[Record], constants: GemmConstants) -> _Layout:
        layout: Layout = records[0].layout  # type: ignore[assignment]  # reading checked it
        dims = np.array([(one.m, one.n, one.k, one.batch) for one in records], dtype=np.int64).T
        aligned = aligned_seconds(dims.astype(float), moved_bytes(dims.astype(float), SIZE, SIZE), constants)
        m, n, k, batch = dims
        of_a, of_b, of_c = operand_classes((m, n, k), (SIZE, SIZE, SIZE), layout)
        worse = np.minimum(of_a, of_b)
        log_measured = np.log([one.seconds for one in records])
        straight = np.minimum(worse, of_c) == len(CLASSES) - 1
        if straight.any():
            log_measured -= np.median((log_measured - np.log(aligned))[straight])
        return _Layout(layout, (m, n, k, batch), aligned, log_measured, worse, of_c)

    def log_error(self, c: AlignmentConstants, constants: GemmConstants) -> Array:
        sizes, launch_s, sustained = (SIZE, SIZE, SIZE), constants.launch_s, partial(throttled, c=constants)
        extra = misaligned_seconds(self.dims, sizes, self.layout, self.aligned, launch_s, c, sustained)
        error: Array = np.log(self.aligned + sum(extra)) - self.log_measured
        return error


def add_alignment(
    device: Device, records: Sequence[Record], cost: dict[str, Any], progress: Callable[[str], None]
) -> None:
    """The device's own kernels for misaligned products into ``cost``, where there are records of them."""
    kept = [record for record in records if record.dtype in ("bf16", "fp16")]
    dtype = "bf16" if "bf16" in device.peak_flops else "fp16"
    if all(record.aligned for record in kept) or not device.has_matrix_units(dtype):
        return
    constants, _ = gemm_constants(device, dtype)
    cost["alignment"] = alignment_table(fit_alignment(kept, constants, alignment_constants(device, dtype)), device)
    progress(f"{device.name}: alignment fitted on {len(kept)} products")
