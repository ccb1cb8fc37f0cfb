"""Fit of the cells: what measured products of one (m, n) take beyond the tables, bound never to let growth save by it.

A quadratic program: squared log errors on the k that may be seen, drawn towards 0, under a linear inequality for every
pair of sizes where one grows into the other (by a tile, to the double or, of few rows, by 64 columns) and at least one
has a cell. Which pairs those are is known (a cell is a size, not a range), so that all of them are looked at, at every
k: what is written holds by enumeration, not by luck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import spsolve

from fit.grids import cells_of_array
from fit.physics import GROWTHS, LARGEST_K, TOLERANCE, grown
from shapes.calibrate import Products
from shapes.cost.constants import GemmConstants
from shapes.cost.corrections import LEAST_K, STEP_K, UNIT, Cells, moved_bytes, sides
from shapes.cost.gemm import aligned_seconds, least_seconds
from shapes.device import Device

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Knots of log2 k: on k that were held out, four are worth 0.0 to 0.1 points more, one costs 0.1 to 0.5.
LOG2_K = (9.0, 11.5, 14.0)
#: Products by which a cell is drawn towards 0; products of its own that it takes.
SHRINKAGE, FEWEST = 3.0, 6
#: The largest entry.
MOST = 0.25
#: Least growth of log time by a tile and to the double, and what is asked for while fitting: rounding takes of it.
LIMITS, ASKED = (float(np.log(1 - TOLERANCE)), 0.0), (-8.5e-3, 2 * UNIT)
#: While fitting, every k up to this is looked at and some beyond.
DENSE = 4096
ROUNDS = 25


@dataclass(frozen=True, slots=True)
class Pairs:
    """Sizes ``before`` and ``after`` growth (rows m, n, k, batch), their cells (-1: none), and what each pair asks.

    ``least``: by how much the cells' log factor has to grow, what the constants leave of it.
    """

    before: Integers
    after: Integers
    of: tuple[Integers, Integers]
    least: Array

    def __getitem__(self, rows: NDArray[np.generic]) -> Pairs:
        return Pairs(self.before[:, rows], self.after[:, rows], (self.of[0][rows], self.of[1][rows]), self.least[rows])


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The values of m and n that have cells, what the constants without cells say, and who grows into whom."""

    m: Integers
    n: Integers
    measured: NDArray[np.bool_]
    seconds: Callable[[Integers], Array]

    def cell(self, dims: Integers) -> Integers:
        """Index of each size's cell by m and n, -1 where none speaks of it."""
        m, n, k, batch = dims
        row, column = (np.clip(np.searchsorted(own, one), 0, len(own) - 1) for own, one in ((self.m, m), (self.n, n)))
        index = row * len(self.n) + column
        hit = (self.m[row] == m) & (self.n[column] == n) & (k >= LEAST_K) & (k % STEP_K == 0) & (batch == 1)
        return np.where(hit & self.measured[index], index, -1)

    def pairs(self, ks: Integers, least: float, doubled: float) -> Iterator[Pairs]:
        """Every cell at each of ``ks``, with what it grows into and what grows into it, a kind of growth at a time."""
        index = np.flatnonzero(self.measured)
        cells = np.stack([self.m[index // len(self.n)], self.n[index % len(self.n)]]).repeat(len(ks), axis=1)
        own = np.stack([*cells, np.tile(ks, len(index)), np.ones(cells.shape[1], np.int64)])
        seconds = self.seconds(own)
        for growth in (*GROWTHS, (3, None, np.inf)):
            asked = doubled if growth[1] is None else least
            after, there = grown(own, *growth, backwards=False)
            yield self._asked(own[:, there], after, asked - np.log(self.seconds(after) / seconds[there]))
            before, there = grown(own, *growth, backwards=True)
            # Sizes with cells have grown into this one already.
            alone = self.cell(before) < 0
            before, there = before[:, alone], np.flatnonzero(there)[alone]
            yield self._asked(before, own[:, there], asked - np.log(seconds[there] / self.seconds(before)))

    def _asked(self, before: Integers, after: Integers, least: Array) -> Pairs:
        # Where the constants alone fall by more, the cells may not add to it.
        return Pairs(before, after, (self.cell(before), self.cell(after)), np.minimum(least, 0.0))


def fit_cells(
    seen: Products, constants: GemmConstants, device: Device, progress: Callable[[str], None] = lambda _: None
) -> Cells:
    """The cells of ``seen`` (16-bit aligned products, of k that may be seen) over ``constants``."""
    bare = replace(constants, cells=None)

    def seconds(dims: Integers) -> Array:
        # Cells speak of aligned products alone.
        sizes = dims.astype(float)
        moved = moved_bytes(sizes, 2, 2)
        return np.maximum(aligned_seconds(sizes, moved, bare), least_seconds(sizes, moved, device, "bf16"))

    seen = seen[(seen.k >= LEAST_K) & (seen.k % STEP_K == 0)]
    m, n, k = (np.asarray(getattr(seen, axis)).astype(np.int64) for axis in "mnk")
    own_m, own_n = np.unique(m), np.unique(n)
    index = np.searchsorted(own_m, m) * len(own_n) + np.searchsorted(own_n, n)
    measured = np.bincount(index, minlength=len(own_m) * len(own_n)) >= FEWEST
    around = Neighbours(own_m, own_n, measured, seconds)
    off = np.log(seen.seconds / seconds(np.stack([m, n, k, np.ones_like(m)])))
    entries = _bound(_design(index, k, len(measured)), off, around, progress)
    entries = _released(np.round(entries / UNIT) * UNIT, around, progress)
    entries[~measured] = np.nan
    return cells_of_array(own_m, own_n, LOG2_K, entries.reshape(len(own_m), -1))


def _design(index: Integers, k: Integers, cells: int) -> sparse.csr_matrix:
    """One row a size: the weight of each entry in its log factor; none where ``index`` is below 0."""
    rows, columns, weights = [], [], []
    for knot, share in sides(np.log2(k), LOG2_K):
        there = np.flatnonzero(index >= 0)
        rows.append(there)
        columns.append(index[there] * len(LOG2_K) + knot[there])
        weights.append(share[there])
    data, row, column = (np.concatenate(parts) for parts in (weights, rows, columns))
    return sparse.csr_matrix((data, (row, column)), shape=(len(index), cells * len(LOG2_K)))


def _rows(pairs: Pairs, cells: int) -> sparse.csr_matrix:
    """One row a pair: by how much its log factor grows with each entry."""
    return _design(pairs.of[1], pairs.after[2], cells) - _design(pairs.of[0], pairs.before[2], cells)


def _growth(entries: Array, pairs: Pairs) -> Array:
    """By how much the log factors of ``pairs`` grow beyond what is asked of them."""
    slack: Array = _rows(pairs, len(entries)) @ entries.ravel() - pairs.least
    return slack


def _bound(design: sparse.csr_matrix, off: Array, around: Neighbours, progress: Callable[[str], None]) -> Array:
    """Entries by cell and knot, falling nowhere on the k looked at: cutting planes, the worst k of each pair first."""
    import osqp

    dense = np.arange(LEAST_K, DENSE, STEP_K)
    beyond = 2 ** np.arange(np.log2(DENSE), np.log2(LARGEST_K) + 1e-9, 1 / 8)
    ks = np.concatenate([dense, (beyond / STEP_K).astype(np.int64) * STEP_K])
    binding = [pairs[np.flatnonzero(pairs.least > -2 * MOST)] for pairs in around.pairs(ks, *ASKED)]
    count = design.shape[1]
    matrix = (design.T @ design + SHRINKAGE / len(LOG2_K) * sparse.eye(count)).tocsc()
    growth, least = sparse.eye(count, format="csr"), np.full(count, -MOST)
    entries = np.asarray(spsolve(matrix, design.T @ off))
    for step in range(ROUNDS):
        found = 0
        for pairs in binding:
            slack = _growth(entries.reshape(-1, len(LOG2_K)), pairs)
            order = np.argsort(slack)
            falls = order[: np.searchsorted(slack[order], -UNIT / 4)]
            # The worst k of each two cells.
            key = pairs.of[0][falls] * len(around.measured) * 2 + pairs.of[1][falls]
            worst = pairs[falls[np.unique(key, return_index=True)[1]]]
            found += len(falls)
            growth = sparse.vstack([growth, _rows(worst, len(around.measured))], format="csr")
            least = np.concatenate([least, worst.least])
        progress(f"cells, round {step}: {found} sizes fall")
        if not found:
            break
        solver = osqp.OSQP()
        solver.setup(
            sparse.triu(matrix, format="csc"),
            -(design.T @ off),
            growth.tocsc(),
            least,
            np.concatenate([np.full(count, MOST), np.full(len(least) - count, np.inf)]),
            verbose=False,
            eps_abs=1e-6,
            eps_rel=1e-6,
            max_iter=20_000,
        )
        solver.warm_start(x=entries)
        entries = np.asarray(solver.solve().x)
    return entries.reshape(-1, len(LOG2_K))


def _released(entries: Array, around: Neighbours, progress: Callable[[str], None]) -> Array:
    """``entries`` with those cells at 0 that still let a time fall at any k: rounding's, and of k not looked at."""
    ks = np.arange(LEAST_K, LARGEST_K + 1, STEP_K)
    while True:
        before = np.count_nonzero(entries.any(axis=1))
        for some in np.array_split(ks, 32):
            pairs = list(around.pairs(some, *LIMITS))
            while fallen := _fallen(entries, pairs):
                entries[fallen] = 0.0
        released = before - np.count_nonzero(entries.any(axis=1))
        progress(f"cells: {released} released")
        if not released:
            return entries


def _fallen(entries: Array, kinds: list[Pairs]) -> list[int]:
    """Cells whose entries let a time fall among the pairs."""
    fallen: set[int] = set()
    for pairs in kinds:
        falls = _growth(entries, pairs) < -1e-9
        fallen |= {int(cell) for of in pairs.of for cell in of[falls] if cell >= 0 and entries[cell].any()}
    return sorted(fallen)
