"""Constants as the tables of a device file: what `shapes.cost.constants` reads back."""

from __future__ import annotations

from typing import Any

from shapes.cost.constants import ATTENTION_NUMBERS, NUMBERS, AttentionConstants, GemmConstants


def gemm_table(constants: GemmConstants) -> dict[str, Any]:
    """``[cost.<dtype>]``; numbers to four digits, which is more than is identified."""
    table: dict[str, Any] = {name: float(f"{getattr(constants, name):.4g}") for name in NUMBERS}
    table["tiles"] = [list(tile) for tile in constants.tiles]
    if constants.correction is not None:
        table["correction"] = constants.correction.table()
    if constants.small is not None:
        table["small"] = gemm_table(constants.small)
    return table


def attention_table(constants: AttentionConstants) -> dict[str, Any]:
    """``[cost.attention]``."""
    table: dict[str, Any] = {name: float(f"{getattr(constants, name):.4g}") for name in ATTENTION_NUMBERS}
    for name in ("flops_per_s", "prologue_keys"):
        table[name] = {str(bucket): float(f"{value:.4g}") for bucket, value in getattr(constants, name)}
    return table
