"""The optimizer on the host: what leaves the device, and what the host holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import sizer
from shapes.errors import InputError
from shapes.memory import GIB, memory
from shapes.workload import Workload
from sizer.cli import main
from sizer.readers import Source, read_config

CONFIGS = Path(__file__).parent / "data" / "configs"
LLAMA, MOE = (CONFIGS / f"{name}.json" for name in ("llama-3.1-8b", "qwen3-30b-a3b"))
MODEL = read_config(Source(str(LLAMA))).model
PARAMETERS = 8_030_261_248


def held(**asked: Any) -> tuple[dict[str, int], float]:
    """Bytes by component on the device, and GiB on its host."""
    found = memory(MODEL, Workload(**{"b": 1, "s": 2048, "d": 8, "zero": 2, **asked}))
    said = "".join(part.formula for part in found.parts if part.name == "offloaded")
    return dict(found.components), float(said.split()[0]) if said else 0.0


@given(share=st.integers(1, 100), zero=st.sampled_from([0, 1, 2, 3]))
def test_what_leaves_the_device_is_on_the_host(share: int, zero: int) -> None:
    """Master weights and moments."""
    (here, there), (before, none) = held(zero=zero, offload=share / 100), held(zero=zero)
    assert none == 0
    assert here["weights"] == before["weights"]
    for name in ("master_weights", "optimizer_states"):
        assert here[name] == pytest.approx(before[name] * (1 - share / 100), abs=1)
    states = sum(before[name] for name in ("master_weights", "optimizer_states"))
    assert there == pytest.approx(share / 100 * states / GIB, abs=0.01)


@pytest.mark.parametrize(("zero", "stay"), [(1, True), (2, False)])
def test_gradients_that_zero_shards_leave_as_they_are_made(zero: int, stay: bool) -> None:
    whole, some = (
        dict(memory(MODEL, Workload(b=1, s=512, d=8, zero=zero, offload=one)).moments)["optimizer's step"]
        for one in (0.0, 1.0)
    )
    assert whole - some == pytest.approx((12 if stay else 16) * PARAMETERS / 8, rel=1e-6)


def test_megatron_bridges_published_savings_are_met() -> None:
    """docs/training/cpu-offloading.md at 6608201d: Qwen3-30B-A3B, TP 2, PP 2, EP 4: 3.8 GB a quarter, 15.3 GB in all.

    Nothing was fitted on it: the moments' 8 bytes a parameter leave, the distributed optimizer's own copies stay.
    """
    model = read_config(Source(str(MOE))).model
    split = {"b": 1, "s": 4096, "t": 2, "p": 2, "e": 4, "d": 4, "zero": 1, "sequence_parallel": True, "global_batch": 8}

    def allocated(offload: float) -> int:
        return memory(model, Workload(**split, offload=offload)).allocated_bytes

    saved = [allocated(0.0) - allocated(quarter / 4) for quarter in (1, 2, 3)]
    assert [round(size / 1e9, 1) for size in saved] == [3.8, 7.6, 11.5]
    assert (allocated(0.0) - allocated(1.0)) / 1e9 == pytest.approx(15.3, rel=0.005)


def test_a_step_that_offloads_has_no_price_and_memory_is_counted() -> None:
    with pytest.raises(InputError, match=r"offload = 1.0: expected none: its time is not known"):
        sizer.check(LLAMA, b=1, s=512, offload=1.0)
    found = sizer.memory(LLAMA, b=1, s=512, dp=8, zero=2, offload=1.0)
    assert found.times == ()
    assert found.memory.components["optimizer_states"] == 0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"offload": 1.5}, "expected the optimizer's share on the host, from 0 to 1"),
        ({"offload": -0.5}, "expected the optimizer's share on the host, from 0 to 1"),
        ({"offload": 1.0, "phase": "infer"}, "expected the phase train with it"),
    ],
)
def test_what_is_no_share_is_refused_in_a_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        Workload(**asked)
    options = [part for key, value in asked.items() for part in (f"--{key}", str(value))]
    result = CliRunner().invoke(main, ["memory", str(LLAMA), *options])
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
