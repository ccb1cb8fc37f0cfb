"""Recurrent layers: against transformers' classes and torch's dispatcher, and what a rank holds and decoding moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import Any

import pytest

import sizer
from shapes.cost import predict
from shapes.errors import InputError
from shapes.memory import memory
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, MoeShape, RecurrentShape, Stack
from shapes.model.mixers import vectors
from shapes.model.stages import counted, parameter_tensors
from shapes.operators import operators
from shapes.operators.types import Collective, Elementwise, Gemm, GroupedGemm, Operator, Scan
from shapes.workload import Workload
from sizer.readers import read_config

SMALL = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 320,
}
MAMBA = {
    "mamba_n_heads": 12,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 20,
    "mamba_chunk_size": 8,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
DELTA = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_value_heads": 6,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 20,
    "linear_value_head_dim": 24,
}
MAMBA_1 = {"hidden_size": 96, "num_hidden_layers": 3, "vocab_size": 320, "state_size": 20, "time_step_rank": 12}
HYBRIDS: dict[str, dict[str, Any]] = {
    "bamba": SMALL | MAMBA | {"attn_layer_indices": [1], "mamba_proj_bias": True},
    "granitemoehybrid": SMALL
    | MAMBA
    | {
        "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 80,
    },
    "nemotron_h": SMALL
    | EXPERTS
    | {
        "hybrid_override_pattern": "M*-ME",
        "mamba_num_heads": 12,
        "mamba_head_dim": 16,
        "ssm_state_size": 20,
        "n_groups": 2,
        "chunk_size": 8,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        "head_dim": 16,
        "n_routed_experts": 8,
        "moe_latent_size": 40,
        "moe_shared_expert_intermediate_size": 56,
    },
    "qwen3_next": SMALL | EXPERTS | DELTA | {"num_experts": 8, "shared_expert_intermediate_size": 80},
    "qwen3_5_text": SMALL | DELTA,
    "qwen3_5_moe_text": SMALL | EXPERTS | DELTA | {"num_experts": 8, "shared_expert_intermediate_size": 80},
    "olmo_hybrid": SMALL | DELTA | {"linear_num_key_heads": 6, "pad_token_id": 0},
    "kimi_linear": SMALL
    | EXPERTS
    | {
        "pad_token_id": 0,
        "num_hidden_layers": 5,
        "num_key_value_heads": 6,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "num_experts": 8,
        "linear_attn_config": {"head_dim": 20, "num_heads": 4, "short_conv_kernel_size": 4},
    },
    "minimax": SMALL
    | {"head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 2, "block_size": 8, "sliding_window": 8},
    "lfm2": SMALL | {"layer_types": ["conv", "full_attention", "conv"], "conv_bias": True},
    "lfm2_moe": SMALL
    | EXPERTS
    | {"layer_types": ["conv", "full_attention", "conv"], "num_experts": 8, "num_dense_layers": 1},
    "lara_mini": SMALL
    | EXPERTS
    | DELTA
    | {"num_experts": 8, "shared_expert_intermediate_size": 80, "sliding_window": 8},
    "lfm3": SMALL | {"num_hidden_layers": 6, "head_dim": 24, "sliding_window": 8, "pad_token_id": 0},
    "recurrent_gemma": SMALL
    | {"num_hidden_layers": 5, "num_key_value_heads": 1, "lru_width": 120, "attention_window_size": 8},
    "zamba2": SMALL
    | {
        "num_hidden_layers": 7,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "mamba", "hybrid", "hybrid"],
        "num_key_value_heads": 6,
        "n_mamba_heads": 12,
        "mamba_d_state": 20,
        "mamba_ngroups": 2,
        "chunk_size": 8,
        "num_mem_blocks": 2,
        "adapter_rank": 8,
        "use_shared_attention_adapter": True,
        "use_mem_rope": True,
    },
    "zamba": SMALL
    | {
        "num_hidden_layers": 9,
        "mamba_d_state": 20,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "mamba_proj_bias": True,
        "mamba_dt_rank": 12,
    },
    "rwkv": {"hidden_size": 96, "attention_hidden_size": 120, "num_hidden_layers": 3, "vocab_size": 320},
    "xlstm": {"hidden_size": 96, "num_heads": 4, "num_hidden_layers": 3, "vocab_size": 320}
    | {"qk_dim_factor": 0.5, "v_dim_factor": 1.5, "ffn_proj_factor": 2.667, "chunk_size": 8, "use_bias": True},
    "falcon_h1": SMALL | MAMBA | {"mamba_d_ssm": 192, "projectors_bias": True, "mamba_rms_norm": True},
    "jamba": SMALL | {"num_hidden_layers": 8, "num_experts": 4, "mamba_d_state": 20, "mamba_dt_rank": 12},
    "mamba": MAMBA_1 | {"intermediate_size": 160},
    "falcon_mamba": MAMBA_1 | {"use_bias": True},
    "mamba2": {
        "hidden_size": 96,
        "num_hidden_layers": 3,
        "vocab_size": 320,
        "num_heads": 12,
        "head_dim": 16,
        "n_groups": 2,
        "state_size": 20,
        "chunk_size": 8,
    },
}
#: Llama-like sizes around a Mamba-2 layer of 8 heads of 32 in 2 groups: a model whose counts are derived in view.
LAYER = RecurrentShape("mamba2", 8, 32, 2, 16, 64, conv_bias=True, norm=256)
MODEL = ModelShape("test", (Stack("decoder", 128, (Block(None, None, mixer=LAYER, norms=1, count=3),)),), vocab=512)


def read(family: str) -> ModelShape:
    return read_config({"model_type": family, **HYBRIDS[family]}).model


@pytest.mark.slow
@pytest.mark.parametrize("family", HYBRIDS)
def test_parameters_of_hybrids_are_their_classes(family: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    if transformers.__version__.startswith("4."):
        pytest.skip("transformers 4 names the layers otherwise")
    with torch.device("meta"):
        config = transformers.AutoConfig.for_model(family, **HYBRIDS[family])
        built = transformers.AutoModelForCausalLM.from_config(config)
    assert read(family).parameters == sum(one.numel() for one in built.parameters())


#: Released configurations by their sizes, and the parameters that their authors publish, in billions.
PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {
    "minimax_text_01": (
        {
            "hidden_size": 6144,
            "intermediate_size": 9216,
            "num_hidden_layers": 80,
            "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rotary_dim": 64,
            "num_local_experts": 32,
            "num_experts_per_tok": 2,
            "vocab_size": 200064,
        },
        456,
    ),
    # Kimi-Linear-48B-A3B, Falcon-Mamba-7B, Jamba-v0.1 and LFM2-8B-A1B: for the rest their classes' defaults. Falcon's
    # file says expand = 16 next to a width that is twice the hidden size, which its class takes.
    "kimi_linear": ({"linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27]}}, 48),
    "falcon_mamba": (
        {"hidden_size": 4096, "num_hidden_layers": 64, "vocab_size": 65024, "tie_word_embeddings": False}
        | {"intermediate_size": 8192, "expand": 16},
        7.3,
    ),
    "jamba": ({}, 52),
    "lfm2_moe": ({"num_hidden_layers": 24, "layer_types": (["conv"] * 3 + ["full_attention"]) * 6}, 8.3),
}


PUBLISHED["minimax_m1"] = PUBLISHED["minimax_text_01"]


@pytest.mark.parametrize("family", PUBLISHED)
def test_parameters_are_what_is_published(family: str) -> None:
    settings, billions = PUBLISHED[family]
    model = read_config({"model_type": family, **settings}).model
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.03)


#: Device, form, sequences, tokens, heads, groups and published milliseconds (aiconfigurator-core 0.12, vLLM 0.24).
MEASURED = (
    ("h200", "gated_delta", 1, 4096, 32, 16, 0.2041),
    ("h200", "gated_delta", 1, 32768, 32, 16, 1.5657),
    ("h200", "gated_delta", 8, 2048, 32, 16, 0.2174),
    ("b200", "gated_delta", 1, 4096, 32, 16, 0.1739),
    ("h100-sxm", "kda", 8, 2048, 96, 96, 1.7514),
)


@pytest.mark.parametrize(("device", "form", "b", "s", "heads", "groups", "milliseconds"), MEASURED)
def test_a_scan_takes_as_long_as_it_was_measured(
    device: str, form: Any, b: int, s: int, heads: int, groups: int, milliseconds: float
) -> None:
    cost = predict(Scan("scan", "forward", form, b, s, heads, groups, 128, 128, 64), device)
    assert cost.seconds * 1e3 == pytest.approx(milliseconds, rel=0.15)
    assert cost.tier == "fitted"
    nobody_measured = predict(Scan("scan", "dgrad", "mamba2", b, s, heads, groups, 128, 128, 64), device)
    assert nobody_measured.tier == "extrapolated"
    assert nobody_measured.high > 1.6 * nobody_measured.seconds


def _split(found: Iterable[Operator]) -> tuple[Counter[Operator], Counter[tuple[int, ...]]]:
    """(what is no batched product nor convolution, the batched products by their sizes)."""
    plain: Counter[Operator] = Counter()
    batched: Counter[tuple[int, ...]] = Counter()
    for op in found:
        if isinstance(op, Elementwise) or (isinstance(op, Gemm) and op.kind == "conv"):
            continue
        if isinstance(op, Scan):
            for _, batch, m, n, k in op.products:
                of_phase = ((m, n, k),) if op.phase == "forward" else ((m, k, n), (k, n, m))
                for rows, columns, inner in of_phase:
                    batched[batch, *sorted((rows, columns)), inner, op.phase == "forward"] += op.count
            continue
        if isinstance(op, Gemm) and op.kind == "bmm":
            m, n = sorted((op.m, op.n))  # C^T = B^T A^T is the same product
            batched[op.batch, m, n, op.k, op.phase == "forward"] += op.count
        else:
            own = replace(op, name="", count=1)
            plain[replace(own, layout="tn") if isinstance(own, (Gemm, GroupedGemm)) else own] += op.count
    return plain, batched


@pytest.mark.slow
@pytest.mark.parametrize("family", HYBRIDS)
def test_a_step_runs_the_products_that_torch_dispatches(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    if transformers.__version__.startswith("4."):
        pytest.skip("transformers 4 writes the scan without products")
    from shapes.trace import trace_config

    b, s = 2, 24
    # xLSTM's class mixes element types where its weights are in 16 bits.
    workload = Workload(b=b, s=s, dtype="fp32" if family == "xlstm" else "bf16")
    model = read(family)
    plain, batched = _split(operators(model, workload))
    config = {"model_type": family, **HYBRIDS[family]}
    seen_plain, seen = _split(trace_config(config, b=b, s=s, dtype=workload.dtype).operators)
    if family == "zamba":  # each of its heads makes its steps of its own channels: batched, and of as many FLOPs
        steps = plain - seen_plain
        assert steps.total() == 2 * 3 * model.layers
        # The class's scan reads a state by a product with a vector.
        matrices = {key: number for key, number in seen.items() if 1 not in key[1:4]}
        assert sum(op.flops * n for op, n in steps.items()) == sum(2 * prod(key[:4]) * n for key, n in matrices.items())
        plain -= steps
    assert plain == seen_plain
    layers = sum(block.count for block in model.main.kinds if block.mixer)
    if not batched:
        return  # its scan is bound by memory, or it has none
    (mixer,) = {block.mixer for block in model.main.kinds if block.mixer}
    if mixer.kind == "mamba2":
        # Scores of a group are repeated for its heads first; states are carried by a product over the 3 chunks and
        # the state before them, one of each head.
        shared = Counter({key: number for key, number in batched.items() if key[0] == b * 3 * mixer.groups})
        batched = batched - shared
        batched.update({(key[0] * mixer.heads // mixer.groups, *key[1:]): n for key, n in shared.items()})
        carried = mixer.head_dim * mixer.state
        seen -= Counter(
            {
                (b * mixer.heads, 4, carried, 4, True): layers,
                (b * mixer.heads, 4, carried, 4, False): layers,
                (b * mixer.heads, 4, 4, carried, False): layers,
            }
        )
    elif mixer.kind == "mlstm":
        # The class makes states chunk after chunk, and multiplies queries by a normaliser, a column of theirs more.
        normalised = Counter({key: number for key, number in seen.items() if 1 in key[1:4] and key[-1]})
        assert normalised == {(b * 3 * mixer.heads, 1, mixer.chunk, mixer.state, True): layers}
        seen = Counter({key: number for key, number in seen.items() if 1 not in key[1:4]})
        states = Counter({key: number for key, number in seen.items() if key[0] == b * mixer.heads})
        seen = seen - states + Counter({(key[0] * 3, *key[1:]): number // 3 for key, number in states.items()})
    else:
        # torch solves the triangular system by substitution, which is no product; fla's kernels invert and multiply.
        # Backward, torch leaves out what the state before the first chunk and the one after the last need.
        heads = b * mixer.heads
        solved = [(heads, *sorted((mixer.chunk, width)), mixer.chunk, True) for width in (mixer.head_dim, mixer.state)]
        # Of KDA it multiplies by the solved triangle, and sums up scores channel by channel, which decay apart.
        scores = [(heads, mixer.chunk, mixer.chunk, mixer.state, True)] * 2
        batched -= Counter(
            {key: layers * count for key, count in Counter(scores if mixer.kind == "kda" else solved).items()}
        )
        batched, seen = ({key: n for key, n in one.items() if key[-1]} for one in (batched, seen))  # type: ignore[assignment] # both are counts
        if mixer.kind == "lightning":  # the class runs chunk after chunk, all heads at a time
            seen = Counter({(key[0] * n, *key[1:]): 1 for key, n in seen.items()})
    assert batched == seen


@pytest.mark.slow
def test_the_scans_products_are_those_of_the_papers_listing() -> None:
    """Listing 1 of arXiv 2405.21060 ("minimal SSD"), its einsums counted by torch's own counter."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    b, chunks, q, h, p, n = 2, 3, 64, 8, 32, 16
    x, weights = torch.empty(b, chunks, q, h, p, device="meta"), torch.empty(b, chunks, q, h, n, device="meta")
    decay = torch.empty(b, chunks, h, q, q, device="meta")
    with FlopCounterMode(display=False) as counter:
        scores = torch.einsum("bclhn,bcshn->bchls", weights, weights) * decay
        torch.einsum("bchls,bcshp->bclhp", scores, x)
        states = torch.einsum("bclhn,bclhp->bchpn", weights, x)
        torch.einsum("bclhn,bchpn->bclhp", weights, states)
    assert Scan("", "forward", "mamba2", b, q * chunks, h, h, p, n, q).flops == counter.get_total_flops()


