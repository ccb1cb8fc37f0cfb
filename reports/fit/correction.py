"""Fit of the correction tables: ridge regression on what the closed form leaves, weighed against letting time fall."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shapes.calibrate.hold_out import held_out
from shapes.calibrate.products import Products
from shapes.cost.constants import GemmConstants
from shapes.cost.correction import Correction, Grid, reference_waves
from shapes.cost.gemm import uncorrected_seconds

Array = NDArray[np.float64]

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
#: Errors of two trials within this factor are alike.
TIE = 1.05
#: Tiles whose tails count, and a ridge penalty.
Choice = tuple[tuple[tuple[int, int], ...], float]
#: How heavily a pair of sizes whose predicted time would fall is weighed against a measured shape.
MONOTONE_WEIGHT = 30.0
#: Pairs of sizes whose order is looked at.
PAIRS = 20000
#: Room left between two sizes' times, so that rounding in the file does not undo the order.
MARGIN = 5e-4


def fit_correction(
    products: Products, constants: GemmConstants, sizes: tuple[int, int], *, architecture: str = "",
    seed: int = 0,
) -> GemmConstants:  # fmt: skip
    """``constants`` with the correction tables that ``products`` ask for."""
    tiles = TAIL_TILES_OF.get(architecture, TAIL_TILES)
    # How much the tables may say is what helps on n values that trial fits have not seen: fp8, which one framework
    # times with its quantisation, bears less than bf16.
    inner = held_out(products.n, seed + 1)
    seen, unseen = products[~inner], products[inner]

    def trial(choice: Choice) -> float:
        return float(unseen.errors(fitted(seen, constants, sizes, choice, seed, pairs=0), *sizes).mean())

    def best_of(chosen: tuple[tuple[int, int], ...]) -> tuple[float, Choice]:
        return min((trial((chosen, ridge)), (chosen, ridge)) for ridge in RIDGES)

    if not len(unseen):
        return fitted(products, constants, sizes, (tiles, RIDGES[0]), seed, pairs=PAIRS)
    (plain, without), (error, best) = best_of(()), best_of(tiles)
    # Where they are as good, tails tell better which of two neighbours is faster (reports/accuracy.md).
    return fitted(products, constants, sizes, best if error <= TIE * plain else without, seed, pairs=PAIRS)


def fitted(
    products: Products, constants: GemmConstants, sizes: tuple[int, int], choice: Choice, seed: int, *, pairs: int
) -> GemmConstants:
    """The tables with the tails and the ridge penalty of ``choice``; ``pairs`` of sizes keep their order."""
    tiles, ridge = choice
    m, n, k, units = products.m, products.n, products.k, constants.units
    log2_waves = _trim(LOG2_WAVES, np.log2(reference_waves(m, n, np.ones_like(m), units)))
    tail_log2_k = _trim(TAIL_LOG2_K, np.log2(k))
    grid = Grid(log2_waves, _trim(LOG2_K, np.log2(k)), tiles, TAIL_WAVES, TAIL_IDLE, tail_log2_k)
    target = np.log(products.seconds / _closed(m, n, k, sizes, constants))
    growth, fall = _growth(products, constants, sizes, grid, seed, pairs)
    coefficients = _solve(_design(grid, m, n, k, units), target, growth, fall, ridge)
    return replace(constants, correction=Correction(grid, tuple(np.round(coefficients, 4).tolist())))


def _trim(knots: tuple[float, ...], values: Array) -> tuple[float, ...]:
    """The knots around the data, one beyond at each end."""
    low, high = values.min(), values.max()
    first = max(0, sum(knot <= low for knot in knots) - 1)
    last = min(len(knots), len(knots) - sum(knot >= high for knot in knots) + 1)
    return knots[first:last]


def _closed(m: Array, n: Array, k: Array, sizes: tuple[int, int], constants: GemmConstants) -> Array:
    return uncorrected_seconds(m, n, k, np.ones_like(m), *sizes, constants)


def _design(grid: Grid, m: Array, n: Array, k: Array, units: int) -> Array:
    """One row a product: the weight of each table entry in its log factor."""
    design = np.zeros((len(k), grid.size))
    rows = np.arange(len(k))
    for index, weight in grid.corners(m, n, k, np.ones_like(m), units):
        design[rows, index] += weight
    return design


def _growth(
    products: Products, constants: GemmConstants, sizes: tuple[int, int], grid: Grid, seed: int, pairs: int
) -> tuple[Array, Array]:
    """Pairs of growing sizes: how the tables' part of log time grows (rows), and the closed form's own growth."""
    random = np.random.default_rng(seed)
    m, n, k = (random.choice(np.unique(values), pairs) for values in (products.m, products.n, products.k))
    m, n = (np.ceil(values / 256) * 256 for values in (m, n))
    which = random.integers(0, 3, pairs)
    # A dimension grows by one tile, by a tenth or twofold.
    growths = random.choice([0.0, 0.1, 1.0], pairs)
    grown = [
        np.where(which == index, np.ceil(np.maximum(values + unit, (1 + growths) * values) / unit) * unit, values)
        for index, (values, unit) in enumerate(((m, 256.0), (n, 256.0), (k, 64.0)))
    ]
    before = _design(grid, m, n, k, constants.units)
    after = _design(grid, grown[0], grown[1], grown[2], constants.units)
    own = np.log(_closed(grown[0], grown[1], grown[2], sizes, constants) / _closed(m, n, k, sizes, constants))
    return after - before, own


def _solve(design: Array, target: Array, growth: Array, own: Array, ridge: float) -> Array:
    """Robust ridge regression in which violated orders weigh more and more until next to none is left."""
    weight: Array = np.ones(len(target))
    violated = np.zeros(len(own))
    identity = ridge * np.eye(design.shape[1])
    coefficients: Array = np.zeros(design.shape[1])
    for _ in range(60):
        normal = (design * weight[:, None]).T @ design + (growth * violated[:, None]).T @ growth + identity
        right = (design * weight[:, None]).T @ target + growth.T @ (violated * (MARGIN - own))
        coefficients = np.asarray(np.linalg.solve(normal, right), dtype=np.float64)
        weight = 1 / np.sqrt(1 + ((target - design @ coefficients) / 0.05) ** 2)
        violated += MONOTONE_WEIGHT * (own + growth @ coefficients < 0.5 * MARGIN)
    return coefficients
