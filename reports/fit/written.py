"""Constants with their tables of kernel choice -> ``[cost.<dtype>]`` of a device file."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

import shapes.calibrate as device_file
from fit.evidence import Array
from shapes.cost.constants import GemmConstants
from shapes.cost.corrections import Cells, Correction, Grid


def _shapes(grid: Grid) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    """Of the table over waves and of the tail tables together."""
    tails = len(grid.tail_tiles), grid.tail_waves, len(grid.tail_idle), len(grid.tail_log2_k)
    return (len(grid.log2_waves), len(grid.log2_k)), tails


def grid_size(grid: Grid) -> int:
    """Entries of all tables."""
    return sum(map(prod, _shapes(grid)))


def correction_table(correction: Correction) -> dict[str, Any]:
    """What `Correction.from_table` reads; a row of the tail is one tile's layer, idle shares by k."""
    grid, values = correction.grid, np.array(correction.log_factors)
    (waves, ks), (tiles, layers, idle, tail_ks) = _shapes(grid)
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


def cells_table(cells: Cells) -> dict[str, Any]:
    """What `Cells.from_table` reads."""
    return {"m": list(cells.m), "n": list(cells.n), "log2_k": list(cells.log2_k), "log_factor": cells.entries}


def gemm_table(constants: GemmConstants) -> dict[str, Any]:
    """``[cost.<dtype>]``, what `GemmConstants.from_table` reads."""
    table = device_file.gemm_table(constants)
    if constants.correction is not None:
        table["correction"] = correction_table(constants.correction)
    if constants.small is not None:
        table["small"] = gemm_table(constants.small)
    if constants.cells is not None:
        table["cells"] = cells_table(constants.cells)
    return table


def _text(rows: Array) -> str:
    return "".join(" ".join(map(repr, row)) + "\n" for row in rows.tolist())