def test_a_rank_holds_its_share_of_heads_and_whole_groups() -> None:
    # in: z and x of 8 x 32, B and C of 2 x 16, 8 time steps = 584 rows; a rank of two: half of each.
    whole, half = (LAYER.linears(128)[0].on_shard(t).out_features for t in (1, 2))
    assert (whole, half) == (584, 292)
    # of four ranks each holds a copy of one group: 2 x 2 x 32 + 2 x 16 + 2
    assert LAYER.linears(128)[0].on_shard(4).out_features == 162
    # conv (256 + 64) x (4 + bias), A_log, dt_bias and D of 8 heads, a norm of 256
    assert sum(number for _, number in vectors(LAYER)) == 320 * 5 + 3 * 8 + 256
    assert counted(parameter_tensors(MODEL, Workload(t=2))).total < counted(parameter_tensors(MODEL, Workload())).total
    with pytest.raises(InputError, match="divisor of the 2 heads of the recurrent layers, or groups"):
        operators(MODEL, Workload(t=3))
    # Training has no copy of a single group either; engines do.
    mixer = replace(LAYER, groups=1)
    single = replace(MODEL, stacks=(replace(MODEL.main, blocks=(replace(MODEL.main.blocks[0], mixer=mixer),)),))
    with pytest.raises(InputError, match="divisor of the 1 heads of the recurrent layers, or groups"):
        operators(single, Workload(t=2))
    assert operators(single, Workload(t=2, phase="decode", s=1, context=64))


