"""Optimizer, weights and saved tensors on the host: what leaves the device, and what a step waits for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import sizer
from shapes.device import load_device
from shapes.errors import InputError
from shapes.frozen import replace
from shapes.memory import memory
from shapes.memory.moments import StageStep, moments
from shapes.operators import operators
from shapes.operators.types import Elementwise
from shapes.step import Pricer, StepCost, with_host
from shapes.step.stack import load_stack
from shapes.workload import Workload
from sizer.cli import main
from sizer.readers import Source, read_config

CONFIGS = Path(__file__).parent / "data" / "configs"
LLAMA, MOE = (CONFIGS / f"{name}.json" for name in ("llama-3.1-8b", "qwen3-30b-a3b"))
MODEL = read_config(Source(str(LLAMA))).model
PARAMETERS = 8_030_261_248


def held(**asked: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes by component on the device, and on its host."""
    found = memory(MODEL, Workload(**{"b": 1, "s": 2048, "d": 8, "zero": 2, **asked}))
    return dict(found.components), {part.name: part.hosted for part in found.parts}


@given(share=st.integers(1, 100), zero=st.sampled_from([0, 1, 2, 3]))
def test_what_leaves_the_device_is_on_the_host(share: int, zero: int) -> None:
    """Master weights and moments."""
    (here, there), (before, none) = held(zero=zero, offload=share / 100), held(zero=zero)
    assert not any(none.values())
    for name in ("weights", "master_weights", "optimizer_states"):
        assert here[name] + there[name] == before[name]
        assert there[name] == pytest.approx(share / 100 * before[name] if name != "weights" else 0, abs=1)


def test_megatrons_own_copy_of_master_weights_stays_where_the_moments_leave() -> None:
    split: dict[str, Any] = {"b": 1, "s": 2048, "t": 2, "d": 4, "zero": 1, "sequence_parallel": True}
    whole, half = (memory(MODEL, Workload(**split, offload=share)) for share in (0.0, 0.5))
    assert whole.implementation == half.implementation == "megatron"
    assert half.components["master_weights"] == whole.components["master_weights"] > 0
    assert half.components["optimizer_states"] == whole.components["optimizer_states"] / 2
    assert {part.name: part.hosted for part in half.parts}["master_weights"] == whole.components["master_weights"] / 2


def test_weights_on_the_host_are_there_by_the_shard() -> None:
    (here, there), (before, _) = held(zero=3, offload_params=0.5), held(zero=3)
    assert here["weights"] == there["weights"] == before["weights"] / 2
    assert here["communication"] == before["communication"]  # gathered layers are on the device


@pytest.mark.parametrize("checkpointing", ["none", "full", "core_attn"])
@pytest.mark.parametrize("p", [1, 2])
def test_saved_tensors_on_the_host_leave_one_layer_and_its_neighbours(checkpointing: str, p: int) -> None:
    """A layer's are there while it runs, and those of one that leave or come."""
    common: dict[str, Any] = {"b": 1, "s": 512, "checkpointing": checkpointing, "t": 2, "p": p, "global_batch": 8}
    model = replace(MODEL, stacks=(replace(MODEL.main, blocks=(replace(MODEL.main.blocks[0], count=16),)),))
    whole, moved = (
        moments(StageStep(model, Workload(**common, offload_saved=share), "first", p, implementation="megatron"))
        for share in (0.0, 1.0)
    )
    ends = [next(one.bytes for one in found if one.name == "end of the forward") for found in (whole, moved)]
    layer = memory(model, Workload(**common, offload_saved=1.0), implementation="megatron")
    hosted = next(part.hosted for part in layer.parts if part.name == "activations")
    assert ends[0] - ends[1] == p * hosted > 0
    backwards = [max(one.bytes for one in found if one.name.startswith("backward")) for found in (whole, moved)]
    # Of 16 / p layers a microbatch all but the one that runs and the one that comes.
    assert backwards[0] - backwards[1] == pytest.approx(p * hosted - 2 * hosted * p / 16, rel=0.01)


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
    split = BRIDGE

    def allocated(offload: float) -> int:
        return memory(model, Workload(**split, offload=offload)).allocated_bytes

    saved = [allocated(0.0) - allocated(quarter / 4) for quarter in (1, 2, 3)]
    assert [round(size / 1e9, 1) for size in saved] == [3.8, 7.6, 11.5]
    assert (allocated(0.0) - allocated(1.0)) / 1e9 == pytest.approx(15.3, rel=0.005)


