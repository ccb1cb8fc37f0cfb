"""Plans: every split listed fits and multiplies out, and the rest is accounted for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st
from tiers import draws

import sizer
from shapes.device import load_device
from shapes.errors import InputError
from shapes.memory import ROOM, memory
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, MoeShape, Stack
from shapes.step import Pricer, over_stages
from shapes.step.stack import load_stack
from shapes.workload import Workload
from sizer.answers.plan import MOST_TOKENS, Plan, plan
from sizer.cli import main
from sizer.readers import read_config
from sizer.subject import read_subject


def llama(layers: int = 32) -> ModelShape:
    block = Block(AttentionShape(32, 8, 128, rotary_dim=128), MlpShape(14336), count=layers)
    return ModelShape("llama", (Stack("decoder", 4096, (block,)),), vocab=128256)


@pytest.fixture(scope="module")
def eight() -> Plan:
    return plan(
        llama(8), load_device("h100-sxm"), gpus=8, global_batch=32, base=Workload(s=2048), implementation="megatron"
    )


def test_every_candidate_uses_all_devices_and_the_whole_global_batch(eight: Plan) -> None:
    assert eight.candidates
    for candidate in eight.candidates:
        w = candidate.workload
        assert w.t * w.p * w.d * w.cp == 8
        assert w.b * w.d * candidate.microbatches == 32
        assert w.d % w.e == 0


def test_every_candidate_fits_and_the_list_is_sorted_by_time(eight: Plan) -> None:
    device = load_device("h100-sxm")
    seconds = [candidate.seconds for candidate in eight.candidates]
    assert seconds == sorted(seconds)
    for candidate in eight.candidates[::7]:
        used = memory(
            llama(8), candidate.workload, device=device, implementation="megatron", microbatches=candidate.microbatches
        )
        assert used.fits
        assert used.total_bytes == candidate.memory_bytes


def test_a_bubble_is_p_minus_1_slots_of_a_microbatch(eight: Plan) -> None:
    piped = [candidate for candidate in eight.candidates if candidate.workload.p > 1]
    assert piped
    for candidate in piped:
        p, m = candidate.workload.p, candidate.microbatches
        # Per-step work (update, gradient reduction) is outside the slots, other stages are no slower than the slowest,
        # and interleaving divides what is left: the share is under (p-1)/(m+p-1).
        assert 0 < candidate.bubble_s / candidate.seconds <= (p - 1) / (m + p - 1) + 1e-12
    assert all(candidate.bubble_s == 0 for candidate in eight.candidates if candidate.workload.p == 1)


def test_nothing_runs_again_where_less_leaves_room() -> None:
    base = Workload(s=8192)
    found = plan(llama(8), load_device("l4"), gpus=8, global_batch=8, base=base, implementation="megatron")
    recomputing = [one for one in found.candidates if one.workload.checkpointing != "none"]
    assert 0 < len(recomputing) < len(found.candidates)
    # All of some layers: of as few as leave room, and of fewer that fill the device.
    some = [one for one in recomputing if one.workload.saving.layers]
    assert any(one.memory_bytes <= ROOM * found.device_bytes for one in some)
    assert all(one.memory_bytes <= found.device_bytes for one in found.candidates)
    fits = [one.memory_bytes <= ROOM * found.device_bytes for one in found.candidates]
    assert fits == sorted(fits, reverse=True)
    assert sum(fits) == found.fitting < len(fits)
    assert found.recommended in found.candidates[: found.fitting]
    for candidate in recomputing:
        less = replace(candidate.workload, checkpointing="none")
        saved = memory(llama(8), less, microbatches=candidate.microbatches, implementation="megatron")
        assert saved.total_bytes > ROOM * found.device_bytes
    # ZeRO 2 reduces the gradients of every microbatch, which pays where its room lets fewer layers run again.
    by_zero: dict[tuple[int, ...], list[float]] = {}
    for one in found.candidates:
        w = one.workload
        by_zero.setdefault((w.t, w.p, w.d, w.zero), []).append(one.seconds)
    assert min(by_zero[1, 2, 4, 2]) < min(by_zero[1, 2, 4, 1])
    assert (2, 2, 2, 1) in by_zero
    assert (2, 2, 2, 2) not in by_zero  # as it is, nothing runs again


@pytest.mark.slow
def test_what_does_not_fit_is_named_with_its_reason() -> None:
    found = plan(llama(), load_device("a100-sxm"), gpus=8, global_batch=8, base=Workload(s=8192))
    reasons = {one.reason: one.count for one in found.dropped}
    assert any("does not fit with tp 1, pp 1, ZeRO 0" in reason for reason in reasons)
    assert "ZeRO 3 is not run with a pipeline" in reasons


@pytest.mark.slow
def test_a_mixture_may_be_spread_by_experts() -> None:
    block = Block(AttentionShape(16, 4, 64), MoeShape(8, 2, 1024), count=4)
    model = ModelShape("mixtral", (Stack("decoder", 1024, (block,)),), vocab=32000)
    found = plan(model, load_device("h100-sxm"), gpus=8, global_batch=16, base=Workload(s=1024))
    assert {candidate.workload.e for candidate in found.candidates} == {1, 2, 4, 8}


@pytest.mark.parametrize(
    ("stack", "runs"),
    [  # nanoGPT's train.py, llm-foundry's FSDP, transformers' Trainer: what else each has besides data parallelism.
        ("ddp-compile", set()),
        ("llm-foundry-2023-fsdp", {"zero"}),
        ("transformers-eager", {"t", "cp", "zero"}),
    ],
)
def test_a_plan_lists_no_kind_of_parallelism_that_its_program_has_not(stack: str, runs: set[str]) -> None:
    config = json.loads(Path("tests/data/configs/llama-3.1-8b.json").read_text()) | {"num_hidden_layers": 4}
    # Two nodes: hybrid sharding is ZeRO, too.
    found = sizer.plan(config, gpus=16, global_batch=64, sequence=4096, stack=stack)
    assert isinstance(found, Plan)
    fields = {"t", "p", "cp", "e", "zero"}
    listed = {name for name in fields for one in found.candidates if getattr(one.workload, name) > (name != "zero")}
    assert listed == runs
    assert f"{found.stack} has no --pp" in {one.reason for one in found.dropped}


def test_experts_may_lie_over_a_stages_other_ranks() -> None:
    """Megatron-Core's parallel folding (arXiv 2504.14960): devices = pp max(tp cp dp, ep etp edp)."""
    found = sizer.plan("tests/data/configs/qwen3-30b-a3b.json", gpus=16, global_batch=64)
    assert isinstance(found, Plan)
    times: dict[bool, list[float]] = {True: [], False: []}
    for one in found.candidates:
        w = one.workload
        folded = w.e > w.d * w.cp
        assert w.expert_t == (1 if folded else w.t)  # experts are whole on every rank
        if w.t == 2:
            times[folded].append(one.seconds)
    # Each rank of two sends its own half of the tokens and no expert is cut.
    assert min(times[True]) < min(times[False])


