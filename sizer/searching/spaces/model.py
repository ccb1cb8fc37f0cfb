"""Whole models at a parameter budget: (h, L, a, kv, d_ff, v) together, in bounds that leave quality to the person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, floor

from shapes.device import Device
from shapes.errors import InputError
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
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
            for width in widths:
                change = {**fixed, "d_ff": width}
                for layers, parameters in _layers(model, change, target, limits.tolerance):
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


def _layers(model: ModelShape, change: dict[str, int], target: float, tolerance: float) -> Iterator[tuple[int, int]]:
    """(layers, parameters) within the tolerance, or the one that comes closest: parameters are linear in layers."""
    one, two = (_parameters(model, {**change, "layers": layers}) for layers in (1, 2))
    ends, layer = 2 * one - two, two - one
    first, last = ceil((target * (1 - tolerance) - ends) / layer), floor((target * (1 + tolerance) - ends) / layer)
    if last < first:
        first = last = max(1, round((target - ends) / layer))
    for layers in range(max(1, first), last + 1):
        yield layers, ends + layers * layer


def _parameters(model: ModelShape, change: dict[str, int]) -> int:
    """Parameters of the changed model, without building every matrix anew where that is linear."""
    stack, block = model.main, model.main.blocks[0]
    attention, mlp = block.attention, block.mlp
    assert isinstance(attention, AttentionShape)
    assert isinstance(mlp, MlpShape)
    hidden, q, kv = change["hidden"], change["heads"] * change["head_dim"], change["kv_heads"] * change["head_dim"]
    linears = hidden * (2 * q + 2 * kv) + hidden * change["d_ff"] * (3 if mlp.gated else 2)
    biases = (q + 2 * kv if attention.qkv_bias else 0) + (hidden if attention.o_bias else 0)
    biases += change["d_ff"] * (2 if mlp.gated else 1) + hidden if mlp.bias else 0
    layer = linears + biases + block.norms * block.norm_weights * hidden
    embeddings = change["vocab"] * hidden * (1 if model.tied else 2)
    rest = (stack.positions + stack.embedding_norm + stack.final_norm) * hidden
    return layer * change["layers"] + embeddings + rest


def from_budget(parameters: float, *, vocab: int = 50304) -> ModelShape:
    """A plain gated decoder of about ``parameters``: the baseline where no configuration is given.

    Heads of 128, d_ff 8h/3 rounded up to 64, untied, and h/L between 48 and 128 as published models have it.
    """
    if not 1e7 <= parameters <= 1e14:
        raise InputError("expected between 1e7 and 1e14 parameters", key="--params", value=parameters)
    best: tuple[float, int, int] | None = None
    for heads in range(2, 400):
        hidden = heads * 128
        layer = _plain_block(heads).parameters(hidden)
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
