"""What is saved and what runs again: one policy, in the operators, in memory and in readers' files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from reports.bench.step_rows import price_step
from shapes.device import load_device
from shapes.errors import InputError
from shapes.memory import memory
from shapes.memory.moments import StageStep
from shapes.memory.tape import INPUT, Events
from shapes.model import ModelShape
from shapes.operators import operators
from shapes.step.stack import load_stack
from shapes.workload import ALTERNATE, Implementation, Workload, modules, saving
from sizer.cli import main
from sizer.readers import read_config

CONFIGS = Path(__file__).parent / "data" / "configs"


def model(name: str) -> ModelShape:
    return read_config(json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))).model


LLAMA, DEEPSEEK = model("llama-3.1-8b"), model("deepseek-v3")
#: What runs again -> the ends of the names of the operators that do.
AGAIN = {
    "none": set(),
    "selective": {"attention.core"},
    "core_attn": {"attention.core"},
    "layernorm": {"norm.0", "norm.1"},
    "moe_act": {"moe.activation"},
    "mla_up_proj": {"attention.q_b_proj", "attention.kv_b_proj", "attention.rotary"},
    "shared_experts": {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "mlp.activation"},
    "moe_act,layernorm": {"norm.0", "norm.1", "moe.activation"},
}


def again(shape: ModelShape, policy: str, **split: int) -> dict[str, int]:
    """How many forward passes more than without a policy, by operator."""
    counts: list[dict[str, int]] = []
    for one in ("none", policy):
        own: dict[str, int] = {}
        for operator in operators(shape, Workload(b=1, checkpointing=one, **split)):  # type: ignore[arg-type]  # degrees
            own[f"{operator.name} {operator.phase}"] = own.get(f"{operator.name} {operator.phase}", 0) + operator.count
        counts.append(own)
    return {key: counts[1][key] - count for key, count in counts[0].items() if counts[1][key] != count}


@pytest.mark.parametrize(("policy", "expected"), AGAIN.items())
def test_the_operators_of_a_module_run_their_forward_again(policy: str, expected: set[str]) -> None:
    found = again(DEEPSEEK, policy)
    assert {name.removeprefix("layers.*.") for name in found} == {f"{name} forward" for name in expected}


def test_a_mixtures_modules_are_of_the_layers_that_have_one() -> None:
    assert again(DEEPSEEK, "shared_experts")["layers.*.mlp.up_proj forward"] == 58
    assert again(DEEPSEEK, "mlp")["layers.*.mlp.up_proj forward"] == 3
    whole = again(DEEPSEEK, "moe")
    assert whole["layers.*.mlp.up_proj forward"] == whole["layers.*.moe.experts.down_proj forward"] == 58


def test_by_operator_every_second_product_and_all_that_is_no_product_runs_again() -> None:
    found = {name.split(".")[-1] for name in again(LLAMA, ALTERNATE, t=2)}
    products = {f"{name}_proj forward" for name in ("k", "o", "up")}
    assert {name for name in found if "_proj" in name} == products
    assert {"rotary forward", "activation forward", "residual forward"} < found
    assert "core forward" not in found
    split = again(LLAMA, ALTERNATE, t=2, sequence_parallel=True)
    assert "layers.*.tensor_parallel.all_gather forward" in split
    assert "layers.*.tensor_parallel.reduce_scatter forward" not in split


def test_of_some_layers_alone_time_and_memory_lie_between() -> None:
    assert set(again(LLAMA, "full:8").values()) == {8, 16}  # two residual additions a layer
    device, stack = load_device("h100-sxm"), load_stack("megatron-core-te")
    ways = ["none", "full:8", "full:24", "full"]
    runs = [Workload(b=1, s=8192, checkpointing=way) for way in ways]
    seconds = [price_step(LLAMA, one, device, stack).seconds for one in runs]
    saves = [dict(memory(LLAMA, one, device=device).moments)["end of the forward"] for one in runs]
    assert seconds == sorted(seconds)
    assert saves == sorted(saves, reverse=True)
    # Each of the layers saves as much less.
    assert (seconds[2] - seconds[1]) / (seconds[3] - seconds[0]) == pytest.approx(16 / 32, rel=0.01)
    assert (saves[1] - saves[2]) * 32 == (saves[0] - saves[3]) * 16


def saved(shape: ModelShape, policy: str) -> int:
    workload = Workload(b=2, s=1024, checkpointing=policy)
    run = StageStep(shape, workload, implementation="megatron").forward(workload.s)
    return sum(run.layer_tape(shape.main.blocks[-1], shape.hidden).saved(selective=True).values())


def test_a_module_without_its_output_saves_neither_it_nor_what_is_inside() -> None:
    rows = 2 * 1024
    moe, mla = DEEPSEEK.moe, DEEPSEEK.attention
    assert moe is not None
    assert mla is not None
    none = saved(DEEPSEEK, "none")
    # Norms save their input, the residual, and two numbers a row; what they made is the next product's input.
    assert none - saved(DEEPSEEK, "layernorm") == 2 * rows * (DEEPSEEK.hidden * 2 + 4)
    assert none - saved(DEEPSEEK, "moe_act") == rows * moe.top_k * moe.width * 2
    heads = rows * mla.heads * 2
    assert none - saved(DEEPSEEK, "mla_up_proj") == heads * (2 * mla.head_dim + mla.v_dim)
    assert saved(DEEPSEEK, "moe_act,layernorm") == saved(DEEPSEEK, "layernorm") - rows * moe.top_k * moe.width * 2


def test_a_module_with_its_output_saves_what_it_reads() -> None:
    """Megatron's gate is one kernel, so that a dense MLP keeps its input alone."""
    width = LLAMA.main.blocks[0].mlp.width  # type: ignore[union-attr]  # dense
    assert saved(LLAMA, "none") - saved(LLAMA, "mlp") == 2 * 1024 * width * 2 * 3
    assert saved(LLAMA, "full") == 2 * 1024 * LLAMA.hidden * 2
    assert saved(DEEPSEEK, "moe") < saved(DEEPSEEK, "moe_act")


