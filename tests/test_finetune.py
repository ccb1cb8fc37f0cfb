"""Fine-tuning: what trains, what it takes on a device, what runs, and what is advised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import sizer
from shapes.errors import InputError
from shapes.memory import memory
from shapes.model.stages import trained_parameters
from shapes.operators import operators
from shapes.operators.types import Gemm
from shapes.workload import Workload
from sizer.cli import main

CONFIGS = Path(__file__).parent / "data" / "configs"
QWEN = CONFIGS / "qwen2.5-7b.json"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def model_of(name: str) -> Any:
    return sizer.read_config(CONFIGS / f"{name}.json").model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "targets", "rank"),
    [
        ("qwen2.5-7b", None, 8),
        ("qwen2.5-7b", "all-linear", 16),
        ("gpt2", None, 8),
        ("llama-3.1-8b", "q_proj,o_proj", 64),
        ("phi-3-mini", "qkv_proj,down_proj", 4),
    ],
)
def test_parameters_that_train_are_those_that_peft_counts(name: str, targets: str | None, rank: int) -> None:
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    config = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**{**config, "pad_token_id": 0})
        )
    wanted = None if targets is None else targets if targets == "all-linear" else targets.split(",")
    lora = peft.LoraConfig(r=rank, target_modules=wanted, task_type="CAUSAL_LM")
    tuned = peft.get_peft_model(model, lora, low_cpu_mem_usage=True)
    counted = sum(weight.numel() for weight in tuned.parameters() if weight.requires_grad)
    assert (
        trained_parameters(model_of(name), Workload(finetune="lora", lora_rank=rank, lora_targets=targets)) == counted
    )


def test_an_adapter_is_r_rows_of_its_inputs_and_r_columns_of_its_outputs() -> None:
    # Qwen2.5-7B, r 16 on every linear layer: 28 layers of q and o (3584 + 3584), k and v (3584 + 512), three of the
    # MLP (3584 + 18944).
    expected = 28 * 16 * (2 * 2 * 3584 + 2 * (3584 + 512) + 3 * (3584 + 18944))
    asked = Workload(finetune="qlora", lora_rank=16, lora_targets="all-linear")
    assert trained_parameters(model_of("qwen2.5-7b"), asked) == expected == 40_370_176


def test_qlora_of_qwen_7b_fits_an_rtx_4090_and_adam_in_full_does_not() -> None:
    common = ("memory", str(QWEN), "--device", "rtx-4090", "-b", "1", "-s", "2048", "--checkpointing", "full")
    small, full = run(*common, "--finetune", "qlora"), run(*common, "--finetune", "full")
    assert small.exit_code == 0, small.output
    assert full.exit_code == 1, full.output
    assert "frozen parameters in nf4" in small.output
    assert "fits with" in small.output
    assert "does not fit" in full.output
    parts = json.loads(run(*common, "--finetune", "qlora", "--format", "json").stdout)["components"]
    # 7,615,616,512 parameters: 28 layers' matrices in 4.127 bits (QLoRA, section 3), the rest in fp32, as peft has it.
    matrices = 28 * (2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944)
    rest = model_of("qwen2.5-7b").parameters - matrices
    assert parts["weights"] == pytest.approx(matrices * 4.127 / 8 + 4 * rest, rel=1e-4)
    trained = 28 * 8 * (2 * 3584 + 3584 + 512)
    assert (parts["trained_weights"], parts["optimizer_states"]) == (4 * trained, 8 * trained)


def test_a_frozen_base_saves_no_inputs_of_its_products_and_makes_no_gradients() -> None:
    model = model_of("llama-3.1-8b")
    full = memory(model, Workload(b=1, finetune="full", precision="bf16"), microbatches=2).components
    lora = memory(model, Workload(b=1, finetune="lora"), microbatches=2).components
    assert lora["gradients"] < full["gradients"] / 100
    assert lora["activations"] < full["activations"]


def test_the_step_has_no_wgrad_of_frozen_matrices_and_adapters_as_products_of_rank_r() -> None:
    model, w = model_of("llama-3.1-8b"), Workload(b=1, s=1024, finetune="lora", lora_rank=16)
    found = [one for one in operators(model, w) if isinstance(one, Gemm)]
    assert {one.name.rsplit(".", 1)[-1] for one in found if one.phase == "wgrad"} == {"lora_A", "lora_B"}
    (down,) = (one for one in found if one.name.endswith("q_proj.lora_A") and one.phase == "forward")
    assert (down.m, down.n, down.k, down.count) == (1024, 16, 4096, 32)
    (up,) = (one for one in found if one.name.endswith("v_proj.lora_B") and one.phase == "wgrad")
    assert (up.m, up.n, up.k) == (1024, 16, 1024)  # out, r, tokens
    quantised = operators(model, Workload(b=1, s=1024, finetune="qlora"))
    assert sum(one.name.endswith("q_proj.dequantise") for one in quantised) == 2  # forward and dgrad


def test_tensor_parallelism_cuts_the_adapter_that_meets_the_cut_side() -> None:
    model = model_of("llama-3.1-8b")
    w = Workload(b=1, t=4, finetune="lora", lora_targets="q_proj,o_proj")
    shapes = {
        (one.name.split("attention.")[-1], one.n, one.k)
        for one in operators(model, w)
        if isinstance(one, Gemm) and "lora" in one.name and one.phase == "forward"
    }
    assert shapes == {
        ("q_proj.lora_A", 8, 4096),
        ("q_proj.lora_B", 1024, 8),
        ("o_proj.lora_A", 8, 1024),
        ("o_proj.lora_B", 4096, 8),
    }


def test_a_released_architecture_is_advised_on_its_workload_only() -> None:
    plain = sizer.check(CONFIGS / "gpt2.json", b=4, s=1024)
    assert any("vocab_size" in finding.message or finding.code == "SZ101" for finding in plain.findings)
    for options in ({"finetune": "lora"}, {"frozen_architecture": True}):
        found = sizer.check(CONFIGS / "gpt2.json", b=4, s=1024, **options)  # type: ignore[arg-type]
        # What its weights have is a note: nothing that a person can do.
        (vocabulary,) = [finding for finding in found.findings if "SZ101" in finding.codes]
        assert (vocabulary.severity, vocabulary.suggestions) == ("info", ())
        assert vocabulary.message.endswith("(as its weights are)")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"finetune": "dora"}, "finetune = 'dora': expected one of full, lora, qlora"),
        ({"finetune": "full", "base": "nf4"}, "base = 'nf4': expected it with --finetune lora or qlora"),
        ({"finetune": "qlora", "base": "bf16"}, "expected nf4 or int8 with qlora"),
        ({"finetune": "lora", "lora_rank": 0}, "lora_rank = 0: expected an integer between 1"),
        ({"finetune": "lora", "phase": "infer"}, "expected no fine-tuning with a phase of inference"),
        ({"lora_targets": "q_proj"}, "lora_targets = 'q_proj': expected it with"),
    ],
)
def test_choices_that_there_are_not_are_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        Workload(**options)


def test_targets_that_match_nothing_are_one_line_with_those_there_are() -> None:
    result = run("ops", str(QWEN), "--finetune", "lora", "--workload", "lora-targets=qq_proj")
    assert (result.exit_code, result.stdout) == (2, "")
    assert isinstance(result.exception, SystemExit) or "no matrix is called so" in str(result.exception)
    with pytest.raises(InputError, match="down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj or all-linear"):
        memory(model_of("qwen2.5-7b"), Workload(finetune="lora", lora_targets="qq_proj"))


def test_zero_3_gathers_the_frozen_base_in_what_it_is_kept_in() -> None:
    model = model_of("llama-3.1-8b")

    def gathered(**more: Any) -> int:
        found = operators(model, Workload(b=1, s=512, d=8, zero=3, finetune="lora", **more))
        return sum(op.bytes * op.count for op in found if op.name == "data_parallel.frozen.all_gather")

    # forward and backward, 2 bytes a parameter; nf4: a half, and its constants
    assert gathered() == 2 * 2 * model.parameters
    assert 0.5 < gathered(base="nf4") / (2 * model.parameters) < 0.52
    plain = operators(model, Workload(b=1, s=512, d=8, zero=1, finetune="lora"))
    assert not any("frozen" in op.name for op in plain)


def test_adapters_that_each_rank_holds_whole_have_their_gradients_summed_over_ranks() -> None:
    model = model_of("llama-3.1-8b")
    found = operators(model, Workload(b=1, s=512, t=2, finetune="lora", lora_rank=8, lora_targets="q_proj,o_proj"))
    (one,) = (op for op in found if op.name == "adapters.tensor_parallel.all_reduce")
    # q's A [8, 4096] and o's B [4096, 8] of 32 layers, in 16 bits
    assert one.bytes == 2 * 32 * 2 * 8 * 4096


def test_packed_experts_are_not_quantised_and_take_four_bytes() -> None:
    moe = sizer.read_config({"model_type": "qwen3_moe", "num_hidden_layers": 2}).model
    experts = sum(one.copies * one.elements for one in moe.tensors() if one.expert)
    held = memory(moe, Workload(b=1, s=128, finetune="qlora"))
    weights = next(part for part in held.parts if part.name == "weights")
    assert weights.bytes > 4 * experts
    assert "experts, embeddings" in weights.formula


def test_a_rank_off_16_bytes_is_advised_on() -> None:
    report = sizer.check(QWEN, finetune="lora", lora_rank=12, gpus=1, b=1, s=512)
    (finding,) = [one for one in report.findings if one.field == "lora_rank"]
    assert [dict(one.change) for one in finding.suggestions] == [{"lora_rank": 16}]
    aligned = sizer.check(QWEN, finetune="lora", lora_rank=8, gpus=1, b=1, s=512)
    assert not [one for one in aligned.findings if one.field == "lora_rank" and one.severity != "info"]


def test_targets_where_nobody_says_are_pefts_of_the_type() -> None:
    phi = sizer.memory({"model_type": "phi"}, finetune="lora", b=1, s=128)
    assert phi.workload.lora_targets == "q_proj,v_proj,up_proj,down_proj"
    # q and v of h 2048, fc1 and fc2 of 8192, rank 8, 24 layers
    assert phi.trained == 24 * 8 * (2 * 2 * 2048 + 2 * (2048 + 8192))


def test_a_rank_without_adapters_is_a_mistake_not_nothing() -> None:
    with pytest.raises(InputError, match="lora_rank = 8: expected it with --finetune lora or qlora"):
        sizer.check(QWEN, lora_rank=8)
