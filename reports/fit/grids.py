"""The tables that corrections and cells are fitted by: which entries speak of a product, and cells from an array."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from shapes.cost.corrections import REFERENCE_TILE, UNIT, Cells, Grid, sides

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Indices = NDArray[np.intp]


def corners(grid: Grid, m: Array, n: Array, k: Array, batch: Array, units: int) -> Iterator[tuple[Indices, Array]]:
    """The entries that speak of each product, as (index among all, weight) pairs of arrays."""
    log2_k = np.log2(k)
    along_k = sides(log2_k, grid.log2_k)
    waves = reference_waves(m, n, batch, units)
    for (i, u), (j, v) in product(sides(np.log2(waves), grid.log2_waves), along_k):
        yield i * len(grid.log2_k) + j, u * v
    if not grid.tail_tiles:
        return
    along_k = sides(log2_k, grid.tail_log2_k)
    start = len(grid.log2_waves) * len(grid.log2_k)
    for tile in grid.tail_tiles:
        waves = waves_of(tile, m, n, batch, units)
        whole = np.ceil(waves)
        layer = np.minimum(whole, grid.tail_waves).astype(np.intp) - 1
        for (i, u), (j, v) in product(sides(whole - waves, grid.tail_idle), along_k):
            yield start + (layer * len(grid.tail_idle) + i) * len(grid.tail_log2_k) + j, u * v
        start += grid.tail_waves * len(grid.tail_idle) * len(grid.tail_log2_k)


def waves_of(tile: tuple[int, int], m: Array, n: Array, batch: Array, units: int) -> Array:
    """How many waves of ``tile`` a product is on ``units`` units; below 1: units without a tile."""
    waves: Array = np.ceil(m / tile[0]) * np.ceil(n / tile[1]) * batch / units
    return waves


def reference_waves(m: Array, n: Array, batch: Array, units: int) -> Array:
    """Waves of REFERENCE_TILE."""
    return waves_of(REFERENCE_TILE, m, n, batch, units)


def cells_of_array(m: Integers, n: Integers, log2_k: tuple[float, ...], log_factor: Array) -> Cells:
    """From an array by m, n and knot; NaN where nothing was measured."""
    lines = (
        " ".join("-" if np.isnan(one) else str(round(one / UNIT)) for one in row.ravel().tolist()) + "\n"
        for row in log_factor
    )
    return Cells(tuple(m.tolist()), tuple(n.tolist()), log2_k, "".join(lines))