QWEN = {
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
}
SMALL = {**QWEN, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
MIDDLE = {**QWEN, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36}
LARGE = {
    "model_type": "qwen2",
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
}
TIED = {"tie_word_embeddings": True}
BRIDGE: dict[str, Any] = {
    "b": 1,
    "s": 4096,
    "t": 2,
    "p": 2,
    "e": 4,
    "d": 4,
    "zero": 1,
    "sequence_parallel": True,
    "global_batch": 8,
}
#: Published steps: model, device, workload, seconds that offloading adds. What each source says is below.
ADDED: dict[str, tuple[object, str, dict[str, Any], float]] = {
    # NVIDIA-NeMo/RL, pull request 3628: 0.752 s; 1.187 s with half, 1.678 s with all, on one H100.
    "nemo-rl half": (SMALL | TIED, "h100-sxm", {"b": 1, "s": 512, "zero": 1, "offload": 0.5}, 1.187 - 0.752),
    "nemo-rl": (SMALL | TIED, "h100-sxm", {"b": 1, "s": 512, "zero": 1, "offload": 1.0}, 1.678 - 0.752),
    # PrimeIntellect-ai/prime-rl, 3210: a step of 5.769 s, of which forward and backward are 1.708 s.
    "prime-rl 4B": (MIDDLE | TIED, "rtx-pro-6000", {"b": 1, "s": 2048, "offload": 1.0}, 5.769 - 1.708),
    # deepspeedai/DeepSpeed, issue 6834: about 10 s for 0.2 s, Qwen-72B over 32 A100, parameters offloaded too.
    "deepspeed 72B": (LARGE, "a100-sxm", {"b": 1, "s": 4096, "d": 32, "zero": 3, "offload": 1.0}, 10 - 0.2),
}


def added(model: object, device: str, workload: Workload) -> StepCost:
    """What offloading adds to a step that computes for none of its seconds."""
    base = StepCost(1.0, 1.0, 1.0, 0.9, 0.0, "fitted", {})
    shape = read_config(Source(str(model)) if isinstance(model, Path) else model).model
    found = with_host(base, shape, workload, load_device(device))
    return replace(found, seconds=found.seconds - 1, low=found.low - 1, high=found.high - 1)


@pytest.mark.parametrize("name", ADDED)
def test_published_steps_are_in_the_interval(name: str) -> None:
    model, device, workload, seconds = ADDED[name]
    found = added(model, device, Workload(**workload))
    assert found.low <= seconds <= found.high
    assert found.tier == "extrapolated"


def test_the_host_reaches_a_share_of_its_memorys_rate_which_is_the_interval() -> None:
    """30 bytes a parameter (12 read and 12 written in fp32, the gradient in 4 and the weight out in 2) at 76.8 GB/s."""
    found, least = added(LLAMA, "h100-sxm", Workload(b=1, s=2048, offload=1.0)), 30 * PARAMETERS / 76.8e9
    assert found.parts["optimizer on the host"] == pytest.approx(least / 0.2)
    assert found.high - found.low == pytest.approx(least * (1 / 0.05 - 1 / 0.6))


def test_gradients_that_are_sharded_leave_in_every_microbatch() -> None:
    """Of four microbatches five times what goes down once (four times down, and up as weights), for twice."""
    whole, sharded = (
        added(LLAMA, "h100-sxm", Workload(b=1, s=2048, d=2, zero=zero, global_batch=8, offload=1.0)) for zero in (1, 2)
    )
    assert sharded.parts["copies to the host"] == pytest.approx(2.5 * whole.parts["copies to the host"])


def test_an_update_that_hides_behind_the_backward_is_faster() -> None:
    """PrimeIntellect-ai/prime-rl, 3234: Qwen3-30B-A3B, eight H200: 1.75 s, 3.96 s with a kernel of their own."""
    found = added(MOE, "h200", Workload(b=1, s=8192, d=8, zero=3, offload=1.0))
    assert found.low > 3.96 - 1.75 > 0.75 * found.low


def test_memory_that_is_not_pinned_is_beyond_it() -> None:
    """gist.github.com/chenyaofo/d4cd6a20ab4b95cb3a49491747e2139a: LLaMA-7B, eight A800, ZeRO 2, 64 sequences a step.

    4.19 samples a second, 1.81 with the optimizer on the host.
    """
    llama = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
    }
    found = added(llama, "a100-sxm", Workload(b=1, s=4096, d=8, zero=2, offload=1.0, global_batch=64))
    assert found.high < 64 / 1.81 - 64 / 4.19


