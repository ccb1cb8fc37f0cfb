"""Which collectives a step runs, over whom, and how often; and what one takes, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from math import log2
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sizer
from shapes.cost import predict
from shapes.cost.constants import collective_constants, moving_constants, relative
from shapes.cost.explain import explain
from shapes.cost.moving import origin_of
from shapes.device import load_device
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, MoeShape, SharedKeyShape, Stack, Streams
from shapes.model.stages import counted, parameter_tensors
from shapes.operators import operators
from shapes.operators.parallel import split_problems
from shapes.operators.types import Collective, Elementwise, GroupedGemm
from shapes.workload import Workload

H100 = load_device("h100-sxm")
B, S, H, LAYERS = 2, 1024, 512, 4


def dense(**block: Any) -> ModelShape:
    one = Block(AttentionShape(8, 4, 64), MlpShape(1024), count=LAYERS, **block)
    return ModelShape("m", (Stack("decoder", H, (one,)),), vocab=1024)


def mixture() -> ModelShape:
    one = Block(AttentionShape(8, 4, 64), MoeShape(16, 2, 256), count=LAYERS)
    return ModelShape("m", (Stack("decoder", H, (one,)),), vocab=1024)


def sent(model: ModelShape, word: str, **asked: Any) -> list[tuple[str, str, int, int, int, int]]:
    """(phase, what, bytes, ranks, stride, count) of the collectives whose names hold ``word``."""
    return [
        (one.phase, one.what, one.bytes, one.ranks, one.stride, one.count)
        for one in operators(model, Workload(**({"b": B, "s": S} | asked)))
        if isinstance(one, Collective) and word in one.name
    ]


ACTIVATIONS = B * S * H * 2


def test_a_layer_all_reduces_behind_attention_and_mlp_and_as_often_backward() -> None:
    assert sent(dense(), "layers.*.tensor_parallel", t=4) == [
        ("forward", "all_reduce", ACTIVATIONS, 4, 1, 2 * LAYERS),
        ("dgrad", "all_reduce", ACTIVATIONS, 4, 1, 2 * LAYERS),
    ]
    # Parts that run in parallel are added up before; a checkpointed forward sends again; inference has no backward.
    assert [one[-1] for one in sent(dense(parallel=True), "layers.*.tensor_parallel", t=4)] == [LAYERS, LAYERS]
    full = sent(dense(), "layers.*.tensor_parallel", t=4, checkpointing="full")
    assert [one[-1] for one in full] == [4 * LAYERS, 2 * LAYERS]
    assert len(sent(dense(), "layers.*.tensor_parallel", t=4, phase="infer")) == 1
    assert sent(dense(), "tensor_parallel") == []


def test_embedding_and_head_send_what_their_splits_leave_to_add_up() -> None:
    assert sent(dense(), "embedding", t=4) == [("forward", "all_reduce", ACTIVATIONS, 4, 1, 1)]
    assert sent(dense(), "lm_head", t=4) == [("dgrad", "all_reduce", ACTIVATIONS, 4, 1, 1)]
    split = {"t": 4, "sequence_parallel": True}
    assert [one[:2] for one in sent(dense(), "embedding", **split)] == [
        ("forward", "reduce_scatter"),
        ("dgrad", "all_gather"),
    ]
    assert [one[:2] for one in sent(dense(), "lm_head", **split)] == [
        ("forward", "all_gather"),
        ("dgrad", "reduce_scatter"),
        ("wgrad", "all_gather"),
    ]
    # No vocabulary, no embedding to add up; a pipeline's last stage has the head alone.
    assert sent(replace(dense(), vocab=0, head=False), "embedding", t=4) == []
    assert sent(dense(), "embedding", t=4, p=2) == []
    predicting = sent(replace(dense(), head_passes=3), "lm_head", t=4)
    assert [one[-1] for one in predicting] == [3]
    served = sent(replace(dense(), head_passes=3), "lm_head", phase="infer", **split)
    assert [one[-1] for one in served] == [1]


def test_context_parallel_ranks_meet_all_keys_and_values_and_send_their_gradients_back() -> None:
    # 2 of 4 key/value heads a rank, 64 wide, keys and values, 2 bytes each; tensor parallelism's ranks are neighbours.
    buffer = B * S * 2 * (64 + 64) * 2
    assert sent(dense(), "context_parallel", t=2, cp=4) == [
        ("forward", "all_gather", buffer, 4, 2, LAYERS),
        ("dgrad", "all_gather", buffer, 4, 2, LAYERS),
        ("dgrad", "reduce_scatter", buffer, 4, 2, LAYERS),
    ]
    # A group of two has both; all-to-alls send heads, not keys and values.
    assert {one[3] for one in sent(dense(), "context_parallel", cp=2)} == {2}


def test_gradients_are_reduced_over_data_and_context_parallel_ranks() -> None:
    held = 2 * dense().parameters // 2  # bytes of a half in 16 bits
    (plain,) = sent(dense(), "data_parallel", t=2, d=4, cp=2)
    assert plain[1:2] + plain[3:] == ("all_reduce", 8, 2, 1)
    assert plain[2] == pytest.approx(held, rel=0.01)  # norms are whole
    # Context parallelism alone: each rank has gradients of its part of the sequence.
    assert [one[3:5] for one in sent(dense(), "data_parallel", cp=2)] == [(2, 1)]
    assert sent(dense(), "data_parallel", t=2) == []


def test_gradients_and_weights_are_sent_in_types_of_their_own() -> None:
    usual = {what: size for _, what, size, *_ in sent(dense(), "data_parallel", d=8, zero=1)}
    own = sent(dense(), "data_parallel", d=8, zero=1, reduces="fp32", gathers="fp8")
    assert [what for _, what, *_ in own] == ["reduce_scatter", "all_gather"]
    assert [size for _, _, size, *_ in own] == [2 * usual["reduce_scatter"], usual["all_gather"] // 2]


def test_experts_gradients_are_reduced_over_those_that_hold_the_same_ones() -> None:
    found = sent(mixture(), "data_parallel", t=2, d=8, cp=2, e=4)
    assert [one[3:5] for one in found] == [(16, 2), (4, 8)]
    experts = LAYERS * 16 * 3 * H * 256 // (4 * 2) * 2
    assert found[1][2] == experts
    # Where as many ranks hold the same experts as the same of the rest they are reduced together.
    assert len(sent(mixture(), "data_parallel", t=2, d=8)) == 1


@given(t=st.sampled_from([1, 2, 4]), e=st.sampled_from([1, 2, 4, 8, 16]), etp=st.sampled_from([1, 2, 4]))
def test_experts_cut_by_ranks_of_their_own_are_as_many_and_do_as_much(t: int, e: int, etp: int) -> None:
    one = Workload(b=B, s=S, t=t, d=64, e=e, etp=etp, sequence_parallel=t > 1)
    held = counted(parameter_tensors(mixture(), one)).experts
    assert held * e * etp == LAYERS * 16 * 3 * H * 256
    products = [op for op in operators(mixture(), one) if isinstance(op, GroupedGemm)]
    # Over the t ranks that share a microbatch: two experts a token, three matrices, three phases.
    assert sum(op.flops * op.count for op in products) * t == LAYERS * 2 * B * S * 2 * 3 * H * 256 * 3
    # Megatron-Core's parallel_state: experts' data parallelism is what e and etp leave of the ranks of a stage.
    assert one.expert_d == t * 64 // (e * etp)
    assert {op.groups for op in products} == {16 // e}


def test_folded_experts_are_sent_over_neighbours_and_gather_no_tokens() -> None:
    split: dict[str, Any] = {"t": 4, "d": 2, "e": 8, "sequence_parallel": True}
    assert split_problems(mixture(), Workload(**split, etp=4))[0].key == "e"
    for etp in (1, None):  # whole experts where only that fits
        assert sent(mixture(), "moe.all_to_all", **split, etp=etp)[0][3:5] == (8, 1)
        # Gathered and scattered before and behind attention alone.
        assert {one[-1] for one in sent(mixture(), "layers.*.tensor_parallel", **split, etp=etp)} <= {
            LAYERS,
            2 * LAYERS,
        }
        assert sent(mixture(), "layers.*.tensor_parallel", **split, etp=etp)[0][-1] == LAYERS
        assert [one[3:5] for one in sent(mixture(), "data_parallel.", **split, etp=etp)] == [(2, 4)]
    # Ranks that cut an expert in two gather their own halves of the four's tokens.
    halves = sent(mixture(), "layers.*.tensor_parallel", **split | {"e": 4, "etp": 2})
    assert {one[2:4] for one in halves} == {(ACTIVATIONS, 4), (ACTIVATIONS // 2, 2)}
    assert [one.key for one in split_problems(dense(), Workload(etp=2))] == ["etp"]
    assert [one.key for one in split_problems(mixture(), Workload(t=2, d=2, etp=3))] == ["etp", "etp"]


def of_layers(layers: int) -> ModelShape:
    return replace(dense(), stacks=(replace(dense().main, blocks=(replace(dense().main.blocks[0], count=layers),)),))


def test_a_single_layer_is_sent_as_one() -> None:
    assert [one[-1] for one in sent(of_layers(1), "data_parallel", d=4, zero=3)] == [1, 2]


def test_two_ranks_share_what_is_sharded() -> None:
    weights = 2 * dense().parameters
    for zero in (1, 2):
        assert [one[1:] for one in sent(dense(), "data_parallel", d=2, zero=zero)] == [
            ("reduce_scatter", weights, 2, 1, 1),
            ("all_gather", weights, 2, 1, 1),
        ]
        # Replicas are ZeRO 3's: others shard over all ranks.
        assert sent(dense(), "data_parallel", d=8, zero=zero, replicas=2) == sent(
            dense(), "data_parallel", d=8, zero=zero
        )


def test_a_frozen_layer_is_gathered_as_one_and_by_zero_3_alone() -> None:
    tuned: dict[str, Any] = {"d": 4, "finetune": "lora"}
    one, four = (sent(of_layers(layers), "frozen", **tuned, zero=3) for layers in (1, 4))
    assert [each[1:] for each in one] == [("all_gather", 2 * of_layers(1).parameters, 4, 1, 2)]
    assert [each[1:] for each in four] == [("all_gather", 2 * of_layers(4).parameters // 4, 4, 1, 2 * 4)]
    assert sent(dense(), "frozen", **tuned, zero=1) == []


def test_two_of_everything_are_looked_at_as_any_degrees() -> None:
    two = Workload(b=B, s=S, t=2, p=2, d=2, e=2, cp=2, vpp=2, zero=3, replicas=2)
    assert [one.key for one in split_problems(dense(), two)] == ["e"]
    assert split_problems(mixture(), two) == ()


def test_a_shared_key_is_copied_to_as_many_ranks_as_cut_its_output_groups() -> None:
    attention = SharedKeyShape(12, 64, 128, out_groups=6, out_rank=64)
    model = ModelShape("m", (Stack("decoder", 768, (Block(attention, MlpShape(1536), count=LAYERS),)),), vocab=1024)
    assert split_problems(model, Workload(t=3)) == ()
    assert [str(one) for one in split_problems(model, Workload(t=4))] == [
        "t = 4: expected a divisor of the 6 groups of the output projection"
    ]


def test_chunks_of_a_pipeline_are_of_layers_embedding_and_head() -> None:
    # Five layers, the embedding and the head: three chunks on each of two stages, and one is over.
    assert split_problems(of_layers(5), Workload(p=2, vpp=3)) == ()
    assert [str(one) for one in split_problems(of_layers(5), Workload(p=2, vpp=4))] == [
        "vpp = 4: expected at most 3 chunks of the 5 layers over p = 2"
    ]
    assert [one.key for one in split_problems(of_layers(5), Workload(p=8, vpp=4))] == ["p"]


def test_replicas_of_a_sharded_model_add_up_their_shards() -> None:
    found = sent(dense(), "data_parallel", t=2, d=16, zero=3, replicas=2)
    weights = found[0][2] * LAYERS
    assert [(what, ranks, stride, count) for _, what, _, ranks, stride, count in found] == [
        ("reduce_scatter", 8, 2, LAYERS),
        ("all_gather", 8, 2, 2 * LAYERS),
        ("all_reduce", 2, 16, 1),
    ]
    assert found[2][2] == pytest.approx(weights / 8, rel=1e-3)


def test_replicas_divide_data_and_context_parallel_ranks() -> None:
    split = Workload(b=B, s=S, d=2, cp=2, zero=3, replicas=4)
    assert split_problems(dense(), split) == ()
    assert [str(one) for one in split_problems(dense(), replace(split, replicas=8))] == [
        "replicas = 8: expected a divisor of the 4 data-parallel ranks"
    ]


def test_a_stages_neighbour_is_all_ranks_of_a_stage_away() -> None:
    names = [one.name for one in operators(dense(), Workload(b=B, s=S, p=2)) if "pipeline" in one.name]
    assert names == ["pipeline.receive", "pipeline.send"]
    four = dense(streams=Streams(4))
    assert [one[2] for one in sent(four, "pipeline", p=2)] == [4 * ACTIVATIONS, 4 * ACTIVATIONS]
    found = sent(dense(), "pipeline", t=2, cp=2, d=4, p=2, sequence_parallel=True)
    boundary = ACTIVATIONS // 2 // 2
    assert found == [
        ("forward", "send_recv", boundary, 2, 2 * 2 * 4, 1),
        ("dgrad", "send_recv", boundary, 2, 2 * 2 * 4, 1),
    ]
    assert [one[0] for one in sent(dense(), "pipeline", p=2, phase="infer")] == ["forward"]


def test_experts_are_sent_what_is_routed_to_them_and_send_it_back() -> None:
    routed = B * S // 2 * H * 2 * 2  # a half of the tokens a tensor-parallel rank, two copies, two bytes
    found = sent(mixture(), "moe.all_to_all", t=2, d=8, e=4, sequence_parallel=True)
    assert found == [
        ("forward", "all_to_all", routed, 4, 2, 2 * LAYERS),
        ("dgrad", "all_to_all", routed, 4, 2, 2 * LAYERS),
    ]
    full = sent(mixture(), "moe.all_to_all", t=2, d=8, e=4, sequence_parallel=True, checkpointing="full")
    assert [one[-1] for one in full] == [4 * LAYERS, 2 * LAYERS]
    # Under another microbatch's products they have a name of their own, by which the step knows them.
    for overlap, name in ((True, "overlapped_moe"), (False, "moe")):
        listed = operators(mixture(), Workload(b=B, s=S, d=8, e=4, ep_overlap=overlap))
        sends = [one.name for one in listed if isinstance(one, Collective) and "all_to_all" in one.name]
        assert {one.split(".")[-2] for one in sends} == {name}


def test_a_dispatcher_that_sends_a_row_once_a_rank_leaves_out_the_copies_that_meet() -> None:
    def priced(dispatcher: str, ranks: int) -> float:
        listed = operators(mixture(), Workload(b=64, s=4096, d=64, e=ranks, dispatcher=dispatcher))  # type: ignore[arg-type]
        (sends, *_) = [one for one in listed if isinstance(one, Collective) and "all_to_all" in one.name]
        assert sends.copies == (2 if dispatcher == "flex" else 1)
        return predict(sends, H100).seconds

    # Of two copies a token, a row goes to 1.875 of 8 ranks; over two nodes to 1.5 of 2 by the cards.
    assert priced("flex", 8) / priced("alltoall", 8) == pytest.approx(1.875 / 2, rel=0.02)
    assert priced("flex", 16) / priced("alltoall", 16) == pytest.approx(1.5 / 2, rel=0.03)


def test_a_rank_sorts_its_share_of_the_routed_rows() -> None:
    def moved(t: int) -> int:
        listed = operators(mixture(), Workload(b=B, s=S, t=t, sequence_parallel=t > 1))
        return next(one.bytes for one in listed if isinstance(one, Elementwise) and "permute" in one.name)

    # Rows of two experts a token, read and written before the products and behind them.
    assert moved(1) == 4 * B * S * 2 * H * 2
    assert moved(4) == moved(1) // 4


def test_adapters_that_ranks_hold_whole_are_added_up_over_them_once() -> None:
    (found,) = sent(dense(), "adapters", t=2, finetune="lora", lora_targets="q_proj,v_proj", lora_rank=8)
    # A of 8 x 512 for q and v, whose outputs alone are split.
    assert found == ("wgrad", "all_reduce", LAYERS * 2 * 8 * H * 2, 2, 1, 1)


def test_zero_3_gathers_a_frozen_base_in_its_own_type_for_both_directions() -> None:
    halves = sent(dense(), "frozen", d=4, zero=3, replicas=2, finetune="qlora", base="nf4")
    assert {one[3] for one in halves} == {2}
    found = sent(dense(), "frozen", d=4, zero=3, finetune="qlora", base="nf4")
    assert [(phase, what, ranks, count) for phase, what, _, ranks, _, count in found] == [
        ("forward", "all_gather", 4, 2 * LAYERS)
    ]
    assert found[0][2] * LAYERS == pytest.approx(dense().parameters * (0.5 + 1 / 64 + 4 / 16384), rel=1e-3)


def test_what_only_moves_reaches_what_skinny_products_do() -> None:
    constants = moving_constants(H100)[0]
    assert constants.small is not None
    norm = Elementwise("norm", "forward", "norm", 1 << 33, 1 << 33, "bf16")
    assert predict(norm, H100).seconds == pytest.approx((1 << 34) / constants.small.bandwidth_bytes_per_s, rel=1e-3)


def seconds(what: Any, size: int, ranks: int, stride: int = 1) -> float:
    return predict(Collective("data_parallel.x", "wgrad", what, size, ranks, stride=stride), H100).seconds


def test_long_messages_move_at_the_slower_of_a_nodes_links_and_its_cards() -> None:
    long, link = 1 << 36, H100.link
    share = collective_constants(H100, "all_gather").among(8)[1]
    inside = 7 / 8 * long / (share * link.intra_node_bytes_per_s)
    assert seconds("all_gather", long, 8) == pytest.approx(inside, rel=0.01)
    # 16 ranks of two nodes: eight cards each; with a stride of 8 one rank a node and its card alone.
    cards = 0.88 * link.inter_node_bytes_per_s
    assert seconds("all_gather", long, 16) == pytest.approx(
        15 / 16 * long / min(8 * cards, share * link.intra_node_bytes_per_s), rel=0.01
    )
    assert seconds("all_gather", long, 16, stride=8) == pytest.approx(15 / 16 * long / cards, rel=0.01)
    assert seconds("all_gather", long, 16, stride=2) == pytest.approx(15 / 16 * long / (4 * cards), rel=0.01)
    # Of two nodes' peers 8 of 15 are on the other, each reached by a card of one's own.
    assert seconds("all_to_all", long, 16) == pytest.approx(8 / 16 * long / cards, rel=0.02)


def test_short_messages_take_latency_that_grows_with_ranks_and_nodes() -> None:
    latency = {what: collective_constants(H100, what).among(8)[0] for what in ("all_reduce", "all_gather")}
    assert seconds("all_reduce", 1, 8) == pytest.approx(latency["all_reduce"], rel=1e-3)
    assert seconds("all_reduce", 1, 64) == pytest.approx(latency["all_reduce"] + 10e-6 * log2(8), rel=1e-3)
    assert seconds("all_gather", 1, 64) == pytest.approx(latency["all_gather"] + 7 * 14e-6 + 49 * 3.4e-6, rel=1e-3)
    assert seconds("all_gather", 1, 1) == 0


def test_half_of_the_rate_is_reached_at_half_bytes() -> None:
    latency, share, half = collective_constants(H100, "all_gather").among(8)
    moved = half * 8 / 7
    taken = seconds("all_gather", round(moved), 8) - latency
    assert taken == pytest.approx(1.5 * half / (share * H100.link.intra_node_bytes_per_s), rel=1e-3)


def test_two_ranks_go_by_the_constants_of_two() -> None:
    latency, share, half = collective_constants(H100, "all_reduce").among(2)
    size = 2**30  # of which a ring of two sends all
    taken = (size + size * half / (size + half)) / (share * H100.link.intra_node_bytes_per_s)
    assert seconds("all_reduce", size, 2) == pytest.approx(latency + taken, rel=1e-9)


def test_experts_that_every_rank_holds_send_nothing() -> None:
    assert sent(mixture(), "expert", t=2) == []


DIRECT = Collective("sum", "forward", "all_reduce", 16384, 8, direct=True)


@pytest.mark.parametrize(
    ("device", "ranks", "size", "microseconds"),
    [
        # aiconfigurator-core 0.12, custom_allreduce_perf: medians over TensorRT-LLM, vLLM and SGLang with CUDA graphs.
        ("h100-sxm", 8, 16384, 4.6),
        ("h100-sxm", 8, 4 << 20, 34.4),
        ("h200", 4, 65536, 5.3),
        ("b200", 8, 16384, 6.9),
    ],
)
def test_engines_own_all_reduce_takes_what_was_published(
    device: str, ranks: int, size: int, microseconds: float
) -> None:
    found = predict(replace(DIRECT, ranks=ranks, bytes=size), device)
    assert found.seconds * 1e6 == pytest.approx(microseconds, rel=0.25)


@given(st.sampled_from(["a100-sxm", "h100-sxm", "b200", "gb300", "l40s"]), st.integers(2, 8), st.integers(1, 2**32))
def test_an_own_all_reduce_is_bound_by_the_link_and_more_bytes_never_save(device: str, ranks: int, size: int) -> None:
    target, one = load_device(device), replace(DIRECT, ranks=ranks, bytes=size)
    seconds = predict(one, target).seconds
    assert seconds * target.link.intra_node_bytes_per_s > 2 * size * (ranks - 1) / ranks
    assert predict(replace(one, bytes=size + 1), target).seconds >= seconds
    assert predict(replace(one, bytes=2 * size), target).seconds > seconds


def test_own_kernels_are_for_one_node_and_for_devices_where_they_were_measured() -> None:
    # Over nodes, and over PCIe, engines leave sums to NCCL.
    for one, device in ((replace(DIRECT, ranks=16), "h100-sxm"), (DIRECT, "l40s")):
        assert predict(one, device).seconds == predict(replace(one, direct=False), device).seconds
    assert predict(DIRECT, "h100-sxm").seconds < 0.5 * predict(replace(DIRECT, direct=False), "h100-sxm").seconds


@pytest.mark.parametrize(
    ("model", "t", "s", "seconds"),
    # TensorRT-LLM's documents of 0.8 and 0.9, fp8, one prompt: no fit saw them. NCCL's own table of L40S (ranks that do
    # not reach one another) made Llama 2's 2,048 tokens at tp 8 take 6.4 s.
    [
        ("meta-llama/Llama-2-70b-hf", 8, 128, 0.0709),
        ("meta-llama/Llama-2-70b-hf", 8, 2048, 0.7087),
        ("meta-llama/Llama-2-70b-hf", 4, 2048, 0.6733),
        ("tiiuae/falcon-180B", 8, 128, 0.0934),
        ("tiiuae/falcon-180B", 8, 2048, 0.7698),
    ],
)
def test_first_tokens_over_pcie_take_what_was_published(model: str, t: int, s: int, seconds: float) -> None:
    found = sizer.check(model, phase="prefill", b=1, s=s, t=t, dtype="fp8", device="l40s").step
    assert found.seconds == pytest.approx(seconds, rel=0.13)


@pytest.mark.parametrize(
    ("device", "kin"),
    [
        ("a100-pcie", "l40s"),
        ("h100-pcie", "rtx-pro-6000-server"),
        ("rtx-4090", "l40s"),
        ("h20", "h200"),
        ("a100-sxm-40", "a100-sxm"),
        ("mi300x", "h100-sxm"),  # nothing of its links was published
    ],
)
def test_collectives_are_borrowed_from_a_device_of_the_same_links(device: str, kin: str) -> None:
    """An NVLink device's share of its link, and engines' own kernels, are none of a PCIe card's."""
    assert relative(load_device(device), "collective").name == kin


