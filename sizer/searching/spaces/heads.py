"""The number of heads at constant hidden size: head dimension and key/value heads follow."""

from __future__ import annotations

from collections import Counter
from functools import partial

from shapes.device import Device
from shapes.errors import InputError
from shapes.model import AttentionShape
from sizer.searching.baseline import Baseline
from sizer.searching.space import Candidates, Limits, Space, layers_named, nothing_left, whole_heads

NAME = "heads"
LIMITS = frozenset({"misaligned", "head_dims", "tp_ready", "keep"})

#: Head dimensions that fused kernels take.
SMALLEST_HEAD, LARGEST_HEAD = 32, 256


def space(baseline: Baseline, device: Device, limits: Limits) -> Space:
    """Every number of heads that divides the hidden size with a head_dim of 32..256, a multiple of 8."""
    model, workload = baseline.model, baseline.workload
    attention = model.attention
    if not isinstance(attention, AttentionShape):
        raise InputError("expected a model with multi-head or grouped-query attention", key="--what", value=NAME)
    hidden, excluded = attention.heads * attention.head_dim, Counter[str]()
    group = attention.heads // attention.kv_heads
    step, shards = limits.step or (1 if limits.misaligned else 8), limits.shards(workload.t)
    candidates = []
    for dim in range(step, hidden + 1, step):
        heads = hidden // dim
        low, high = limits.low or 1, limits.high or hidden
        if hidden % dim or heads == attention.heads:
            continue
        if not SMALLEST_HEAD <= dim <= LARGEST_HEAD:
            excluded[f"head_dim within {SMALLEST_HEAD}..{LARGEST_HEAD}"] += 1
        elif limits.head_dims is not None and dim not in limits.head_dims:
            excluded["--limit head-dim"] += 1
        elif not low <= heads <= high:
            excluded["--range"] += 1
        elif heads % group or not whole_heads(heads, heads // group, shards):
            excluded[f"whole heads on each of {shards} shards, {group} to a key/value head"] += 1
        else:
            candidates.append({"heads": heads, "head_dim": dim, "kv_heads": heads // group})
    if not candidates:
        raise nothing_left(NAME, excluded)
    own = {"heads": attention.heads, "head_dim": attention.head_dim, "kv_heads": attention.kv_heads}
    note = "attention with its projections is timed; what other heads do to quality is yours"
    return Space(
        NAME,
        model,
        workload,
        Candidates.of(candidates),
        own,
        timed=partial(layers_named, (".attention.",)),
        measured_parts=("self_attention",),
        excluded=excluded,
        notes=(note,),
    )
