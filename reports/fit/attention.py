"""Measured flash attention (forward, causal, 16 bits) -> a device's attention constants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.calibrate.data import parquet_columns
from shapes.calibrate.products import consensus
from shapes.cost.attention import QUERIES, walked_keys
from shapes.cost.constants import ATTENTION_NUMBERS, AttentionConstants
from shapes.cost.waves import overlapped, paid_waves, throttled
from shapes.device import Device
from shapes.operators.types import Attention

Array = NDArray[np.float64]

#: Backward over forward speed. The tables hold no backward; FlashAttention-2 (arXiv 2307.08691, figures 5 and 6: 196
#: of 230 TFLOPS on A100) and FlashAttention-3 (arXiv 2407.08608, figures 5 and 6: about 560 of 740 on H100) do.
BACKWARD = {"ampere": 0.85, "ada": 0.85, "hopper": 0.76, "blackwell": 0.76}

#: How suddenly the power limit is felt: not told apart from its onset by these data.
THROTTLE_WIDTH = 2 / 3

#: Longest head dimension fitted: beyond it frameworks fall back to other kernels.
LARGEST_HEAD = 256


@dataclass(frozen=True, slots=True)
class Attentions:
    """Measured causal attentions, arrays of one length; ``window`` 0 is none."""

    batch: Array
    s: Array
    heads: Array
    kv_heads: Array
    head_dim: Array
    window: Array
    seconds: Array

    def __len__(self) -> int:
        return len(self.s)

    def __getitem__(self, rows: NDArray[np.generic]) -> Attentions:
        columns = (self.batch, self.s, self.heads, self.kv_heads, self.head_dim, self.window, self.seconds)
        return Attentions(*(column[rows] for column in columns))

    def operators(self) -> list[Attention]:
        columns = (self.batch, self.s, self.heads, self.kv_heads, self.head_dim, self.window)
        return [
            Attention("attention", "forward", b, h, kv, s, s, d, d, True, w or None)
            for b, s, h, kv, d, w in zip(*(column.astype(int).tolist() for column in columns), strict=True)
        ]


def read_attentions(paths: Iterable[Path]) -> Attentions:
    """The consensus of context_attention_perf.parquet files: bf16 query and cache, no cached prefix."""
    values = []
    for path in paths:
        columns = parquet_columns(path)
        rows = len(columns["isl"])
        window, step = (columns.get(name, [0] * rows) for name in ("window_size", "step"))
        names = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "attn_dtype", "kv_cache_dtype")
        for b, s, h, kv, d, dtype, cache, seconds, framework, w, past in zip(
            *(columns[name] for name in names), columns["latency"], columns["framework"], window, step, strict=True
        ):
            plain = dtype == cache == "bfloat16" and past == 0 and d <= LARGEST_HEAD and seconds > 0
            # One token is decoding, and a window of 1024 at head_dim 256 ran a Triton kernel, not a flash one.
            if plain and s >= 16 and not (d == LARGEST_HEAD and w):
                key = (b, s, h, kv or h, d, w if w < s else 0)
                values.append((key, str(framework), seconds * 1e-3))
    table = np.array([(*key, seconds) for key, seconds in sorted(consensus(values).items())], dtype=float)
    return Attentions(*table.T)


def fit_attention(data: Attentions, device: Device, seed: int = 0) -> AttentionConstants:
    """Constants by robust least squares on log time; ``data`` is what may be seen."""
    from scipy.optimize import least_squares

    random = np.random.default_rng(seed)
    seen = data[random.choice(len(data), min(3000, len(data)), replace=False)]
    buckets = np.unique(seen.head_dim)
    which = np.searchsorted(buckets, seen.head_dim)
    peak, bandwidth, target = device.peak("bf16"), device.memory.bandwidth_bytes_per_s, np.log(seen.seconds)
    low, guess, high = np.log([
        (2e-6, 8e-6, 3e-5), (1e-3, 0.1, 0.5), (0.02, 0.5, 1.0), (0.2 * bandwidth, 0.6 * bandwidth, bandwidth),
        (1e-4, 1e-3, 5e-2), (1.0, 1.3, 8.0),
        *[(0.1 * peak, 0.5 * peak, peak)] * len(buckets), *[(1.0, 100.0, 1000.0)] * len(buckets),
    ]).T  # fmt: skip

    def constants(theta: Array) -> AttentionConstants:
        launch, throttle, quantization, moved, onset, overlap, *rest = np.exp(theta).tolist()
        rates, prologues = rest[: len(buckets)], rest[len(buckets) :]
        names = [int(bucket) for bucket in buckets]
        return AttentionConstants(
            flops_per_s=tuple(zip(names, rates, strict=True)), prologue_keys=tuple(zip(names, prologues, strict=True)),
            bandwidth_bytes_per_s=moved, launch_s=launch, quantization=quantization, overlap=overlap,
            throttle=throttle, throttle_s=onset, throttle_width=THROTTLE_WIDTH,
            backward=BACKWARD.get(device.architecture, 0.76), units=device.compute.units,
        )  # fmt: skip

    def residuals(theta: Array) -> Array:
        return np.log(attention_seconds(seen, constants(theta), which)) - target

    result = least_squares(residuals, guess, bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=40)
    return constants(result.x)


def attention_seconds(data: Attentions, c: AttentionConstants, which: NDArray[np.intp] | None = None) -> Array:
    """`shapes.cost.attention.attention_time` of many forward causal attentions whose head_dims are fitted buckets."""
    if which is None:
        which = np.searchsorted([bucket for bucket, _ in c.flops_per_s], data.head_dim)
    rate = np.array([value for _, value in c.flops_per_s])[which]
    prologue = np.array([value for _, value in c.prologue_keys])[which]
    window = np.where(data.window > 0, data.window, data.s)
    keys = (window * (window + 1) / 2 + (data.s - window) * window) / data.s
    walked = walked_keys(keys, data.s, True, data.window > 0) + prologue
    blocks = data.batch * data.heads * np.ceil(data.s / QUERIES)
    step = 4 * data.head_dim * QUERIES * c.units / rate
    compute = step * walked * paid_waves(blocks, c)
    moved = 4 * data.batch * (data.heads + data.kv_heads) * data.s * data.head_dim
    seconds: Array = throttled(overlapped(compute, moved / c.bandwidth_bytes_per_s, c), c) + c.launch_s
    return seconds


def attention_table(constants: AttentionConstants) -> dict[str, Any]:
    """``[cost.attention]``."""
    table: dict[str, Any] = {name: float(f"{getattr(constants, name):.4g}") for name in ATTENTION_NUMBERS}
    for name in ("flops_per_s", "prologue_keys"):
        table[name] = {str(bucket): float(f"{value:.4g}") for bucket, value in getattr(constants, name)}
    return table
