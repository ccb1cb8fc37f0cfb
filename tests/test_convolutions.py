"""Convolutions of prompts, and casts: the forms against published tables, physics, and what a model's prompt runs."""

import tomllib

import numpy as np
import pytest

import sizer
from shapes.cost import predict
from shapes.cost.explain import explain
from shapes.cost.moving import moved_parts
from shapes.device import load_device
from shapes.operators.types import Cast, Convolution
from shapes.toml_table import DATA

TABLES = tomllib.loads((DATA / "convolutions.toml").read_text(encoding="utf-8"))["convolution"]
CASTS = tomllib.loads((DATA / "casts.toml").read_text(encoding="utf-8"))["cast"]


def convolution(batch: int, tokens: int, channels: int) -> Convolution:
    moved = 2 * batch * tokens * channels
    return Convolution("conv1d", "forward", "conv", moved, moved, rows=batch * channels, tokens=tokens)


@pytest.mark.parametrize("name", TABLES)
def test_a_device_states_what_it_was_judged_by_and_is_no_faster_than_its_memory(name: str) -> None:
    one, table, device = convolution(1, 32768, 20480), TABLES[name], load_device(name)
    cost = predict(one, name)
    assert (cost.tier, cost.error, cost.p95) == ("fitted", table["error"], table["error_p95"])
    assert table["error"] <= 0.12
    assert table["error_p95"] <= 0.35
    assert sum(term.seconds for term in explain(one, cost, name)) == pytest.approx(cost.seconds)
    assert cost.seconds >= one.bytes / device.memory.bandwidth_bytes_per_s


@pytest.mark.parametrize("name", TABLES)
def test_more_rows_and_more_tokens_take_longer(name: str) -> None:
    sizes, device = np.unique(np.geomspace(1, 1 << 20, 2000).astype(int)), load_device(name)
    for one in (convolution(1, sizes, 4096), convolution(sizes, 256, 4096)):  # type: ignore[arg-type] # columns
        assert (np.diff(sum(moved_parts(one, device))) >= 0).all()


@pytest.mark.parametrize(
    ("name", "batch", "tokens", "channels", "measured_s"),
    [
        # aiconfigurator-core 0.12, mamba2_perf: Nemotron 3 Ultra's channels, in few long and in many short prompts.
        ("h100-sxm", 1, 32768, 20480, 961e-6),
        ("h100-sxm", 4, 512, 20480, 81.8e-6),
        ("h100-sxm", 32, 8, 20480, 546.8e-6),
    ],
)
def test_a_measured_convolution_takes_what_was_measured(
    name: str, batch: int, tokens: int, channels: int, measured_s: float
) -> None:
    assert predict(convolution(batch, tokens, channels), name).seconds == pytest.approx(measured_s, rel=0.2)


def test_a_prompt_runs_it_and_a_training_step_a_plain_kernel() -> None:
    mamba = {"model_type": "mamba2", "hidden_size": 2048, "num_heads": 64, "head_dim": 64, "state_size": 128}
    mamba |= {"n_groups": 1, "num_hidden_layers": 2, "vocab_size": 1024}
    for phase, rows in (("prefill", 4 * (64 * 64 + 2 * 128)), ("train", None)):
        (one,) = (
            one
            for one in sizer.ops(mamba, phase=phase, b=4, s=1000).operators
            if getattr(one, "what", "") == "conv" and one.phase == "forward"
        )
        assert getattr(one, "rows", None) == rows


def cast(m: int, k: int) -> Cast:
    return Cast("up_proj.quantise", "forward", "quantise", 2 * m * k, m * k)


@pytest.mark.parametrize("name", CASTS)
def test_a_cast_states_what_it_was_judged_by_and_is_no_faster_than_its_memory(name: str) -> None:
    one, table = cast(32768, 51200), CASTS[name]
    cost = predict(one, name)
    assert (cost.tier, cost.error, cost.p95) == ("fitted", table["error"], table["error_p95"])
    assert table["error"] <= 0.12
    assert table["error_p95"] <= 0.35
    assert cost.seconds >= one.bytes / load_device(name).memory.bandwidth_bytes_per_s


@pytest.mark.parametrize(
    ("m", "k", "measured_s"),
    # aiconfigurator-core 0.12, scale_matrix_perf of TensorRT-LLM on H100.
    [(32768, 51200, 1684e-6), (2561, 65536, 164.3e-6), (1281, 3072, 3.75e-6), (113, 768, 1.47e-6)],
)
def test_a_measured_cast_takes_what_was_measured(m: int, k: int, measured_s: float) -> None:
    assert predict(cast(m, k), "h100-sxm").seconds == pytest.approx(measured_s, rel=0.15)


def test_a_cast_that_reads_twice_or_to_four_bits_says_that_it_was_not_measured() -> None:
    llama = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 14336}
    llama |= {"num_hidden_layers": 2, "vocab_size": 1024}
    tiers = {}
    for recipe in ("delayed", "blockwise", "tensorwise"):
        listed = sizer.ops(llama, phase="prefill", s=1000, dtype="fp8", recipe=recipe).operators
        tiers[recipe] = {predict(one, "h100-sxm").tier for one in listed if isinstance(one, Cast)}
    assert tiers == {"delayed": {"fitted"}, "blockwise": {"fitted"}, "tensorwise": {"extrapolated"}}
