"""What measurements say beyond the closed form: a factor by waves, by their tails and by the length of the reduction.

Libraries choose kernels by heuristics that no closed form knows: which tile, how many stages, whether to split k. What
that choice costs depends, to most of its extent, on how many waves the product is, on how much of the last wave of
the tiles in question would idle, and on how long k is. The tables hold logarithms of measured over modelled time,
linear between their knots and constant outside; they add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.frozen import frozen

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

#: Waves are counted in this tile, the one libraries prefer for large products.
REFERENCE_TILE = (128, 256)


@frozen
class Grid:
    """The knots: one table over waves of REFERENCE_TILE and k, and one for each of ``tail_tiles``.

    A tail table has a layer for a product of one wave of its tile, of two, and so on, the last of ``tail_waves`` for
    all beyond, over the idle share of the last wave and k.
    """

    log2_waves: tuple[float, ...]
    log2_k: tuple[float, ...]
    tail_tiles: tuple[tuple[int, int], ...]
    tail_waves: int
    tail_idle: tuple[float, ...]
    tail_log2_k: tuple[float, ...]

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the table over waves and of the tail tables together."""
        tails = (len(self.tail_tiles), self.tail_waves, len(self.tail_idle), len(self.tail_log2_k))
        return (len(self.log2_waves), len(self.log2_k)), tails

    @property
    def size(self) -> int:
        """Entries of all tables."""
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def corners(self, m: Array, n: Array, k: Array, batch: Array, units: int) -> Iterator[tuple[Indices, Array]]:
        """The entries that speak of each product, as (index among all, weight) pairs of arrays."""
        log2_k = np.log2(k)
        along_k = _sides(log2_k, self.log2_k)
        waves = reference_waves(m, n, batch, units)
        for (i, u), (j, v) in product(_sides(np.log2(waves), self.log2_waves), along_k):
            yield i * len(self.log2_k) + j, u * v
        if not self.tail_tiles:
            return
        along_k = _sides(log2_k, self.tail_log2_k)
        start = len(self.log2_waves) * len(self.log2_k)
        for tile in self.tail_tiles:
            waves = waves_of(tile, m, n, batch, units)
            whole = np.ceil(waves)
            layer = np.minimum(whole, self.tail_waves).astype(np.intp) - 1
            for (i, u), (j, v) in product(_sides(whole - waves, self.tail_idle), along_k):
                yield start + (layer * len(self.tail_idle) + i) * len(self.tail_log2_k) + j, u * v
            start += self.tail_waves * len(self.tail_idle) * len(self.tail_log2_k)


@frozen
class Correction:
    """A grid and the logarithm of measured over modelled time at each of its knots."""

    grid: Grid
    log_factors: tuple[float, ...]

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Correction:
        """From the ``correction`` table of a device file."""
        tail = table.get("tail", {"tiles": (), "idle": (), "log2_k": (), "log_factor": ()})
        tiles = tuple((int(bm), int(bn)) for bm, bn in tail["tiles"])
        rows, tails = _rows(table["log_factor"]), _rows(tail["log_factor"])
        grid = Grid(
            _numbers(table["log2_waves"]), _numbers(table["log2_k"]), tiles,
            len(tails) // max(len(tiles), 1), _numbers(tail["idle"]), _numbers(tail["log2_k"]),
        )  # fmt: skip
        return cls(grid, tuple(float(value) for row in (*rows, *tails) for value in row))

    def table(self) -> dict[str, Any]:
        """What `from_table` reads; a row of the tail is one tile's layer, idle shares by k."""
        grid, values = self.grid, np.array(self.log_factors)
        (waves, ks), (tiles, layers, idle, tail_ks) = grid.shapes
        split = waves * ks
        return {
            "log2_waves": list(grid.log2_waves),
            "log2_k": list(grid.log2_k),
            "log_factor": _text(values[:split].reshape(waves, ks)),
            "tail": {
                "tiles": [list(tile) for tile in grid.tail_tiles],
                "idle": list(grid.tail_idle),
                "log2_k": list(grid.tail_log2_k),
                "log_factor": _text(values[split:].reshape(tiles * layers, idle * tail_ks)),
            },
        }

    def factor(self, m: Array, n: Array, k: Array, batch: Array, units: int) -> Array:
        """Measured over modelled time of products on ``units`` units."""
        table = np.asarray(self.log_factors)
        total: Array = np.zeros(m.shape)
        for index, weight in self.grid.corners(m, n, k, batch, units):
            total += table[index] * weight
        return np.exp(total, out=total)


def waves_of(tile: tuple[int, int], m: Array, n: Array, batch: Array, units: int) -> Array:
    """How many waves of ``tile`` a product is on ``units`` units; below 1: units without a tile."""
    waves: Array = np.ceil(m / tile[0]) * np.ceil(n / tile[1]) * batch / units
    return waves


def reference_waves(m: Array, n: Array, batch: Array, units: int) -> Array:
    """Waves of REFERENCE_TILE."""
    return waves_of(REFERENCE_TILE, m, n, batch, units)


def _sides(values: Array, knots: tuple[float, ...]) -> tuple[tuple[Indices, Array], tuple[Indices, Array]]:
    """The knots below and above each value with their weights, clipped to the ends."""
    grid = np.asarray(knots)
    index = np.clip(np.searchsorted(grid, values, side="right") - 1, 0, grid.size - 2)
    share = np.clip((values - grid[index]) / (grid[index + 1] - grid[index]), 0.0, 1.0)
    return (index, 1 - share), (index + 1, share)


def _numbers(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _rows(block: Any) -> list[Any]:
    """A table of a file: a line of numbers each (text, which a TOML reader passes over at once), or lists of them."""
    return [line.split() for line in block.split("\n") if line] if isinstance(block, str) else list(block)


def _text(rows: Array) -> str:
    return "".join(" ".join(map(repr, row)) + "\n" for row in rows.tolist())
