"""Whole models at a parameter budget: (h, L, a, kv, d_ff, v) together, in bounds that leave quality to the person.

Of a mixture of experts their width, number and top_k with them, at the budget's active parameters too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import ceil, floor, gcd, lcm
from typing import Any

import numpy as np

from shapes.columns import Table, rows_by
from shapes.dtypes import next_multiple
from shapes.errors import refuse
from shapes.model import AttentionShape, MlaShape, ModelShape, MoeShape
from shapes.model.resize import dimensions, resize
from sizer.searching.space import VARIABLE, Candidates, Limits, Request, Space, whole_heads
from sizer.searching.spaces.experts import EXPERT_FACTOR, mixtures_around

#: Elements that a mixture's hidden sizes and experts' widths are multiples of, as far as its own hidden size is, so
#: that not each of too many is tried.
COARSE = 128
#: Latent attention's heads are tried in multiples of the largest power of two in the baseline's, to this.
MOST_HEADS_STEP = 16
#: What keeps a model's shape near the baseline's: h/L within a factor, head dimensions, d_ff/h within a factor.
ASPECT_FACTOR, HEAD_DIMS, WIDTH_FACTOR = 1.5, (64, 128), 1.1
#: d_ff/h within it where quality is predicted: published models lie within it of one another.
WIDER_FACTOR = 1.4
#: Shards that numbers of heads stay ready for where the baseline's are.
READY = 8


def model(request: Request) -> Space:
    """Whole models at a parameter budget: (h, L, a, kv, d_ff, v) together, in bounds that leave quality to the person.

    Every combination of aligned dimensions whose parameters are within the tolerance of the budget.
    """
    own, limits = request.model, request.limits
    _refuse(request)
    target = request.baseline.parameters or float(own.parameters)
    candidates = (_dense if own.moe is None else _mixtures)(request, target)
    low, high = aspect_bounds(own, limits)
    bounds = [
        f"h/L from {low:.0f} to {high:.0f} (--limit aspect)",
        f"d_ff/h within a factor {WIDTH_FACTOR} of the baseline's"
        if own.moe is None
        else f"experts' width and top_k within a factor {EXPERT_FACTOR:g} of the baseline's, active parameters within "
        "the tolerance too",
    ]
    if isinstance(own.attention, AttentionShape):
        bounds.append(f"head_dim in {', '.join(map(str, _head_dims(own.attention, limits)))} (--limit head-dim)")
    judged = ": quality inside these bounds is yours to judge" if limits.spread is None else ""
    return request.space(candidates, f"{', '.join(bounds)}{judged}")


def alike(model: ModelShape) -> bool:
    """Whether it is a decoder, its experts alike in all layers that have some, else its MLPs alike in all layers."""
    mlps = {block.mlp for block in model.main.blocks}
    kinds = {mlp for mlp in mlps if isinstance(mlp, MoeShape)} or mlps
    return len(model.stacks) == len(kinds) == 1 and None not in (model.attention, *kinds)


def _refuse(request: Request) -> None:
    """InputError for a limit that the model has no use for."""
    model, limits = request.model, request.limits
    latent = isinstance(model.attention, MlaShape)
    refuse(
        limits.head_dims is not None and latent, "expected attention of one head dimension with it", "--limit head-dim"
    )
    lacks, sizes = "kv-ratio" if latent else "mla-heads", dimensions(model)
    for name in limits.vary or ():
        refuse(
            name == lacks or not sizes.keys() >= set(VARIABLE[name]),
            "expected a model that has such a dimension",
            "--limit vary",
            name,
        )


def _head_dims(attention: AttentionShape, limits: Limits) -> tuple[int, ...]:
    return limits.head_dims or tuple(sorted({*HEAD_DIMS, attention.head_dim}))


def _dense(request: Request, target: float) -> Candidates:
    """Dense models: an MLP's width, then the layers that come nearest."""
    model, limits, step, p = request.model, request.limits, request.step, request.workload.p
    assert model.dense_mlp is not None
    around = list(_around(request, step))
    if not around:
        return Candidates({})
    ratio, every = model.dense_mlp.width / model.hidden, limits.step or step
    factor = WIDTH_FACTOR if limits.spread is None else WIDER_FACTOR
    ranges = ((fixed["hidden"] * ratio / factor, fixed["hidden"] * ratio * factor) for fixed in around)
    widths = [np.arange(max(next_multiple(int(least), step), step), int(most) + 1, every) for least, most in ranges]
    table = Table(Candidates.of(around).columns)
    counts = rows_by(table, lambda part: parameters_by(model, part), 3)
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
    low, high = aspect_bounds(model, limits)
    return tried.where(
        {
            f"layers divisible by pp {p}": layers % p == 0,
            f"h/L within {low:.0f}..{high:.0f} (--limit aspect)": (low <= shape) & (shape <= high),
            f"--tolerance {limits.tolerance:.2%}": abs(parameters / target - 1) <= limits.tolerance,
        },
        request.excluded,
    )


