"""Whole models at a parameter budget: (h, L, a, kv, d_ff, v) together, in bounds that leave quality to the person.

Of a mixture of experts their width, number and top_k with them, at the budget's active parameters too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from math import ceil, floor, gcd, lcm
from typing import Any

import numpy as np

from shapes.columns import Table, rows_by
from shapes.device import Device
from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.model import AttentionShape, MlaShape, ModelShape, MoeShape
from shapes.model.resize import dimensions, resize
from shapes.workload import Workload
from sizer.searching.baseline import Baseline
from sizer.searching.mixtures import baseline_of, mixtures, off_by, room, whole
from sizer.searching.space import VARIABLE, Candidates, Limits, Space, nothing_left, whole_heads

NAME = "model"
LIMITS = frozenset({"aspect", "head_dims", "tp_ready", "keep", "vary"})

#: Elements that a mixture's hidden sizes and experts' widths are multiples of, so that not each of too many is tried.
COARSE = 128
#: Latent attention's heads are tried in multiples of the largest power of two in the baseline's, to this.
MOST_HEADS_STEP = 16


@frozen
class Bounds:
    """What keeps a model's shape near the baseline's.

    h/L within a factor, head dimensions, d_ff/h within a factor, experts' width and top_k within another.
    """

    aspect_factor: float = 1.5
    head_dims: tuple[int, ...] = (64, 96, 128)
    width_factor: float = 1.1
    expert_factor: float = 2.0


NEAR = Bounds()


def space(baseline: Baseline, device: Device, limits: Limits, *, bounds: Bounds = NEAR) -> Space:
    """Every combination of aligned dimensions whose parameters are within the tolerance of the budget."""
    model, workload = baseline.model, baseline.workload
    _refuse(model, limits)
    target, excluded = baseline.parameters or float(model.parameters), Counter[str]()
    step = device.alignment_elements(workload.dtype) * limits.shards(workload.t)
    found = _dense if model.moe is None else _mixtures
    candidates = found(model, workload, step, limits, target, bounds, excluded)
    if not len(candidates):
        raise nothing_left(NAME, excluded)
    sizes = {**dimensions(model), **(baseline_of(model.moe) if model.moe else {})}
    own = {name: sizes[name] for name in candidates.columns}
    low, high = aspect_bounds(model, limits, bounds)
    widths = (
        [f"d_ff/h within a factor {bounds.width_factor} of the baseline's"]
        if model.moe is None
        else [
            f"experts' width and top_k within a factor {bounds.expert_factor:g} of the baseline's, active parameters "
            "within the tolerance too"
        ]
    )
    if isinstance(model.attention, AttentionShape):
        widths.append(
            f"head_dim in {', '.join(map(str, _head_dims(model.attention, limits, bounds)))} (--limit head-dim)"
        )
    bounded = ", ".join((f"h/L from {low:.0f} to {high:.0f} (--limit aspect)", *widths))
    note = f"{bounded}: quality inside these bounds is yours to judge"
    return Space(NAME, model, workload, candidates, own, excluded=excluded, notes=(note,))


def _refuse(model: ModelShape, limits: Limits) -> None:
    """InputError for what is no decoder, or has no use for a limit."""
    mixtures_held = {block.mlp for block in model.main.blocks if isinstance(block.mlp, MoeShape)}
    plain = model.attention is not None and (model.dense_mlp is not None or mixtures_held)
    if not plain or len(model.stacks) > 1 or len(mixtures_held) > 1:
        raise InputError("expected a decoder, its experts alike in all layers", key="--what", value=NAME)
    if limits.head_dims is not None and not isinstance(model.attention, AttentionShape):
        raise InputError("expected attention of one head dimension with it", key="--limit head-dim")
    sizes, latent = dimensions(model), isinstance(model.attention, MlaShape)
    for name in limits.vary or ():
        if not set(VARIABLE[name]) <= sizes.keys() or (
            name in ("mla-heads", "kv-ratio") and latent != (name[0] == "m")
        ):
            raise InputError("expected a model that has such a dimension", key="--limit vary", value=name)


def _head_dims(attention: AttentionShape, limits: Limits, bounds: Bounds) -> tuple[int, ...]:
    return limits.head_dims or tuple(sorted({*bounds.head_dims, attention.head_dim}))


def _dense(
    model: ModelShape,
    workload: Workload,
    step: int,
    limits: Limits,
    target: float,
    bounds: Bounds,
    excluded: Counter[str],
) -> Candidates:
    """Dense models: an MLP's width, then the layers that come nearest."""
    assert model.dense_mlp is not None
    low, high = aspect_bounds(model, limits, bounds)
    around = list(_around(model, workload, step, step, limits, bounds, excluded))
    if not around:
        return Candidates({})
    ratio, every = model.dense_mlp.width / model.hidden, limits.step or step
    widths = [
        np.arange(
            max(-(-int(fixed["hidden"] * ratio / bounds.width_factor) // step) * step, step),
            int(fixed["hidden"] * ratio * bounds.width_factor) + 1,
            every,
        )
        for fixed in around
    ]
    table = Table(Candidates.of(around).columns)
    counts = rows_by(table, lambda part: astuple(parameters_by(model, part)), 3)
    of, width = np.repeat(np.arange(len(around)), list(map(len, widths))), np.concatenate(widths)
    ends, rest, each = counts[:, of]
    layer = rest + width * each
    # Layers within the tolerance, or those that come closest.
    first = np.ceil((target * (1 - limits.tolerance) - ends) / layer)
    last = np.floor((target * (1 + limits.tolerance) - ends) / layer)
    nearest = np.maximum(np.rint((target - ends) / layer), 1)
    first, last = np.maximum(np.where(last < first, nearest, first), 1), np.where(last < first, nearest, last)
    many = np.maximum(last - first + 1, 0).astype(np.int64)
    row = np.repeat(np.arange(len(of)), many)
    layers = first[row].astype(np.int64) + np.arange(len(row)) - np.repeat(np.cumsum(many) - many, many)
    tried = Candidates({**Candidates(table.columns)[of[row]].columns, "d_ff": width[row], "layers": layers})
    shape, parameters = tried.columns["hidden"] / layers, ends[row] + layers * layer[row]
    return tried.where(
        {
            f"layers divisible by pp {workload.p}": layers % workload.p == 0,
            f"h/L within {low:.0f}..{high:.0f} (--limit aspect)": (low <= shape) & (shape <= high),
            f"--tolerance {limits.tolerance:.2%}": abs(parameters / target - 1) <= limits.tolerance,
        },
        excluded,
    )


def _mixtures(
    model: ModelShape,
    workload: Workload,
    step: int,
    limits: Limits,
    target: float,
    bounds: Bounds,
    excluded: Counter[str],
) -> Candidates:
    """Mixtures of experts: layers and an expert's width, then as many experts, and a token's, as come nearest."""
    moe, mlp, (low, high) = model.moe, model.dense_mlp, aspect_bounds(model, limits, bounds)
    assert moe is not None
    coarse = lcm(step, COARSE) if limits.step is None else limits.step
    active_target, multiple = target * model.active_parameters / model.parameters, whole(moe, workload)
    shared = moe.shared.width if moe.shared else 0
    # Shared experts stay as many as they are; where they are no whole number, as wide.
    widths = [
        (width, shared // moe.width * width if shared % moe.width == 0 else shared)
        for width in range(
            -(-int(moe.width / bounds.expert_factor) // coarse) * coarse or coarse,
            int(moe.width * bounds.expert_factor) + 1,
            coarse,
        )
    ]
    fixed = []
    for one in _around(model, workload, step, coarse, limits, bounds, excluded):
        hidden = one["hidden"]
        if mlp is not None:
            one["d_ff"] = max(step, round(mlp.width * hidden / model.hidden / step) * step)
        layers = range(max(1, ceil(hidden / high)), floor(hidden / low) + 1)
        fixed += [{**one, "layers": count} for count in layers if count % workload.p == 0]
    if not fixed:
        return Candidates({})
    around = Candidates.of(fixed)
    outside, column = rows_by(Table(around.columns), lambda part: room(resize(model, **part)), 2)
    around, outside, column = around[column > 0], outside[column > 0], column[column > 0]
    active = (active_target - outside) / column
    of, mixture = mixtures(moe, (target - outside) / column, active, widths, multiple)
    wide = mixture["top_k"] * mixture["expert_d_ff"] + mixture.get("shared_d_ff", 0)
    more = mixture["top_k"] / moe.top_k
    near = (1 / bounds.expert_factor <= more) & (more <= bounds.expert_factor)
    near &= abs(wide - active[of]) * column[of] <= 2 * limits.tolerance * active_target
    columns = dict(around[of[near]].columns)
    layers = columns.pop("layers")
    tried = Candidates({**columns, **Candidates(mixture)[near].columns, "layers": layers})
    found = tried
    if len(tried):
        found = tried[off_by(model, tried.columns, target, active_target) <= limits.tolerance]
    if left_out := len(of) - len(found):
        excluded[f"--tolerance {limits.tolerance:.2%} of total and active parameters, top_k"] += left_out
    return found


def aspect_bounds(model: ModelShape, limits: Limits, bounds: Bounds = NEAR) -> tuple[float, float]:
    """h/L from and to: as asked for, else within a factor of the baseline's."""
    own = model.hidden / model.layers
    return limits.aspect or (own / bounds.aspect_factor, own * bounds.aspect_factor)


def _around(
    model: ModelShape,
    workload: Workload,
    step: int,
    coarse: int,
    limits: Limits,
    bounds: Bounds,
    excluded: Counter[str],
) -> Iterator[dict[str, int]]:
    """Hidden sizes around the baseline's with their heads, padded vocabulary and what is to vary."""
    reach = bounds.aspect_factor ** (2 / 3)  # h moves by less than h/L: L gives way
    shards, vocab = limits.shards(workload.t), -(-model.vocab // step) * step
    for hidden in limits.values(int(model.hidden / reach), int(model.hidden * reach), coarse):
        for heads in _heads(model, hidden, shards, limits, bounds, excluded):
            for varied in _varied(model, heads, shards, limits.vary or (), excluded):
                yield {"hidden": hidden, **varied, "vocab": vocab}


def _heads(
    model: ModelShape, hidden: int, shards: int, limits: Limits, bounds: Bounds, excluded: Counter[str]
) -> Iterator[dict[str, int]]:
    """Heads of each allowed dimension, as many query heads to a key/value head as now, and an even number of them.

    They keep their share of the hidden size (qwen3's and gemma's do not add up to it).
    """
    attention = model.attention
    assert attention is not None
    if not isinstance(attention, AttentionShape):
        step = lcm(shards, gcd(attention.heads, MOST_HEADS_STEP))
        yield {"heads": max(step, round(attention.heads * hidden / model.hidden / step) * step)}
        return
    group, even = attention.heads // attention.kv_heads, 1 if attention.heads % 2 else 2
    for dim in _head_dims(attention, limits, bounds):
        heads, left = divmod(hidden * attention.heads * attention.head_dim, model.hidden * dim)
        if left or heads % shards or heads % group or not whole_heads(heads, heads // group, shards):
            excluded["whole heads on every shard"] += 1
        elif heads % even:
            excluded["an even number of heads, so that t 2 divides them"] += 1
        else:
            yield {"heads": heads, "head_dim": dim, "kv_heads": heads // group}


def _varied(
    model: ModelShape, heads: dict[str, int], shards: int, names: tuple[str, ...], excluded: Counter[str]
) -> Iterator[dict[str, int]]:
    """``heads`` with what is to vary as it is, halved and doubled."""
    sizes, found = {**dimensions(model), **heads}, [heads]
    for name in (one for vary in names for one in VARIABLE[vary]):
        found = [
            {**one, name: size} for one in found for size in (sizes[name], sizes[name] // 2, sizes[name] * 2) if size
        ]
    for one in found:
        count, kv_heads = one.get("heads", sizes["heads"]), one.get("kv_heads", 0)
        if kv_heads and (count % kv_heads or not whole_heads(count, kv_heads, shards)):
            excluded["whole heads on every shard"] += 1
        else:
            yield one


@frozen
class ParameterCount:
    """Parameters of the model by layers and d_ff at fixed other dimensions: ends + layers (rest + d_ff x each)."""

    ends: int
    rest: int
    each: int

    def layer(self, width: int) -> int:
        return self.rest + width * self.each

    def of(self, layers: int, width: int) -> int:
        return self.ends + layers * self.layer(width)


def parameters_by(model: ModelShape, fixed: Mapping[str, Any] | Table) -> ParameterCount:
    """The count, linear in layers and in d_ff, from three resized models."""
    one, wide, two = (
        resize(model, **fixed, layers=layers, d_ff=width).parameters for layers, width in ((1, 1), (1, 2), (2, 1))
    )
    return ParameterCount(2 * one - two, two - wide, wide - one)