def test_context_parallelism_spreads_heads_and_exchanges_tokens_for_them() -> None:
    whole, shared = (operators(MODEL, Workload(b=1, s=512, cp=cp)) for cp in (1, 4))

    def scans(found: Iterable[Operator]) -> int:
        each = (op for op in found if isinstance(op, Scan))
        return sum(op.count * batch for op in each for name, batch, *_ in op.products if name == "inside")

    assert scans(whole) == 4 * scans(shared)
    assert any(isinstance(op, Collective) and "mixer.context_parallel" in op.name for op in shared)


def test_a_decode_step_reads_a_state_of_fixed_size_whatever_the_context() -> None:
    short, long = (Workload(b=16, s=1, phase="decode", context=context) for context in (1024, 65536))
    moved = [[op.bytes for op in operators(MODEL, one) if op.name.endswith("mixer.state")] for one in (short, long)]
    # 16 requests x (8 heads x 32 x 16 in fp32, and 3 inputs of the convolution's 320 channels), read and written
    assert moved[0] == moved[1] == [2 * 16 * (8 * 32 * 16 * 4 + 3 * 320 * 2)]
    held = [memory(MODEL, one).components["kv_cache"] for one in (short, long)]
    assert held[0] == held[1] == 3 * 16 * (8 * 32 * 16 * 4 + 3 * 320 * 2)