DISPATCH = replace(DIRECT, what="all_to_all")


@pytest.mark.parametrize(
    ("device", "tokens", "microseconds"),
    # aiconfigurator-core 0.12, wideep_deepep_ll_perf, combine in one node: 7168 numbers of 8 experts' tokens.
    [("h100-sxm", 8, 14.5), ("h100-sxm", 128, 70), ("h200", 8, 13.5), ("h200", 128, 69), ("b200", 128, 42)],
)
def test_low_latency_dispatch_takes_what_was_published(device: str, tokens: int, microseconds: float) -> None:
    found = predict(replace(DISPATCH, bytes=tokens * 8 * 7168 * 2), device)
    assert found.seconds * 1e6 == pytest.approx(microseconds, rel=0.2)


@given(st.sampled_from(["a100-sxm", "h100-sxm", "b200", "gb300", "l40s"]), st.integers(2, 8), st.integers(1, 2**32))
def test_a_low_latency_dispatch_is_bound_by_the_link_and_more_never_saves(device: str, ranks: int, size: int) -> None:
    target, one = load_device(device), replace(DISPATCH, ranks=ranks, bytes=size)
    seconds = predict(one, target).seconds
    assert seconds * target.link.intra_node_bytes_per_s > size * (ranks - 1) / ranks
    assert predict(replace(one, bytes=2 * size), target).seconds > seconds


