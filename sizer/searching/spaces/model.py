"""Whole models at a parameter budget: (h, L, a, kv, d_ff, v) together, in bounds that leave quality to the person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor

from shapes.device import Device
from shapes.errors import InputError
from shapes.model import AttentionShape, ModelShape
from shapes.model.resize import resize
from shapes.workload import Workload
from sizer.searching.baseline import Baseline
from sizer.searching.space import Limits, Space, nothing_left, whole_heads

NAME = "model"
LIMITS = frozenset({"aspect", "head_dims", "tp_ready", "keep"})


@dataclass(frozen=True, slots=True)
class Bounds:
    """What keeps a model's shape near the baseline's: h/L within a factor, head dimensions, d_ff/h within a factor."""

    aspect_factor: float = 1.5
    head_dims: tuple[int, ...] = (64, 96, 128)
    width_factor: float = 1.1


def space(baseline: Baseline, device: Device, limits: Limits, *, bounds: Bounds = Bounds()) -> Space:
    """Every combination of aligned dimensions whose parameters are within the tolerance of the budget."""
    model, workload = baseline.model, baseline.workload
    attention, mlp = model.attention, model.dense_mlp
    if not isinstance(attention, AttentionShape) or mlp is None or len(model.stacks) > 1:
        raise InputError("expected a dense decoder", key="--what", value=NAME)
    target, excluded = baseline.parameters or float(model.parameters), Counter[str]()
    candidates = tuple(_candidates(model, workload, device, limits, target, bounds, excluded))
    if not candidates:
        raise nothing_left(NAME, excluded)
    own = {
        "hidden": model.hidden, "layers": model.layers, "heads": attention.heads, "head_dim": attention.head_dim,
        "kv_heads": attention.kv_heads, "d_ff": mlp.width, "vocab": model.vocab,
    }  # fmt: skip
    low, high = aspect_bounds(model, limits, bounds)
    note = (
        f"h/L from {low:.0f} to {high:.0f} (--aspect), d_ff/h within a factor {bounds.width_factor} of the baseline's, "
        f"head_dim in {', '.join(map(str, limits.head_dims or bounds.head_dims))} (--head-dim): quality inside these "
        "bounds is yours to judge"
    )
    return Space(NAME, model, workload, candidates, own, excluded=excluded, notes=(note,))


def _candidates(
    model: ModelShape, workload: Workload, device: Device, limits: Limits, target: float, bounds: Bounds,
    excluded: Counter[str],
) -> Iterator[dict[str, int]]:  # fmt: skip
    attention, mlp = model.attention, model.dense_mlp
    assert isinstance(attention, AttentionShape)
    assert mlp is not None
    step = device.alignment_elements(workload.dtype) * limits.shards(workload.t)
    low, high = aspect_bounds(model, limits, bounds)
    ratio, reach = mlp.width / model.hidden, bounds.aspect_factor ** (2 / 3)  # h moves by less than h/L: L gives way
    for hidden in limits.values(int(model.hidden / reach), int(model.hidden * reach), step):
        widths = range(
            max(-(-int(hidden * ratio / bounds.width_factor) // step) * step, step),
            int(hidden * ratio * bounds.width_factor) + 1, limits.step or step,
        )  # fmt: skip
        for fixed in _heads_and_vocab(
            model, attention, hidden, limits.shards(workload.t), step, limits, bounds, excluded
        ):
            count = parameters_by(model, fixed)
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


def aspect_bounds(model: ModelShape, limits: Limits, bounds: Bounds = Bounds()) -> tuple[float, float]:
    """h/L from and to: as asked for, else within a factor of the baseline's."""
    own = model.hidden / model.layers
    return limits.aspect or (own / bounds.aspect_factor, own * bounds.aspect_factor)


def _heads_and_vocab(
    model: ModelShape, attention: AttentionShape, hidden: int, t: int, step: int, limits: Limits, bounds: Bounds,
    excluded: Counter[str],
) -> Iterator[dict[str, int]]:  # fmt: skip
    """Heads of each allowed dimension, as many query heads to a key/value head as now, and an even number of them."""
    group = attention.heads // attention.kv_heads
    even = 1 if attention.heads % 2 else 2
    vocab = -(-model.vocab // step) * step
    for dim in limits.head_dims or bounds.head_dims:
        heads = hidden // dim
        if hidden % dim or heads % t:
            excluded["whole heads on every shard"] += 1
            continue
        if heads % even:
            excluded["an even number of heads, so that t 2 divides them"] += 1
        elif heads % group or not whole_heads(heads, heads // group, t):
            excluded["whole heads on every shard"] += 1
        else:
            yield {"hidden": hidden, "heads": heads, "head_dim": dim, "kv_heads": heads // group, "vocab": vocab}


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters of the model by layers and d_ff at fixed other dimensions: ends + layers (rest + d_ff x each)."""

    ends: int
    rest: int
    each: int

    def layer(self, width: int) -> int:
        return self.rest + width * self.each

    def of(self, layers: int, width: int) -> int:
        return self.ends + layers * self.layer(width)


def parameters_by(model: ModelShape, fixed: dict[str, int]) -> ParameterCount:
    """The count, linear in layers and in d_ff, from three resized models."""
    one, wide, two = (
        resize(model, **fixed, layers=layers, d_ff=width).parameters for layers, width in ((1, 1), (1, 2), (2, 1))
    )
    return ParameterCount(2 * one - two, two - wide, wide - one)


def _layers(count: ParameterCount, width: int, target: float, tolerance: float) -> Iterator[tuple[int, int]]:
    """(layers, parameters) within the tolerance, or the one that comes closest."""
    ends, layer = count.ends, count.layer(width)
    first, last = ceil((target * (1 - tolerance) - ends) / layer), floor((target * (1 + tolerance) - ends) / layer)
    if last < first:
        first = last = max(1, round((target - ends) / layer))
    for layers in range(max(1, first), last + 1):
        yield layers, count.of(layers, width)
