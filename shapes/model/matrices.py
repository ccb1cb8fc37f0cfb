"""Which dimension of a model each side of each weight matrix has, and how many features of it one shard holds.

What low-precision formats, grouped products and serving engines ask for is asked of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from shapes.frozen import frozen
from shapes.model.layers import MoeShape
from shapes.model.linear import Linear
from shapes.model.shape import ModelShape

#: The dimensions of a matrix's outputs, one for each part that is cut by itself, and of its inputs; "" stands for the
#: width of the MLP that it is of. Dimensions are those of ``shapes.model.resize`` and MLA's ranks.
_OF_NAME: dict[str, tuple[tuple[str, ...], str]] = {
    "qkv_proj": (("heads", "kv_heads", "kv_heads"), "hidden"),
    "q_proj": (("heads",), "hidden"),
    "k_proj": (("kv_heads",), "hidden"),
    "v_proj": (("kv_heads",), "hidden"),
    "o_proj": (("hidden",), "heads"),
    "q_a_proj": (("q_lora_rank",), "hidden"),
    "q_b_proj": (("heads",), "q_lora_rank"),
    "kv_a_proj": (("kv_lora_rank",), "hidden"),
    "kv_b_proj": (("heads",), "kv_lora_rank"),
    "gate_up_proj": (("", ""), "hidden"),
    "gate_proj": (("",), "hidden"),
    "up_proj": (("",), "hidden"),
    "down_proj": (("hidden",), ""),
}


@frozen
class Side:
    """The outputs (or a part of them that is cut by itself) or the inputs of a weight matrix.

    ``features`` are one shard's, of the fullest rank; ``whole`` the model's; ``shards`` how many share them (1: each
    rank has all). ``merged``: the matrix has several such parts in one. ``output`` False: the inputs.
    """

    dimension: str
    matrix: str
    features: int
    whole: int
    shards: int = 1
    output: bool = True
    merged: bool = False


@lru_cache(maxsize=64)
def sides(model: ModelShape, t: int, expert_t: int, *, fused: bool | None = None) -> tuple[Side, ...]:
    """Every side of every kind of weight matrix in the layers, cut over ``t`` ranks, experts over ``expert_t``.

    ``fused``: projections of the same input in one matrix, as serving engines have them (None: as the model class
    does). Matrices that are never quantised (routers, gates, embedding and head) are left out.
    """
    found: dict[Side, None] = {}
    for stack, block in model.all_blocks():
        moe = block.mlp if isinstance(block.mlp, MoeShape) else None
        width = "shared_d_ff" if moe is not None else "d_ff"
        for linear in block.linears(stack.hidden, fused_qkv=fused, fused_gate_up=fused):
            found |= dict.fromkeys(_of(linear, t, width))
        for linear in moe.expert_linears(stack.hidden, fused=fused) if moe is not None else ():
            found |= dict.fromkeys(_of(linear, expert_t, "expert_d_ff"))
    return tuple(found)


def _of(linear: Linear, t: int, width: str) -> Iterator[Side]:
    name = linear.name.rpartition(".")[2]
    if name not in _OF_NAME:
        return
    outs, inner = _OF_NAME[name]
    cut = t if linear.shard == "column" else 1
    parts = linear.units or ((linear.out_features, 1),)
    for dimension, (number, size) in zip(outs, parts, strict=True):
        yield Side(dimension or width, linear.name, -(-number // cut) * size, number * size, cut, merged=len(parts) > 1)
    cut = t if linear.shard == "row" else 1
    yield Side(inner or width, linear.name, -(-linear.in_features // cut), linear.in_features, cut, output=False)
