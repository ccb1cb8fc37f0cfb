"""Whole models at a parameter budget: (h, L, a, kv, d_ff, v) together, in bounds that leave quality to the person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, floor

from shapes.device import Device
from shapes.errors import InputError
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from shapes.model.parameters import block_tensors, parameter_count
from shapes.model.resize import resize
from shapes.workload import Workload
from sizer.searching.space import Limits, Space, anything, nothing_left, whole_heads

NAME = "model"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What keeps a model's shape near the baseline's: h/L within a factor, head dimensions, d_ff/h within a factor."""

    aspect_factor: float = 1.5
    head_dims: tuple[int, ...] = (64, 80, 96, 128)
    width_factor: float = 1.1


def space(
    model: ModelShape, workload: Workload, device: Device, limits: Limits, *, budget: float | None = None,
    bounds: Bounds = Bounds(),
) -> Space:  # fmt: skip
    """Every combination of aligned dimensions whose parameters are within the tolerance of the budget."""
    attention, mlp = model.attention, model.dense_mlp
    if not isinstance(attention, AttentionShape) or mlp is None or len(model.stacks) > 1:
        raise InputError("expected a dense decoder", key="--what", value=NAME)
    target, excluded = budget or float(model.parameters), Counter[str]()
    candidates = tuple(_candidates(model, workload, device, limits, target, bounds, excluded))
    if not candidates:
        raise nothing_left(NAME, excluded)
    baseline = {
        "hidden": model.hidden, "layers": model.layers, "heads": attention.heads, "head_dim": attention.head_dim,
        "kv_heads": attention.kv_heads, "d_ff": mlp.width, "vocab": model.vocab,
    }  # fmt: skip
    low, high = _aspect(model, limits, bounds)
    note = (
        f"h/L from {low:.0f} to {high:.0f} (--aspect), d_ff/h within a factor {bounds.width_factor} of the baseline's, "
        f"head_dim in {', '.join(map(str, limits.head_dims or bounds.head_dims))} (--head-dim): quality inside these "
        "bounds is yours to judge"
    )
    return Space(
        NAME, model, workload, candidates, part=anything, parameters_of=lambda changed: changed.parameters,
        baseline=baseline, excluded=excluded, notes=(note,),
    )  # fmt: skip


