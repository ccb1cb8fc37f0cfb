"""The formula path against torch's own dispatcher: for every family the readers know, the same products, counted.

A product is (phase, kind, batch, m, n, k, dtype). Gradients of activations are compared without regard to which of m
and n comes first: C^T = B^T A^T is the same product, and which of the two runs depends on how a tensor lies in memory.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest
from tiers import every_run

from shapes.operators import operators
from shapes.operators.types import Attention, Elementwise, Gemm, GroupedGemm, Operator
from shapes.workload import Workload
from sizer.readers import read_config

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers")

#: transformers 4 loops over experts whose gate and up are apart, and has fewer fused attentions.
OLD = transformers.__version__.startswith("4.")

#: Small where the class allows it, so that every dimension is told from every other: hidden 96,
#: 6 heads of 16, MLP 160, vocabulary 320.
LLAMA_LIKE = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 320,
}
GPT2_LIKE = {"n_embd": 96, "n_layer": 3, "n_head": 6, "vocab_size": 320}
MOE = LLAMA_LIKE | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "head_dim": 16}
MLA = LLAMA_LIKE | {
    "num_key_value_heads": 6,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "n_shared_experts": 2,
    "n_group": 1,
    "topk_group": 1,
}
T5 = {
    "d_model": 96,
    "d_kv": 24,
    "d_ff": 160,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 6,
    "vocab_size": 320,
}
ENCODER_DECODER = {
    "d_model": 96,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 6,
    "vocab_size": 320,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 160,
    "decoder_ffn_dim": 224,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA_LIKE,
    "llama multi-head": {"model_type": "llama", **LLAMA_LIKE, "num_key_value_heads": 6},
    "llama multi-query": {"model_type": "llama", **LLAMA_LIKE, "num_key_value_heads": 1},
    "llama tied": {"model_type": "llama", **LLAMA_LIKE, "tie_word_embeddings": True},
    "llama biased": {"model_type": "llama", **LLAMA_LIKE, "attention_bias": True, "mlp_bias": True},
    "mistral": LLAMA_LIKE,
    "qwen2": LLAMA_LIKE,
    "qwen3": LLAMA_LIKE | {"head_dim": 24},
    "gemma": LLAMA_LIKE | {"head_dim": 24},
    "gemma2": LLAMA_LIKE | {"head_dim": 24},
    "gemma3_text": LLAMA_LIKE | {"head_dim": 24},
    "cohere": LLAMA_LIKE,
    "cohere2": LLAMA_LIKE,
    "olmo": LLAMA_LIKE,
    "olmo2": LLAMA_LIKE,
    "phi": LLAMA_LIKE | {"num_key_value_heads": 6},
    "phi3": LLAMA_LIKE | {"pad_token_id": 0},
    "stablelm": LLAMA_LIKE,
    "starcoder2": LLAMA_LIKE,
    "gpt2": GPT2_LIKE,
    "gpt_bigcode": GPT2_LIKE,
    "gpt_bigcode multi-head": {"model_type": "gpt_bigcode", **GPT2_LIKE, "multi_query": False},
    "gpt_neox": LLAMA_LIKE,
    "opt": LLAMA_LIKE | {"ffn_dim": 160, "word_embed_proj_dim": 64},
    "bloom": {"hidden_size": 96, "n_layer": 3, "n_head": 6, "vocab_size": 320},
    "falcon": LLAMA_LIKE,
    "falcon new": {"model_type": "falcon", **LLAMA_LIKE, "new_decoder_architecture": True, "num_kv_heads": 2},
    "mpt": {"d_model": 96, "n_heads": 6, "n_layers": 3, "vocab_size": 320},
    "t5": T5,
    "t5 gated": {"model_type": "t5", **T5, "feed_forward_proj": "gated-gelu"},
    "bart": ENCODER_DECODER,
    "whisper": ENCODER_DECODER | {"pad_token_id": 0},
    "mixtral": LLAMA_LIKE | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2_moe": MOE | {"shared_expert_intermediate_size": 80, "mlp_only_layers": [1]},
    "qwen3_moe": MOE | {"mlp_only_layers": [1]},
    "deepseek_v2": MLA | {"q_lora_rank": None},
    "deepseek_v3": MLA | {"q_lora_rank": 40},
    "glm4_moe": MLA | {"num_key_value_heads": 2, "head_dim": 16},
    "gpt_oss": MOE | {"num_local_experts": 8},
    "arcee": LLAMA_LIKE,
    "ernie4_5": LLAMA_LIKE | {"head_dim": 24, "use_bias": True},
    "ernie4_5_moe": MOE | {"moe_num_experts": 8, "moe_k": 2, "use_bias": True},
    "exaone4": LLAMA_LIKE | {"sliding_window": 8, "num_hidden_layers": 5},
    "glm": LLAMA_LIKE | {"head_dim": 24, "pad_token_id": 0},
    "granite": LLAMA_LIKE | {"attention_bias": True, "mlp_bias": True},
    "granitemoe": MOE | {"num_local_experts": 8},
    "helium": LLAMA_LIKE | {"head_dim": 16, "attention_bias": True, "mlp_bias": True},
    "hunyuan_v1_dense": LLAMA_LIKE | {"head_dim": 16},
    "mimo_v2_flash": MLA
    | {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 24, "v_head_dim": 16, "sliding_window_size": 8}
    | {"num_hidden_layers": 7},
    "ministral3": LLAMA_LIKE | {"head_dim": 16, "sliding_window": 8},
    "olmo3": LLAMA_LIKE | {"sliding_window": 8, "num_hidden_layers": 5},
    "olmoe": MOE,
    "phimoe": MOE | {"num_local_experts": 8, "attention_bias": True, "lm_head_bias": True, "pad_token_id": 0},
    "seed_oss": LLAMA_LIKE | {"head_dim": 16, "mlp_bias": True},
    "smollm3": LLAMA_LIKE | {"num_hidden_layers": 5, "pad_token_id": 0},
}
#: Types that transformers 4.57 does not have, or has with other defaults.
if OLD:
    for new in ("exaone4", "hunyuan_v1_dense", "mimo_v2_flash", "ministral3", "olmo3"):
        CONFIGS.pop(new)
#: Only eager can be compared: transformers has no fused attention for the first two, whatever is asked for, and repeats
#: falcon's key/value heads before the fused operator, which the formulas (and FlashAttention) do not.
EAGER_ALONE = frozenset({"bloom", "mpt", "falcon new"}) | (
    frozenset({"t5", "t5 gated", "stablelm", "qwen2_moe"}) if OLD else frozenset()
)
#: Classes that in transformers 4 keep each expert as a module of its own, with gate and up apart.
APART = (
    frozenset({"mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "glm4_moe"}) if OLD else frozenset()
)


def named(label: str) -> dict[str, Any]:
    # "llama tied" gives its own model_type; a plain label is one.
    return {"model_type": label, **CONFIGS[label]}


@cache
def traced(
    label: str, phase: str, attention: str, b: int, s: int, fused: bool | None = None
) -> Counter[tuple[object, ...]]:
    from shapes.trace import trace_config
    from tests.oracles import traced_otherwise

    if fused is not None:
        found = traced_otherwise(named(label), b=b, s=s, phase=phase, attention=attention, fused=fused)
    else:
        found = trace_config(named(label), b=b, s=s, phase=phase, attention=attention)  # type: ignore[arg-type]
    return products(found.operators)


def formula(label: str, **workload: Any) -> Counter[tuple[object, ...]]:
    apart = {"fused_gate_up": False} if label in APART and "fused_gate_up" not in workload else {}
    return products(operators(read_config(named(label)).model, Workload(**workload, **apart)))


def products(found: Iterable[Operator]) -> Counter[tuple[object, ...]]:
    counted: Counter[tuple[object, ...]] = Counter()
    for op in found:
        if "rotary_emb" in op.name:
            continue  # transformers 4 writes the rotary angles as a product with k = 1, transformers 5 does not
        match op:
            case Gemm():
                m, n = sorted((op.m, op.n)) if op.kind == "bmm" and op.phase == "dgrad" else (op.m, op.n)
                key: tuple[object, ...] = (op.phase, op.kind, op.batch, m, n, op.k, op.dtype)
            case GroupedGemm() if OLD:
                share = {"m": op.m, "n": op.n, "k": op.k}
                share[op.ragged] //= op.groups
                key = (op.phase, "gemm", 1, share["m"], share["n"], share["k"], op.dtype)
                counted[key] += op.count * (op.groups - 1)
            case GroupedGemm():
                key = (op.phase, op.kind, op.groups, op.m, op.n, op.k, op.ragged, op.dtype)
            case Attention():
                # A window as long as the sequence hides nothing.
                window = op.window if op.window is not None and op.window < op.kv_len else None
                heads = (op.batch, op.heads, op.kv_heads, op.q_len, op.kv_len, op.head_dim, op.v_head_dim)
                key = (op.phase, op.kind, *heads, op.causal, window, op.dtype)
            case Elementwise():
                continue
            case _:
                raise AssertionError(f"one device has no {op}")
        counted[key] += op.count
    return counted


#: Whose attention is a class's own or of another form, one of each: grouped, multi-query, fused qkv in two orders,
#: partly rotated, soft-capped, windows, latent, sinks, cross and cross with a bias; and what has no fused kernel.
EAGER = EAGER_ALONE | {"llama", "llama multi-query", "gpt2", "gpt_bigcode", "gpt_neox", "phi3", "gemma2", "mistral"}
EAGER |= {"deepseek_v3", "gpt_oss", "t5", "whisper", "mimo_v2_flash", "mixtral"}


@pytest.mark.parametrize(
    ("label", "attention"),
    every_run(
        [(label, attention) for label in CONFIGS for attention in ("flash", "eager")],
        *((label, "flash") for label in CONFIGS),
        *((label, "eager") for label in CONFIGS if label in EAGER),
    ),
)
def test_a_training_step_runs_the_products_the_formulas_say(label: str, attention: str) -> None:
    if attention == "flash" and label in EAGER_ALONE:
        pytest.skip("transformers runs it in another form")
    assert formula(label, b=2, s=24, attention=attention) == traced(label, "train", attention, 2, 24)


@pytest.mark.parametrize("label", ["llama", "gpt2", "qwen3_moe", "deepseek_v3", "t5", "whisper"])
@pytest.mark.parametrize(("b", "s"), [(1, 40), (3, 17)])
def test_a_forward_pass_runs_the_products_the_formulas_say(label: str, b: int, s: int) -> None:
    if OLD and label in EAGER_ALONE:
        pytest.skip("transformers runs it in another form")
    assert formula(label, b=b, s=s, phase="infer") == traced(label, "infer", "flash", b, s)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "label",
    # Fused or not by their classes, biased, grouped and single keys, a key without a bias, cross attention, experts.
    [
        "llama biased",
        "qwen2",
        "phi3",
        "gpt2",
        "gpt_bigcode",
        "gpt_neox",
        "falcon new",
        "t5 gated",
        "whisper",
        "mixtral",
    ],
)
def test_projections_are_fused_or_apart_as_asked_on_both_paths(label: str, fused: bool) -> None:
    attention = "eager" if label in EAGER_ALONE else "flash"
    said = formula(label, b=2, s=24, attention=attention, fused_qkv=fused, fused_gate_up=fused)
    assert said == traced(label, "train", attention, 2, 24, fused)


@pytest.mark.parametrize("label", CONFIGS)
def test_parameters_are_the_module_s_own_count(label: str) -> None:
    from shapes.trace import trace_config

    assert read_config(named(label)).model.parameters == trace_config(named(label), b=1, s=8, phase="infer").parameters


SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "image_size": 32,
    "patch_size": 8,
}


@pytest.mark.parametrize("phase", ["train", "infer"])
def test_siglips_pooling_head_has_its_own_attention_products(phase: Any) -> None:
    from shapes.trace import trace_config

    def head(found: Iterable[Operator]) -> list[tuple[int, ...]]:
        # One query over 16 patches in heads of 16: which of the three comes first depends on the layout.
        return sorted(
            (op.batch, *sorted((op.m, op.n, op.k)))
            for op in found
            if isinstance(op, Gemm) and op.kind == "bmm" and op.name.startswith("head.")
        )

    formula = operators(read_config(SIGLIP).model, Workload(b=2, s=16, phase=phase))
    whole = trace_config(SIGLIP, b=2, s=16, phase=phase).operators
    assert head(formula) == head(whole) == [(12, 1, 16, 16)] * (6 if phase == "train" else 2)
    if phase == "infer":
        assert sum(op.flops * op.count for op in formula) == sum(op.flops * op.count for op in whole)


def test_llama4_attends_within_chunks_and_says_who_runs_which_expert() -> None:
    from shapes.trace import trace_config

    config = {
        "model_type": "llama4_text",
        **LLAMA_LIKE,
        "num_hidden_layers": 8,
        "head_dim": 16,
        "intermediate_size_mlp": 224,
        "num_local_experts": 4,
        "attention_chunk_size": 16,
        "pad_token_id": 0,
    }
    reading, whole = read_config(config), trace_config(config, b=2, s=48)

    def windows(found: Iterable[Operator]) -> Counter[int | None]:
        counted: Counter[int | None] = Counter()
        for op in found:
            if isinstance(op, Attention) and op.phase == "forward":
                counted[op.window] += op.count
        return counted

    # Every fourth layer attends to everything, the others within chunks of 16.
    assert windows(operators(reading.model, Workload(b=2, s=48))) == {16: 6, None: 2}
    assert any("runs every token through every expert" in note for note in reading.notes)
    assert any("runs every token through every expert" in note for note in whole.notes)


#: Windows that bite: shorter than the 24 tokens, on the layers where each family slides.
WINDOWED: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 8},
    "mixtral": {"sliding_window": 8},
    "starcoder2": {"sliding_window": 8},
    "phi3": {"sliding_window": 8},
    "qwen2": {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1, "num_hidden_layers": 4},
    "qwen3": {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3, "num_hidden_layers": 4},
    "qwen2 off": {"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": False, "max_window_layers": 1},
    "gemma2": {"sliding_window": 8, "num_hidden_layers": 5},
    "gemma3_text": {"sliding_window": 8, "num_hidden_layers": 8},
    "gemma3_text listed": {
        "model_type": "gemma3_text",
        "sliding_window": 8,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
    "cohere2": {"sliding_window": 8, "num_hidden_layers": 6},
    "gpt_oss": {"sliding_window": 8, "num_hidden_layers": 5},
}


@pytest.mark.parametrize("label", WINDOWED)
def test_windows_shorter_than_the_sequence_are_on_the_layers_the_class_has_them_on(label: str) -> None:
    from shapes.trace import trace_config

    family = WINDOWED[label].get("model_type", label)
    config = {"model_type": family, **CONFIGS[family], **WINDOWED[label]}
    # Layer by layer, so that as many windows on the wrong layers do not pass.
    module = built(config)
    cores = [layer.self_attn for layer in module.model.layers]
    expected = [getattr(core, "sliding_window", core.config.sliding_window) for core in cores]
    main = read_config(config).model.main
    assert [block.attention and block.attention.window for block in main.blocks for _ in range(block.count)] == expected
    assert (8 in expected) == (label != "qwen2 off")
    whole = trace_config(config, b=2, s=24)
    assert products(operators(read_config(config).model, Workload(b=2, s=24))) == products(whole.operators)


def built(config: dict[str, Any]) -> Any:
    from shapes.trace.config import build, load_config

    return build(*load_config(config), attention="eager", dtype="bf16")[0]


@pytest.mark.parametrize(
    ("share", "nested"), [(None, {}), (0.25, {}), (0.75, {}), (0.25, {"partial_rotary_factor": 0.75})]
)
@pytest.mark.parametrize(
    "label",
    [
        "llama",
        "qwen3",
        "gemma2",
        "cohere",
        "olmo2",
        "phi",
        "phi3",
        "stablelm",
        "starcoder2",
        "gpt_neox",
        "falcon",
        "mixtral",
        "glm4_moe",
    ],
)
def test_the_rotated_share_of_each_head_is_the_classs_own(
    label: str, share: float | None, nested: dict[str, float]
) -> None:
    # Heads of 32, so that a quarter is 8 channels. The class rotates as many as it has angles for, twice; llama's and
    # most others' do not read the share.
    config = named(label) | {"hidden_size": 192}
    if "head_dim" in config or label == "gemma2":
        config["head_dim"] = 32
    if share is not None:
        config |= {"rotary_pct": share} if label == "gpt_neox" else {"partial_rotary_factor": share}
    if nested:
        config = {**config, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, **nested}}
    angles = {name: buffer for name, buffer in built(config).named_buffers() if name.endswith("inv_freq")}
    attention = read_config(config).model.attention
    assert attention is not None
    assert {attention.rotary_dim} == {2 * buffer.shape[-1] for buffer in angles.values()}


@pytest.mark.skipif(OLD, reason="transformers 4 loops over experts")
@pytest.mark.parametrize("model_type", ["llama", "mixtral", "qwen3_moe"])
def test_autocast_runs_products_in_the_types_that_torchs_dispatcher_sees(model_type: str) -> None:
    """FLOPs of a step by element type: experts' grouped products stay in fp32, all others run in 16 bits."""
    torch = pytest.importorskip("torch")
    dispatched = importlib.import_module("torch.utils._python_dispatch")
    found: Counter[str] = Counter()

    class Seen(dispatched.TorchDispatchMode):  # type: ignore[misc,name-defined]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if func._schema.name in ("aten::mm", "aten::bmm", "aten::_grouped_mm") and args[0].shape[-1] > 1:
                found[str(args[0].dtype)] += 2 * args[0].numel() * args[1].shape[-1]  # rotary's angles are of k = 1
            return out

    config = transformers.AutoConfig.for_model(model_type, **MOE, num_local_experts=8)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    ids = torch.zeros(2, 48, dtype=torch.long)
    with Seen():
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.train()(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
    ours: Counter[str] = Counter()
    for one in operators(read_config(config.to_dict()).model, Workload(b=2, s=48, attention="eager", precision="amp")):
        ours[one.dtype] += one.flops * one.count
    assert (ours["bf16"], ours["fp32"]) == (found["torch.bfloat16"], found["torch.float32"])
    assert (ours["fp32"] > 0) == (model_type != "llama")
