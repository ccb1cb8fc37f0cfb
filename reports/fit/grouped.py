"""Measured mixture-of-experts layers -> how much slower a grouped product is than its groups' tiles say."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fit.tables import parquet_columns
from shapes.calibrate import consensus
from shapes.cost.constants import GemmConstants
from shapes.cost.corrections import moved_bytes
from shapes.cost.gemm import aligned_seconds
from shapes.cost.moving import achieved_bandwidth

Array = NDArray[np.float64]

#: tokens, hidden, width of one expert's shard, top-k, experts on the device, seconds: a layer's columns.
COLUMNS = 6


def read_layers(paths: Iterable[Path]) -> Array:
    """One row a layer (COLUMNS): bf16 gated experts under balanced routing, whole experts on one device."""
    values = []
    for path in paths:
        columns = parquet_columns(path)
        if "moe_dtype" not in columns:
            continue
        names = (
            "num_tokens",
            "hidden_size",
            "inter_size",
            "topk",
            "num_experts",
            "moe_tp_size",
            "moe_ep_size",
            "moe_dtype",
            "distribution",
            "kernel_source",
            "framework",
            "latency",
        )
        for tokens, hidden, inter, topk, experts, tp, ep, dtype, routing, kernel, framework, latency in zip(
            *(columns[name] for name in names), strict=True
        ):
            plain = dtype == "bfloat16" and routing == "balanced" and ep == 1 and "nongated" not in kernel
            if plain and inter % tp == 0 and latency > 0:
                values.append(((tokens, hidden, inter // tp, topk, experts), str(framework), latency * 1e-3))
    return np.array([(*key, seconds) for key, seconds in sorted(consensus(values).items())], dtype=float)


def layer_seconds(layers: Array, constants: GemmConstants) -> Array:
    """Both grouped products, the activation between them, and gathering and scattering tokens, by tiles and bytes."""
    tokens, hidden, width, topk, experts = layers.T[:5]
    routed = tokens * topk
    groups = np.minimum(experts, routed)
    m = np.ceil(routed / groups)
    gate_up, down = (
        aligned_seconds(dims, moved_bytes(dims, 2, 2), constants)
        for dims in (np.array([m, 2 * width, hidden, groups]), np.array([m, hidden, width, groups]))
    )
    moved = 2 * routed * (3 * width + 4 * hidden)
    seconds: Array = gate_up + down + moved / achieved_bandwidth(constants) + 3 * constants.launch_s
    return seconds


def fit_slowdown(layers: Array, constants: GemmConstants) -> float:
    """Median of measured over modelled time."""
    return float(np.median(layers[:, 5] / layer_seconds(layers, constants)))
