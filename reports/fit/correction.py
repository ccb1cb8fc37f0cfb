"""Fit of the correction tables: ridge regression on what the closed forms leave, bound never to let time fall.

Both sets of constants (large and small products) are corrected at once, since between them a prediction is their blend:
its logarithm is linear in all entries of both tables, and so is how it grows from one size to the next. Pairs of sizes
whose predicted time would fall weigh more and more until none is left, and fresh ones are drawn until none is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack

from shapes.calibrate.hold_out import held_out
from shapes.calibrate.products import Products
from shapes.cost.constants import GemmConstants
from shapes.cost.correction import Correction, Grid, reference_waves
from shapes.cost.gemm import large_share, uncorrected_seconds

Array = NDArray[np.float64]
Dims = tuple[Array, Array, Array]

#: Knots: dense around one and two waves, where kernel choice matters most.
LOG2_WAVES = (
    -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.5, -1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0,
    2.5, 3.0, 4.0, 5.0, 8.0,
)  # fmt: skip
LOG2_K = (5.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 16.0)
#: Tiles whose tails are looked at: which of them a library takes depends on how each would fill its last wave.
TAIL_TILES = ((128, 256), (256, 128), (128, 128))
#: Blackwell's libraries run tiles of 192 too (worth 0.2 points there, nothing elsewhere).
TAIL_TILES_OF = {"blackwell": (*TAIL_TILES, (128, 192), (192, 128))}
TAIL_WAVES = 7
TAIL_IDLE = (0.0, 0.5, 1.0)
TAIL_LOG2_K = (5.0, 7.0, 9.0, 10.5, 12.0, 14.0)

#: Ridge penalties to choose from: a knot moves once a few shapes ask for it, or once a few dozen do.
RIDGES = (2.0, 20.0)
#: Tiles whose tails count, and a ridge penalty.
Choice = tuple[tuple[tuple[int, int], ...], float]
#: How heavily a pair of sizes whose predicted time would fall is weighed against a measured shape, each time it does.
MONOTONE_WEIGHT = 30.0
#: Steps of the solver at first and after each round; pairs drawn in a round, of the device and of its relatives.
STEPS, MORE_STEPS, ROUNDS = 12, 5, 24
PAIRS, RELATIVE_PAIRS = 400_000, 150_000
#: Least growth of log time that is asked for: doubling saves nothing, a tile more less than a percent. The room left
#: is for what rounding in the file does.
DOUBLED, GROWN = 2e-4, -6e-3
#: Decimals of a table's entries.
DECIMALS = 5
#: How far beyond what is asked a bound pair is pushed.
MARGIN = 2e-4
#: Pairs worked on at a time.
BATCH = 50_000
#: Sizes of which growth is asked: up to this, a half of them multiples of 64.
LARGEST = 65536
TILE = (256, 256, 64)


@dataclass(frozen=True, slots=True)
class Case:
    """Closed forms of a device that the tables serve: the fitted one, or a relative with constants scaled."""

    constants: GemmConstants
    size: int
    out: int

    @property
    def small(self) -> GemmConstants:
        return self.constants.small or self.constants

    def log_closed(self, dims: Dims) -> Array:
        """Logarithm of the blend of both closed forms."""
        one, share = np.ones_like(dims[0]), large_share(*dims)
        large, small = (
            np.log(uncorrected_seconds(*dims, one, self.size, self.out, c)) for c in (self.constants, self.small)
        )
        blend: Array = share * large + (1 - share) * small
        return blend

    def design(self, dims: Dims, grids: tuple[Grid, Grid]) -> csr_matrix:
        """One row a product: the weight of each entry of both tables in its log factor."""
        share, rows = large_share(*dims), np.arange(len(dims[0]))
        cells: list[tuple[Array, Array, Array]] = []
        for grid, part, start in ((grids[0], share, 0), (grids[1], 1 - share, grids[0].size)):
            for index, weight in grid.corners(*dims, np.ones_like(dims[0]), self.constants.units):
                cells.append((weight * part, rows, index + start))
        data, row, column = (np.concatenate(parts) for parts in zip(*cells, strict=True))
        return csr_matrix((data, (row, column)), shape=(len(rows), grids[0].size + grids[1].size))


def fit_correction(
    products: Products, case: Case, relatives: Sequence[Case] = (), *, architecture: str = "", seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> GemmConstants:  # fmt: skip
    """The case's constants with the tables that ``products`` ask for, falling nowhere on it and its relatives."""
    tiles = TAIL_TILES_OF.get(architecture, TAIL_TILES)
    # How much the tables may say is what helps on n values that trial fits have not seen: fp8, which one framework
    # times with its quantisation, bears less than bf16.
    inner = held_out(products.n, seed + 1)

    def trial(ridge: float) -> float:
        constants = fitted(products[~inner], case, (tiles, ridge))
        return float(products[inner].errors(constants, case.size, case.out).mean())

    ridge = min(RIDGES, key=trial) if inner.any() and not inner.all() else RIDGES[0]
    return fitted(products, case, (tiles, ridge), (case, *relatives), seed, progress)


