"""Seconds of a decode step's attention over its cache, by constants fitted to published tables (reports/fit/decode.py).

    seconds = launch + latency + (moving^q + blocks^q + arithmetic^q)^(1/q)

A thread block walks ``split_keys`` keys or more of one sequence and key head for up to ``rows`` rows of queries; few
blocks reach no more than ``alone`` times their units' share of the bandwidth. A block's start and end cost ``block_s``
of one unit, and a long sequence's parts a latency that ends at ``latency_s``. What the cache holds moves at its own
rate: the tables repeat one step, so that small caches are warm. ``shares_always`` is 0 for kernels that neither share
keys among query heads nor split them where there is a window, or a key head for each query head (FlashAttention 2).
Every part grows with requests and context.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from shapes.cost.published import peak_like, published
from shapes.device import Device
from shapes.dtypes import BYTES
from shapes.operators.types import CachedAttention

#: Channels of the usual head, of a key and a value together: beyond them arithmetic may slow (``wide_power``).
CHANNELS = 256


class Cached(NamedTuple):
    """Sizes of one run, numbers or columns; ``width``: bytes of a key and its value; ``rest``: of queries and output.

    ``channels`` of a key and a value together; ``windowed``: 1 where the kernel is told of a window.
    """

    batch: Any
    heads: Any
    kv_heads: Any
    q_len: Any
    keys: Any
    width: Any
    channels: Any
    rest: Any
    windowed: Any


def form_of(operator: CachedAttention) -> tuple[str, bool]:
    """The name of the table that prices it, by its cache and how wide an element is; all were measured."""
    kind = "latent_decode" if operator.latent else "decode"
    return f"{kind}_{'fp8' if BYTES[operator.kv_dtype] < 2 else 'bf16'}", True


def cached_parts(one: Cached, c: Mapping[str, float], units: int, l2_bytes: float) -> tuple[Any, Any, Any]:
    """Seconds of launch and latency, of moving, and of what blocks and arithmetic take beyond it."""
    group = one.heads / one.kv_heads
    apart = np.maximum(one.windowed, np.equal(group, 1)) * (1 - c["shares_always"])
    together = np.ceil(group * one.q_len / c["rows"])
    blocks = one.batch * one.kv_heads * (together + apart * (group * np.ceil(one.q_len / c["rows"]) - together))
    parts = np.maximum(1.0, (1 - apart) * one.keys / c["split_keys"])
    busy = np.minimum(1.0, c["alone"] * blocks * parts / units)
    cache = one.batch * one.kv_heads * one.keys * one.width
    moved = cache + one.rest
    hit = 1 / (1 + (moved / (c["cache_share"] * l2_bytes)) ** c["cache_power"])
    slow, fast = c["bandwidth_bytes_per_s"], c["cache_bytes_per_s"]
    moving = (cache / busy + one.rest) * (hit / fast + (1 - hit) / slow)
    started = c["block_s"] * blocks / units * (one.channels / CHANNELS) ** c["block_power"]
    wide = np.maximum(one.channels / CHANNELS, 1.0) ** c["wide_power"]
    computing = 2 * c["rows"] * blocks * one.keys * one.channels * wide / c["flops_per_s"] / busy
    waiting = c["latency_s"] * one.keys / (c["latency_keys"] + one.keys)
    q = c["q"]
    all_of_it = (moving**q + started**q + computing**q) ** (1 / q)
    return c["launch_s"] + waiting, moving, all_of_it - moving


def cached_attention_parts(operator: CachedAttention, device: Device) -> tuple[Any, ...]:
    """`cached_parts` of one run on ``device``; InputError: an element type that it lacks."""
    device.peak(operator.dtype)
    c, kin = published(form_of(operator)[0], device)
    c["cache_bytes_per_s"] *= device.memory.bandwidth_bytes_per_s / kin.memory.bandwidth_bytes_per_s
    c["flops_per_s"] *= peak_like(device, operator.dtype) / peak_like(kin, "bf16")
    # Another vendor's units are of another size: the whole device's rate at blocks is the nearest guess.
    units = (device if device.vendor == kin.vendor else kin).compute.units
    return cached_parts(sizes_of(operator), c, units, device.memory.l2_bytes)


def sizes_of(operator: CachedAttention) -> Cached:
    one, size = operator, BYTES[operator.kv_dtype]
    channels = one.head_dim + one.v_head_dim
    width = size * (one.head_dim if one.latent else channels)
    rest = one.bytes - one.cache_bytes
    return Cached(one.batch, one.heads, one.kv_heads, one.q_len, one.kv_len, width, channels, rest, float(one.windowed))
