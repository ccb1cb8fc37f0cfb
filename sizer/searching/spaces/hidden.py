"""Neighbouring hidden sizes: heads follow at constant head_dim, the MLP's width at constant ratio."""

from __future__ import annotations

from collections import Counter

from shapes.device import Device
from shapes.errors import InputError
from shapes.model import AttentionShape
from shapes.model.resize import resize
from sizer.searching.baseline import Baseline
from sizer.searching.space import Limits, Space, nothing_left, whole_heads

NAME = "hidden"
LIMITS = frozenset({"aspect", "head_dims"})

#: Hidden sizes up to this share away are neighbours.
NEIGHBOURHOOD = 0.1


def space(baseline: Baseline, device: Device, limits: Limits) -> Space:
    """Hidden sizes a tenth around the baseline's whose model stays within the tolerance's parameters."""
    model, workload = baseline.model, baseline.workload
    attention, mlp = model.attention, model.dense_mlp
    if not isinstance(attention, AttentionShape) or mlp is None:
        raise InputError("expected a dense model with multi-head attention", key="--what", value=NAME)
    hidden, ratio = model.hidden, mlp.width / model.hidden
    step = device.alignment_elements(workload.dtype) * workload.t
    group, excluded, candidates = attention.heads // attention.kv_heads, Counter[str](), []
    slack = int(hidden * NEIGHBOURHOOD)
    for value in limits.values(hidden - slack, hidden + slack, step):
        for dim in limits.head_dims or sorted({attention.head_dim, 64, 128}):
            heads = value // dim
            if value == hidden:
                continue
            if value % dim or heads % group or not whole_heads(heads, heads // group, workload.t):
                excluded["whole heads on every shard"] += 1
                continue
            change = {
                "hidden": value, "heads": heads, "head_dim": dim, "kv_heads": heads // group,
                "d_ff": round(value * ratio / step) * step,
            }  # fmt: skip
            if limits.aspect is not None and not limits.aspect[0] <= value / model.layers <= limits.aspect[1]:
                excluded[f"--aspect {limits.aspect[0]:g}:{limits.aspect[1]:g}"] += 1
            elif abs(resize(model, **change).parameters / model.parameters - 1) > limits.tolerance:
                excluded[f"--tolerance {limits.tolerance:.2%}"] += 1
            else:
                candidates.append(change)
    if not candidates:
        raise nothing_left(NAME, excluded)
    own = {"hidden": hidden, "heads": attention.heads, "head_dim": attention.head_dim, "d_ff": mlp.width}
    return Space(NAME, model, workload, tuple(candidates), own, excluded=excluded)