@pytest.mark.parametrize("policy", ["some", "moe_act,gelu", "full:", "full:0", "full:x", "", "full:99999999"])
def test_what_is_no_policy_is_one_line_that_lists_them(policy: str) -> None:
    with pytest.raises(InputError, match="every-second-product, or some of core_attn") as error:
        Workload(checkpointing=policy)
    assert error.value.key == "checkpointing"
    found = CliRunner().invoke(main, ["ops", str(CONFIGS / "gpt2.json"), "--checkpointing", policy])
    assert (found.exit_code, found.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("named", "policy", "has"),
    [
        ("llama-3.1-8b", "moe_act", "llama has: core_attn, fp8_act_input, layernorm, mlp"),
        ("llama-3.1-8b", "layernorm,mla_up_proj:4", "llama has: core_attn, fp8_act_input, layernorm, mlp"),
        ("mixtral-8x7b", "mlp", "mixtral has: core_attn, fp8_act_input, layernorm, moe, moe_act"),
    ],
)
def test_a_module_that_the_model_lacks_is_one_line_that_lists_its_own(named: str, policy: str, has: str) -> None:
    found = CliRunner().invoke(main, ["memory", str(CONFIGS / f"{named}.json"), "--checkpointing", policy])
    assert (found.exit_code, len(found.output.splitlines())) == (2, 1)
    assert f"--checkpointing = '{policy}': expected modules that {has}" in found.output


@pytest.mark.parametrize("implementation", ["huggingface", "megatron"])
@pytest.mark.parametrize("policy", [*AGAIN, "full", ALTERNATE, "mlp", "moe", "layernorm,mlp", "moe,mla_up_proj"])
def test_a_tensor_goes_once_and_after_it_came(policy: str, implementation: Implementation) -> None:
    for shape in LLAMA, DEEPSEEK:
        step = StageStep(shape, Workload(b=1, checkpointing=policy), implementation=implementation)
        for stack, block in step.blocks:
            tape = step.forward(4096).layer_tape(block, stack.hidden)
            there = dict(kept := tape.saved(selective=True))
            gone(forward := dict[int, int](), tape.forward(kept))
            assert forward == kept
            gone(there, tape.backward(tape.storages[INPUT]))
            assert not {one for one in there if one >= 0}


def gone(there: dict[int, int], events: Events) -> None:
    """Goes through ``events``, each of a tensor that is ``there``, with its bytes, or comes."""
    for one, size in events:
        assert size >= 0 or there.pop(one) == -size
        there |= {one: size} if size > 0 else {}


def test_inference_runs_nothing_again() -> None:
    plain = Workload(b=1, phase="infer")
    assert operators(LLAMA, replace(plain, checkpointing="full")) == operators(LLAMA, plain)


def test_every_module_names_operators_that_some_model_runs() -> None:
    for module, said in modules().items():
        assert bool(again(DEEPSEEK, module)) == bool(said["operators"]), module
    assert saving("moe_act,layernorm:4").again == {"moe_act", "layernorm"}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("--checkpointing core_attn:99", "core_attn:99': expected at most the 32 layers of a device"),
        ("--checkpointing full:9 --pp 4 --gpus 8", "full:9': expected at most the 8 layers of a device"),
        ("--checkpointing none:3", "none:3': expected none, unknown"),
        ("--checkpointing unknown:3", "unknown:3': expected none, unknown"),
    ],
)
@pytest.mark.parametrize("command", ["check", "memory", "ops"])
def test_a_policy_of_layers_that_no_device_has_is_refused_in_one_line(command: str, said: str, expected: str) -> None:
    found = CliRunner().invoke(main, [command, str(CONFIGS / "llama-3.1-8b.json"), *said.split()])
    assert (found.exit_code, len(found.output.splitlines())) == (2, 1)
    assert f"--checkpointing = '{expected}" in found.output


def test_a_policy_of_all_of_a_devices_layers_is_taken() -> None:
    found = CliRunner().invoke(main, ["check", str(CONFIGS / "llama-3.1-8b.json"), "--checkpointing", "core_attn:32"])
    assert found.exit_code == 0
