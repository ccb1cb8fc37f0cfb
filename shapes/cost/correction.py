"""What measurements say beyond the closed form: a factor by waves and by the length of the reduction.

Libraries choose kernels by heuristics that no closed form knows: which tile, how many stages, whether to split k. What
that choice costs depends, to most of its extent, on how many waves the product is and on how long k is. The table
holds the logarithm of measured over modelled time on a grid of the two, linear in between and constant outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Waves are counted in this tile, the one libraries prefer for large products.
REFERENCE_TILE = (128, 256)


@dataclass(frozen=True, slots=True)
class Correction:
    """``log_factor[i][j]`` at 2**log2_waves[i] waves and a reduction of 2**log2_k[j]."""

    log2_waves: tuple[float, ...]
    log2_k: tuple[float, ...]
    log_factor: tuple[tuple[float, ...], ...]

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Correction:
        rows = tuple(tuple(float(value) for value in row) for row in table["log_factor"])
        return cls(tuple(map(float, table["log2_waves"])), tuple(map(float, table["log2_k"])), rows)

    def factor(self, waves: Array, k: Array) -> Array:
        """Measured over modelled time for products of ``waves`` reference waves and reductions of ``k``."""
        i, u = locate(np.log2(waves), self.log2_waves)
        j, v = locate(np.log2(k), self.log2_k)
        table = np.asarray(self.log_factor)
        width = table.shape[1]
        flat, at = table.ravel(), i * width + j
        low = flat[at] * (1 - v) + flat[at + 1] * v
        high = flat[at + width] * (1 - v) + flat[at + width + 1] * v
        factor: Array = np.exp(low * (1 - u) + high * u)
        return factor


def locate(values: Array, knots: tuple[float, ...]) -> tuple[NDArray[np.intp], Array]:
    """Index of the knot below each value and the share of the way to the next, clipped to the grid."""
    grid = np.asarray(knots)
    index = np.clip(np.searchsorted(grid, values, side="right") - 1, 0, grid.size - 2)
    share: Array = np.clip((values - grid[index]) / (grid[index + 1] - grid[index]), 0.0, 1.0)
    return index, share


def reference_waves(m: Array, n: Array, batch: Array, units: int) -> Array:
    """How many waves of REFERENCE_TILE a product is on ``units`` units; below 1: units without a tile."""
    waves: Array = np.ceil(m / REFERENCE_TILE[0]) * np.ceil(n / REFERENCE_TILE[1]) * batch / units
    return waves