@pytest.mark.parametrize(
    ("field", "value"),
    [("tp", 4), ("cp", 4), ("dp", 2), ("microbatch", 2), ("zero", 3), ("replicas", 2), ("checkpointing", "full")],
)
@pytest.mark.parametrize("phase", ["train", "decode"])
def test_what_a_plan_finds_is_refused_and_not_ignored(field: str, value: Any, phase: str) -> None:
    said: dict[str, Any] = {"phase": phase, "gpus": 8, field: value}
    with pytest.raises(InputError, match=f"= '?{value}'?: expected none: a plan finds it"):
        sizer.plan("tests/data/configs/llama-3.1-8b.json", **said)


def test_a_model_that_nothing_fits_is_refused_with_the_commonest_reason() -> None:
    with pytest.raises(InputError, match=r"gpus = 7: expected a number of devices .* does not fit with tp 1, pp 7"):
        plan(llama(), load_device("t4"), gpus=7, global_batch=7, base=Workload(s=2048))


def test_too_few_devices_for_a_model_s_states_are_refused_with_how_many_it_takes() -> None:
    with pytest.raises(InputError, match=r"gpus = 1: expected at least 7 devices: weights and optimizer states alone"):
        plan(llama(), load_device("t4"), gpus=1, global_batch=1, base=Workload(s=2048))


