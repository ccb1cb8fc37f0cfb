"""Kernels that are neither products nor fused attention: on no device faster than it can be, nor by growing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fit.served_physics import served_against_physics

from shapes.cost.gemm import predict_gemm
from shapes.cost.moving import moved_parts
from shapes.device import list_devices, load_device
from shapes.operators.types import CachedAttention, IndexScores, Scan, SparseAttention, TopK

DRAW, MANY = np.random.default_rng(5), 300


def _drawn(low: int, high: int) -> Any:
    """Integers, even over their logarithm, as a column."""
    return np.exp(DRAW.uniform(np.log(low), np.log(high), MANY)).astype(np.int64)


BATCH, KEYS, KV_HEADS, QUERIES = _drawn(1, 512), _drawn(1, 131072), _drawn(1, 64), _drawn(1, 4096)
HEAD, GROUP, NEW = 2 ** DRAW.integers(6, 10, MANY), _drawn(1, 16), DRAW.integers(1, 4, MANY)
CACHED = CachedAttention("", BATCH, KV_HEADS * GROUP, KV_HEADS, NEW, KEYS, HEAD, HEAD)
LATENT = CachedAttention("", BATCH, _drawn(1, 128), 1, NEW, KEYS, 576, 512, latent=True)
SCAN = Scan("", "forward", "gated_delta", BATCH, KEYS, _drawn(1, 128), 1, 128, 128, 64)
CHOSEN = np.minimum(KEYS, 2048)
#: What runs, what of it may grow, and whether its bytes are all moved. Query heads are asked of latent caches alone:
#: FlashAttention 2 splits keys among units where query heads share them, and not where each has its own (vLLM's on
#: A100 takes 3.0 ms for 8 heads of 8 and 0.19 for 8 of 4, over 131,072 keys).
CASES: dict[str, tuple[Any, tuple[str, ...], bool]] = {
    **{f"decode-{kv}": (replace(CACHED, kv_dtype=kv), ("batch", "kv_len", "q_len"), True) for kv in ("bf16", "fp8")},
    "decode-window": (replace(CACHED, windowed=True), ("batch", "kv_len", "q_len"), True),
    **{
        f"latent-{kv}": (replace(LATENT, kv_dtype=kv), ("batch", "heads", "kv_len", "q_len"), True)
        for kv in ("bf16", "fp8")
    },
    **{
        f"scan-{form}-{training}": (replace(SCAN, form=form, training=training), ("batch", "tokens", "heads"), True)
        for form in ("gated_delta", "kda")
        for training in (False, True)
    },
    "index": (IndexScores("", "forward", BATCH, 64, QUERIES, KEYS, QUERIES * KEYS, 128), ("batch",), True),
    "index-cached": (IndexScores("", "forward", BATCH, 64, 1, KEYS, KEYS, 128, cached=True), ("batch",), True),
    "top-k": (TopK("", "forward", BATCH, QUERIES, KEYS, QUERIES * KEYS, 2048), ("batch",), True),
    "sparse": (
        SparseAttention("", "forward", BATCH, _drawn(1, 128), 1, QUERIES, KEYS, CHOSEN, QUERIES * CHOSEN, 576, 512),
        ("batch", "heads"),
        False,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_growth_saves_nothing_and_no_device_beats_its_data_sheet(case: str) -> None:
    one, grows, moves = CASES[case]
    for name in list_devices():
        device = load_device(name)
        if one.dtype not in device.peak_flops:
            continue
        seconds, least = sum(moved_parts(one, device)), 1 - 1e-9
        if one.dtype != "fp32":
            assert (seconds * device.peak(one.dtype) >= least * one.flops).all(), name
        if moves:
            beyond = one.bytes - device.memory.last_level_cache_bytes
            assert (seconds * device.memory.bandwidth_bytes_per_s >= least * beyond).all(), name
        for key in grows:
            value = getattr(one, key)
            for grown in (2 * value, *([value + 1] if key != "heads" else [])):
                assert (sum(moved_parts(replace(one, **{key: grown}), device)) >= least * seconds).all(), (name, key)


@pytest.mark.slow
def test_no_kernel_with_a_form_of_its_own_breaks_physics_of_any_size() -> None:
    found = served_against_physics(1)  # 100 shapes of each kernel on each device
    assert [one for one in found if one.broken] == []
    assert sum(one.shapes for one in found) > 100_000


def test_a_decode_step_reads_the_keys_that_no_cache_holds_from_memory() -> None:
    one, h200 = IndexScores("", 64, 32, 1, 65536, 65536, 128, cached=True), load_device("h200")
    beyond = 64 * 65536 * 128 - h200.memory.l2_bytes
    assert sum(moved_parts(one, h200)) > beyond / h200.memory.bandwidth_bytes_per_s


def test_a_longer_k_saves_nothing_on_a_device_of_slower_memory() -> None:
    k = np.arange(64, 8192, 64)
    few = np.full_like(k, 128)
    once, twice = (predict_gemm("h100-sxm-96", few, few, times * k) for times in (1, 2))
    assert (twice >= once).all()


def test_a_sparse_attention_reads_no_more_keys_than_are_chosen() -> None:
    one = SparseAttention("", "forward", 4, 128, 1, 1, 65536, 2048, 2048, 576, 512, latent=True)
    assert one.bytes == replace(one, kv_len=2048).bytes
    assert replace(one, q_len=64).bytes < 64 * one.bytes
