"""Fit of the correction tables: ridge regression on what the closed forms leave, bound never to let time fall.

Both sets of constants (large and small products) are corrected at once, since between them a prediction is their blend:
its logarithm is linear in all entries of both tables, and so is how it grows from one size to the next. Pairs of sizes
whose predicted time would fall are cutting planes of a quadratic program, solved again until next to none is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_matrix, csr_matrix, vstack

from fit.physics import COLUMNS, FEW
from fit.written import grid_size
from shapes.calibrate import Products, held_out
from shapes.cost.constants import GemmConstants
from shapes.cost.corrections import REFERENCE_TILE, Correction, Grid, moved_bytes, waves_of
from shapes.cost.gemm import CHUNK, aligned_seconds, large_share, uncorrected_seconds

Array = NDArray[np.float64]
Dims = tuple[Array, Array, Array]

#: Knots: dense around one and two waves, where kernel choice matters most.
LOG2_WAVES = (
    -7.0,
    -6.0,
    -5.0,
    -4.0,
    -3.0,
    -2.0,
    -1.5,
    -1.0,
    -0.75,
    -0.5,
    -0.25,
    0.0,
    0.25,
    0.5,
    0.75,
    1.0,
    1.25,
    1.5,
    1.75,
    2.0,
    2.5,
    3.0,
    4.0,
    5.0,
    8.0,
)
LOG2_K = (5.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 16.0)
#: Tiles whose tails are looked at: which of them a library takes depends on how each would fill its last wave.
TAIL_TILES = ((128, 256), (256, 128), (128, 128))
#: Blackwell's libraries run tiles of 192 too (worth 0.2 points there, nothing elsewhere).
TAIL_TILES_OF = {"blackwell": (*TAIL_TILES, (128, 192), (192, 128))}
TAIL_WAVES = 7
TAIL_IDLE = (0.0, 0.5, 1.0)
TAIL_LOG2_K = (5.0, 7.0, 9.0, 10.5, 12.0, 14.0)

#: Ridge penalties to choose from, of the large products' tables and of the small ones': a knot moves once a few shapes
#: ask for it, or once a few dozen do.
RIDGES = ((1.0, 1.0), (20.0, 1.0), (20.0, 20.0))
#: Tiles whose tails count, and both ridge penalties.
Choice = tuple[tuple[tuple[int, int], ...], tuple[float, float]]
#: Weight of a large product against a small one: there are two small ones to each, most of them launch-bound.
LARGE_WEIGHT = 4.0
#: How strongly a polish holds entries where they are, the data's own pull times this: what lets nothing fall stays.
HELD = 2000.0
#: Steps of the robust weights; rounds of looking for pairs that fall, at the most, and in a row in which none is found.
STEPS, ROUNDS, QUIET = 12, 60, 4
#: Pairs of growing sizes looked at in a round: drawn anew on the device, on each relative, and near the worst known.
PAIRS, RELATIVE_PAIRS, NEAR_PAIRS = 600_000, 60_000, 150_000
#: Worst pairs that are remembered, and how many of those that fall are bound in a round.
WORST, BOUND = 3000, 3000
#: Least growth of log time that is asked for: doubling saves nothing, a tile more less than a percent. The room left
#: is for what was never drawn.
DOUBLED, GROWN = 0.0, -8.5e-3
#: Decimals of a table's entries.
DECIMALS = 5
#: How far beyond what is asked each pair is looked for, and a bound one pushed besides: what a search has not found
#: is worse than all that it has by less.
ROOM, MARGIN = 1e-4, 5e-5
#: Log units from binding at which a pair is let go.
NEAR_BINDING = 0.05
#: Sizes where growth is tried: up to this, three quarters of them multiples of 64.
LARGEST = 65536
#: The least of them, and what the others are multiples of: of a fit, and of a polish, which looks at narrow ones too.
FIT, POLISH = (16, 1), (8, 8)
#: Tiles by which m and n, or k, grow; the share of pairs that are of few rows, whose columns grow by less.
TILES_MN, TILES_K = (256,), (64,)
FEW_SHARE = 0.2


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
        one, share = np.ones_like(dims[0]), large_share(np.array(dims))
        rows = np.array([*dims, one])
        moved = moved_bytes(rows, self.size, self.out)
        large, small = (np.log(uncorrected_seconds(rows, moved, c)) for c in (self.constants, self.small))
        blend: Array = share * large + (1 - share) * small
        return blend

    def design(self, dims: Dims, grids: tuple[Grid, Grid]) -> csr_matrix:
        """One row a product: the weight of each entry of both tables in its log factor."""
        share, rows = large_share(np.array(dims)), np.arange(len(dims[0]))
        cells: list[tuple[Array, Array, Array]] = []
        for grid, part, start in ((grids[0], share, 0), (grids[1], 1 - share, grid_size(grids[0]))):
            for index, weight in grid.corners(np.array([*dims, np.ones_like(dims[0])]), self.constants.units):
                cells.append((weight * part, rows, index + start))
        data, row, column = (np.concatenate(parts) for parts in zip(*cells, strict=True))
        return csr_matrix((data, (row, column)), shape=(len(rows), grid_size(grids[0]) + grid_size(grids[1])))


def fit_correction(
    products: Products,
    case: Case,
    relatives: Sequence[Case] | None = (),
    *,
    architecture: str = "",
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> GemmConstants:
    """The case's constants with the tables that ``products`` ask for, falling nowhere on it and its relatives.

    None for the relatives binds nothing.
    """
    tiles = TAIL_TILES_OF.get(architecture, TAIL_TILES)
    # How much the tables may say is what helps on n values that trial fits have not seen: fp8, which one framework
    # times with its quantisation, bears less than bf16.
    inner = held_out(products.n, seed + 1)

    def trial(ridge: tuple[float, float]) -> float:
        constants = fitted(products[~inner], case, (tiles, ridge))
        return float(products[inner].errors(constants, case.size, case.out).mean())

    ridge = min(RIDGES, key=trial) if inner.any() and not inner.all() else RIDGES[0]
    bound = () if relatives is None else (case, *relatives)
    return fitted(products, case, (tiles, ridge), bound, seed, progress)


def fitted(
    products: Products,
    case: Case,
    choice: Choice,
    bound: Sequence[Case] = (),
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> GemmConstants:
    """The tables with the tails and the ridge penalty of ``choice``, bound on the cases of ``bound``."""
    tiles, ridge = choice
    grids = _grid(products[products.large], case, tiles), _grid(products[~products.large], case, tiles)
    program = _program(products, case, grids, ridge)
    _bind(program, grids, bound, seed, progress)
    return _corrected(case, grids, np.round(program.coefficients, DECIMALS))


def polished(
    products: Products,
    constants: GemmConstants,
    bound: Sequence[Case],
    *,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> GemmConstants:
    """``constants`` with tables moved as little as it takes that nothing falls on ``bound``, theirs the first."""
    large, small = constants.correction, (constants.small or constants).correction
    if large is None or small is None:
        return constants
    grids, case = (large.grid, small.grid), bound[0]
    program = _program(products, case, grids, RIDGES[0], np.array([*large.log_factors, *small.log_factors]))
    _bind(program, grids, bound, seed, progress)
    return _corrected(case, grids, np.round(program.coefficients, DECIMALS))


def _program(
    products: Products, case: Case, grids: tuple[Grid, Grid], ridge: tuple[float, float], start: Array | None = None
) -> _Program:
    dims = (products.m, products.n, products.k)
    target = np.log(products.seconds) - case.log_closed(dims)
    weight = np.where(products.large, LARGE_WEIGHT, 1.0)
    return _Program(
        case.design(dims, grids), target, weight, np.repeat(ridge, [grid_size(grid) for grid in grids]), start
    )


def _bind(
    program: _Program, grids: tuple[Grid, Grid], bound: Sequence[Case], seed: int, progress: Callable[[str], None]
) -> None:
    """Rounds of looking for what falls and of solving with that bound, until QUIET of them find nothing."""
    random = np.random.default_rng(seed)
    sizes = FIT if program.start is None else POLISH
    searches = [
        _Search(one, grids, random, RELATIVE_PAIRS if index else PAIRS, *sizes) for index, one in enumerate(bound)
    ]
    quiet = 0
    for step in range(ROUNDS if bound else 0):
        fallen = 0
        for search in searches:
            rows, least, found = search.falling(np.round(program.coefficients, DECIMALS))
            program.bind(rows, least)
            fallen += found
        progress(f"round {step}: {fallen} pairs fall")
        quiet = 0 if fallen else quiet + 1
        if quiet == QUIET:
            break
        if fallen:
            program.solve()


def _corrected(case: Case, grids: tuple[Grid, Grid], coefficients: Array) -> GemmConstants:
    split = grid_size(grids[0])
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
    log2_k, waves = np.log2(products.k), waves_of(REFERENCE_TILE, products.sizes, case.constants.units)
    return Grid(
        _trim(LOG2_WAVES, np.log2(waves)),
        _trim(LOG2_K, log2_k),
        tiles,
        TAIL_WAVES,
        TAIL_IDLE,
        _trim(TAIL_LOG2_K, log2_k),
    )


def _trim(knots: tuple[float, ...], values: Array) -> tuple[float, ...]:
    """The knots around the data, one beyond at each end."""
    low, high = values.min(), values.max()
    first = max(0, sum(knot <= low for knot in knots) - 1)
    last = min(len(knots), len(knots) - sum(knot >= high for knot in knots) + 1)
    return knots[first:last]


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Sizes (columns m, n, k), which of them grows, and by how much."""

    before: Array
    axis: NDArray[np.intp]
    add: Array

    def __getitem__(self, rows: NDArray[np.intp]) -> _Pairs:
        return _Pairs(self.before[rows], self.axis[rows], self.add[rows])

    @property
    def after(self) -> Array:
        grown = self.before.copy()
        grown[np.arange(len(grown)), self.axis] += self.add
        return grown

    @property
    def least(self) -> Array:
        """Growth of log time that is asked for."""
        own = self.before[np.arange(len(self.before)), self.axis]
        return np.where(self.add == own, DOUBLED, GROWN) + ROOM