def test_the_recommended_split_is_the_simplest_of_those_that_are_alike(eight: Plan) -> None:
    best, chosen = eight.candidates[0], eight.recommended
    assert chosen.seconds <= best.seconds * (1 + eight.ratio_error)
    alike = eight.candidates[: eight.indistinguishable]
    assert len(alike) > 1
    assert chosen.complexity == min(candidate.complexity for candidate in alike)
    assert chosen.workload.checkpointing == "none"
    assert all(
        candidate.seconds > best.seconds * (1 + eight.ratio_error) for candidate in eight.candidates[len(alike) :]
    )


@pytest.mark.slow
def test_tokens_give_days_device_hours_energy_and_cost() -> None:
    found = plan(
        llama(8), load_device("h100-sxm"), gpus=8, global_batch=32, base=Workload(s=2048), tokens=1e12, price=2.0
    )
    training = found.training
    assert training is not None
    steps = 1e12 / (32 * 2048)
    assert training.days == pytest.approx(steps * found.recommended.seconds / 86400)
    assert training.device_hours == pytest.approx(training.days * 24 * 8)
    assert training.kwh == pytest.approx(training.device_hours * 0.7)  # an H100 SXM is rated at 700 W
    assert training.cost == pytest.approx(2 * training.device_hours)
    for name in ("h100-sxm", "mi300x"):
        device = load_device(name)
        own = plan(llama(8), device, gpus=8, global_batch=32, base=Workload(s=2048), tokens=1e12).training
        listed = device.price_usd_per_h
        assert own is not None
        assert own.cost == (None if listed is None else pytest.approx(listed * own.device_hours))


@pytest.mark.slow
def test_long_sequences_may_be_shared_and_fsdp_may_shard_within_nodes() -> None:
    found = plan(llama(8), load_device("h100-sxm"), gpus=16, global_batch=32, base=Workload(s=8192))
    assert {candidate.workload.cp for candidate in found.candidates} >= {1, 2}
    hybrid = {(w.zero, w.d, w.replicas) for w in (one.workload for one in found.candidates) if w.replicas > 1}
    assert hybrid == {(3, 16, 2), (3, 8, 2), (3, 4, 2)}


@pytest.mark.slow
def test_llama_405b_on_8192_h100s_finds_the_published_tensor_and_pipeline_degrees() -> None:
    # The Llama 3 Herd of Models (2407.21783), table 4: t 8, p 16 on 8,192 GPUs, 126 layers over 16 stages.
    block = Block(AttentionShape(128, 8, 128, rotary_dim=128), MlpShape(53248), count=126)
    model = ModelShape("llama", (Stack("decoder", 16384, (block,)),), vocab=128256)
    found = plan(
        model, load_device("h100-sxm"), gpus=8192, global_batch=2048, base=Workload(s=8192), implementation="megatron"
    )
    assert (found.recommended.workload.t, found.recommended.workload.p) == (8, 16)
    near = {(one.workload.t, one.workload.p) for one in found.candidates[: found.indistinguishable]}
    assert all(t in (4, 8) and 8 <= p <= 64 for t, p in near)


@pytest.mark.slow
def test_a_mixture_runs_norms_and_activations_again_before_whole_layers() -> None:
    # DeepSeek-V3 (2412.19437, section 3.2.3) by its published degrees: norms, MLA's up-projections and activations run
    # again, activations' inputs are kept in fp8.
    config = json.loads((CONFIGS / "deepseek-v3.json").read_text(encoding="utf-8")) | {"num_hidden_layers": 8}
    device, base = load_device("h800"), Workload(s=4096, dtype="fp8", ep_overlap=True)
    device = replace(device, memory=replace(device.memory, bytes=48 * 2**30))
    found = plan(read_config(config).model, device, gpus=32, global_batch=256, base=base, implementation="megatron")
    policies = {one.workload.saving.name for one in found.candidates}
    assert policies >= {"none", "layernorm,moe_act,mla_up_proj"}
    one = next(one for one in found.candidates if one.workload.checkpointing == "layernorm,moe_act,mla_up_proj")
    bare = memory(read_config(config).model, replace(one.workload, checkpointing="none"), implementation="megatron")
    assert bare.total_bytes > ROOM * found.device_bytes >= one.memory_bytes