def test_a_low_latency_dispatch_sends_a_token_to_each_expert_where_it_was_measured() -> None:
    many = replace(DISPATCH, bytes=2**24, copies=8)
    alike = predict(replace(many, copies=1), "h100-sxm").seconds
    assert predict(many, "h100-sxm").seconds == alike
    # Among fewer ranks than measured as a prompt's tokens, which a rank gets once.
    for one, device in ((replace(many, ranks=4), "h100-sxm"), (many, "l40s")):
        assert predict(one, device).seconds == predict(replace(one, direct=False), device).seconds


@pytest.mark.parametrize(
    ("device", "ranks", "tokens", "microseconds"),
    # The same table over 2, 4 and 8 nodes of 8, and of the 4 in a node of GB200.
    [
        ("h100-sxm", 16, 8, 37.0),
        ("h100-sxm", 16, 128, 188),
        ("h100-sxm", 32, 8, 42.5),
        ("h100-sxm", 32, 128, 266),
        ("h100-sxm", 64, 8, 43.6),
        ("h100-sxm", 64, 128, 306),
        ("gb200", 4, 8, 18.7),
        ("gb200", 4, 128, 36.2),
    ],
)
def test_a_low_latency_combine_takes_what_was_published_over_nodes(
    device: str, ranks: int, tokens: int, microseconds: float
) -> None:
    found = predict(replace(DISPATCH, ranks=ranks, copies=8, bytes=tokens * 8 * 7168 * 2), device)
    assert found.seconds * 1e6 == pytest.approx(microseconds, rel=0.2)


