"""One count of parameters: of a model, a shard, a stage, against transformers' own classes and their parallel plans."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_parity import CONFIGS, named

from shapes.errors import InputError
from shapes.frozen import replace
from shapes.memory import memory
from shapes.model import AttentionShape, Block, Linear, MlpShape, ModelShape, MoeShape, Stack, parameter_count
from shapes.model.stages import blocks_between, counted, parameter_tensors, stage_blocks
from shapes.operators import operators
from shapes.operators.parallel import check_split
from shapes.operators.types import Collective, Elementwise, Gemm, GroupedGemm
from shapes.workload import Workload
from sizer.readers import read_config

GIB = 2**30


def qwen3_30b_a3b() -> ModelShape:
    attention = AttentionShape(32, 4, 128, rotary_dim=128, qk_norm="head")
    block = Block(attention, MoeShape(128, 8, 768), count=48)
    return ModelShape("qwen3_moe", (Stack("decoder", 2048, (block,)),), vocab=151936)


def splits(model: ModelShape) -> list[Workload]:
    """The ways over t, p and e that the model allows."""
    found = []
    for t in (1, 2, 3, 6):
        for p in (1, 2, 3):
            for e in (1, 2, 4):
                try:
                    check_split(model, workload := Workload(b=1, s=8, t=t, p=p, d=e, e=e))
                except InputError:
                    continue
                found.append(workload)
    return found


@pytest.mark.parametrize("label", CONFIGS)
def test_a_shards_parameters_are_one_number_everywhere(label: str) -> None:
    model = read_config(named(label)).model
    for workload in splits(model):
        held = counted(parameter_tensors(model, workload))
        assert held.total == parameter_count(parameter_tensors(model, workload))
        update = next(op for op in operators(model, workload) if op.name == "optimizer")
        assert isinstance(update, Elementwise)
        assert update.bytes == 30 * held.total
        kept = memory(model, replace(workload, precision="bf16", optimizer="sgd-momentum"))
        on_stage = counted(parameter_tensors(model, workload, kept.stage)).total
        assert kept.parameters == on_stage
        assert [kept.components[name] for name in ("weights", "optimizer_states")] == [2 * on_stage] * 2
        if workload.t == workload.p == workload.e == 1:
            assert held.total == model.parameters


@pytest.mark.parametrize("label", CONFIGS)
def test_every_matrix_of_a_shard_is_the_forward_products_of_that_shard(label: str) -> None:
    model = read_config(named(label)).model
    for workload in splits(model):
        weights = 0
        for op in operators(model, workload):
            if op.phase == "wgrad" and isinstance(op, Gemm | GroupedGemm):
                weights += op.m * op.n * op.count * (op.groups if isinstance(op, GroupedGemm) else 1)
        matrices = [tensor for tensor in parameter_tensors(model, workload) if tensor.is_matrix]
        products = parameter_count(tensor for tensor in matrices if tensor.role != "embedding")
        tied_head = parameter_count(tensor for tensor in matrices if tensor.name == "embedding" and model.tied)
        assert weights == products + tied_head * model.head


#: What transformers' plan leaves whole and Megatron cuts: our names, their paths.
LEFT_WHOLE = {
    "deepseek_v3": (r"attention\.", r"self_attn"),
    "granitemoe": (r"attention\.", r"self_attn"),
    "mimo_v2_flash": (r"attention\.sinks", r"sinks"),
    "phimoe": (r"attention\.", r"self_attn"),
    "qwen2_moe": (r"mlp\.", r"(mlp|shared_expert)\.(gate|up|down)_proj"),
}
#: The plan is of the head alone.
NO_PLAN = {"gpt_oss", "hunyuan_v1_dense"}
#: Megatron cuts the embedding and the head by vocabulary, transformers' plan leaves the embedding whole.
ENDS = r"embed_tokens|embed_in|lm_head|embed_out|wte|wpe|embed_positions|shared\."


@pytest.mark.slow
@pytest.mark.parametrize("label", [label for label in CONFIGS if label not in NO_PLAN])
@pytest.mark.parametrize("t", [2, 3, 6])
def test_a_shards_parameters_are_those_of_transformers_own_plan(label: str, t: int) -> None:
    pytest.importorskip("transformers")
    from shapes.trace.config import build, load_config
    from tests.oracles.shards import shard

    model, workload = read_config(named(label)).model, Workload(t=t)
    if label == "phi3" and t > 2:
        pytest.skip("transformers gathers the fused projection and does not know its key/value heads")
    try:
        check_split(model, workload)
    except InputError:
        pytest.skip("t does not divide the heads")
    settled, where = load_config(named(label))
    module, _ = build(settled, where, attention="eager", dtype="bf16")
    try:
        shard(module, None, t, label)
    except InputError:
        pytest.skip("no tensor-parallel plan")
    our_name, their_path = LEFT_WHOLE.get(label, ("$^", "$^"))
    ours = parameter_count(
        tensor
        for tensor in parameter_tensors(model, workload)
        if tensor.role not in ("embedding", "head") and not re.match(our_name, tensor.name)
    )
    theirs = sum(
        parameter.numel()
        for path, parameter in module.named_parameters()
        if not re.search(f"{ENDS}|{their_path}", path)
    )
    assert ours == theirs


@pytest.mark.slow
def test_fewer_key_value_heads_than_shards_leave_each_a_whole_head_on_both_paths() -> None:
    from tests.oracles import traced_otherwise

    config = named("llama") | {"intermediate_size": 192}  # 6 heads, 2 of keys and values, of 16
    model, workload = read_config(config).model, Workload(b=2, s=24, t=6)
    formula = {
        op.name: (op.m, op.n, op.k)
        for op in operators(model, workload)
        if op.phase == "forward"  # type: ignore[union-attr]
        if isinstance(op, Gemm)
    }
    assert formula["layers.*.attention.k_proj"] == (48, 16, 96)
    whole = {op.name: op for op in traced_otherwise(config, b=2, s=24, t=6).operators if op.phase == "forward"}
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        traced = next(op for path, op in whole.items() if path.endswith(name))
        assert isinstance(traced, Gemm)
        assert formula[f"layers.*.attention.{name}"] == (traced.m, traced.n, traced.k)


def test_a_fused_projection_holds_a_whole_key_value_head_a_shard() -> None:
    # StarCoder: 48 heads of 128, one of keys and values. At t 8: 6 x 128 + 128 + 128.
    fused = AttentionShape(48, 1, 128, fused_qkv=True).linears(6144)[0]
    assert fused.on_shard(8) == Linear("attention.qkv_proj", 1024, 6144)


def test_key_value_heads_that_neither_divide_nor_are_divided_are_refused_by_name() -> None:
    block = Block(AttentionShape(12, 6, 64), MlpShape(2304))
    model = ModelShape("m", (Stack("decoder", 768, (block,)),), vocab=1000)
    with pytest.raises(InputError, match=r"t = 4: expected a divisor or a multiple of the 6 key/value heads"):
        operators(model, Workload(t=4))
    assert operators(model, Workload(t=12))


def test_a_row_parallel_bias_is_whole_on_each_rank_and_a_column_parallel_one_is_cut() -> None:
    assert Linear("down", 64, 256, True, "row").on_shard(4) == Linear("down", 64, 64, True)
    assert Linear("up", 256, 64, True, "column").on_shard(4) == Linear("up", 64, 64, True)


def test_experts_states_are_sharded_over_the_ranks_that_hold_the_same_experts() -> None:
    model = qwen3_30b_a3b()
    workload = Workload(b=1, s=4096, d=8, e=8, zero=1)
    held = counted(parameter_tensors(model, workload))
    # An eighth of the experts, whole, for which no other rank has a copy, and an eighth of everything else.
    assert held.experts == 48 * 16 * 3 * 768 * 2048
    assert held.total - held.experts == model.parameters - 8 * held.experts
    parts = memory(model, workload, implementation="megatron").components
    states = parts["master_weights"] + parts["optimizer_states"]
    assert states == 12 * held.experts + 12 * held.dense // 8
    assert states / GIB == pytest.approx(42.6, abs=0.1)
    # All devices together hold the model's states once.
    assert 8 * states == pytest.approx(12 * model.parameters, rel=1e-6)
    alone = memory(model, Workload(b=1, s=4096, d=8, zero=1), implementation="megatron").components
    assert 8 * (alone["master_weights"] + alone["optimizer_states"]) == pytest.approx(12 * model.parameters, rel=1e-6)


@pytest.mark.parametrize(("zero", "component"), [(1, "optimizer_states"), (2, "gradients"), (3, "weights")])
@pytest.mark.parametrize(("d", "e"), [(16, 2), (16, 16), (8, 4)])
def test_zero_shards_experts_over_d_by_e_from_its_stage_on(zero: int, component: str, d: int, e: int) -> None:
    model = qwen3_30b_a3b()
    held = counted(parameter_tensors(model, Workload(d=d, e=e)))
    each = {"optimizer_states": 8, "gradients": 4, "weights": 2}[component]
    for stage in range(4):
        found = memory(model, Workload(b=1, s=512, d=d, e=e, zero=stage), microbatches=2).components[component]
        ranks = (d, d // e) if stage >= zero else (1, 1)
        assert found == each * held.dense // ranks[0] + each * held.experts // ranks[1]


def collectives(model: ModelShape, workload: Workload) -> dict[str, Collective]:
    return {op.name.rsplit("*.")[-1]: op for op in operators(model, workload) if isinstance(op, Collective)}


def test_experts_gradients_are_reduced_over_the_ranks_that_hold_the_same_experts() -> None:
    model = qwen3_30b_a3b()
    alone = collectives(model, Workload(b=1, s=4096, d=8, e=8))
    # No two ranks hold the same expert: only what is no expert's is reduced, 1.54 B parameters of 2 bytes.
    assert "data_parallel.experts.all_reduce" not in alone
    assert alone["data_parallel.all_reduce"].bytes == 2 * (model.parameters - 48 * 128 * 3 * 768 * 2048)
    assert alone["data_parallel.all_reduce"].bytes / 1e9 == pytest.approx(3.1, abs=0.05)
    pairs = collectives(model, Workload(b=1, s=4096, d=16, e=8))
    assert pairs["data_parallel.experts.all_reduce"].bytes == 2 * 48 * 16 * 3 * 768 * 2048
    assert (pairs["data_parallel.experts.all_reduce"].ranks, pairs["data_parallel.all_reduce"].ranks) == (2, 16)
    without = collectives(model, Workload(b=1, s=4096, d=16))
    assert without["data_parallel.all_reduce"].bytes == 2 * model.parameters


def test_the_all_to_all_carries_a_shards_tokens() -> None:
    found = collectives(qwen3_30b_a3b(), Workload(b=1, s=4096, t=4, d=8, e=8, sequence_parallel=True))
    assert found["moe.all_to_all"].bytes == 4096 // 4 * 8 * 2048 * 2


def test_experts_are_spread_over_data_parallel_ranks() -> None:
    with pytest.raises(InputError, match=r"e = 8: expected a divisor of the 4 ranks"):
        operators(qwen3_30b_a3b(), Workload(d=4, e=8))
    assert Workload(d=16, e=8).expert_d == 2
    assert Workload(e=8).expert_d == 1  # d was not given


@given(layers=st.integers(1, 40), p=st.integers(1, 40))
def test_either_end_holds_as_many_layers_as_the_fullest_stage(layers: int, p: int) -> None:
    model = ModelShape("m", (Stack("s", 64, (Block(None, MlpShape(64), count=layers),)),), vocab=10)
    # As even as can be: the first ones hold one more where p does not divide.
    least, more = divmod(layers, p)
    for stage in ("first", "last"):
        held = sum(block.count for _, blocks in stage_blocks(model, p, stage) for block in blocks)
        assert held == least + (more > 0)


@given(runs=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=2), data=st.data())
def test_layers_between_two_are_those_of_the_model_laid_out(runs: list[list[int]], data: st.DataObject) -> None:
    def block(index: int, count: int) -> Block:
        return Block(AttentionShape(2, 2, 32), MlpShape(64 * (index + 1)), count=count)

    stacks = tuple(
        Stack(f"s{i}", 64, tuple(block(j, n) for j, n in enumerate(counts))) for i, counts in enumerate(runs)
    )
    model = ModelShape("m", stacks, vocab=10)
    laid = [(stack.name, block.mlp) for stack, block in model.all_blocks() for _ in range(block.count)]
    start = data.draw(st.integers(0, len(laid)))
    stop = data.draw(st.integers(start, len(laid)))
    found = blocks_between(model, start, stop)
    assert [(stack.name, block.mlp) for stack, blocks in found for block in blocks for _ in range(block.count)] == (
        laid[start:stop]
    )


def test_the_ends_of_a_pipeline_hold_the_embedding_first_and_the_head_last() -> None:
    def roles(tied: bool, stage: Any) -> set[str]:
        block = Block(AttentionShape(8, 8, 64), MlpShape(2048), count=4)
        model = ModelShape("m", (Stack("decoder", 512, (block,), positions=128),), vocab=1000, tied=tied)
        return {tensor.name for tensor in parameter_tensors(model, Workload(p=2), stage)} & {
            "embedding",
            "positions",
            "lm_head",
            "final_norm",
        }

    assert roles(False, "first") == {"embedding", "positions"}
    assert roles(False, "last") == {"lm_head", "final_norm"}
    assert roles(True, "last") == {"embedding", "final_norm"}  # its copy of the tied matrix
