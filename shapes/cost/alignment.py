"""What a leading dimension off the vector width costs, per operand.

Tensor-core kernels load 16-byte vectors and 128-byte lines; Hopper's and Blackwell's copy engine (TMA) takes only
strides that are multiples of 16 bytes. A matrix whose leading dimension is off is served by an older or narrower
kernel: the whole product slows by the worst operand's penalty, and each further operand adds a part of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.operators.types import Layout

Array = NDArray[np.float64]

OPERANDS = ("A", "B", "C")
#: Bytes to which a leading dimension can be aligned, as far as a kernel cares: beyond a 128-byte line nothing is won.
LEVELS = (1, 2, 4, 8, 16, 32, 64, 128)

#: layout -> which of m, n, k (0, 1, 2) is the leading dimension of A, B, C (table of shapes.operators.types).
LEADING: dict[str, tuple[int, int, int]] = {
    "tn": (2, 2, 1),
    "nn": (2, 1, 1),
    "nt": (0, 1, 1),
    "tt": (0, 2, 1),
}


@dataclass(frozen=True, slots=True)
class AlignmentConstants:
    """Penalties by operand for each of LEVELS: the share of an aligned product's time that is added.

    Never rising with the level, so that more alignment is never predicted slower. ``further`` is the part of its own
    penalty that every operand but the worst adds. ``source`` is "public" until the device's own sweep is fitted.
    """

    penalty: tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]
    further: float
    source: str

    @classmethod
    def from_table(cls, table: Any) -> AlignmentConstants:
        rows = tuple(_falling(table[operand]) for operand in OPERANDS)
        return cls((rows[0], rows[1], rows[2]), float(table["further"]), str(table["source"]))


def _falling(levels: Any) -> tuple[float, ...]:
    values = np.maximum.accumulate(np.asarray(levels, dtype=float)[::-1])[::-1]
    return tuple(float(value) for value in values)


def level(dimension: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Index into LEVELS of the largest power of two that divides ``dimension`` x ``size`` bytes, at most 128."""
    # or-ing 128 in caps the lowest set bit at 128; the position of that bit is the level.
    lowest = dimension * size | LEVELS[-1]
    index: NDArray[np.int64] = np.log2(lowest & -lowest).astype(np.int64)
    return index


def penalties(
    m: NDArray[np.int64],
    n: NDArray[np.int64],
    k: NDArray[np.int64],
    sizes: tuple[int, int, int],
    layout: Layout,
    constants: AlignmentConstants,
) -> tuple[Array, Array, Array]:
    """Share of the aligned time that A's, B's and C's leading dimension adds; ``sizes`` are bytes per element."""
    dimensions = (m, n, k)
    own = [
        np.asarray(row)[level(dimensions[which], size)]
        for row, which, size in zip(constants.penalty, LEADING[layout], sizes, strict=True)
    ]
    worst = np.argmax(np.broadcast_arrays(*own), axis=0)
    a, b, c = (np.where(worst == index, value, constants.further * value) for index, value in enumerate(own))
    return a, b, c
