"""Fit of the correction table: ridge regression on what the closed form leaves, weighed against letting time fall."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shapes.cost.constants import GemmConstants
from shapes.cost.correction import Correction, locate, reference_waves
from shapes.cost.gemm import uncorrected_seconds

if TYPE_CHECKING:
    from shapes.calibrate.gemm import Products

Array = NDArray[np.float64]

#: Knots: dense around one and two waves, where kernel choice matters most.
LOG2_WAVES = (-7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
LOG2_K = (5.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 16.0)

#: Ridge penalty: a knot moves once a few shapes ask for it.
RIDGE = 2.0
#: How heavily a pair of sizes whose predicted time would fall is weighed against a measured shape.
MONOTONE_WEIGHT = 30.0
#: Room left between two sizes' times, so that rounding in the file does not undo the order.
MARGIN = 5e-4


def fit_correction(
    products: Products, constants: GemmConstants, sizes: tuple[int, int], *, ridge: float = RIDGE, seed: int = 0
) -> GemmConstants:
    """``constants`` with the correction table that ``products`` ask for."""
    ones = np.ones(len(products))
    waves = reference_waves(products.m, products.n, ones, constants.units)
    log2_waves = _trim(LOG2_WAVES, np.log2(waves))
    log2_k = _trim(LOG2_K, np.log2(products.k))
    design = _design(waves, products.k, log2_waves, log2_k)
    target = np.log(products.seconds / _closed(products.m, products.n, products.k, sizes, constants))
    growth, fall = _growth(products, constants, sizes, log2_waves, log2_k, seed)
    coefficients = _solve(design, target, growth, fall, ridge)
    table = np.round(coefficients.reshape(len(log2_waves), len(log2_k)), 4)
    rows = tuple(tuple(float(value) for value in row) for row in table)
    return replace(constants, correction=Correction(log2_waves, log2_k, rows))


def _trim(knots: tuple[float, ...], values: Array) -> tuple[float, ...]:
    """The knots around the data, one beyond at each end."""
    low, high = values.min(), values.max()
    first = max(0, sum(knot <= low for knot in knots) - 1)
    last = min(len(knots), len(knots) - sum(knot >= high for knot in knots) + 1)
    return knots[first:last]


def _closed(m: Array, n: Array, k: Array, sizes: tuple[int, int], constants: GemmConstants) -> Array:
    return uncorrected_seconds(m, n, k, np.ones_like(m), *sizes, constants)


def _design(waves: Array, k: Array, log2_waves: tuple[float, ...], log2_k: tuple[float, ...]) -> Array:
    """One row a product: the weight of each table entry in its log factor."""
    i, u = locate(np.log2(waves), log2_waves)
    j, v = locate(np.log2(k), log2_k)
    design = np.zeros((len(k), len(log2_waves), len(log2_k)))
    rows = np.arange(len(k))
    design[rows, i, j] = (1 - u) * (1 - v)
    design[rows, i + 1, j] = u * (1 - v)
    design[rows, i, j + 1] = (1 - u) * v
    design[rows, i + 1, j + 1] = u * v
    return design.reshape(len(k), -1)


def _growth(
    products: Products, constants: GemmConstants, sizes: tuple[int, int], log2_waves: tuple[float, ...],
    log2_k: tuple[float, ...], seed: int,
) -> tuple[Array, Array]:  # fmt: skip
    """Pairs of growing sizes: how the table's part of log time grows (rows), and the closed form's own growth."""
    random = np.random.default_rng(seed)
    count = 20000
    m, n, k = (random.choice(np.unique(values), count) for values in (products.m, products.n, products.k))
    m, n = (np.ceil(values / 256) * 256 for values in (m, n))
    which = random.integers(0, 3, count)
    # A dimension grows by one tile, by a tenth or twofold.
    growths = random.choice([0.0, 0.1, 1.0], count)
    grown = [
        np.where(which == index, np.ceil(np.maximum(values + unit, (1 + growths) * values) / unit) * unit, values)
        for index, (values, unit) in enumerate(((m, 256.0), (n, 256.0), (k, 64.0)))
    ]
    ones = np.ones(count)
    before = _design(reference_waves(m, n, ones, constants.units), k, log2_waves, log2_k)
    after = _design(reference_waves(grown[0], grown[1], ones, constants.units), grown[2], log2_waves, log2_k)
    own = np.log(
        _closed(grown[0], grown[1], grown[2], sizes, constants) / _closed(m, n, k, sizes, constants)
    )  # fmt: skip
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
