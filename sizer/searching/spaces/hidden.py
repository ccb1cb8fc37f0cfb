"""Neighbouring hidden sizes: heads follow at constant head_dim, layers and the MLP's width at constant parameters."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from shapes.errors import InputError
from shapes.model import AttentionShape
from sizer.searching.space import Request, Space, whole_heads
from sizer.searching.spaces.model import dense, ready, whole_head_counts

#: Hidden sizes up to this share away are neighbours, and those of one group of heads more or less, unless that is
#: far.
NEIGHBOURHOOD, FAR = 0.1, 0.2
#: How far d_ff/h may move from the baseline's where it gives way: published models lie within it of one another.
WIDTH_FACTOR = 1.25
#: And where the layers are kept, so that it alone gives way.
WIDTH_FACTOR_ALONE = 1.6
#: How far h/L may move: in a small model one head more is many layers fewer.
ASPECT_FACTOR = 2.0


def hidden(request: Request) -> Space:
    """Neighbouring hidden sizes: heads follow at constant head_dim, layers and the MLP's width at constant parameters.

    A tenth around the baseline's: layers, then the MLP's width, give way to keep the parameters.
    """
    model, limits, shards, step = request.model, request.limits, request.shards, request.step
    attention = model.attention
    if not isinstance(attention, AttentionShape) or model.dense_mlp is None:
        raise InputError("expected a dense model with multi-head attention", key="--what", value=request.what)
    least_heads = lcm(attention.heads // attention.kv_heads, ready(request, attention))
    one_more = -(-model.hidden * least_heads // attention.heads)
    # As far as one head, and one step of aligned shards, reaches.
    slack = max(int(model.hidden * NEIGHBOURHOOD), *(far for far in (one_more, step) if far <= FAR * model.hidden), 0)
    values = {*limits.values(model.hidden - slack, model.hidden + slack, step)} - {model.hidden}
    if not values:
        request.excluded[f"{model.hidden} +-{slack} in multiples of {step} ({shards} aligned shards)"] = 1
    factor = WIDTH_FACTOR_ALONE if "layers" in (limits.keep or ()) else WIDTH_FACTOR
    return request.space(
        dense(request, model.parameters, _with_heads(request, attention, sorted(values)), ASPECT_FACTOR, factor),
        f"layers and d_ff (d_ff/h within a factor {factor} of the baseline's) follow, to keep the parameters",
    )


def _with_heads(request: Request, attention: AttentionShape, values: Sequence[int]) -> list[dict[str, int]]:
    """Hidden sizes of whole heads, of the baseline's head_dim (or those asked for) and its key/value ratio."""
    dims = request.limits.head_dims
    found = [
        {"hidden": value, **one}
        for value in values
        for one in whole_head_counts(request, value, dims or (attention.head_dim,))
    ]
    if found or dims is not None or not whole_heads(attention.heads, attention.kv_heads, request.shards):
        return found
    # No neighbour is whole heads at the same key/value ratio: they stay as they are, and add up to another width.
    same = {"heads": attention.heads, "head_dim": attention.head_dim, "kv_heads": attention.kv_heads}
    return [{"hidden": value, **same} for value in values]