@pytest.mark.parametrize(("share", "times"), [(0.25, 1.9), (1.0, 4.2)])
def test_megatron_bridges_published_slowdowns_are_met(share: float, times: float) -> None:
    """The same page: 1.9 times the step with a quarter of the optimizer on the host, 4.2 times with all of it."""
    model, device = read_config(Source(str(MOE))).model, load_device("h100-sxm")
    pricer = Pricer(device, stack=load_stack("megatron-core-te"))
    plain, moved = (Workload(**BRIDGE, offload=one) for one in (0.0, share))
    seconds = [pricer.step(operators(model, one), one, model).seconds for one in (plain, moved)]
    assert seconds[1] / seconds[0] == pytest.approx(times, rel=0.1)


def test_copies_hide_behind_computing_and_what_outlasts_it_shows() -> None:
    model, link = MODEL, load_device("h100-sxm").link.host_bytes_per_s
    w = Workload(b=1, s=2048, d=8, zero=3, offload_saved=0.5, offload_params=1.0)
    there = {part.name: part.hosted for part in memory(model, w).parts}
    copied = (max(there["activations"], there["weights"]) + there["activations"] + there["weights"]) / link
    assert added(LLAMA, "h100-sxm", w).seconds == pytest.approx(copied)
    for computing, shows in ((0.5 * copied, 0.5 * copied), (2 * copied, 0.0)):
        base = StepCost(1.0, 1.0, 1.0, 0.9, 0.0, "fitted", {"products": computing})
        found = with_host(base, model, w, load_device("h100-sxm"))
        assert found.parts["copies to the host"] == pytest.approx(shows)
        assert sum(found.parts.values()) - computing == pytest.approx(found.seconds - 1)


def test_the_device_updates_what_the_host_does_not() -> None:
    whole, part = (
        next(one for one in operators(MODEL, Workload(b=1, s=64, offload=share)) if one.name == "optimizer")
        for share in (0.0, 0.75)
    )
    assert isinstance(whole, Elementwise)
    assert isinstance(part, Elementwise)
    assert part.bytes == pytest.approx(whole.bytes / 4, rel=1e-9)


def test_a_device_whose_host_is_not_known_has_no_price_and_memory_is_counted() -> None:
    with pytest.raises(InputError, match=r"offload = 1.0: expected none: the host is not known"):
        sizer.check(LLAMA, device="gaudi3", b=1, s=512, offload=1.0)
    found = sizer.memory(LLAMA, device="gaudi3", b=1, s=512, dp=8, zero=2, offload=1.0)
    assert found.times == ()
    plain = sizer.memory(LLAMA, device="gaudi3", b=1, s=512, dp=8, zero=2)
    assert plain.times
    assert not any("host" in one.name for one in plain.savings)
    assert found.memory.components["optimizer_states"] == 0
    assert sizer.memory(LLAMA, b=1, s=512, dp=8, zero=2, offload=1.0).times[0] > 0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"offload": 1.5}, "expected a share on the host, from 0 to 1"),
        ({"offload": -0.5}, "expected a share on the host, from 0 to 1"),
        ({"offload": 1.0, "phase": "infer"}, "expected the phase train with it"),
        ({"offload_saved": 2.0}, "expected a share on the host, from 0 to 1"),
        ({"offload_params": 1.0, "phase": "infer"}, "expected the phase train with it"),
    ],
)
def test_what_is_no_share_is_refused_in_a_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        Workload(**asked)
    options = [
        part
        for key, value in asked.items()
        for part in (("--workload", f"{key}={value}") if key.startswith("offload_") else (f"--{key}", str(value)))
    ]
    result = CliRunner().invoke(main, ["memory", str(LLAMA), *options])
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