@pytest.mark.slow
def test_what_the_host_is_to_keep_may_run_again_instead() -> None:
    block = Block(AttentionShape(16, 16, 128, rotary_dim=128), MoeShape(64, 6, 1408), count=16)
    mixture = ModelShape("mixtral", (Stack("decoder", 2048, (block,)),), vocab=102400)
    base = Workload(s=4096, offload_saved=1.0)
    found = plan(mixture, load_device("h800"), gpus=4, global_batch=128, base=base, implementation="megatron")
    policies = {one.workload.checkpointing for one in found.candidates}
    assert {"none", "full", "layernorm,moe_act"} <= policies
    best = found.candidates[0]
    kept = replace(best.workload, checkpointing="none")
    copied = Pricer(load_device("h800"), stack=load_stack("megatron-core-te")).cost(mixture, kept)
    assert best.workload.checkpointing != "none"
    assert best.seconds < copied.seconds  # its layers save less than the link copies in time


def test_a_larger_microbatch_is_tried_where_a_smaller_one_does_not_fit() -> None:
    # Two microbatches of one sequence keep their gradients between them; one of two sequences makes them as it frees
    # activations (shapes.memory: 67.9 and 60.9 GiB).
    device = load_device("h100-sxm")
    device = replace(device, memory=replace(device.memory, bytes=65 * 2**30))
    found = plan(
        llama(),
        device,
        gpus=8,
        global_batch=16,
        base=Workload(s=4096),
        stack="pytorch-fsdp-2023",
        implementation="huggingface",
    )
    alone = [one.workload for one in found.candidates if (one.workload.t, one.workload.p, one.workload.cp) == (1, 1, 1)]
    assert {w.b for w in alone if (w.zero, w.checkpointing) == (1, "full")} == {2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gpus"), [("qwen3-30b-a3b", 8), pytest.param("mixtral-8x7b", 32, marks=pytest.mark.exhaustive)]
)
def test_no_mixtures_plan_is_listed_whose_states_alone_do_not_fit(name: str, gpus: int) -> None:
    # Counted by hand: what experts share out over the d / e ranks that hold the same ones is their states, not over d.
    config = json.loads((Path(__file__).parent / "data" / "configs" / f"{name}.json").read_text())
    model, device = read_config(config).model, load_device("h100-sxm")
    moe = model.moe
    assert moe is not None
    layers = config["num_hidden_layers"]
    experts = layers * moe.experts * 3 * config["hidden_size"] * moe.width
    found = plan(model, device, gpus=gpus, global_batch=4 * gpus, base=Workload(s=4096), implementation="megatron")
    assert any(one.workload.e > 1 and one.workload.zero for one in found.candidates)
    for candidate in found.candidates:
        w = candidate.workload
        stage = (layers // w.p) / layers  # the stage with the fewest layers, embedding and head left out
        own_experts = stage * experts / (w.t * w.e)
        own_dense = stage * (model.parameters - experts - 2 * config["vocab_size"] * config["hidden_size"]) / w.t
        shards = (w.d * w.cp, w.d * w.cp / w.e) if w.zero else (1, 1)
        states = 12 * (own_dense / shards[0] + own_experts / shards[1])  # fp32 master weight and two moments
        weights = 2 * (own_dense + own_experts) if w.zero < 3 else 0
        assert states + weights <= device.memory.bytes, w


@pytest.mark.slow
def test_a_plan_of_fine_tuning_runs_what_trains_and_counts_no_gradient_that_nobody_needs() -> None:
    # Enough layers that the head, whose gradient is needed either way, is little next to them.
    model, base = llama(32), Workload(s=2048)
    full, lora = (
        plan(model, load_device("h100-sxm"), gpus=8, global_batch=32, base=one).candidates[0]
        for one in (base, replace(base, finetune="lora"))
    )
    assert lora.seconds < full.seconds
    # about four FLOPs a parameter and token in place of six, in about two thirds of the time
    assert lora.mfu < 1.15 * full.mfu


CONFIGS = Path(__file__).parent / "data" / "configs"
ASKED = ("b", "s", "t", "p", "d", "cp", "e", "zero", "checkpointing", "vpp", "replicas", "sequence_parallel")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "device", "gpus", "sizes"),
    [
        pytest.param("llama-3.1-8b", "a100-sxm", 8, {}, marks=pytest.mark.exhaustive),
        ("mixtral-8x7b", "a100-sxm", 12, {}),
        # Devices that are no power of two, four key/value heads; another vendor's.
        ("qwen2.5-7b", "b200", 6, {}),
        pytest.param("gpt2", "mi300x", 16, {"n_positions": 2048, "vocab_size": 50304}, marks=pytest.mark.exhaustive),
        # Published layouts run 61, 94 and 126 layers over 8 and 16 stages; 13 here.
        (
            "llama-3.1-8b",
            "a100-sxm",
            32,
            {"hidden_size": 16384, "num_attention_heads": 128, "num_hidden_layers": 13, "intermediate_size": 53248},
        ),
    ],
)
def test_check_accepts_what_plan_recommends_at_plan_s_price(
    name: str, device: str, gpus: int, sizes: dict[str, int]
) -> None:
    config = json.loads((CONFIGS / f"{name}.json").read_text()) | sizes
    subject = read_subject(config, s=2048)
    assert subject.model is not None
    base = subject.workload
    found = plan(
        subject.model, load_device(device), gpus=gpus, global_batch=16 * gpus, base=base, implementation="megatron"
    )  # no stack is named: both take the one of training that is spread
    for candidate in {found.candidates[0], found.recommended}:
        asked = {field: getattr(candidate.workload, field) for field in ASKED}
        report = sizer.check(
            config,
            device=device,
            gpus=gpus,
            global_batch=16 * gpus,
            implementation="megatron",
            **asked,
        )
        assert report.ok, report.findings
        assert report.step.seconds == pytest.approx(candidate.seconds)


