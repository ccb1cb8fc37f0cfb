"""Seconds of a decode step's attention over its cache, by constants fitted to published tables (reports/fit/decode.py).

    seconds = launch + latency + (moving^q + blocks^q + arithmetic^q)^(1/q)

A thread block walks ``split_keys`` keys or more of one sequence and key head for up to ``rows`` rows of queries; few
blocks reach no more than ``alone`` times their units' share of the bandwidth. A block's start and end cost ``block_s``
of one unit, and a long sequence's parts a latency that ends at ``latency_s``. Bytes in the device's cache move at a
rate of their own: the tables repeat one step, so that small KV caches are warm. ``shares_always`` is 0 for kernels that
neither share keys among query heads nor split them if there is a window, or a key head for each query head
(FlashAttention 2); where they share, ``gather_s`` is what bringing queries to their key head and results back takes:
copies of their own, which a single key head needs none of.
Every part grows with requests and context.
"""

import numpy as np

from shapes.dtypes import BYTES
from shapes.frozen import Numbers
from shapes.operators.types import CachedAttention

from .constants import Parts, read_seconds

#: Channels of the usual head, of a key and a value together: beyond them arithmetic may slow (``wide_power``).
CHANNELS = 256


def form_of(operator: CachedAttention) -> tuple[str, bool]:
    """The name of the table that prices it, by its cache and how wide an element is; all were measured."""
    return "latent_" * operator.latent + f"decode_{'fp8' if BYTES[operator.kv_dtype] < 2 else 'bf16'}", True


def cached_parts(one: CachedAttention, c: Numbers) -> Parts:
    """Seconds of launch and latency, of moving, and of blocks and arithmetic beyond it; sizes may be arrays."""
    channels = one.head_dim + one.v_head_dim
    group, rows = one.heads / one.kv_heads, c["rows"]
    shares = 1 - np.maximum(one.windowed, group == 1) * (1 - c["shares_always"])
    together = np.ceil(group * one.q_len / rows)
    heads = one.batch * one.kv_heads
    blocks = heads * (shares * together + (1 - shares) * group * np.ceil(one.q_len / rows))
    parts = np.maximum(1.0, shares * one.kv_len / c["split_keys"])
    # Blocks of the same keys wait for the same bytes.
    busy, reached = (np.minimum(1.0, c["alone"] * each * parts / c["units"]) for each in (blocks, heads))
    moving = (1 + one.cache_bytes / one.bytes * (1 / reached - 1)) * read_seconds(one.bytes, c)
    started = c["block_s"] * blocks / c["units"] * (channels / CHANNELS) ** c["block_power"]
    wide = np.maximum(channels / CHANNELS, 1.0) ** c["wide_power"]
    computing = 2 * rows * blocks * one.kv_len * channels * wide / c["flops_per_s"] / busy
    waiting = c["latency_s"] * one.kv_len / (c["latency_keys"] + one.kv_len)
    q = c["q"]
    all_of_it = (moving**q + started**q + computing**q) ** (1 / q)
    # flash_api.cpp, seqlenq_ngroups_swapped: a transpose that is no copy where there is one key head.
    gathering = shares * (one.kv_heads > 1) * c.get("gather_s", 0.0)
    return c["launch_s"] + gathering + waiting, moving, all_of_it - moving
