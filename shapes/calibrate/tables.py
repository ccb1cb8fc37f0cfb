"""Constants as the tables of a device file: what `shapes.cost.constants` reads back."""

from __future__ import annotations

from math import isfinite
from typing import Any

from shapes.cost.constants import NUMBERS, GemmConstants


def gemm_table(constants: GemmConstants) -> dict[str, Any]:
    """``[cost.<dtype>]``; to six digits: rounding must not undo the order of two sizes' times."""
    table: dict[str, Any] = {name: float(f"{getattr(constants, name):.6g}") for name in NUMBERS}
    if isfinite(constants.split_steps):
        table["split_steps"] = float(f"{constants.split_steps:.6g}")
    table["tiles"] = [list(tile) for tile in constants.tiles]
    if constants.correction is not None:
        table["correction"] = constants.correction.table()
    if constants.small is not None:
        table["small"] = gemm_table(constants.small)
    if constants.cells is not None:
        table["cells"] = constants.cells.table()
    return table