FAMILIES = (
    "meta-llama/Llama-3.1-8B",
    "Qwen/Qwen2.5-7B",
    "Qwen/Qwen3-30B-A3B",
    "openai/gpt-oss-20b",
    "google/gemma-2-9b",
    "deepseek-ai/DeepSeek-V2-Lite",
    "moonshotai/Moonlight-16B-A3B",
    "nvidia/Nemotron-H-8B-Base-8K",
    "allenai/OLMo-2-1124-13B",
    "mistralai/Mistral-Small-24B-Base-2501",
    "HuggingFaceTB/SmolLM2-1.7B",
    "baidu/ERNIE-4.5-21B-A3B-PT",
)
DEVICES = ("a100-sxm", "a100-sxm-40", "h100-sxm", "h200", "b200", "gb200", "mi300x", "mi355x", "l40s", "h20", "gaudi3")
#: Gas 1 of 48 devices: an interleaved pipeline of three has three microbatches, and no larger one is to be offered.
LEAST_GAS: dict[str, Any] = {"name": "openai/gpt-oss-20b", "device": "mi355x", "gpus": 48, "s": 1024, "gas": 1}
#: One device runs its own stack, whose attention kernel is not the device's usual one.
ONE_DEVICE: dict[str, Any] = {"device": "h100-sxm", "gpus": 1, "s": 1024, "gas": 2}


@pytest.mark.slow
@draws(6)
@example(**LEAST_GAS)
@example(name="HuggingFaceTB/SmolLM2-1.7B", **ONE_DEVICE)
@given(
    name=st.sampled_from(FAMILIES),
    device=st.sampled_from(DEVICES),
    gpus=st.sampled_from((1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)),
    s=st.sampled_from((1024, 2048, 4096, 8192)),
    gas=st.sampled_from((1, 2, 4, 16)),
)
def test_check_accepts_whatever_plan_recommends(name: str, device: str, gpus: int, s: int, gas: int) -> None:
    asked: dict[str, Any] = {"device": device, "gpus": gpus, "s": s, "global_batch": gas * gpus}
    try:
        found = sizer.plan(name, **asked)
    except InputError:
        return  # it fits no split
    for candidate in {found.candidates[0], found.recommended} if found.fitting else ():
        split = {field: getattr(candidate.workload, field) for field in (*ASKED, "etp")}
        report = sizer.check(name, **asked, **{field: one for field, one in split.items() if field not in asked})
        assert report.ok, report.findings
        assert report.step.seconds == pytest.approx(candidate.seconds)


