"""Prices of a decode step's attention: physics, growth, what each part is for, and published measurements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sizer
from shapes.cost import predict
from shapes.cost.constants import published
from shapes.cost.decode import cached_parts, form_of
from shapes.cost.moving import moved_parts
from shapes.device import Device, list_devices, load_device
from shapes.operators.types import CachedAttention
from shapes.toml_table import DATA, content

TABLES = content(DATA / "decode.toml")
DEVICES = sorted(name for name in list_devices() if "bf16" in load_device(name).peak_flops)
#: Head dimensions, key heads and query heads for each of them: grouped, latent, multi-head.
CORES = st.sampled_from(
    [
        CachedAttention("core", 1, group * kv, kv, 1, 1, d, 512 if latent else d, latent, windowed=window)
        for group, kv, d, latent, window in (
            (8, 1, 128, False, False),
            (8, 4, 64, False, True),
            (1, 32, 128, False, False),
            (16, 1, 576, True, False),
            (128, 1, 576, True, False),
        )
    ]
)


@given(
    core=CORES,
    device=st.sampled_from(DEVICES),
    kv_dtype=st.sampled_from(["bf16", "fp8"]),
    batch=st.integers(1, 2048),
    keys=st.integers(1, 200_000),
    drafted=st.integers(1, 8),
)
def test_no_prediction_beats_the_device_and_growth_never_saves(
    core: CachedAttention, device: str, kv_dtype: str, batch: int, keys: int, drafted: int
) -> None:
    target = load_device(device)
    one = replace(core, batch=batch, kv_len=keys, q_len=drafted, kv_dtype=kv_dtype)
    cost = predict(one, target)
    beyond = one.bytes - target.memory.last_level_cache_bytes
    assert cost.seconds * target.memory.bandwidth_bytes_per_s > beyond * (1 - 1e-9)
    assert cost.seconds * target.peak("bf16") > one.flops * (1 - 1e-9)
    for more, longer in ((batch + 1, keys), (2 * batch, keys), (batch, keys + 1), (batch, 2 * keys)):
        assert predict(replace(one, batch=more, kv_len=longer), target).seconds > cost.seconds * (1 - 1e-9)


def test_to_start_a_block_takes_longer_the_more_channels_its_head_has() -> None:
    table = published("decode_bf16", load_device("h200"), "bf16")
    narrow = CachedAttention("core", 64, 32, 8, 1, 4096, 128, 128)

    def started(channels: int, seconds: float) -> float:
        one = replace(narrow, head_dim=channels, v_head_dim=channels)
        return sum(cached_parts(one, {**table, "block_s": seconds, "block_power": 2.0, "q": 1.0}))

    four, one = (started(channels, 1e-6) - started(channels, 0.0) for channels in (256, 128))
    assert four == pytest.approx(4 * one)
    assert one > 0


@pytest.mark.parametrize("form", TABLES)
def test_nowhere_does_a_device_beat_its_data_sheet_or_growth_save(form: str) -> None:
    draw, many, latent = np.random.default_rng(27), 2000, form.startswith("latent")
    kv_dtype = form.rpartition("_")[2]

    def up_to(most: float) -> Any:
        return np.exp(draw.uniform(0, np.log(most), many)).astype(np.int64)

    kv_heads: Any = np.ones(many, np.int64) if latent else 2 ** draw.integers(0, 6, many)
    dims: Any = (576, 512) if latent else (d := 64 * draw.integers(1, 5, many), d)
    heads: Any = kv_heads * 2 ** draw.integers(0, 8 if latent else 6, many)
    queries: Any = draw.integers(1, 9, many)
    batch, keys, windowed = up_to(4096), up_to(300_000), draw.integers(0, 2, many)
    for name in DEVICES:
        device = load_device(name)

        def seconds(batch: Any, keys: Any, device: Device = device) -> Any:
            core = CachedAttention("core", batch, heads, kv_heads, queries, keys, dims[0], dims[1], latent)
            core = replace(core, kv_dtype=kv_dtype, windowed=windowed)  # type: ignore[arg-type]  # columns
            return core, sum(moved_parts(core, device))

        core, found = seconds(batch, keys)
        beyond = core.bytes - device.memory.last_level_cache_bytes
        assert (found * device.memory.bandwidth_bytes_per_s > beyond * (1 - 1e-9)).all()
        assert (found * device.peak("bf16") > core.flops * (1 - 1e-9)).all()
        for grown in ((batch + 1, keys), (2 * batch, keys), (batch, keys + 1), (batch, 2 * keys)):
            assert (seconds(*grown)[1] > found * (1 - 1e-9)).all()


@pytest.mark.parametrize("form", TABLES)
def test_tables_state_what_they_were_judged_by_and_are_the_devices_own(form: str) -> None:
    core = CachedAttention("core", 8, 32, 1, 1, 4096, 576, 512, True) if "latent" in form else LLAMA
    core = replace(core, kv_dtype=form.rpartition("_")[2])
    assert form_of(core) == (form, True)
    for name, table in TABLES[form].items():
        cost = predict(core, name)
        assert (cost.tier, cost.error, cost.p95) == ("fitted", table["error"], table["error_p95"])
        # Within the data sheet, but for the cache.
        device = load_device(name)
        assert table["bandwidth_bytes_per_s"] <= 1.001 * device.memory.bandwidth_bytes_per_s
        assert table["flops_per_s"] <= 1.001 * device.peak("bf16")


LLAMA = CachedAttention("core", 64, 8, 1, 1, 8192, 128, 128)


def test_constants_of_a_relative_are_called_borrowed_and_another_vendors_extrapolated() -> None:
    assert predict(LLAMA, "rtx-4090").tier == "borrowed"
    assert predict(LLAMA, "mi300x").tier == "extrapolated"
    c = published("decode_bf16", load_device("h100-pcie"), "bf16")
    assert c["units"] == 114
    own = TABLES["decode_bf16"]["h100-sxm"]["bandwidth_bytes_per_s"]
    assert c["bandwidth_bytes_per_s"] == pytest.approx(own * 2.039e12 / 3.35e12, rel=0.02)


def test_a_kernel_that_does_not_share_keys_reads_them_for_each_head_behind_a_window() -> None:
    def seconds(device: str, *, windowed: bool) -> float:
        return predict(replace(LLAMA, heads=64, kv_heads=8, kv_len=1024, windowed=windowed), device).seconds

    # FlashAttention 2 swaps query heads for queries without a window alone; FlashAttention 3 packs them always.
    assert seconds("l40s", windowed=True) > 1.5 * seconds("l40s", windowed=False)
    assert seconds("h100-sxm", windowed=True) == seconds("h100-sxm", windowed=False)


def test_columns_of_sizes_give_what_each_row_gives() -> None:
    keys = np.array([128, 4096, 65536])
    launch, *rest = moved_parts(replace(LLAMA, kv_len=keys), load_device("h100-sxm"))  # type: ignore[arg-type]
    alone = [predict(replace(LLAMA, kv_len=int(one)), "h100-sxm").seconds for one in keys]
    assert launch + sum(rest) == pytest.approx(alone)


@pytest.mark.parametrize(
    ("device", "batch", "keys", "kv_dtype", "microseconds"),
    [
        # aiconfigurator-core 0.12, generation_attention_perf of vLLM: 32 heads, 8 of keys, head dimension 128.
        ("h100-sxm", 1, 4096, "bf16", 16.9),
        ("h100-sxm", 64, 8192, "bf16", 688.2),
        ("h100-sxm", 64, 8192, "fp8", 388.0),
        ("b200", 16, 2048, "fp8", 15.1),
        ("b200", 256, 1024, "bf16", 158.3),
        ("l40s", 16, 2048, "bf16", 220.8),
        ("l40s", 64, 8192, "fp8", 1612.6),
        ("a100-sxm", 16, 2048, "bf16", 112.1),
    ],
)
def test_published_rows_are_within_a_fifth(
    device: str, batch: int, keys: int, kv_dtype: str, microseconds: float
) -> None:
    core = CachedAttention("core", batch, 32, 8, 1, keys, 128, 128, kv_dtype=kv_dtype)
    assert predict(core, device).seconds * 1e6 == pytest.approx(microseconds, rel=0.2)


@pytest.mark.parametrize(
    ("device", "t", "b", "output", "ms"),
    # aiconfigurator's silicon_sample.csv (095f58a5): Llama 3.1 70B in fp8, prompts of 1,024 tokens, vLLM.
    [
        ("h100-sxm", 2, 4, 8192, 17.97),
        ("h100-sxm", 4, 4, 8192, 12.00),
        ("h100-sxm", 4, 16, 1024, 13.19),
        ("h200", 4, 4, 8192, 9.96),
        ("b200", 4, 4, 8192, 8.40),
    ],
)
def test_operators_of_few_requests_add_up_to_what_an_engine_takes(
    device: str, t: int, b: int, output: int, ms: float
) -> None:
    """With projections merged as engines have them: apart, their sum is 1.2 to 1.5 times the published one."""
    asked: dict[str, Any] = {"phase": "decode", "dtype": "fp8", "t": t, "b": b, "context": 1024 + output // 2}
    found = sizer.check("meta-llama/Llama-3.1-70B", device=device, **asked).step
    assert found.seconds * 1e3 == pytest.approx(ms, rel=0.13)
    apart = sizer.check("meta-llama/Llama-3.1-70B", device=device, fused_qkv=False, fused_gate_up=False, **asked).step
    assert apart.seconds * 1e3 > 1.15 * ms


@pytest.mark.parametrize(
    ("b", "prompt", "ms"), [(16, 1024, 16.63), (32, 1024, 23.31), (16, 8192, 20.41), (32, 8192, 31.97)]
)
def test_a_step_of_deepseek_is_near_what_sglang_published(b: int, prompt: int, ms: float) -> None:
    # aiconfigurator's silicon_sample.csv, 1,024 tokens of output: 33 ms for 23.31 with latents apart, tiles of 128 rows
    # and TensorRT-LLM's experts (19 ms of it), which neither SGLang nor vLLM runs.
    asked: dict[str, Any] = {"phase": "decode", "t": 8, "b": b, "context": prompt + 512}
    found = sizer.check("deepseek-ai/DeepSeek-V3", device="h200", **asked).step
    assert found.seconds * 1e3 == pytest.approx(ms, rel=0.15)