def fitted(
    products: Products, case: Case, choice: Choice, bound: Sequence[Case] = (), seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> GemmConstants:  # fmt: skip
    """The tables with the tails and the ridge penalty of ``choice``, bound on the cases of ``bound``."""
    tiles, ridge = choice
    dims = (products.m, products.n, products.k)
    grids = _grid(products[products.large], case, tiles), _grid(products[~products.large], case, tiles)
    target = np.log(products.seconds) - case.log_closed(dims)
    design = case.design(dims, grids)
    solver = _Solver(design, target, ridge)
    random = np.random.default_rng(seed)
    solver.steps(STEPS)
    for step in range(ROUNDS if bound else 0):
        fallen = 0
        for index, one in enumerate(bound):
            rows, least = _falling(one, grids, solver.coefficients, random, RELATIVE_PAIRS if index else PAIRS)
            solver.bind(rows, least)
            fallen += len(least)
        progress(f"round {step}: {fallen} pairs fall")
        if not fallen:
            break
        solver.steps(MORE_STEPS)
    return _corrected(case, grids, np.round(solver.coefficients, DECIMALS))


def _corrected(case: Case, grids: tuple[Grid, Grid], coefficients: Array) -> GemmConstants:
    split = grids[0].size
    large, small = (
        Correction(grid, tuple(part.tolist()))
        for grid, part in zip(grids, (coefficients[:split], coefficients[split:]), strict=True)
    )
    below = None if case.constants.small is None else replace(case.constants.small, correction=small)
    return replace(case.constants, correction=large, small=below)


def _grid(products: Products, case: Case, tiles: tuple[tuple[int, int], ...]) -> Grid:
    """Knots around these products."""
    if not len(products):
        return Grid(LOG2_WAVES[:2], LOG2_K[:2], (), 0, (), ())
    one = np.ones_like(products.m)
    log2_k, waves = np.log2(products.k), reference_waves(products.m, products.n, one, case.constants.units)
    return Grid(_trim(LOG2_WAVES, np.log2(waves)), _trim(LOG2_K, log2_k), tiles, TAIL_WAVES, TAIL_IDLE,
                _trim(TAIL_LOG2_K, log2_k))  # fmt: skip


def _trim(knots: tuple[float, ...], values: Array) -> tuple[float, ...]:
    """The knots around the data, one beyond at each end."""
    low, high = values.min(), values.max()
    first = max(0, sum(knot <= low for knot in knots) - 1)
    last = min(len(knots), len(knots) - sum(knot >= high for knot in knots) + 1)
    return knots[first:last]


def _falling(
    case: Case, grids: tuple[Grid, Grid], coefficients: Array, random: np.random.Generator, pairs: int
) -> tuple[csr_matrix, Array]:
    """Of random pairs of growing sizes those that fall: how the tables' part of log time grows, and how it has to."""
    kept = []
    for _ in range(-(-pairs // BATCH)):
        dims = [np.floor(np.exp(random.uniform(np.log(16), np.log(LARGEST), BATCH))) for _ in range(3)]
        whole = random.random(BATCH) < 0.5
        dims = [np.where(whole, np.maximum(np.floor(values / 64) * 64, 64), values) for values in dims]
        which, doubled = random.integers(0, 3, BATCH), random.random(BATCH) < 0.5
        grown = [
            np.where(which == axis, np.where(doubled, 2 * values, values + tile), values)
            for axis, (values, tile) in enumerate(zip(dims, TILE, strict=True))
        ]
        before, after = (dims[0], dims[1], dims[2]), (grown[0], grown[1], grown[2])
        rows = case.design(after, grids) - case.design(before, grids)
        least = np.where(doubled, DOUBLED, GROWN) - (case.log_closed(after) - case.log_closed(before))
        # What grows in no table is the closed form's own.
        falls = (rows @ coefficients < least - 1e-9) & (np.asarray(abs(rows).sum(axis=1)).ravel() > 1e-9)
        kept.append((rows[falls], least[falls]))
    return vstack([rows for rows, _ in kept], format="csr"), np.concatenate([least for _, least in kept])


class _Solver:
    """Robust ridge regression in which violated orders weigh more and more until next to none is left."""

    def __init__(self, design: csr_matrix, target: Array, ridge: float) -> None:
        self.design, self.target, self.ridge = design, target, ridge
        self.weight: Array = np.ones(len(target))
        self.growth, self.least, self.violated = csr_matrix((0, design.shape[1])), np.empty(0), np.empty(0)
        self.coefficients: Array = np.zeros(design.shape[1])

    def bind(self, rows: csr_matrix, least: Array) -> None:
        """Asks that ``rows`` times the coefficients be at least ``least``."""
        self.growth = vstack([self.growth, rows], format="csr")
        self.least = np.concatenate([self.least, least])
        self.violated = np.concatenate([self.violated, np.full(len(least), MONOTONE_WEIGHT)])

    def steps(self, count: int) -> None:
        for _ in range(count):
            normal = (self.design.multiply(self.weight[:, None]).tocsr().T @ self.design).toarray()
            normal += self.ridge * np.eye(len(normal))
            right = self.design.T @ (self.weight * self.target)
            if len(self.least):
                normal += (self.growth.multiply(self.violated[:, None]).tocsr().T @ self.growth).toarray()
                right = right + self.growth.T @ (self.violated * (self.least + MARGIN))
            self.coefficients = np.asarray(np.linalg.solve(normal, right), dtype=np.float64)
            self.weight = 1 / np.sqrt(1 + ((self.target - self.design @ self.coefficients) / 0.05) ** 2)
            short = self.growth @ self.coefficients < self.least
            self.violated = np.where(short, 2 * self.violated, 0.8 * self.violated)