def test_a_step_sends_its_tokens_by_engines_own_kernels_and_a_prompt_does_not() -> None:
    for workload in (
        Workload(phase="decode", b=8, context=512, d=4, e=4),
        Workload(phase="prefill", b=1, s=512, d=4, e=4),
    ):
        sends = [one for one in operators(mixture(), workload) if isinstance(one, Collective) and "moe" in one.name]
        assert {one.direct for one in sends} == {workload.decode}


def test_decoding_sums_by_engines_own_kernels_and_training_by_nccl() -> None:
    for workload, direct in (
        (Workload(phase="decode", b=8, context=512, t=4), True),
        (Workload(b=1, s=512, t=4), False),
    ):
        sums = [one for one in operators(dense(), workload) if isinstance(one, Collective) and one.what == "all_reduce"]
        assert sums
        assert {one.direct for one in sums} == {direct}


def test_experts_spread_over_the_ranks_of_context_parallelism_too() -> None:
    assert split_problems(mixture(), Workload(cp=2, e=2)) == ()
    assert [one.key for one in split_problems(mixture(), Workload(cp=2, e=4))] == ["e"]


# Leaf switches, oversubscription and SHARP, on nodes of eight with eight cards.

KINDS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
MESSAGES = st.builds(
    lambda what, size, ranks, stride: Collective(
        "data_parallel.x", "wgrad", what, size, 2 if what == "send_recv" else ranks, stride=stride
    ),
    st.sampled_from(KINDS),
    st.integers(1, 2**36),
    st.sampled_from([2, 8, 16, 48, 64, 512, 4096]),
    st.sampled_from([1, 2, 8, 24, 64, 512]),
)
LEAVES = st.integers(1, 64)