def test_memory_of_training_keeps_the_projection_and_the_scans_output() -> None:
    one, two = (
        memory(
            replace(MODEL, stacks=(replace(MODEL.main, blocks=(replace(MODEL.main.blocks[0], count=count),)),)),
            Workload(b=2, s=256),
            implementation="megatron",
        ).components["activations"]
        for count in (3, 4)
    )
    rows = 512
    # bf16: the layer's input and its norm, the projection's 584, the scan's output, and the gated norm's output.
    least = rows * 2 * (2 * 128 + 584 + 256 + 256)
    assert least <= two - one <= 1.2 * least


def test_experts_in_a_latent_space_see_its_width_and_are_projected_to_and_from_it() -> None:
    moe = MoeShape(8, 2, 64, gated=False, latent=32)
    names = {linear.name: (linear.out_features, linear.in_features) for linear in moe.linears(128)}
    assert names == {"moe.router": (8, 128), "moe.latent_down_proj": (32, 128), "moe.latent_up_proj": (128, 32)}
    assert [linear.in_features for linear in moe.expert_linears(128)] == [32, 64]
    block = Block(AttentionShape(2, 2, 64), moe)
    model = ModelShape("test", (Stack("decoder", 128, (block,)),), vocab=512)
    full = replace(model, stacks=(replace(model.main, blocks=(replace(block, mlp=replace(moe, latent=None)),)),))
    step = Workload(b=1, s=128, d=2, e=2)

    def exchanged(of: ModelShape) -> int:
        return next(op.bytes for op in operators(of, step) if isinstance(op, Collective) and op.what == "all_to_all")

    assert exchanged(full) == 4 * exchanged(model)
    assert (
        memory(model, Workload(b=1, s=128)).components["activations"]
        < memory(full, Workload(b=1, s=128)).components["activations"]
    )


