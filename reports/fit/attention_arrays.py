"""Seconds of many fused attentions at once, from plain arrays of their sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shapes.cost import predict_many
from shapes.cost.fused_attention import Array, AttentionBatch, attention_times, constants_of, phase_of
from shapes.cost.gemm import CHUNK
from shapes.device import Device, load_device
from shapes.dtypes import BYTES
from shapes.errors import InputError
from shapes.kernels import run_of
from shapes.operators.types import Attention


def attention_seconds(
    device: str | Device,
    kernel: str,
    dtype: str,
    *,
    b: ArrayLike,
    s_q: ArrayLike,
    s_kv: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    d_qk: ArrayLike,
    d_v: ArrayLike,
    causal: ArrayLike = True,
    window: ArrayLike = 0,
    phase: str = "forward",
    training: bool | None = None,
    deterministic: ArrayLike = False,
) -> Array:
    """Predicted seconds of fused attentions by ``kernel`` ("auto": the device's usual one).

    Integers or arrays that broadcast; ``window`` 0 is none; ``phase`` "forward" or "dgrad" (the whole backward).
    ``training``: whether a backward follows (None: where ``phase`` is "dgrad"). Where the kernel refuses a head
    dimension, what runs instead is priced. InputError: unknown names, a dtype the device lacks, dimensions below 1.
    """
    target = load_device(device)
    named = {
        "b": b,
        "heads": heads,
        "kv_heads": kv_heads,
        "s_q": s_q,
        "s_kv": s_kv,
        "d_qk": d_qk,
        "d_v": d_v,
        "causal": causal,
        "window": window,
        "deterministic": deterministic,
    }
    arrays = np.broadcast_arrays(*(np.asarray(value) for value in named.values()))
    columns = dict(zip(named, (array.ravel() for array in arrays), strict=True))
    for key in ("b", "heads", "kv_heads", "s_q", "s_kv", "d_qk", "d_v"):
        if columns[key].size and columns[key].min() < 1:
            raise InputError("expected positive integers", key=key, value=int(columns[key].min()))
    backward = phase != "forward"
    trains = backward if training is None else training
    seconds = np.empty(columns["b"].size)
    for which, qk, v in _by_dimensions(columns["d_qk"], columns["d_v"]):
        run = run_of(kernel, target.architecture, dtype, qk, v, trains)
        same = np.ones(len(which))
        if run.kernel == "eager":
            operators = [_operator(columns, row, phase, kernel, dtype, trains) for row in which]
            seconds[which] = [cost.seconds for cost in predict_many(operators, target)]
            continue
        rows = {key: column[which].astype(float) for key, column in columns.items()}
        work = AttentionBatch(
            batch=rows["b"],
            heads=rows["heads"],
            kv_heads=rows["kv_heads"],
            q_len=rows["s_q"],
            kv_len=rows["s_kv"],
            d_qk=rows["d_qk"],
            d_v=rows["d_v"],
            c_qk=same * run.d_qk,
            c_v=same * run.d_v,
            causal=rows["causal"],
            window=rows["window"],
            copied=same * (run.copied or 0),
            deterministic=rows["deterministic"],
            cached=rows["causal"] * (not trains),
        )
        constants = constants_of(run.kernel, target, dtype).phases[phase_of(backward, trains)]
        seconds[which] = attention_times(work, constants, backward, BYTES[dtype]).seconds
    return seconds.reshape(arrays[0].shape)


def _by_dimensions(d_qk: NDArray[Any], d_v: NDArray[Any]) -> list[tuple[NDArray[np.intp], int, int]]:
    """Rows of each pair of head dimensions, at most CHUNK at once."""
    pairs, inverse = np.unique(d_qk.astype(np.int64) << 32 | d_v.astype(np.int64), return_inverse=True)
    found = []
    for index, pair in enumerate(pairs.tolist()):
        rows = np.flatnonzero(inverse.ravel() == index)
        parts = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
        found += [(part, pair >> 32, pair & (1 << 32) - 1) for part in parts]
    return found


def _operator(
    columns: dict[str, NDArray[Any]], row: Any, phase: str, kernel: str, dtype: str, training: bool
) -> Attention:
    b, heads, kv_heads, s_q, s_kv, d_qk, d_v, window = (
        int(columns[key][row]) for key in ("b", "heads", "kv_heads", "s_q", "s_kv", "d_qk", "d_v", "window")
    )
    return Attention(
        "attention",
        "forward" if phase == "forward" else "dgrad",
        b,
        heads,
        kv_heads,
        s_q,
        s_kv,
        d_qk,
        d_v,
        bool(columns["causal"][row]),
        window or None,
        dtype,
        kernel=kernel,
        training=training,
    )