class _Search:
    """Looks for pairs of growing sizes whose predicted time falls: at random, and around the worst ones so far."""

    def __init__(
        self, case: Case, grids: tuple[Grid, Grid], random: np.random.Generator, pairs: int, least: int, step: int
    ) -> None:
        self.case, self.grids, self.random, self.pairs = case, grids, random, pairs
        self.least, self.step = least, step
        self.worst: _Pairs | None = None

    def falling(self, coefficients: Array) -> tuple[csr_matrix, Array, int]:
        """Of the worst pairs: how the tables' part of log time grows, how it has to; and how many fall, room aside."""
        sets = [self._pairs(self._drawn(self.pairs))]
        if self.worst is not None:
            sets += [self._pairs(self._near(self.worst.before)), self.worst]
        pairs = _Pairs(*(np.concatenate([getattr(one, name) for one in sets]) for name in ("before", "axis", "add")))
        corrected = _corrected(self.case, self.grids, coefficients)
        before, after = (self._log_seconds(dims, corrected) for dims in (pairs.before, pairs.after))
        slack = after - before - pairs.least
        order = _first_of_each(pairs, np.argsort(slack))
        self.worst = pairs[order[:WORST]]
        falls = pairs[order[slack[order] < -1e-9]]
        grown, own = (tuple(dims.T) for dims in (falls.after, falls.before))
        rows = self.case.design(grown, self.grids) - self.case.design(own, self.grids)  # type: ignore[arg-type]
        closed = self.case.log_closed(grown) - self.case.log_closed(own)  # type: ignore[arg-type]
        # What grows in no table is the closed form's own.
        kept = np.flatnonzero(np.asarray(abs(rows).sum(axis=1)).ravel() > 1e-9)
        worst, fallen = kept[:BOUND], int((slack[order][kept] < -ROOM).sum())
        return rows[worst], (falls.least - closed)[worst], fallen

    def _log_seconds(self, dims: Array, constants: GemmConstants) -> Array:
        m, n, k = dims.T
        chunks = [slice(start, start + CHUNK) for start in range(0, len(m), CHUNK)]
        one = np.ones(CHUNK)
        sizes = (self.case.size, self.case.out)
        rows = (np.array([m[at], n[at], k[at], one[: len(m[at])]]) for at in chunks)
        return np.log(np.concatenate([aligned_seconds(own, moved_bytes(own, *sizes), constants) for own in rows]))

    def _drawn(self, count: int) -> Array:
        return np.exp(self.random.uniform(np.log(self.least), np.log(LARGEST), (count, 3)))

    def _near(self, dims: Array) -> Array:
        rows = self.random.integers(0, len(dims), NEAR_PAIRS)
        spread = self.random.choice([0.0, 0.02, 0.2], (NEAR_PAIRS, 3))
        return np.clip(dims[rows] * np.exp(spread * self.random.standard_normal((NEAR_PAIRS, 3))), self.least, LARGEST)

    def _pairs(self, dims: Array) -> _Pairs:
        count = len(dims)
        whole = self.random.random((count, 1)) < 0.75
        step = np.where(whole, 64, self.step)
        before = np.maximum(np.floor(dims / step) * step, step)
        axis = self.random.integers(0, 3, count)
        tiles = np.where(axis < 2, self.random.choice(TILES_MN, count), self.random.choice(TILES_K, count))
        own = before[np.arange(count), axis]
        add = np.where(self.random.random(count) < 0.3, own, tiles).astype(np.float64)
        few = np.flatnonzero(self.random.random(count) < FEW_SHARE)
        before[few] = np.maximum(np.floor(dims[few] / 64) * 64, 64)
        before[few, 0], axis[few], add[few] = self.random.integers(1, FEW + 1, few.size), 1, COLUMNS
        return _Pairs(before, axis, add)


