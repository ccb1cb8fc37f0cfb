"""Neighbouring hidden sizes: heads follow at constant head_dim, layers and the MLP's width at constant parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import lcm

from shapes.device import Device
from shapes.errors import InputError
from shapes.model import AttentionShape, ModelShape
from sizer.searching.baseline import Baseline
from sizer.searching.space import Candidates, Limits, Space, nothing_left, whole_heads
from sizer.searching.spaces.model import Bounds, aspect_bounds, parameters_by

NAME = "hidden"
LIMITS = frozenset({"aspect", "head_dims", "tp_ready", "keep"})

#: Hidden sizes up to this share away are neighbours, and those of one group of heads more or less, unless that is
#: far.
NEIGHBOURHOOD, FAR = 0.1, 0.2
#: How far d_ff/h may move from the baseline's where it gives way: published models lie within it of one another.
WIDTH_FACTOR = 1.25
#: And where the layers are kept, so that it alone gives way.
WIDTH_FACTOR_ALONE = 1.6
#: How far h/L may move: in a small model one head more is many layers fewer.
ASPECT_FACTOR = 2.0


def space(baseline: Baseline, device: Device, limits: Limits) -> Space:
    """Hidden sizes a tenth around the baseline's: layers, then the MLP's width, give way to keep the parameters."""
    model, workload = baseline.model, baseline.workload
    attention, mlp = model.attention, model.dense_mlp
    if not isinstance(attention, AttentionShape) or mlp is None:
        raise InputError("expected a dense model with multi-head attention", key="--what", value=NAME)
    excluded: Counter[str] = Counter()
    shards = limits.shards(workload.t)
    step = device.alignment_elements(workload.dtype) * shards
    least_heads = lcm(attention.heads // attention.kv_heads, _even(attention), shards)
    one_more = -(-model.hidden * least_heads // attention.heads)
    # As far as one head, and one step of aligned shards, reaches.
    slack = max(int(model.hidden * NEIGHBOURHOOD), *(far for far in (one_more, step) if far <= FAR * model.hidden), 0)
    found = limits.values(model.hidden - slack, model.hidden + slack, step)
    values = [value for value in found if value != model.hidden]
    if not values:
        raise nothing_left(NAME, {f"{model.hidden} +-{slack} in multiples of {step} ({shards} aligned shards)": 1})
    fixed = list(_heads(model, attention, values, limits, shards, excluded))
    if not fixed and limits.head_dims is None and whole_heads(attention.heads, attention.kv_heads, shards):
        # No neighbour is whole heads at the same key/value ratio: they stay as they are, and add up to another width.
        same = {"heads": attention.heads, "head_dim": attention.head_dim, "kv_heads": attention.kv_heads}
        fixed = [{"hidden": value, **same} for value in values]
    aspect = aspect_bounds(model, limits, Bounds(aspect_factor=ASPECT_FACTOR))
    factor = WIDTH_FACTOR_ALONE if "layers" in (limits.keep or ()) else WIDTH_FACTOR
    candidates = Candidates.of(
        [
            change
            for one in fixed
            for change in _layers_and_widths(model, one, step, workload.p, limits.tolerance, aspect, factor, excluded)
        ]
    )
    if not len(candidates):
        raise nothing_left(NAME, excluded)
    own = {
        "hidden": model.hidden,
        "heads": attention.heads,
        "head_dim": attention.head_dim,
        "kv_heads": attention.kv_heads,
        "d_ff": mlp.width,
        "layers": model.layers,
    }
    note = f"layers and d_ff (d_ff/h within a factor {factor} of the baseline's) follow, to keep the parameters"
    return Space(NAME, model, workload, candidates, own, excluded=excluded, notes=(note,))


def _heads(
    model: ModelShape, attention: AttentionShape, values: Iterable[int], limits: Limits, t: int, excluded: Counter[str]
) -> Iterator[dict[str, int]]:
    """Hidden sizes of whole heads, of the baseline's head_dim (or those asked for) and its key/value ratio."""
    group = attention.heads // attention.kv_heads
    for value in values:
        for dim in limits.head_dims or (attention.head_dim,):
            # Heads that do not add up to the hidden size (gemma) keep their share of it.
            heads = round(value * attention.heads * attention.head_dim / model.hidden / dim)
            whole = heads * dim * model.hidden == value * attention.heads * attention.head_dim
            if not whole or heads % lcm(group, _even(attention)) or not whole_heads(heads, heads // group, t):
                excluded["whole heads on every shard"] += 1
            else:
                yield {"hidden": value, "heads": heads, "head_dim": dim, "kv_heads": heads // group}


def _even(attention: AttentionShape) -> int:
    """What numbers of heads are multiples of: a prime number of them is split over no t."""
    return 1 if attention.heads % 2 else 2


def _layers_and_widths(
    model: ModelShape,
    fixed: dict[str, int],
    step: int,
    p: int,
    tolerance: float,
    aspect: tuple[float, float],
    factor: float,
    excluded: Counter[str],
) -> Iterator[dict[str, int]]:
    """Layers about as many as the baseline's, each with the width that makes up its parameters."""
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
        elif not aspect[0] <= value / layers <= aspect[1]:
            excluded[f"h/L within {aspect[0]:.0f}..{aspect[1]:.0f} (--limit aspect)"] += 1
        elif abs(count.of(layers, width) / target - 1) > tolerance:
            excluded[f"--tolerance {tolerance:.2%}"] += 1
        else:
            yield {**fixed, "d_ff": width, "layers": layers}
