"""Fused (flash) attention, forward and backward.

A thread block owns QUERIES queries of one head and walks the keys its mask leaves, in whole blocks at the mask's edge:

    block = 2 (d + d_v) QUERIES (visible keys + edge + prologue_keys) x units / flops_per_s
    compute = (quantization ceil(x) + (1 - quantization) max(x, 1)) x block          x = blocks / units
    seconds = (compute^q + (bytes / bandwidth)^q)^(1/q) x throttling + launch_s

The head dimension is computed in the kernel's next bucket, so 80 costs what 96 does.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from shapes.cost.constants import AttentionConstants
from shapes.cost.waves import overlapped, paid_waves, throttled
from shapes.operators.types import Attention

#: Queries a thread block owns.
QUERIES = 128
#: Head dimensions that kernels are built for; the next one up is what is computed.
BUCKETS = (32, 64, 96, 128, 160, 192, 224, 256)


@dataclass(frozen=True, slots=True)
class AttentionTime:
    """Seconds of one attention operator and what they consist of, in the order in which they add up."""

    seconds: float
    ideal_s: float
    padded_s: float
    walked_s: float
    started_s: float
    compute_s: float
    memory_s: float
    body_s: float
    blocks: int
    waves: float
    filled: float
    bucket: int


def bucket_of(head_dim: int) -> int:
    """The next kernel bucket up; beyond the largest the head is cut in pieces of it."""
    for bucket in BUCKETS:
        if head_dim <= bucket:
            return bucket
    return ceil(head_dim / BUCKETS[-1]) * BUCKETS[-1]


def at_bucket(bucket: int, fitted: tuple[tuple[int, float], ...], shrink: bool = False) -> float:
    """A constant at ``bucket``: the fitted one, between its neighbours, or the nearest end's.

    ``shrink``: below the smallest fitted bucket the constant falls in proportion (matrix units idle).
    """
    buckets, values = zip(*fitted, strict=True)
    value = float(np.interp(bucket, buckets, values))
    return value * bucket / buckets[0] if shrink and bucket < buckets[0] else value


def walked_keys(keys: Any, kv_len: Any, causal: bool, windowed: Any) -> Any:
    """Keys a block walks: the mean that its queries see, and half a block more at each edge of the mask."""
    edges = 0.5 * QUERIES * ((1 if causal else 0) + windowed)
    return np.minimum(keys + edges, np.maximum(keys, np.ceil(kv_len / QUERIES) * QUERIES))


def attention_time(operator: Attention, constants: AttentionConstants) -> AttentionTime:
    """Predicted seconds of one run of ``operator``."""
    bucket = max(bucket_of(operator.head_dim), bucket_of(operator.v_head_dim))
    rate = at_bucket(bucket, constants.flops_per_s, shrink=True)
    if operator.phase != "forward":
        rate *= constants.backward
    ideal = operator.flops * operator.visible_share / rate
    padded = ideal * 2 * bucket / (operator.head_dim + operator.v_head_dim)
    # Partial query blocks and whole key blocks, then the blocks' start and end, then waves that are not full.
    keys = operator.kv_len * operator.visible_share
    windowed = operator.window is not None and operator.window < operator.kv_len
    walked = float(walked_keys(keys, operator.kv_len, operator.causal, int(windowed)))
    rows = ceil(operator.q_len / QUERIES)
    in_blocks = padded * rows * QUERIES / operator.q_len * walked / keys
    started = in_blocks * (1 + at_bucket(bucket, constants.prologue_keys) / walked)
    blocks = operator.batch * operator.heads * rows
    filled = blocks / constants.units
    waves = float(paid_waves(blocks, constants))
    compute = started * waves / filled
    memory = operator.bytes / constants.bandwidth_bytes_per_s
    body = float(overlapped(compute, memory, constants))
    seconds = float(throttled(body, constants)) + constants.launch_s
    return AttentionTime(
        seconds, ideal, padded, in_blocks, started, compute, memory, body, blocks, waves, filled, bucket
    )  # fmt: skip
