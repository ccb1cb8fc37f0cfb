"""A sweep over misaligned dimensions -> penalties per operand and level.

The reference of a misaligned product is the model's aligned time, scaled by how the sweep's own aligned products came
out, so that only alignment is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from shapes.calibrate.data import Record
from shapes.cost.alignment import LEADING, LEVELS, OPERANDS, AlignmentConstants, level
from shapes.cost.constants import GemmConstants
from shapes.cost.gemm import aligned_seconds
from shapes.dtypes import BYTES

#: Bytes per element of the products looked at: bf16 and fp16, which the sweep covers in full.
SIZE = 2
#: A level is believed from this many products on; a level with fewer keeps what the device file says.
ENOUGH = 3
#: Where the penalties of fully aligned operands stand in the flattened table.
LAST = [len(LEVELS) * (row + 1) - 1 for row in range(len(OPERANDS))]


def operand_levels(record: Record) -> tuple[int, int, int]:
    """Index into LEVELS of A's, B's and C's leading dimension."""
    dimensions = np.array([record.m, record.n, record.k], dtype=np.int64)
    a, b, c = (int(level(dimensions[[which]], BYTES[record.dtype])[0]) for which in LEADING[record.layout])
    return a, b, c


def slowdowns(records: Sequence[Record], constants: GemmConstants) -> NDArray[np.float64]:
    """Measured over aligned time of 16-bit records, 1 on the median aligned one of its layout."""
    m, n, k, batch = (
        np.array([getattr(record, name) for record in records], dtype=float) for name in ("m", "n", "k", "batch")
    )
    measured = np.array([record.seconds for record in records])
    ratio: NDArray[np.float64] = measured / aligned_seconds(m, n, k, batch, SIZE, SIZE, constants)
    for layout in sorted({record.layout for record in records}):
        rows = np.array([record.layout == layout for record in records])
        straight = rows & np.array([record.aligned for record in records])
        if straight.any():
            ratio[rows] /= np.median(ratio[straight])
    return ratio


def fit_alignment(
    records: Sequence[Record], constants: GemmConstants, before: AlignmentConstants, source: str
) -> AlignmentConstants:
    """Penalties from ``records`` (aligned ones among them) by robust least squares on log time.

    All operands at once, for some are never off alone: forward, A and B both lead with k. A level that no record has
    keeps ``before``'s penalty, as far as the order of levels allows.
    """
    from scipy.optimize import least_squares

    target = np.log(slowdowns(records, constants))
    levels = np.array([operand_levels(record) for record in records])
    start = np.array(before.penalty)
    count = np.array([np.bincount(column, minlength=len(LEVELS)) for column in levels.T])
    pull = np.where(count < ENOUGH, 1.0, 0.01)

    def residuals(theta: NDArray[np.float64]) -> NDArray[np.float64]:
        penalty, further = theta[:-1].reshape(start.shape), theta[-1]
        own = penalty[np.arange(len(OPERANDS)), levels]
        worst = own.max(axis=1)
        slower = 1 + worst + further * (own.sum(axis=1) - worst)
        return np.concatenate([np.log(slower) - target, ((penalty - start) * pull).ravel()])

    begin = np.append(np.clip(start, 0.01, None).ravel(), np.clip(before.further, 0.05, 0.95))
    low, high = np.zeros(begin.size), np.append(np.full(start.size, 5.0), 1.0)
    # Beyond the last level nothing is lost, by definition.
    begin[LAST], high[LAST] = 5e-7, 1e-6
    result = least_squares(residuals, begin, bounds=(low, high), loss="soft_l1", f_scale=0.1)
    table = np.round(result.x[:-1].reshape(start.shape), 4)
    rows = [tuple(np.maximum.accumulate(row[::-1])[::-1].tolist()) for row in table]
    return AlignmentConstants((rows[0], rows[1], rows[2]), round(float(result.x[-1]), 4), source)


def by_dtype(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records of each dtype."""
    ordered = sorted(records, key=lambda record: record.dtype)
    return {dtype: list(group) for dtype, group in groupby(ordered, key=lambda record: record.dtype)}
