"""Fused attention, forward and backward, by kernel.

A thread block owns QUERIES queries of one head and walks the keys its mask leaves, in whole blocks at the mask's edge.
With the head dimensions that the kernel computes (shapes.kernels: the next ones up that it is built for):

    pair = 2 (d_qk + d_v) forward, 6 d_qk + 4 d_v backward            FLOPs of a query and a key
    block = pair QUERIES (visible keys + edge + prologue_keys) x units / flops_per_s x (1 + partial)
    compute = (quantization ceil(x) + (1 - quantization) max(x, 1)) x block          x = blocks / units
    seconds = (compute^q + (bytes / bandwidth)^q)^(1/q) x throttling + launch_s + copies

``partial`` is paid where the head does not fill the dimension it is computed in, ``copies`` where Q, K and V are padded
with a copy first or (serving) K and V are written to a cache, and what ``deterministic`` adds for a backward that has
to be reproducible. `attention_times` takes arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from shapes.cost.attention_constants import AttentionConstants
from shapes.cost.waves import overlapped, paid_waves, throttled
from shapes.frozen import frozen
from shapes.kernels import Run
from shapes.operators.types import Attention

Array = NDArray[np.float64]

#: Queries a thread block owns.
QUERIES = 128


@frozen
class Work:
    """Attentions of one phase as arrays of one length; ``window`` 0 is none, ``copied`` 0 is no copy.

    ``d_qk`` and ``d_v`` are the model's, ``c_qk`` and ``c_v`` what the kernel computes, ``copied`` what Q, K and V are
    copied to before it runs. ``cached``: a prefill, whose K and V a server writes to its cache first.
    """

    batch: Array
    heads: Array
    kv_heads: Array
    q_len: Array
    kv_len: Array
    d_qk: Array
    d_v: Array
    c_qk: Array
    c_v: Array
    causal: Array
    window: Array
    copied: Array
    deterministic: Array
    cached: Array

    def __len__(self) -> int:
        return len(self.batch)

    def __getitem__(self, rows: NDArray[np.generic]) -> Work:
        return Work(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def bucket(self) -> Array:
        """What constants are looked up by: the mean of the two computed head dimensions."""
        mean: Array = (self.c_qk + self.c_v) / 2
        return mean


def work_of(operators: Sequence[Attention], runs: Sequence[Run]) -> Work:
    """The operators as arrays, each computed as its run says."""
    rows = [
        (
            op.batch,
            op.heads,
            op.kv_heads,
            op.q_len,
            op.kv_len,
            op.head_dim,
            op.v_head_dim,
            run.d_qk,
            run.d_v,
            op.causal,
            op.window or 0,
            run.copied or 0,
            op.deterministic,
            op.causal and not op.trains,
        )
        for op, run in zip(operators, runs, strict=True)
    ]
    return Work(*np.array(rows, dtype=float).reshape(-1, 14).T)


def visible_keys(work: Work, windowed: bool = True) -> Array:
    """Keys that a query sees on average; causal masks are aligned at the bottom right."""
    q, kv = work.q_len, work.kv_len
    width = np.where((work.window > 0) & windowed, np.minimum(work.window, kv), kv)
    first = np.maximum(kv - q + 1, 0)
    ramp = np.clip(width - first, 0, q)
    causal = np.where(first >= width, width, (ramp * first + ramp * (ramp - 1) / 2 + (q - ramp) * width) / q)
    keys: Array = np.where(work.causal > 0, causal, width)
    return keys


@frozen
class AttentionTimes:
    """Seconds of attentions and what they consist of, arrays, in the order in which the parts add up.

    ``ideal_s``: what the mask leaves at the kernel's rate; then with the computed head dimension; with the head that
    does not fill it; with whole blocks; with blocks' start and end; with unfilled waves (``compute_s``).
    """

    seconds: Array
    ideal_s: Array
    padded_s: Array
    partial_s: Array
    walked_s: Array
    started_s: Array
    compute_s: Array
    memory_s: Array
    body_s: Array
    copies_s: Array
    blocks: Array
    waves: Array
    visible_flops: Array


def attention_times(work: Work, c: AttentionConstants, backward: bool, size: float) -> AttentionTimes:
    """Predicted seconds of one run of each; ``size``: bytes an element."""
    by_qk, by_v = (6, 4) if backward else (2, 2)
    rate, prologue = c.rate(work.bucket), c.prologue(work.bucket)
    queries = work.batch * work.heads * work.q_len
    keys = visible_keys(work)
    flops = queries * keys * (by_qk * work.d_qk + by_v * work.d_v)
    pair = by_qk * work.c_qk + by_v * work.c_v
    padded = queries * keys * pair / rate
    short = (work.c_qk > np.ceil(work.d_qk / 8) * 8) | (work.c_v > np.ceil(work.d_v / 8) * 8)
    partial = padded * (1 + c.partial * short)
    walked = _walked(work, keys, c)
    rows = np.ceil(work.q_len / QUERIES)
    in_blocks = partial * rows * QUERIES / work.q_len * walked / keys
    started = in_blocks * (1 + prologue / walked)
    blocks = work.batch * work.heads * rows
    waves = paid_waves(blocks, c)
    compute = started * waves * c.units / blocks
    memory = _bytes(work, backward) * size / c.bandwidth_bytes_per_s
    body = overlapped(compute, memory, c) * (1 + c.reproducible(work.bucket) * work.deterministic)
    copies = _copied_bytes(work) * size / c.copy_bytes_per_s
    if c.cache_bytes_per_s:
        copies = copies + work.cached * _cached_bytes(work, size) / c.cache_bytes_per_s
    seconds = throttled(body, c) + c.launch_s + copies
    return AttentionTimes(
        seconds, flops / rate, padded, partial, in_blocks, started, compute, memory, body, copies, blocks, waves, flops
    )


def _walked(work: Work, keys: Array, c: AttentionConstants) -> Array:
    """Keys a block walks: the mean that its queries see, half a block more at each edge of the mask, and what blocks of
    uneven length cost besides."""
    windowed = (work.window > 0) & (work.window < work.kv_len)
    if c.ignores_window:
        keys = np.maximum(keys, visible_keys(work, windowed=False))
        windowed = np.zeros_like(windowed)
    edges = 0.5 * QUERIES * (work.causal + windowed)
    whole = np.ceil(work.kv_len / QUERIES) * QUERIES
    walked: Array = np.minimum(keys + edges, np.maximum(keys, whole))
    return walked * (1 + c.uneven * (work.causal > 0) * ~windowed)


def _bytes(work: Work, backward: bool) -> Array:
    """Elements moved at least; as Attention.bytes counts them."""
    q, kv = work.batch * work.heads * work.q_len, work.batch * work.kv_heads * work.kv_len
    moved: Array = (q + kv) * (work.d_qk + work.d_v)
    return 2 * moved + q * work.d_v if backward else moved


def _copied_bytes(work: Work) -> Array:
    """Elements that padding Q, K and V moves: the wide tensor is filled, the narrow one read and written into it."""
    q, kv = work.batch * work.heads * work.q_len, work.batch * work.kv_heads * work.kv_len
    moved: Array = q * (work.d_qk + 2 * work.copied) + kv * (work.d_qk + work.d_v + 4 * work.copied)
    return np.where(work.copied > 0, moved, 0.0)


def _cached_bytes(work: Work, size: float) -> Array:
    """Bytes that a server moves first, K and V computed in 16 bits: they are written to its cache in the kernel's
    element type, to which, where that is 8 bits wide, Q is converted too."""
    rows = work.batch * work.kv_heads * work.kv_len * (work.d_qk + work.d_v)
    moved: Array = (rows + (size < 2) * work.batch * work.heads * work.q_len * work.d_qk) * (2 + size)
    return moved
