"""Fused (flash) attention, forward and backward.

A thread block owns ``QUERIES`` queries of one head and walks the keys its mask leaves:

    block = 2 (d + d_v) QUERIES (visible keys + prologue_keys) x units / flops_per_s[bucket of d]
    seconds = max(waves block, bytes / bandwidth) + launch_s

The head dimension is computed in the kernel's next bucket, so 80 costs what 96 does.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from shapes.cost.constants import AttentionConstants
from shapes.operators.types import Attention

#: Queries a thread block owns.
QUERIES = 128
#: Head dimensions that kernels are built for; the next one up is what is computed.
BUCKETS = (32, 64, 96, 128, 160, 192, 224, 256)


@dataclass(frozen=True, slots=True)
class AttentionTime:
    """Seconds of one attention operator and what they consist of."""

    seconds: float
    compute_s: float
    memory_s: float
    ideal_s: float
    padded_s: float
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


def rate_of(bucket: int, constants: AttentionConstants) -> float:
    """FLOP/s of a bucket: the fitted one, else interpolated between its neighbours, else the nearest end's."""
    rates = constants.flops_per_s
    below = [pair for pair in rates if pair[0] <= bucket]
    above = [pair for pair in rates if pair[0] >= bucket]
    if not below or not above:
        # Below the smallest fitted bucket the matrix units idle in proportion; above the largest nothing is won.
        return above[0][1] * bucket / above[0][0] if above else below[-1][1]
    (low, slow), (high, fast) = below[-1], above[0]
    return slow if low == high else slow + (fast - slow) * (bucket - low) / (high - low)


def attention_time(operator: Attention, constants: AttentionConstants) -> AttentionTime:
    """Predicted seconds of one run of ``operator``."""
    bucket = max(bucket_of(operator.head_dim), bucket_of(operator.v_head_dim))
    rate = rate_of(bucket, constants)
    ideal_flops = operator.flops * operator.visible_share
    if operator.phase != "forward":
        rate *= constants.backward
    padding = 2 * bucket / (operator.head_dim + operator.v_head_dim)
    if operator.causal:
        rate *= constants.causal
    ideal, padded = ideal_flops / rate, ideal_flops * padding / rate
    blocks = operator.batch * operator.heads * ceil(operator.q_len / QUERIES)
    filled = blocks / constants.units
    share = constants.quantization
    waves = share * ceil(filled) + (1 - share) * max(filled, 1.0)
    # Partial query tiles, then the block's start and end, then unfilled waves.
    rows = ceil(operator.q_len / QUERIES) * QUERIES / operator.q_len
    keys = operator.kv_len * operator.visible_share
    compute = padded * rows * (keys + constants.prologue_keys) / keys * waves / filled
    memory = operator.bytes / constants.bandwidth_bytes_per_s
    seconds = max(compute, memory) + constants.launch_s
    return AttentionTime(seconds, compute, memory, ideal, padded, blocks, waves, filled, bucket)
