"""Partial tiles throw away at most 5% of the computed output.

A product is computed in tiles (128 x 128, 128 x 256 …). Where m or n is not a multiple of the tile, the last row or
column of tiles computes values that nobody keeps: time goes with whole tiles.

Bad: m = n = 257 in tiles of 128: 9 tiles computed, 4.03 kept.
Good: m = n = 256: 4 tiles, all kept.

Suggestion: the dimension at the tile's edge. How much of this is really paid differs by device, so the price decides.
"""

from __future__ import annotations

from shapes.operators import Gemm
from sizer.rules.arithmetic import neighbours
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ111"
SLUG = "tile-quantization"
SOURCE = "NVIDIA Matrix Multiplication Background User's Guide, dimension quantization; ML Engineering book."

LARGEST_WASTE = 0.05
#: Operators below this share of the step are not worth a line.
NOTABLE_SHARE = 0.01


def check(context: Context) -> Answer:
    if not any(cost.tile_efficiency is not None for cost in context.costs):
        return NotApplicable("no tiled products")
    step_s = context.step_s
    worst: dict[int, tuple[float, str]] = {}
    for op, cost in zip(context.operators, context.costs, strict=True):
        if not isinstance(op, Gemm) or cost.tile is None or cost.tile_efficiency is None:
            continue
        share = op.count * cost.seconds / step_s
        if cost.tile_efficiency >= 1 - LARGEST_WASTE or share < NOTABLE_SHARE:
            continue
        dimension, edge = ("m", cost.tile[0]) if op.m % cost.tile[0] else ("n", cost.tile[1])
        value = getattr(op, dimension)
        waste = share * (1 - cost.tile_efficiency)
        worst[value] = max(worst.get(value, (0.0, "")), (waste, _text(op, cost.tile, cost.tile_efficiency, edge)))
    return [Finding(*_field(context, value), text, _suggestions(context, value)) for value, (_, text) in worst.items()]


def _text(op: Gemm, tile: tuple[int, int], efficiency: float, edge: int) -> str:
    return (
        f"{op.name} {op.phase} ({op.m} x {op.n} x {op.k}) in tiles of {tile[0]} x {tile[1]} keeps {efficiency:.0%} of "
        f"what it computes; the edge is at multiples of {edge}"
    )


def _field(context: Context, value: int) -> tuple[str, int]:
    t = context.workload.t
    for name in ("vocab", "d_ff", "hidden", "head_dim"):
        if name in context.dimensions and value in (context.dimensions[name], -(-context.dimensions[name] // t)):
            return name, context.dimensions[name]
    return "s", context.workload.s


def _suggestions(context: Context, value: int) -> tuple[Suggestion, ...]:
    name, current = _field(context, value)
    if name not in ("vocab", "d_ff"):
        return ()
    step = 128 * context.workload.t
    return tuple(Suggestion({name: multiple}) for multiple in neighbours(current, step) if multiple != current)