def _first_of_each(pairs: _Pairs, order: NDArray[np.intp]) -> NDArray[np.intp]:
    """``order`` with one pair of each kind: sizes within a tenth, grown alike."""
    tenths = np.floor(np.log(pairs.before[order]) / 0.1)
    kinds = np.column_stack([tenths, pairs.axis[order], np.minimum(pairs.add[order], max(TILES_MN) + 1)])
    first = np.unique(kinds @ [1e9, 1e6, 1e3, 3e2, 1.0], return_index=True)[1]
    return order[np.sort(first)]


class _Program:
    """Robust ridge regression under linear inequalities; those far from binding are let go.

    From ``start`` on, where it is given, to which the entries are held.
    """

    def __init__(
        self, design: csr_matrix, target: Array, weight: Array, penalty: Array, start: Array | None = None
    ) -> None:
        self.growth, self.least = csr_matrix((0, design.shape[1])), np.empty(0)
        self.design, self.target, self.weight, self.penalty = design, target, weight, penalty
        self.coefficients: Array = np.zeros(design.shape[1])
        self.robust: Array = np.ones(len(target))
        self.start = start
        if start is not None:
            self.coefficients = start.copy()
            return
        for _ in range(STEPS):
            self.coefficients = np.asarray(np.linalg.solve(*self._normal()), dtype=np.float64)
            self._reweigh()

    def _normal(self) -> tuple[Array, Array]:
        """Matrix and right-hand side of the weighted ridge regression."""
        weighted = self.design.multiply((self.weight * self.robust)[:, None]).tocsr().T
        matrix, right = (weighted @ self.design).toarray(), weighted @ self.target
        if self.start is None:
            return matrix + np.diag(self.penalty), right
        held = HELD * (np.diag(matrix) + 1)
        return matrix + np.diag(self.penalty + held), right + held * self.start

    def _reweigh(self) -> None:
        self.robust = 1 / np.sqrt(1 + ((self.target - self.design @ self.coefficients) / 0.05) ** 2)

    def bind(self, rows: csr_matrix, least: Array) -> None:
        """Asks that ``rows`` times the coefficients be at least ``least``."""
        self.growth = vstack([self.growth, rows], format="csr")
        self.least = np.concatenate([self.least, least])

    def solve(self) -> None:
        import osqp

        # What a bound program has to leave is no outlier: weights are of its own residuals.
        self._reweigh()
        matrix, right = self._normal()
        solver = osqp.OSQP()
        solver.setup(
            csc_matrix(np.triu(matrix)),
            -right,
            self.growth.tocsc(),
            self.least + MARGIN,
            np.full(len(self.least), np.inf),
            verbose=False,
            eps_abs=2e-5,
            eps_rel=1e-5,
            polishing=False,
        )
        solver.warm_start(x=self.coefficients)
        self.coefficients = np.asarray(solver.solve().x)
        near = self.growth @ self.coefficients - self.least < NEAR_BINDING
        self.growth, self.least = self.growth[near], self.least[near]
