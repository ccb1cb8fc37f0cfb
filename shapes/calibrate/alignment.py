"""A sweep over misaligned dimensions -> penalties per operand and level.

The reference of a misaligned product is the model's aligned time, scaled by how the sweep's own aligned products came
out, so that only alignment is left. Products with one operand off give that operand's penalty; those with several give
the part that every operand but the worst adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from shapes.calibrate.data import Record
from shapes.cost.alignment import LEADING, LEVELS, AlignmentConstants, level
from shapes.cost.constants import GemmConstants
from shapes.cost.gemm import aligned_seconds
from shapes.dtypes import BYTES

#: Bytes per element of the products looked at: bf16 and fp16, which the sweep covers in full.
SIZE = 2
#: A level is believed from this many products on; a level with fewer keeps what the device file says.
ENOUGH = 3


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
    """Penalties from ``records`` (aligned ones among them); levels without data keep ``before``'s."""
    ratio = slowdowns(records, constants)
    levels = [operand_levels(record) for record in records]
    top = len(LEVELS) - 2
    penalty = [list(row) for row in before.penalty]
    single: dict[tuple[int, int], list[float]] = {}
    for row, slow in zip(levels, ratio.tolist(), strict=True):
        off = [(operand, min(at, top)) for operand, at in enumerate(row) if at < top]
        if len(off) == 1:
            single.setdefault(off[0], []).append(slow - 1)
    for (operand, at), values in single.items():
        if len(values) >= ENOUGH:
            penalty[operand][at] = max(0.0, float(np.median(values)))
    rows = [tuple(np.maximum.accumulate(row[::-1])[::-1].tolist()) for row in penalty]
    fitted = replace(before, penalty=(rows[0], rows[1], rows[2]), source=source)
    return replace(fitted, further=_further(levels, ratio.tolist(), fitted, top))


def _further(levels: Sequence[tuple[int, int, int]], ratio: Sequence[float], c: AlignmentConstants, top: int) -> float:
    """The part of its own penalty that each operand but the worst adds, by least squares over products with several."""
    pairs = []
    for row, slow in zip(levels, ratio, strict=True):
        own = sorted((c.penalty[operand][at] for operand, at in enumerate(row) if at < top), reverse=True)
        if len(own) > 1 and sum(own[1:]) > 0:
            pairs.append((sum(own[1:]), slow - 1 - own[0]))
    if len(pairs) < ENOUGH:
        return c.further
    rest, excess = np.array(pairs).T
    return float(np.clip(rest @ excess / (rest @ rest), 0.0, 1.0))


def by_dtype(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records of each dtype."""
    ordered = sorted(records, key=lambda record: record.dtype)
    return {dtype: list(group) for dtype, group in groupby(ordered, key=lambda record: record.dtype)}
