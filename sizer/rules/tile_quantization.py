"""Partial tiles throw away at most 5% of the computed output.

A product is computed in tiles (128 x 128, 128 x 256 …). Where m or n is not a multiple of the tile, the last row or
column of tiles computes values that nobody keeps: time goes with whole tiles.

Bad: m = n = 257 in tiles of 128: 9 tiles computed, 4.03 kept.
Good: m = n = 256: 4 tiles, all kept.

Suggestion: the dimension at the tile's edge. How much of this costs time differs by device, so the price decides.
The head dimension is left to SZ102 and SZ114.
"""

from __future__ import annotations

from shapes.operators import Gemm
from sizer.rules.arithmetic import neighbours, next_multiple
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
    worst: dict[int, tuple[float, str, str]] = {}
    for op, cost in zip(context.operators, context.costs, strict=True):
        if not isinstance(op, Gemm) or cost.tile is None or cost.tile_efficiency is None:
            continue
        share = op.count * cost.seconds / step_s
        if cost.tile_efficiency >= 1 - LARGEST_WASTE or share < NOTABLE_SHARE:
            continue
        if context.dimensions.get("head_dim") in (op.m, op.n):
            continue
        value, edge = min(((op.m, cost.tile[0]), (op.n, cost.tile[1])), key=lambda pair: _kept(*pair))
        # Without a dimension to move, an edge is how the model is built and no advice.
        if context.model is not None and not _suggestions(context, value, op.name):
            continue
        waste = share * (1 - cost.tile_efficiency)
        text = _text(op, cost.tile, cost.tile_efficiency, edge)
        worst[value] = max(worst.get(value, (0.0, "", "")), (waste, op.name.removeprefix("layers.*."), text))
    return [
        Finding(*_field(context, value, name), text, _suggestions(context, value, name))
        for value, (_, name, text) in worst.items()
    ]


def _kept(value: int, edge: int) -> float:
    """The share of whole tiles along one dimension that is not thrown away."""
    return value / next_multiple(value, edge)


def _text(op: Gemm, tile: tuple[int, int], efficiency: float, edge: int) -> str:
    return (
        f"{op.name} {op.phase} ({op.m} x {op.n} x {op.k}) in tiles of {tile[0]} x {tile[1]} keeps {efficiency:.0%} of "
        f"what it computes; the edge is at multiples of {edge}"
    )


def _field(context: Context, value: int, name_of_operator: str) -> tuple[str, int]:
    """The configuration's field behind ``value``; the operator itself where there is none."""
    workload, t = context.workload, context.workload.t
    for name in ("vocab", "d_ff", "hidden"):
        if name in context.dimensions and value in (context.dimensions[name], -(-context.dimensions[name] // t)):
            return name, context.dimensions[name]
    return ("s", workload.s) if value in (workload.s, workload.tokens) else (name_of_operator, value)


def _suggestions(context: Context, value: int, name_of_operator: str) -> tuple[Suggestion, ...]:
    name, current = _field(context, value, name_of_operator)
    if name not in ("vocab", "d_ff"):
        return ()
    step = 128 * context.workload.t
    # A smaller vocabulary would lose tokens.
    return tuple(
        Suggestion({name: multiple})
        for multiple in neighbours(current, step)
        if multiple > current or (multiple < current and name != "vocab")
    )