def over(network: str, message: Collective) -> float:
    return predict(message, load_device(f"h100-sxm:8x400Gb{network}")).seconds


@given(MESSAGES, LEAVES)
def test_switches_that_give_all_of_their_cards_rate_change_nothing(message: Collective, leaf: int) -> None:
    assert over(f":leaf{leaf}", message) == over(f":leaf{leaf}:1to1", message) == over("", message)


@given(MESSAGES, LEAVES, st.integers(2, 8))
def test_a_group_below_one_leaf_switch_does_not_see_what_leaves_it(message: Collective, leaf: int, times: int) -> None:
    slower, same = over(f":leaf{leaf}:{times}to1", message), over("", message)
    if message.ranks * message.stride <= 8 * leaf:
        assert slower == same
    assert same <= slower <= times * same * (1 + 1e-12)


@given(MESSAGES, LEAVES, st.integers(1, 7))
def test_more_oversubscription_is_never_faster(message: Collective, leaf: int, times: int) -> None:
    assert over(f":leaf{leaf}:{times + 1}to1", message) >= over(f":leaf{leaf}:{times}to1", message)


@given(MESSAGES, st.sampled_from(["", ":leaf4:2to1", ":leaf16:4to1"]))
def test_switches_that_add_up_help_all_reduces_over_nodes_alone(message: Collective, network: str) -> None:
    added, plain = over(f"{network}:sharp", message), over(network, message)
    if message.what != "all_reduce" or message.ranks * message.stride <= 8:
        assert added == plain
    assert plain / 2 <= added <= plain