def _candidates(
    model: ModelShape, workload: Workload, device: Device, limits: Limits, target: float, bounds: Bounds,
    excluded: Counter[str],
) -> Iterator[dict[str, int]]:  # fmt: skip
    attention, mlp = model.attention, model.dense_mlp
    assert isinstance(attention, AttentionShape)
    assert mlp is not None
    step = device.alignment_elements(workload.dtype) * workload.t
    low, high = _aspect(model, limits, bounds)
    ratio, reach = mlp.width / model.hidden, bounds.aspect_factor ** (2 / 3)  # h moves by less than h/L: L gives way
    for hidden in limits.values(int(model.hidden / reach), int(model.hidden * reach), step):
        widths = range(
            max(-(-int(hidden * ratio / bounds.width_factor) // step) * step, step),
            int(hidden * ratio * bounds.width_factor) + 1, limits.step or step,
        )  # fmt: skip
        for fixed in _heads_and_vocab(model, attention, hidden, workload.t, step, limits, bounds, excluded):
            count = _count(model, fixed)
            for width in widths:
                change = {**fixed, "d_ff": width}
                for layers, parameters in _layers(count, width, target, limits.tolerance):
                    if layers % workload.p or layers < 1:
                        excluded[f"layers divisible by pp {workload.p}"] += 1
                    elif not low <= hidden / layers <= high:
                        excluded[f"h/L within {low:.0f}..{high:.0f} (--aspect)"] += 1
                    elif abs(parameters / target - 1) > limits.tolerance:
                        excluded[f"--tolerance {limits.tolerance:.2%}"] += 1
                    else:
                        yield {**change, "layers": layers}


def _aspect(model: ModelShape, limits: Limits, bounds: Bounds) -> tuple[float, float]:
    own = model.hidden / model.layers
    return limits.aspect or (own / bounds.aspect_factor, own * bounds.aspect_factor)


def _heads_and_vocab(
    model: ModelShape, attention: AttentionShape, hidden: int, shards: int, step: int, limits: Limits, bounds: Bounds,
    excluded: Counter[str],
) -> Iterator[dict[str, int]]:  # fmt: skip
    """Heads of each allowed dimension with as many query heads a key/value head, or as many key/value heads, as now."""
    group = attention.heads // attention.kv_heads
    vocab = -(-model.vocab // step) * step
    for dim in limits.head_dims or bounds.head_dims:
        heads = hidden // dim
        if hidden % dim or heads % shards:
            excluded["whole heads on every shard"] += 1
            continue
        grouped = {heads // group} if heads % group == 0 else set()
        same = {attention.kv_heads} if group > 1 and heads % attention.kv_heads == 0 else set()
        for kv_heads in sorted(grouped | same):
            if not whole_heads(heads, kv_heads, shards):
                excluded["whole heads on every shard"] += 1
                continue
            yield {"hidden": hidden, "heads": heads, "head_dim": dim, "kv_heads": kv_heads, "vocab": vocab}


@dataclass(frozen=True, slots=True)
class _Count:
    """Parameters of the model by layers and d_ff at fixed other dimensions: ends + layers (rest + d_ff x each)."""

    ends: int
    rest: int
    each: int

    def layer(self, width: int) -> int:
        return self.rest + width * self.each

    def of(self, layers: int, width: int) -> int:
        return self.ends + layers * self.layer(width)


def _count(model: ModelShape, fixed: dict[str, int]) -> _Count:
    """The count, linear in layers and in d_ff, from three resized models."""
    one, wide, two = (
        resize(model, **fixed, layers=layers, d_ff=width).parameters for layers, width in ((1, 1), (1, 2), (2, 1))
    )
    return _Count(2 * one - two, two - wide, wide - one)


def _layers(count: _Count, width: int, target: float, tolerance: float) -> Iterator[tuple[int, int]]:
    """(layers, parameters) within the tolerance, or the one that comes closest."""
    ends, layer = count.ends, count.layer(width)
    first, last = ceil((target * (1 - tolerance) - ends) / layer), floor((target * (1 + tolerance) - ends) / layer)
    if last < first:
        first = last = max(1, round((target - ends) / layer))
    for layers in range(max(1, first), last + 1):
        yield layers, count.of(layers, width)


def from_budget(parameters: float, *, vocab: int = 50304) -> ModelShape:
    """A plain gated decoder of about ``parameters``: the baseline where no configuration is given.

    Heads of 128, d_ff 8h/3 rounded up to 64, untied, and h/L between 48 and 128 as published models have it.
    """
    if not 1e7 <= parameters <= 1e14:
        raise InputError("expected between 1e7 and 1e14 parameters", key="--params", value=parameters)
    best: tuple[float, int, int] | None = None
    for heads in range(2, 400):
        hidden = heads * 128
        layer = parameter_count(block_tensors(_plain_block(heads), hidden))
        layers = max(1, round((parameters - (2 * vocab + 1) * hidden) / layer))
        if 48 <= hidden / layers <= 128:
            miss = abs(layer * layers + (2 * vocab + 1) * hidden - parameters)
            best = min(best or (miss, heads, layers), (miss, heads, layers))
    if best is None:
        raise InputError("no plain model has so many parameters; give --config", key="--params", value=parameters)
    _, heads, layers = best
    return ModelShape(
        "llama", (Stack("decoder", heads * 128, (replace(_plain_block(heads), count=layers),)),), vocab=vocab
    )


def _plain_block(heads: int) -> Block:
    width = -(-8 * heads * 128 // 3 // 64) * 64
    return Block(AttentionShape(heads, heads, 128, rotary_dim=128), MlpShape(width))
