"""What fused attention costs by kernel, judged by published rows, physics and the kernels' own lists."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from fit.attention_arrays import attention_seconds
from hypothesis import given
from hypothesis import strategies as st

from shapes.cost import predict, predict_many
from shapes.cost.explain import expected_errors, explain
from shapes.cost.fused_attention import constants_of
from shapes.device import list_devices, load_device
from shapes.errors import InputError
from shapes.kernels import KERNELS
from shapes.operators.types import Attention
from shapes.toml_table import content, names, shipped

GAC = {"b": 4, "s_q": 2048, "s_kv": 2048, "heads": 32, "kv_heads": 32, "causal": False}


def sdpa(device: str, dims: list[int]) -> np.ndarray:
    return attention_seconds(device, "sdpa", "fp16", d_qk=np.array(dims), d_v=np.array(dims), **GAC)


def test_torch_sdpa_on_a100_by_head_dimension_is_as_gac_published_it() -> None:
    # JihaoXin/GAC, figure 2: A100, fp16, b 4, 32 heads, s 2048, microseconds.
    published = {72: 1206.2, 88: 1281.9, 136: 2097.8, 176: 2426.3, 192: 2288.7, 200: 3259.1, 256: 2930.2}
    predicted = sdpa("a100-sxm", list(published))
    assert predicted * 1e6 == pytest.approx(np.array(list(published.values())), rel=0.1)


def test_a_head_dimension_off_8_costs_a_third_more_than_the_next_multiple() -> None:
    off, padded = sdpa("a100-sxm", [65, 95, 125, 157]), sdpa("a100-sxm", [72, 96, 128, 160])
    # GAC: 65 over 72 is 1.36, 93 over 88 1.30, 131 over 136 1.34, 190 over 192 1.43.
    assert ((off / padded > 1.25) & (off / padded < 1.47)).all()


@pytest.mark.parametrize(
    "row",
    [
        # NVIDIA/cudnn-frontend, sdpa_benchmark_training: device, dtype, phase, b, s, heads, kv, d_qk, d_v, causal, us.
        ("gb200", "bf16", "forward", 2, 16384, 64, 8, 128, 128, False, 10369),
        ("gb200", "bf16", "dgrad", 2, 16384, 64, 8, 128, 128, False, 32014),
        ("gb200", "fp8", "forward", 2, 8192, 128, 128, 192, 128, True, 2294),
        ("gb200", "mxfp8", "dgrad", 2, 4096, 64, 8, 128, 128, False, 2046),
        ("h200", "bf16", "forward", 1, 8192, 64, 8, 128, 128, True, 1708),
        ("h200", "bf16", "dgrad", 1, 8192, 64, 8, 128, 128, True, 5083),
    ],
)
def test_cudnn_takes_what_its_own_benchmark_published(row: tuple) -> None:
    device, dtype, phase, b, s, heads, kv, d_qk, d_v, causal, us = row
    seconds = attention_seconds(
        device,
        "cudnn",
        dtype,
        b=b,
        s_q=s,
        s_kv=s,
        heads=heads,
        kv_heads=kv,
        d_qk=d_qk,
        d_v=d_v,
        causal=causal,
        phase=phase,
    )
    assert float(seconds) * 1e6 == pytest.approx(us, rel=0.12)


def test_torchs_attention_on_h100_is_about_1_8_times_slower_than_flash_attention_3() -> None:
    # arXiv 2407.08608, figure 5: forward at 128, 370 TFLOPS by FlashAttention 2 and 648 by 3.
    two, three = (
        predict(Attention("a", "forward", 2, 16, 16, 8192, 8192, 128, 128, causal=False, kernel=kernel), "h100-sxm")
        for kernel in ("sdpa", "fa3")
    )
    assert 1.5 < two.seconds / three.seconds < 2.1
    assert (two.kernel, three.kernel) == ("sdpa", "fa3")
    assert (two.source, two.tier) == ("predicted:h100-sxm", "published")


@pytest.mark.parametrize(
    "row",
    [
        # Dao-AILab/flash-attention#1893, meta-pytorch/tritonbench#1254 and #1267, facebookexperimental/triton#3465:
        # H100, bf16, which no fit has seen: phase, b, s, heads, causal, us.
        ("forward", 2, 8192, 16, True, 833),
        ("forward", 4, 2048, 48, False, 667.4),
        ("forward", 4, 8192, 48, True, 4817),
        ("dgrad", 2, 8192, 16, True, 2391),
        ("dgrad", 4, 4096, 48, True, 4643),
        ("dgrad", 4, 8192, 48, False, 29226),
    ],
)
def test_flash_attention_3_trains_as_fast_as_others_measured_since_its_paper(row: tuple) -> None:
    phase, b, s, heads, causal, us = row
    seconds = attention_seconds(
        "h100-sxm",
        "fa3",
        "bf16",
        b=b,
        s_q=s,
        s_kv=s,
        heads=heads,
        kv_heads=heads,
        d_qk=128,
        d_v=128,
        causal=causal,
        phase=phase,
        training=True,
    )
    assert float(seconds) * 1e6 == pytest.approx(us, rel=0.12)


@pytest.mark.parametrize(
    ("dtype", "moved"),
    [
        ("bf16", 2 * 4 * 1024 * 8 * 128 * (2 + 2)),  # K and V read and written
        ("fp8", (2 * 4 * 1024 * 8 * 128 + 4 * 1024 * 32 * 128) * (2 + 1)),  # as 8 bits, to which Q is converted too
    ],
)
def test_a_server_writes_keys_and_values_to_its_cache_and_training_does_not(dtype: str, moved: int) -> None:
    serving = Attention("a", "forward", 4, 32, 8, 1024, 1024, 128, 128, dtype=dtype, kernel="fa3")
    rate = constants_of("fa3", load_device("h100-sxm"), dtype).phases[0].cache_bytes_per_s
    copies = {part.what: part for part in explain(serving, predict(serving, "h100-sxm"), "h100-sxm")}["copies"]
    assert copies.seconds == pytest.approx(moved / rate)
    assert "cache" in copies.why
    for other in (replace(serving, training=True, dtype="bf16"), replace(serving, causal=False)):
        assert "copies" not in {part.what for part in explain(other, predict(other, "h100-sxm"), "h100-sxm")}


def test_160_costs_what_192_does_under_flash_attention_3() -> None:
    one, two = predict_many([Attention("a", "forward", 4, 32, 32, 4096, 4096, d, d) for d in (160, 192)], "h100-sxm")
    assert one.tile == two.tile == (128, 192)
    # Bytes differ by a sixth; arithmetic, which bounds both, does not.
    assert one.seconds == pytest.approx(two.seconds, rel=0.08)


def test_192_on_b200_is_priced_as_what_runs_instead() -> None:
    cost = predict(Attention("a", "forward", 4, 32, 32, 4096, 4096, 192, 192, training=True), "b200")
    wide = predict(Attention("a", "forward", 4, 32, 32, 4096, 4096, 256, 256, training=True), "b200")
    assert cost.kernel == "sdpa"
    assert wide.kernel == "cudnn"
    assert cost.seconds > wide.seconds
    operator = Attention("a", "forward", 4, 32, 32, 4096, 4096, 192, 192, training=True)
    assert "cudnn takes head dimensions up to 128 or (192, 128), (256, 256)" in explain(operator, cost, "b200")[0].why


def test_beyond_every_fused_kernel_the_square_is_written_out() -> None:
    operator = Attention("a", "forward", 2, 16, 16, 2048, 2048, 516, 516, kernel="fa2")
    cost = predict(operator, "a100-sxm")
    assert cost.kernel == "eager"
    parts = explain(operator, cost, "a100-sxm")
    assert [part.what for part in parts] == ["a.scores", "a.values", "a.softmax"]
    assert sum(part.seconds for part in parts) == pytest.approx(cost.seconds)


def test_a_reproducible_backward_costs_more_where_it_was_seen_to() -> None:
    plain = Attention("a", "dgrad", 1, 40, 40, 17160, 17160, 128, 128, causal=False, kernel="cudnn")
    again = Attention("a", "dgrad", 1, 40, 40, 17160, 17160, 128, 128, causal=False, kernel="cudnn", deterministic=True)
    assert 1.1 < predict(again, "gb200").seconds / predict(plain, "gb200").seconds < 1.35


@pytest.mark.parametrize("name", names("attention"))
def test_no_fitted_rate_is_above_the_devices_peak_or_bandwidth(name: str) -> None:
    assert name in KERNELS
    for fitted in content(shipped("attention", name)):
        device = load_device(fitted)
        for dtype in ("bf16", "fp8"):
            if dtype in device.peak_flops:
                known = constants_of(name, device, dtype)
                for one in known.phases:
                    assert max(rate for _, rate in one.flops_per_s) <= device.peak(dtype)
                    most = device.memory.bandwidth_bytes_per_s * 1.0001
                    assert max(one.bandwidth_bytes_per_s, one.cache_bytes_per_s) <= most
                    assert one.copy_bytes_per_s <= device.memory.bandwidth_bytes_per_s


@given(
    name=st.sampled_from(list_devices()),
    b=st.integers(1, 64),
    heads=st.integers(1, 128),
    s=st.integers(1, 65536),
    d=st.integers(1, 320),
    phase=st.sampled_from(["forward", "dgrad"]),
    causal=st.booleans(),
    window=st.sampled_from([None, 1, 100, 4096]),
    kernel=st.sampled_from(["auto", "sdpa", "eager"]),
)
def test_no_attention_is_faster_than_the_peak_allows_for_what_its_mask_leaves(
    name: str, b: int, heads: int, s: int, d: int, phase: str, causal: bool, window: int | None, kernel: str
) -> None:
    device = load_device(name)
    dtype = "bf16" if "bf16" in device.peak_flops else "fp16"
    operator = Attention("a", phase, b, heads, heads, s, s, d, d, causal, window, dtype, kernel=kernel)
    try:
        cost = predict(operator, device)
    except InputError:
        assert kernel == "sdpa"
        assert device.vendor == "intel"
        return
    assert operator.visible_flops / cost.seconds <= device.peak(dtype) * 1.0001
    if cost.kernel != "eager":
        assert operator.bytes / cost.seconds <= device.memory.bandwidth_bytes_per_s * 1.0001
        assert sum(part.seconds for part in explain(operator, cost, device)) == pytest.approx(cost.seconds)


@given(
    name=st.sampled_from(["a100-sxm", "h100-sxm", "b200", "l40s"]),
    s=st.integers(64, 32768),
    heads=st.integers(1, 128),
    d=st.sampled_from([32, 64, 96, 128, 256]),
    causal=st.booleans(),
)
def test_more_sequence_more_heads_and_more_batch_never_save(
    name: str, s: int, heads: int, d: int, causal: bool
) -> None:
    def seconds(b: int, h: int, length: int) -> float:
        return predict(Attention("a", "forward", b, h, h, length, length, d, d, causal), name).seconds

    base = seconds(2, heads, s)
    assert seconds(4, heads, s) >= base
    assert seconds(2, 2 * heads, s) >= base
    # Waves drain unevenly: a tile more of every sequence may fill them better.
    assert seconds(2, heads, s + 128) >= base * 0.99
    assert seconds(2, heads, 2 * s) >= base


def test_many_attentions_at_once_cost_what_each_does_alone() -> None:
    lengths, dims = np.meshgrid([512, 2048, 8192], [64, 80, 128, 192, 300])
    together = attention_seconds(
        "b200", "auto", "bf16", b=2, s_q=lengths, s_kv=lengths, heads=16, kv_heads=4, d_qk=dims, d_v=dims, window=1024
    )
    assert together.shape == lengths.shape
    for index in np.ndindex(lengths.shape):
        s, d = int(lengths[index]), int(dims[index])
        alone = predict(Attention("a", "forward", 2, 16, 4, s, s, d, d, True, 1024), "b200").seconds
        assert together[index] == pytest.approx(alone)


def test_time_rises_from_each_built_head_dimension_to_the_next() -> None:
    for device in ("a100-sxm", "h100-sxm", "l40s"):
        times = sdpa(device, [32, 64, 96, 128, 160, 192, 256])
        assert all(one < two for one, two in pairwise(times))


def test_a_dimension_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="heads = 0: expected positive integers"):
        attention_seconds("h100-sxm", "auto", "bf16", b=1, s_q=1, s_kv=1, heads=0, kv_heads=1, d_qk=64, d_v=64)


def test_errors_of_a_forward_in_training_are_listed_where_it_has_constants_of_its_own() -> None:
    listed = {(one.kernel, one.regime): one.expected.tier for one in expected_errors(load_device("h100-sxm"))}
    assert listed["fa3", "forward"] == "fitted"
    assert listed["fa3", "forward, training"] == listed["fa3", "backward"] == "published"
    assert ("cudnn", "forward, training") not in listed


@pytest.mark.parametrize(
    ("device", "d", "s", "ms"),
    [
        ("h100-sxm", 64, 4096, 0.5925),
        ("h100-sxm", 72, 8192, 2.700),
        ("h200", 80, 2048, 0.2025),
        ("l40s", 64, 2048, 0.3683),
        ("b200", 64, 3072, 0.2211),
        ("b200", 80, 8192, 1.542),
        ("gb200", 72, 2304, 0.1460),
    ],
)
def test_a_served_encoder_takes_what_vllms_did(device: str, d: int, s: int, ms: float) -> None:
    # aiconfigurator-core 0.12, encoder_attention_perf, vLLM 0.24, 4 x 16 heads: 9 to 12% off by the mean, no cache.
    tower = Attention("a", "forward", 4, 16, 16, s, s, d, d, causal=False)
    assert predict(tower, device).seconds == pytest.approx(1e-3 * ms, rel=0.13)


def test_an_encoder_without_rows_of_its_own_runs_what_training_s_forward_does() -> None:
    tower = Attention("a", "forward", 16, 16, 16, 1024, 1024, 64, 64, causal=False)
    assert predict(tower, "a100-sxm").seconds == predict(replace(tower, training=True), "a100-sxm").seconds
    decoder = replace(tower, causal=True)
    assert predict(decoder, "h100-sxm").seconds > predict(replace(decoder, training=True), "h100-sxm").seconds


@given(
    name=st.sampled_from(list_devices()),
    window=st.integers(1, 2**15),
    more=st.integers(1, 4096),
    d=st.sampled_from([64, 128]),
)
def test_attention_costs_no_less_where_its_window_is_passed(name: str, window: int, more: int, d: int) -> None:
    device = load_device(name)
    dtype = "bf16" if "bf16" in device.peak_flops else "fp16"
    seconds = [
        predict(Attention("a", "forward", 4, 32, 8, s, s, d, d, True, window, dtype), device).seconds
        for s in (window, window + more)
    ]
    assert seconds[1] >= seconds[0] * 0.999
