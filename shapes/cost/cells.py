"""What measurements say of single cells (m, n) of the published tables: a factor by k there, and nothing elsewhere.

What waves, tails and k leave unexplained is mostly which kernel a library takes for this m and n. A cell holds the
logarithm of measured over modelled time at a few k, linear in log2 k between them and constant outside. It speaks of
what the tables are of: forward products (layout tn) of 16-bit elements, unbatched, of these very m and n, k from 512 on
and a multiple of 64. Cells are so bound that growth by a tile or to the double saves nothing by them
(reports/fit/cells.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.cost.correction import sides
from shapes.errors import InputError
from shapes.frozen import frozen

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Indices = NDArray[np.intp]

#: The layout that the tables are of, the least k, and what k is a multiple of.
LAYOUT, LEAST_K, STEP_K = "tn", 512, 64
#: Entries are whole multiples of this.
UNIT = 1e-4


@frozen
class Cells:
    """Values of m and of n, knots of log2 k, and a line for each m: of each n, an entry for each knot, in UNITs.

    ``-`` stands where a cell has no measurements. Kept as text: it is read once a product is priced.
    """

    m: tuple[int, ...]
    n: tuple[int, ...]
    log2_k: tuple[float, ...]
    entries: str

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Cells:
        """From the ``cells`` table of a device file."""
        m, n = (tuple(int(value) for value in table[axis]) for axis in "mn")
        return cls(m, n, tuple(float(knot) for knot in table["log2_k"]), str(table["log_factor"]))

    @classmethod
    def of(cls, m: Integers, n: Integers, log2_k: tuple[float, ...], log_factor: Array) -> Cells:
        """From an array by m, n and knot; NaN where nothing was measured."""
        lines = (
            " ".join("-" if np.isnan(one) else str(round(one / UNIT)) for one in row.ravel().tolist()) + "\n"
            for row in log_factor
        )
        return cls(tuple(m.tolist()), tuple(n.tolist()), log2_k, "".join(lines))

    def table(self) -> dict[str, Any]:
        """What `from_table` reads."""
        return {"m": list(self.m), "n": list(self.n), "log2_k": list(self.log2_k), "log_factor": self.entries}

    def hit(self, m: Integers, n: Integers, k: Integers, batch: Integers) -> Indices:
        """Which of these products of LAYOUT a cell speaks of."""
        found = _read(self)
        cell = found.at(m, n)
        rows = np.flatnonzero((cell >= 0) & (batch == 1) & (k >= LEAST_K) & (k % STEP_K == 0))
        hit: Indices = rows[found.known[cell[rows]]]
        return hit

    def corrected(self, seconds: Array, m: Integers, n: Integers, k: Integers, batch: Integers) -> Array:
        """``seconds`` of products of LAYOUT, those of a cell times its factor."""
        rows = self.hit(m, n, k, batch)
        if not rows.size:
            return seconds
        found = _read(self)
        cell, total = found.at(m[rows], n[rows]), np.zeros(rows.size)
        for knot, share in sides(np.log2(k[rows]), self.log2_k):
            total += found.log_factor[cell, knot] * share
        corrected = seconds.copy()
        corrected[rows] *= np.exp(total)
        return corrected


@frozen
class _Read:
    """Entries by cell and knot; by m where its row of cells starts, by n the place in it, far below 0 where none is."""

    by_m: Integers
    by_n: Integers
    log_factor: Array
    known: NDArray[np.bool_]

    def at(self, m: Integers, n: Integers) -> Integers:
        """Index of each product's cell, below 0 where it has none."""
        last_m, last_n = len(self.by_m) - 1, len(self.by_n) - 1
        cell: Integers = self.by_m[np.minimum(m, last_m)] + self.by_n[np.minimum(n, last_n)]
        return cell


@lru_cache(maxsize=16)
def _read(cells: Cells) -> _Read:
    rows = [line.split() for line in cells.entries.splitlines()]
    width = len(cells.n) * len(cells.log2_k)
    if len(rows) != len(cells.m) or any(len(row) != width for row in rows) or len(cells.log2_k) < 2:
        raise InputError(f"expected {len(cells.m)} lines of {width} entries", key="cells.log_factor", value=len(rows))
    try:
        entries = np.array([[float("nan") if one == "-" else float(one) for one in row] for row in rows])
    except ValueError as error:
        raise InputError(f"expected numbers: {error}", key="cells.log_factor") from None
    log_factor = entries.reshape(len(cells.m) * len(cells.n), len(cells.log2_k)) * UNIT
    none = -log_factor.shape[0] - 1
    by_m, by_n = (np.full(max(values) + 2, none, dtype=np.int64) for values in (cells.m, cells.n))
    by_m[list(cells.m)] = np.arange(len(cells.m)) * len(cells.n)
    by_n[list(cells.n)] = np.arange(len(cells.n))
    known: NDArray[np.bool_] = ~np.isnan(log_factor[:, 0])
    return _Read(by_m, by_n, log_factor, known)