def test_what_leaves_a_switch_takes_its_share_of_the_uplinks() -> None:
    long, cards = 1 << 38, 0.88 * 50e9
    gather, exchange = (
        Collective("data_parallel.x", "wgrad", what, long, 64, stride=8)  # a rank a node, eight switches of eight
        for what in ("all_gather", "all_to_all")
    )
    # A ring goes up from one of a switch's eight nodes: there is room for it up to 8to1.
    ring = 63 / 64 * long / cards
    assert over(":leaf8:8to1", gather) == pytest.approx(ring, rel=1e-3)
    assert over(":leaf8:16to1", gather) == pytest.approx(2 * ring, rel=1e-3)
    # All to all, 56 of 63 others sit below other switches, at half the rate.
    assert over(":leaf8:2to1", exchange) == pytest.approx(ring * 2 * 56 / 63, rel=1e-3)
    # Every second switch of one node: all of a ring's traffic goes up.
    assert over(":leaf1:2to1", gather) == pytest.approx(2 * ring, rel=1e-3)
    # A sum leaves each card once, not 2 x 63 / 64 times.
    reduce = replace(gather, what="all_reduce")
    assert over(":sharp", reduce) == pytest.approx(long / cards, rel=1e-3)


def test_an_explanation_says_what_leaves_a_leaf_switch() -> None:
    one = Collective("data_parallel.x", "wgrad", "all_gather", 1 << 30, 64, stride=8)
    for network, said in ((":leaf8:2to1", ", 12% of it beyond a leaf switch"), (":leaf64:2to1", "GB/s link")):
        device = load_device(f"h100-sxm:8x400Gb{network}")
        assert explain(one, predict(one, device), device)[1].why.endswith(said)


@pytest.mark.parametrize(
    ("name", "sent_here", "moved_here"),
    [
        ("h100-sxm", True, True),
        ("gaudi3", True, False),  # tables of collectives alone
        ("h100-nvl", False, False),
    ],
)
def test_a_device_with_tables_of_collectives_alone_is_the_origin_of_theirs(
    name: str, sent_here: bool, moved_here: bool
) -> None:
    device = load_device(name)
    send = Collective("tensor_parallel", "forward", "all_reduce", 2**20, 2)
    move = Elementwise("norm", "forward", "norm", 2**20, 2**20)
    assert (origin_of(send, device).own_device, origin_of(move, device).own_device) == (sent_here, moved_here)