def test_the_head_runs_again_at_each_depth_of_multi_token_prediction() -> None:
    model = ModelShape("test", (Stack("decoder", 128, (Block(AttentionShape(2, 2, 64), MlpShape(256)),)),), vocab=2**17)
    deep = replace(model, head_passes=3)

    def heads(of: ModelShape, phase: Any) -> int:
        found = operators(of, Workload(b=1, s=64, phase=phase))
        return sum(op.count for op in found if op.name == "lm_head" and op.phase == "forward")

    assert (heads(model, "train"), heads(deep, "train"), heads(deep, "infer")) == (1, 3, 1)
    plain, three = (memory(one, Workload(b=1, s=64)).components["logits_and_loss"] for one in (model, deep))
    assert three > 2 * plain


def test_in_training_a_group_of_states_is_on_one_rank_alone_for_plan_as_for_check() -> None:
    # granite-4.0-h-1b has one group: engines copy it, Megatron-LM cuts it.
    name, asked = "ibm-granite/granite-4.0-h-1b", {"device": "l40s", "gpus": 16, "s": 4096, "global_batch": 64}
    assert {one.workload.t for one in sizer.plan(name, **asked).candidates} == {1}
    cut = sizer.check(name, t=2, d=8, **asked)
    assert [(one.severity, one.code) for one in cut.findings if one.severity == "error"] == [("error", "SZ129")]
    assert sizer.check(name, t=2, phase="decode", b=8, s=4096, device="l40s").worst() != "error"
