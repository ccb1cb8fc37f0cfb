"""Convolutions of prompts: the form against its published tables, physics, and what a model's prompt runs."""

import tomllib

import numpy as np
import pytest

import sizer
from shapes.cost import predict
from shapes.cost.explain import explain
from shapes.cost.moving import moved_parts
from shapes.device import load_device
from shapes.operators.types import Convolution
from shapes.toml_table import DATA

TABLES = tomllib.loads((DATA / "convolutions.toml").read_text(encoding="utf-8"))["convolution"]


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
