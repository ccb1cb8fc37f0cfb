"""Sparse attention and residual streams: products against torch, sizes by hand, prices against published modules."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.bench.grouped_routing import MOE_LAYERS, RELEASE, chosen, experts_ms, rows_of
from shapes.cost import predict_many
from shapes.memory import memory
from shapes.model import ModelShape
from shapes.operators import operators
from shapes.operators.cores import seen_pairs
from shapes.operators.types import CachedAttention, Collective, Gemm, IndexScores, Operator, SparseAttention, TopK
from shapes.workload import Workload
from sizer import check, diff, ops
from sizer.readers import read_config
from tests.test_readers import DSA, M3, MOE, V4

CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek_v32": DSA | {"index_topk": 64},
    "glm_moe_dsa": DSA | {"num_hidden_layers": 4, "index_topk_freq": 2, "index_topk": 64},
    "hy_v4": DSA | {"num_hidden_layers": 6, "hc_mult": 3, "index_topk": 64, "pad_token_id": 0},
    "minimax_m3_vl_text": MOE
    | {"num_local_experts": 8, "rotary_dim": 8, "layer_types": M3, "index_n_heads": 2, "pad_token_id": 0},
    "mistral_large4": {
        "text_config": DSA | {"num_hidden_layers": 5, "index_topk": 64, "model_type": "mistral_large4_text"},
        "vision_config": {"model_type": "pixtral"},
    },
    "deepseek_v4": V4 | {"compress_ratios": [0, 4, 128, 4], "compress_rate_hca": 8, "hc_mult": 3, "index_topk": 2},
}
#: DeepSeek-V3.2's attention alone, in one dense layer.
V32 = {"model_type": "deepseek_v32", "num_hidden_layers": 1, "first_k_dense_replace": 1, "vocab_size": 128}


def shape(label: str, **more: Any) -> ModelShape:
    return read_config({"model_type": label, **CONFIGS[label], **more}).model


def of(kind: type, listed: tuple[Operator, ...]) -> list[Any]:
    return [one for one in listed if isinstance(one, kind)]


@pytest.mark.slow
@pytest.mark.parametrize("label", CONFIGS)
def test_products_forward_and_backward_are_the_classs(label: str) -> None:
    from shapes.trace import trace_config
    from shapes.trace.prove import products

    config = {"model_type": label, **CONFIGS[label]}
    whole = trace_config(config, b=2, s=24)
    # Where everything is chosen, attention is dense, and its cores are compared too. Hunyuan 4's class is eager.
    workload = Workload(b=2, s=24, attention="eager" if label == "hy_v4" else "auto")
    own, its = (products(one) for one in (operators(read_config(config).model, workload), whole.operators))
    if label == "hy_v4":  # transformers 5.24 runs its head and what weighs its indexer in fp32; 5.23 did not
        own, its = (Counter([key[:-1] for key in one.elements()]) for one in (own, its))
    assert own == its


@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 9), st.none() | st.integers(1, 20))
def test_pairs_are_those_counted_one_by_one(q_len: int, before: int, rate: int, most: int | None) -> None:
    seen = [(before + query + 1) // rate for query in range(q_len)]
    assert seen_pairs(q_len, before + q_len, rate, most) == sum(min(one, most or one) for one in seen)


def test_beyond_what_an_indexer_keeps_attention_is_over_chosen_keys_in_the_latent_space() -> None:
    listed = operators(shape("deepseek_v32"), Workload(b=2, s=256))
    names = {one.name for one in listed}
    assert "layers.*.attention.kv_b_proj" not in names
    forward, backward = of(SparseAttention, listed)
    pairs = sum(min(query, 64) for query in range(1, 257))
    assert forward.pairs == backward.pairs == pairs
    # 6 heads over a latent key of 32 + 8 whose first 32 are the value; the backward's five products.
    assert forward.flops == 2 * 6 * pairs * 2 * (40 + 32)
    assert backward.flops == 2 * 6 * pairs * (3 * 2 * 40 + 2 * 2 * 32)
    absorbed = [one for one in of(Gemm, listed) if "absorbed" in one.name]
    assert {(one.phase, one.batch) for one in absorbed} == {(phase, 6) for phase in ("forward", "dgrad", "wgrad")}
    (scores,) = of(IndexScores, listed)
    assert scores.flops == 2 * 2 * 4 * 16 * sum(range(1, 257))
    assert [one.top_k for one in of(TopK, listed)] == [64]
    # A choice has no gradient: nothing of the indexer runs backward.
    assert {one.phase for one in listed if "indexer" in one.name} == {"forward"}


def test_layers_that_reuse_a_choice_run_no_indexer_and_keep_no_keys_of_one() -> None:
    model = shape("glm_moe_dsa")
    scores = of(IndexScores, operators(model, Workload(b=1, s=256)))
    assert sum(one.count for one in scores) == 3 < model.layers
    assert len(of(SparseAttention, operators(model, Workload(b=1, s=256, phase="infer")))) == 1
    cache = memory(model, Workload(b=1, s=1, context=100, phase="decode")).components["kv_cache"]
    assert cache == (4 * (32 + 8) + 3 * 16) * 100 * 2


def test_blocks_of_keys_are_chosen_by_every_key_head_and_split_with_it() -> None:
    model = shape("minimax_m3_vl_text", index_block_size=8, index_topk_blocks=2)
    whole, split = (operators(model, Workload(b=1, s=128, t=t, phase="infer")) for t in (1, 2))
    (core,) = of(SparseAttention, whole)
    assert (core.keys, core.kv_heads, core.pairs) == (16, 2, seen_pairs(128, 128, most=16))
    (chosen,) = of(TopK, whole)
    assert (chosen.batch, chosen.kv_len, chosen.top_k) == (2, 16, 2)
    assert [one.heads for one in of(IndexScores, whole) + of(IndexScores, split)] == [2, 1]
    assert len([one for one in whole if one.name.endswith("attention.core")]) == 2  # the dense layer's too


def test_a_window_and_compressed_entries_are_seen_by_deepseek_v4() -> None:
    model = shape("deepseek_v4", sliding_window=6)
    cores = of(SparseAttention, operators(model, Workload(b=1, s=64, phase="infer")))
    near = seen_pairs(64, 64, most=6)
    expected = {
        (64, 6, near),
        (64 + 16, 6 + 2, near + seen_pairs(64, 64, 4, 2)),
        (64 + 8, 6 + 8, near + seen_pairs(64, 64, 8)),
    }
    assert {(one.kv_len, one.keys, one.pairs) for one in cores} == expected
    assert all(one.latent and one.kv_heads == 1 for one in cores)
    groups = [one for one in of(Gemm, operators(model, Workload(b=1, s=64, t=2))) if "o_a_proj" in one.name]
    assert {one.batch for one in groups} == {1}  # two groups over two ranks
    with pytest.raises(ValueError, match="groups of the output projection"):
        operators(model, Workload(b=1, s=64, t=3))
    # Keys of the window, entries of 4 and of 8 tokens, and the indexer's of 4.
    cache = memory(model, Workload(b=1, s=1, context=64, phase="decode")).components["kv_cache"]
    assert cache == (4 * 6 * 16 + 2 * 16 * (16 + 16) + 8 * 16) * 2


def test_streams_are_mixed_around_each_part_and_sent_between_stages() -> None:
    four, two = shape("deepseek_v4", hc_mult=4), shape("deepseek_v4", hc_mult=2)
    hidden, layers = four.hidden, four.layers
    per_part = (2 + 4) * 4 * (4 * hidden + 1) + 3, (2 + 2) * 2 * (2 * hidden + 1) + 3
    ends = 4 * 4 * hidden + 5, 2 * 2 * hidden + 3
    assert four.parameters - two.parameters == 2 * layers * (per_part[0] - per_part[1]) + ends[0] - ends[1]

    def sent(model: ModelShape) -> int:
        found = of(Collective, operators(model, Workload(b=1, s=64, p=2)))
        return next(one.bytes for one in found if one.what == "send_recv")

    assert sent(four) == 2 * sent(two) == 64 * hidden * 4 * 2
    train = Workload(b=8, s=1024)
    saved = [memory(model, train).components["activations"] for model in (four, two)]
    # At least the streams in front of each part more.
    assert saved[0] - saved[1] >= 2 * layers * 2 * train.tokens * hidden * 2


@pytest.mark.parametrize("label", CONFIGS)
def test_context_parallel_ranks_share_the_pairs_and_pass_on_what_a_cache_keeps(label: str) -> None:
    model = shape(label)
    whole, half = (operators(model, Workload(b=1, s=512, cp=cp)) for cp in (1, 2))
    for kind in (SparseAttention, IndexScores):
        total, own = (sum(one.pairs * one.count for one in of(kind, listed)) for listed in (whole, half))
        assert own == pytest.approx(total / 2, rel=0.2)
    assert any("context_parallel" in one.name for one in half)


@pytest.mark.parametrize("label", CONFIGS)
@pytest.mark.parametrize("phase", [pytest.param("train", marks=pytest.mark.slow), "prefill", "decode"])
def test_every_command_answers(label: str, phase: Any) -> None:
    config = {"model_type": label, **CONFIGS[label]}
    work: dict[str, Any] = {"context": 512} if phase == "decode" else {"s": 512}
    found = ops(config, device="h200", b=2, phase=phase, tp=2, **work)
    answer = found.to_dict()
    assert answer["operator_path"] == "formula"
    assert all(one["seconds"] > 0 for one in answer["operators"])
    assert check(config, device="h200", b=2, phase=phase, tp=2, **work).to_dict()["step"]["seconds"] > 0
    own = memory(read_config(config).model, Workload(b=2, t=2, phase=phase, **work))
    assert own.total_bytes > 0
    if phase == "train":
        assert diff(config, {**config, "num_experts_per_tok": 3}, device="h200", b=2, s=512)


def test_a_decode_step_reads_the_chosen_keys_and_scores_all() -> None:
    listed = operators(shape("deepseek_v32"), Workload(b=3, s=1, context=512, phase="decode"))
    (core,) = of(CachedAttention, listed)
    assert (core.kv_len, core.head_dim, core.latent) == (64, 40, True)
    (scores,) = of(IndexScores, listed)
    assert (scores.kv_len, scores.pairs, scores.cached) == (512, 512, True)


#: ms of a layer's attention, projections and indexer in it: aiconfigurator-core 0.12, dsa_context_module_perf of
#: vLLM 0.24, bf16, DeepSeek-V3.2, one H200, all 128 heads, one prompt.
PUBLISHED = {8192: 14.2796, 16384: 30.8614, 32768: 67.7149}


@pytest.mark.parametrize("s", PUBLISHED)
def test_a_layers_attention_takes_what_vllm_s_takes(s: int) -> None:
    model = read_config(V32).model
    listed = [one for one in operators(model, Workload(b=1, s=s, phase="prefill")) if ".attention" in one.name]
    listed += [one for one in operators(model, Workload(b=1, s=s, phase="prefill")) if ".indexer." in one.name]
    costs = predict_many(listed := list(dict.fromkeys(listed)), "h200")
    total = sum(cost.seconds * one.count for one, cost in zip(listed, costs, strict=True))
    assert total == pytest.approx(PUBLISHED[s] / 1e3, rel=0.2)


#: ms of a prompt on H200: the sums of aiconfigurator-core 0.12's tables of vLLM 0.24 (run_static, static_ctx), even
#: routing, in the element types of the release.
PROMPTS = [
    ("Qwen/Qwen3.5-35B-A3B", {"b": 1, "s": 32768}, 489.9),
    ("Qwen/Qwen3.5-35B-A3B", {"b": 4, "s": 4096}, 176.5),
    ("deepseek-ai/DeepSeek-V3.2", {"b": 1, "s": 32768}, 6520.5),
    ("deepseek-ai/DeepSeek-V3.2", {"b": 1, "s": 8192, "tp": 4}, 801.7),
    # That table's attention is slower in ranks of 16 heads than in those of 32 (48.4 and 39.2 ms a layer, 10.3 and
    # 7.8), which no kernel explains that runs 64 heads at the least: of 32 heads here.
    ("deepseek-ai/DeepSeek-V3.2", {"b": 1, "s": 32768, "tp": 8}, 3858.1 - 61 * (48.38 - 39.24)),
    ("deepseek-ai/DeepSeek-V3.2", {"b": 1, "s": 8192, "tp": 8}, 869.3 - 61 * (10.309 - 7.772)),
    # Eight devices, experts by expert parallelism alone, a cache of 16 bits. Experts are TensorRT-LLM's (304.9, 78.4):
    # vLLM's rows are of five times the rows, as the tests below have it.
    ("deepseek-ai/DeepSeek-V3.2", {"b": 1, "s": 32768, "tp": 8, "ep": 8, "etp": 1}, 4086.5 - 1471.3 + 304.9),
    ("deepseek-ai/DeepSeek-V3.2", {"b": 1, "s": 8192, "tp": 8, "ep": 8, "etp": 1}, 898.6 - 363.5 + 78.4),
]


@pytest.mark.parametrize(("name", "work", "ms"), PROMPTS)
def test_a_prompt_takes_what_the_tables_kernels_add_up_to(name: str, work: dict[str, Any], ms: float) -> None:
    step = ops(name, device="h200", phase="prefill", **work).step
    assert step.seconds == pytest.approx(ms / 1e3, rel=0.2)
    # No training stack's kernel: an engine runs the device's usual one.
    assert ops(name, device="h200", phase="prefill", attention="auto", **work).step.seconds == step.seconds


#: (tokens, ep) -> ms of a rank's experts: vLLM 0.24's moe_perf of DeepSeek-V3's sizes, fp8_block, "balanced", one H200.
VLLM_EXPERTS = {(2048, 8): 1.667, (8192, 2): 9.954, (8192, 8): 5.959, (8192, 64): 4.709, (8192, 256): 1.280}
VLLM_EXPERTS |= {(16384, 8): 12.059, (16384, 32): 10.014}
#: Tokens -> ms of a prompt at tp 8 and ep 8, all rows vLLM's.
VLLM_PROMPTS = {8192: 898.6, 32768: 4086.5}


def test_even_logits_under_a_choice_of_groups_send_five_rows_a_token_to_the_first_of_eight_ranks() -> None:
    assert sorted(chosen(5)) == [
        0,
        1,
        2,
        3,
        5,
        37,
        69,
        101,
    ]  # of 5, 37, ... 229 those of the first four groups, and four ties
    assert rows_of(1024, 8)[0] == 5 * 1024
    assert [rows_of(1024, ep)[0] / 1024 for ep in (2, 4, 64, 128, 256)] == [8, 6, 4, 2, 1]


@pytest.mark.parametrize("where", VLLM_EXPERTS)
def test_vllms_experts_cost_what_the_rows_do_that_its_table_ran(where: tuple[int, int]) -> None:
    tokens, ep = where
    listed = ops(RELEASE, device="h200", phase="prefill", b=1, s=tokens, tp=8, ep=8, etp=1).operators
    assert experts_ms(listed, tokens, ep) == pytest.approx(VLLM_EXPERTS[where], rel=0.12)


@pytest.mark.parametrize("tokens", VLLM_PROMPTS)
def test_a_prompt_with_those_rows_takes_what_vllms_own_rows_add_up_to(tokens: int) -> None:
    found = ops(RELEASE, device="h200", phase="prefill", b=1, s=tokens, tp=8, ep=8, etp=1)
    more = experts_ms(found.operators, tokens, 8) - experts_ms(found.operators, tokens, 8, even=True)
    assert 1e3 * found.step.seconds + MOE_LAYERS * more == pytest.approx(VLLM_PROMPTS[tokens], rel=0.06)


def test_devices_that_nothing_was_measured_on_are_extrapolated_and_say_so() -> None:
    core = of(SparseAttention, operators(shape("deepseek_v32"), Workload(b=1, s=256, phase="infer")))[0]
    tiers = {name: predict_many([core], name)[0] for name in ("h200", "gh200", "a100-sxm")}
    assert [one.tier for one in tiers.values()] == ["fitted", "borrowed", "extrapolated"]
    assert tiers["h200"].error < tiers["gh200"].error < tiers["a100-sxm"].error
    assert predict_many([replace(core, phase="dgrad")], "h200")[0].tier == "extrapolated"


@pytest.mark.parametrize(
    ("label", "wrong", "key"),
    [
        ("deepseek_v4", {"compress_ratios": [0, 4, 64, 4]}, "compress_ratios"),
        ("deepseek_v4", {"o_groups": 4}, "o_groups"),
        ("glm_moe_dsa", {"indexer_types": ["full", "some", "full", "full"]}, "indexer_types"),
        ("deepseek_v32", {"index_topk": 0}, "index_topk"),
    ],
)
def test_a_key_that_says_no_model_is_named(label: str, wrong: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        shape(label, **wrong)