def _mixtures(request: Request, target: float) -> Candidates:
    """Mixtures of experts: layers, then their experts."""
    model, step = request.model, request.step
    mlp, (low, high) = model.dense_mlp, aspect_bounds(model, request.limits)
    coarse = lcm(step, gcd(COARSE, model.hidden)) if request.limits.step is None else request.limits.step
    fixed = []
    for one in _around(request, coarse):
        hidden = one["hidden"]
        if mlp is not None:
            one["d_ff"] = max(step, round(mlp.width * hidden / model.hidden / step) * step)
        layers = range(max(1, ceil(hidden / high)), floor(hidden / low) + 1)
        fixed += [{**one, "layers": count} for count in layers if count % request.workload.p == 0]
    return mixtures_around(request, target, Candidates.of(fixed), coarse) if fixed else Candidates({})


def aspect_bounds(model: ModelShape, limits: Limits) -> tuple[float, float]:
    """h/L from and to: as asked for, else within a factor of the baseline's."""
    own = model.hidden / model.layers
    factor = limits.spread or ASPECT_FACTOR
    return limits.aspect or (own / factor, own * factor)


def _around(request: Request, coarse: int) -> Iterator[dict[str, int]]:
    """Hidden sizes around the baseline's with their heads, padded vocabulary and what is to vary."""
    model, step = request.model, request.step
    reach = (request.limits.spread or ASPECT_FACTOR) ** (2 / 3)  # h moves by less than h/L: L gives way
    vocab = next_multiple(model.vocab, step)
    for hidden in request.limits.values(int(model.hidden / reach), int(model.hidden * reach), coarse):
        for heads in _heads(request, hidden):
            for varied in _varied(request, heads):
                yield {"hidden": hidden, **varied, "vocab": vocab}


def _heads(request: Request, hidden: int) -> Iterable[dict[str, int]]:
    """Heads of each allowed dimension; of latent attention as many a width as now."""
    attention = request.model.attention
    if isinstance(attention, AttentionShape):
        # Shards that heads split over: those asked for, else those to READY that the baseline's split over.
        ready = 1 if request.limits.tp_ready else gcd(attention.heads, READY)
        return whole_head_counts(request, hidden, _head_dims(attention, request.limits), lcm(request.shards, ready))
    assert attention is not None
    step = lcm(request.shards, gcd(attention.heads, MOST_HEADS_STEP))
    return [{"heads": max(step, round(attention.heads * hidden / request.model.hidden / step) * step)}]


def whole_head_counts(request: Request, hidden: int, dims: Iterable[int], shards: int) -> Iterator[dict[str, int]]:
    """Heads of each of ``dims``, as many query heads to a key/value head as now, that ``shards`` divide.

    They keep their share of the hidden size (qwen3's and gemma's do not add up to it).
    """
    attention, excluded = request.model.attention, request.excluded
    assert isinstance(attention, AttentionShape)
    group = attention.heads // attention.kv_heads
    for dim in dims:
        heads, left = divmod(hidden * attention.heads * attention.head_dim, request.model.hidden * dim)
        if left or heads % group or not whole_heads(heads, heads // group, shards):
            excluded["whole heads on every shard"] += 1
        else:
            yield {"heads": heads, "head_dim": dim, "kv_heads": heads // group}


def _varied(request: Request, heads: dict[str, int]) -> Iterator[dict[str, int]]:
    """``heads`` with what is to vary as it is, halved and doubled."""
    sizes, found = {**dimensions(request.model), **heads}, [heads]
    for name in (one for vary in request.limits.vary or () for one in VARIABLE[vary]):
        found = [
            {**one, name: size} for one in found for size in (sizes[name], sizes[name] // 2, sizes[name] * 2) if size
        ]
    for one in found:
        count, kv_heads = one.get("heads", sizes["heads"]), one.get("kv_heads", 0)
        if kv_heads and (count % kv_heads or not whole_heads(count, kv_heads, request.shards)):
            request.excluded["whole heads on every shard"] += 1
        else:
            yield one


def parameters_by(model: ModelShape, fixed: Mapping[str, Any] | Table) -> tuple[Any, Any, Any]:
    """Parameters by layers and d_ff at fixed other dimensions, linear in both: ends, rest and each of

    ends + layers (rest + d_ff x each), from three resized models.
    """
    one, wide, two = (
        resize(model, **fixed, layers=layers, d_ff=width).parameters for layers, width in ((1, 1), (1, 2), (2, 1))
    )
    return 2 * one - two, two - wide, wide - one