MEGATRON = """num-layers: 32
hidden-size: 4096
num-attention-heads: 32
seq-length: 4096
micro-batch-size: 1
global-batch-size: 64
vocab-size: 32000
max-position-embeddings: 4096
bf16: true
use-distributed-optimizer: true
"""
TUNE = """batch_size: 2
model:
  _component_: torchtune.models.llama3_1.llama3_1_8b
checkpointer:
  checkpoint_dir: /tmp/Meta-Llama-3.1-8B-Instruct/
"""
AXOLOTL = "base_model: meta-llama/Llama-3.1-8B\ndatasets: []\nsequence_len: 4096\nmicro_batch_size: 1\n"
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 4096
enable_cpu_offload = true
"""
FSDP = "distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_offload_params: true\n"
DEEPSPEED = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  offload_optimizer_device: cpu\n"
DS = '{"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 3, '
ALL = {"offload": 1, "offload_params": 1}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("megatron.yaml", MEGATRON, {}),
        ("megatron.yaml", MEGATRON + "optimizer-cpu-offload: true\n", {"offload": 1}),
        (
            "megatron.yaml",
            MEGATRON + "optimizer-cpu-offload: true\noptimizer-offload-fraction: 0.25\n",
            {"offload": 0.25},
        ),
        ("megatron.yaml", MEGATRON + "cpu-offloading: true\ncpu-offloading-num-layers: 8\n", {"offload_saved": 0.25}),
        ("tune.yaml", TUNE, {}),
        ("tune.yaml", TUNE + "enable_activation_offloading: True\n", {"offload_saved": 1}),
        ("tune.yaml", TUNE + "fsdp_cpu_offload: True\n", ALL),
        ("axolotl.yaml", AXOLOTL + "activation_offloading: true\n", {"offload_saved": 1}),
        ("titan.toml", TITAN, ALL),
        ("+accelerate.yaml", FSDP, ALL),
        ("+accelerate.yaml", DEEPSPEED, {"offload": 1}),
        ("+ds.json", DS + '"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}}', ALL),
        ("+ds.json", DS + '"offload_optimizer": {"device": "none"}}}', {}),
        ("+ds.json", DS + '"offload_optimizer": {"device": "cpu", "ratio": 0.5}}}', {"offload": 0.5}),
        ("+arguments.json", '{"per_device_train_batch_size": 2, "fsdp": "full_shard offload"}', ALL),
        ("+arguments.json", '{"per_device_train_batch_size": 2, "fsdp": "full_shard"}', {}),
    ],
)
def test_files_say_what_they_offload(tmp_path: Path, name: str, text: str, said: dict[str, float]) -> None:
    """ "+": a trainer's settings, next to a model's own file."""
    file = tmp_path / name.removeprefix("+")
    file.write_text(text)
    source = Source(str(LLAMA), training=(str(file),)) if name[0] == "+" else Source(str(file))
    reading = read_config(source)
    assert {key: value for key, value in reading.workload.items() if key.startswith("offload")} == said
    assert not any("offload" in one.key for one in reading.unread)
    Workload(**reading.workload)


def test_a_disk_is_counted_as_the_host_and_said_to_have_no_price(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(DS + '"offload_optimizer": {"device": "nvme"}}}')
    reading = read_config(Source(str(LLAMA), training=(str(tmp_path / "ds.json"),)))
    assert reading.workload["offload"] == 1
    assert any("what the disk takes is not priced" in note for note in reading.notes)


def test_what_the_host_would_take_is_a_saving_with_its_price() -> None:
    found = sizer.memory(LLAMA, b=1, s=2048, dp=8, zero=3)
    named = {one.name: one for one in found.savings}
    assert {"saved tensors on the host", "weights on the host", "optimizer on the host"} <= named.keys()
    for name, change in (("saved tensors on the host", "offload_saved"), ("optimizer on the host", "offload")):
        one = named[name]
        alone = sizer.memory(LLAMA, b=1, s=2048, dp=8, zero=3, **{change: 1.0})  # type: ignore[arg-type]
        assert one.total_bytes == alone.memory.total_bytes < found.memory.total_bytes
        assert one.step_seconds == pytest.approx(alone.times[0])
        assert one.step_seconds is not None
        assert one.step_seconds >= found.times[0]


def test_a_plan_is_made_with_the_optimizer_on_the_host() -> None:
    plain, moved = (sizer.plan(LLAMA, gpus=2, global_batch=8, offload=share) for share in (0.0, 1.0))
    best = moved.candidates[0]
    assert best.workload.offload == 1.0
    assert best.seconds > plain.candidates[0].seconds
    assert best.memory_bytes < plain.candidates[0].memory_bytes