def test_a_plans_microbatches_hold_at_most_so_many_tokens() -> None:
    found = plan(
        llama(2), load_device("h200"), gpus=2, global_batch=32, base=Workload(s=8192), implementation="megatron"
    )
    tokens = [one.workload.b * one.workload.s // one.workload.cp for one in found.candidates]
    assert max(tokens) == MOST_TOKENS


def test_a_ring_s_ranks_have_two_equal_parts_of_the_sequence() -> None:
    sizes = {"hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 24, "vocab_size": 32000}
    config = {"model_type": "llama", "intermediate_size": 5632, **sizes, "max_position_embeddings": 32768}
    found = sizer.plan(config, device="h100-sxm", gpus=12, global_batch=4, s=32768)
    assert {one.workload.cp for one in found.candidates} <= {1, 2, 4}
    best = found.candidates[0].workload
    report = sizer.check(config, gpus=12, global_batch=4, s=32768, t=best.t, p=best.p, d=best.d, cp=best.cp, b=best.b)
    assert not [one for one in report.findings if one.code == "SZ127"]


def test_stages_are_powers_of_two_or_divide_the_layers() -> None:
    # 64 layers and their ends are 66, which no published pipeline of 3 or 6 stages divides.
    sizes = {"hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 64, "vocab_size": 32000}
    found = sizer.plan({"model_type": "llama", "intermediate_size": 5632, **sizes}, gpus=24, global_batch=96, s=2048)
    assert {one.workload.p for one in found.candidates} <= {1, 2, 4, 8}


def test_layers_that_run_again_are_counted_on_every_stage() -> None:
    pricer = Pricer(load_device("h100-sxm"), stack=load_stack("megatron-core-te"))
    model = llama(8)
    of_two, of_one = (
        pricer.summed(model, over_stages(Workload(b=1, p=p, checkpointing=again))).layers.seconds
        for p, again in ((4, "full:1"), (1, "full:4"))
    )
    assert of_two == of_one


def test_stages_are_powers_of_two_unless_the_layers_or_the_batch_ask_for_others() -> None:
    def stages(layers: int, global_batch: int) -> set[int]:
        asked: dict[str, Any] = {"gpus": 12, "global_batch": global_batch, "implementation": "megatron"}
        found = plan(llama(layers), load_device("h100-sxm"), base=Workload(s=1024), **asked)
        return {one.workload.p for one in found.candidates}

    assert stages(8, 48) <= {1, 2, 4}
    assert 3 in stages(9, 48)  # three layers a stage
    assert stages(8, 16) <= {3, 6}  # no data-parallel ranks of three


def test_stages_are_interleaved_by_equal_chunks_of_their_layers_too() -> None:
    def chunks(layers: int) -> set[int]:
        found = plan(llama(layers), load_device("h100-sxm"), gpus=8, global_batch=8, base=Workload(s=1024))
        return {one.workload.vpp for one in found.candidates if one.workload.p == 4}

    assert {1, 3} <= chunks(12)  # three layers a stage, of which a check offers chunks
    assert chunks(13) == {1, 2}


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("vpp", [2, 4])
@pytest.mark.parametrize("global_batch", [8, 64, 512])
def test_interleaving_takes_no_less_than_the_plain_schedule(p: int, vpp: int, global_batch: int) -> None:
    """What does not fit without it is not tried with it."""
    plain = Workload(s=2048, p=p, d=8, zero=1, checkpointing="full", global_batch=global_batch)
    one, other = (memory(llama(), own).total_bytes for own in (plain, replace(plain, vpp=vpp)))
    assert one <= other


def test_a_plan_takes_the_rarer_fields_of_a_workload_on_the_command_line_too() -> None:
    asked = ("plan", str(CONFIGS / "mixtral-8x7b.json"), "--gpus", "4", "--global-batch", "4", "--format", "json")
    small = ("--set", "num_hidden_layers=1", "--set", "num_local_experts=2")
    found = CliRunner().invoke(main, [*asked, *small, "--workload", "ep-overlap", "--workload", "gathers=fp8"])
    workloads = [one["workload"] for one in json.loads(found.stdout)["candidates"]]
    assert {(one["ep_overlap"], one["gathers"]) for one in workloads} == {(True, "fp8")}
    refused = CliRunner().invoke(main, [*asked, "--workload", "cp=4"])
    assert (refused.exit_code, refused.stderr) == (2, "sizer: --cp = 4: expected none: a plan finds it\n")
