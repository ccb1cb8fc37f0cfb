"""Neighbouring hidden sizes: heads follow at constant head_dim, layers and the MLP's width at constant parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import lcm

from shapes.errors import InputError
from shapes.model import AttentionShape
from sizer.searching.space import Request, Space, whole_heads
from sizer.searching.spaces.model import aspect_bounds, even, parameters_by, whole_head_counts

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
    least_heads = lcm(attention.heads // attention.kv_heads, even(attention), shards)
    one_more = -(-model.hidden * least_heads // attention.heads)
    # As far as one head, and one step of aligned shards, reaches.
    slack = max(int(model.hidden * NEIGHBOURHOOD), *(far for far in (one_more, step) if far <= FAR * model.hidden), 0)
    values = {*limits.values(model.hidden - slack, model.hidden + slack, step)} - {model.hidden}
    if not values:
        request.excluded[f"{model.hidden} +-{slack} in multiples of {step} ({shards} aligned shards)"] = 1
    factor = WIDTH_FACTOR_ALONE if "layers" in (limits.keep or ()) else WIDTH_FACTOR
    fixed = _with_heads(request, attention, sorted(values))
    return request.space(
        [change for one in fixed for change in _layers_and_widths(request, one, factor)],
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


def _layers_and_widths(request: Request, fixed: dict[str, int], factor: float) -> Iterator[dict[str, int]]:
    """Layers about as many as the baseline's, each with the width that makes up its parameters."""
    model, step, p, excluded = request.model, request.step, request.workload.p, request.excluded
    low, high = aspect_bounds(model, request.limits, ASPECT_FACTOR)
    count, target, value = parameters_by(model, fixed), model.parameters, fixed["hidden"]
    assert model.dense_mlp is not None
    proportional = model.dense_mlp.width * value / model.hidden
    fewest = max(p, (target - count.ends) // max(1, count.layer(round(proportional * factor))))
    most = (target - count.ends) // max(1, count.layer(round(proportional / factor))) + 1
    for layers in range(-(-fewest // p) * p, most + 1, p):
        exact = ((target - count.ends) / layers - count.rest) / count.each
        width = max(step, round(exact / step) * step)
        if not proportional / factor <= width <= proportional * factor:
            excluded[f"d_ff within a factor {factor} of the baseline's share of h"] += 1
        elif not low <= value / layers <= high:
            excluded[f"h/L within {low:.0f}..{high:.0f} (--limit aspect)"] += 1
        elif abs(count.of(layers, width) / target - 1) > request.limits.tolerance:
            excluded[f"--tolerance {request.limits.tolerance:.2%}"] += 1
        else:
            yield {**fixed, "d_ff": width, "layers": layers}
