"""Decoder families of transformers, dense and mixtures of experts: each declares where it differs from llama."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shapes.model import Linear, MlaShape, MlpShape, ModelShape
from sizer.readers.fields import Fields
from sizer.readers.hf_blocks import (
    EXPERTS,
    HEADS,
    POSITIONS,
    Attention,
    Builder,
    Mlp,
    MlpPart,
    all_but_every,
    all_heads,
    attention,
    family,
    flag,
    head_dim,
    hidden_size,
    layer_count,
    mlp,
    model_of,
    positions,
    rotary_share,
    sliding,
    sliding_where,
    stack,
    when,
    with_experts,
)

_BIAS = flag("attention_bias")
_PATTERN = ("sliding_window_pattern", "_sliding_window_pattern")


def _qwen_windows(fields: Fields) -> Callable[[int], int | None]:
    fields.ignore("sliding_window", "layer_types")
    on, first = fields.flag("use_sliding_window"), fields.count("max_window_layers")
    return sliding_where(fields, lambda layer: layer >= first) if on else lambda layer: None


def _four_h(fields: Fields) -> int:
    return 4 * hidden_size(fields)


def _inner(fields: Fields) -> int:
    return fields.optional("n_inner") or _four_h(fields)


def _gptj_share(fields: Fields) -> float:
    return min(fields.count("rotary_dim") / head_dim(fields), 1.0) or 1.0


def _opt(fields: Fields) -> ModelShape:
    """OPT: positions start at 2; opt-350m embeds in fewer dimensions and norms after each part, so has no last norm."""
    hidden, bias = hidden_size(fields), fields.flag("enable_bias", default=True)
    width = fields.optional("word_embed_proj_dim") or hidden
    affine = 2 if fields.flag("layer_norm_elementwise_affine", default=True) else 0
    before = fields.flag("do_layer_norm_before", default=True) and not fields.flag("_remove_final_layer_norm")
    layers = stack(
        fields,
        attention(bias=bias, kv_heads=all_heads, rotary=0.0),
        mlp(fields.integer("ffn_dim"), gated=False, bias=bias),
        norm_weights=affine,
        final_norm=affine if before else 0,
        positions=positions(fields) + 2,
    )
    if width == hidden:
        return model_of(fields, layers, max_positions=positions)
    into, out = Linear("project_in", hidden, width), Linear("project_out", width, hidden)
    projected = {"embedding_dim": width, "after_embedding": (into,), "before_head": (out,)}
    return model_of(fields, layers, max_positions=positions, **projected)


def _falcon(fields: Fields) -> ModelShape:
    heads, new = all_heads(fields), fields.flag("new_decoder_architecture")
    shared = 1 if not new and fields.flag("multi_query", default=True) else heads
    if new:
        shared = fields.kv_heads(heads, "num_kv_heads")
    bias, parallel = fields.flag("bias"), fields.flag("parallel_attn", default=True)
    two_norms = not parallel or (fields.optional("num_ln_in_parallel_attn") or (2 if new else 1)) == 2
    dropout = fields.number("attention_dropout", "attn_pdrop")
    # The class drops out probabilities only with alibi.
    alibi: dict[str, Any] = {"rotary": 0.0, "dropout": dropout} if fields.flag("alibi") else {"dropout": 0.0}
    core = attention(bias=bias, fused_qkv=True, kv_heads=shared, **alibi)
    width = fields.optional("ffn_hidden_size") or _four_h(fields)
    norms: dict[str, Any] = {"norms": 2 if two_norms else 1, "norm_weights": 2, "parallel": parallel}
    return family(core, mlp(width, gated=False, bias=bias), **norms)(fields)


def _stablelm_norms(fields: Fields) -> int:
    return 1 if fields.flag("use_parallel_residual") else 2


def _cohere(**traits: Any) -> Builder:
    """One norm a layer, attention and MLP side by side."""
    return family(attention(bias=_BIAS, **traits), mlp(), norms=1, parallel=True, ignored=("use_qk_norm",))


def _where_it_slides(fields: Fields) -> Callable[[int, int | None], bool]:
    """Layers that attend to everything are not rotated, where others slide."""
    slides = fields.count("sliding_window") > 0
    return lambda _, window: window is not None or not slides


def _rope_layers(fields: Fields) -> Callable[[int, int | None], bool]:
    """smollm3: all layers are rotated but the last of each interval, or those with a 0 in ``no_rope_layers``."""
    every, listed = fields.count("no_rope_layer_interval", default=4), fields.integers("no_rope_layers")
    if len(listed) == layer_count(fields):
        return lambda layer, _: bool(listed[layer])
    return lambda layer, _: not every or (layer + 1) % every != 0


def _no_windows(fields: Fields) -> Callable[[int], int | None]:
    """cohere's class has none, whatever the file lists."""
    fields.ignore(*_PATTERN)
    return sliding_where(fields, lambda layer: False)


_FUSED = attention(bias=True, fused_qkv=True, kv_heads=all_heads, rotary=0.0)
_BIGCODE = attention(
    bias=True,
    fused_qkv=True,
    kv_heads=lambda fields: 1 if fields.flag("multi_query", default=True) else all_heads(fields),
    rotary=0.0,
)
_GPT2: dict[str, Any] = {"norm_weights": 2, "positions": positions, "max_positions": positions}
_GATED, _PLAIN = mlp(), mlp(gated=False, bias=True)
_INNER = mlp(_inner, gated=False, bias=True)

_LLAMA = family(attention(bias=_BIAS, windows=sliding), mlp(bias=flag("mlp_bias")))
_QWEN2 = family(attention(qkv_bias=True, windows=_qwen_windows), _GATED)
_QWEN3 = family(attention(bias=_BIAS, qk_norm="head", windows=_qwen_windows), _GATED)

DENSE: dict[str, Builder] = {
    "arcee": family(attention(bias=_BIAS), mlp(gated=False, bias=flag("mlp_bias"))),
    "bloom": family(_FUSED, mlp(_four_h, gated=False, bias=True), norm_weights=2, embedding_norm=2),
    "cohere": _cohere(qk_norm=when("use_qk_norm", "full"), windows=_no_windows),
    "cohere2": _cohere(windows=all_but_every(4, *_PATTERN), rotates=_where_it_slides),
    "ernie4_5": family(attention(bias=flag("use_bias")), mlp(bias=flag("use_bias"))),
    "exaone4": family(attention(qk_norm="head", windows=all_but_every(4, *_PATTERN), rotates=_where_it_slides), _GATED),
    "falcon": _falcon,
    "gemma": family(attention(bias=_BIAS), _GATED),
    "gemma2": family(attention(bias=_BIAS, windows=all_but_every(2, *_PATTERN)), _GATED, norms=4),
    "gemma3_text": family(attention(bias=_BIAS, qk_norm="head", windows=all_but_every(6, *_PATTERN)), _GATED, norms=4),
    "glm": family(attention(qkv_bias=_BIAS, rotary=rotary_share(0.5)), mlp(fused_gate_up=True)),
    "glm4": family(attention(qkv_bias=_BIAS, rotary=rotary_share(0.5)), mlp(fused_gate_up=True), norms=4),
    "gpt2": family(_FUSED, _INNER, **_GPT2),
    "gpt_bigcode": family(_BIGCODE, _INNER, **_GPT2),
    "gpt_neox": family(
        attention(
            bias=flag("attention_bias", True),
            fused_qkv=True,
            kv_heads=all_heads,
            rotary=rotary_share(0.25, "rotary_pct"),
        ),
        _PLAIN,
        norm_weights=2,
        parallel=flag("use_parallel_residual", True),
    ),
    "gptj": family(
        attention(kv_heads=all_heads, rotary=_gptj_share),
        _INNER,
        norms=1,
        norm_weights=2,
        parallel=True,
        head_bias=True,
        max_positions=lambda fields: fields.optional(*POSITIONS),
    ),
    "granite": _LLAMA,
    "helium": family(attention(qkv_bias=_BIAS), mlp(bias=flag("mlp_bias"))),
    "hunyuan_v1_dense": family(attention(bias=_BIAS, qk_norm="head"), _GATED),
    "llama": _LLAMA,
    "ministral3": family(attention(windows=sliding), _GATED),
    "mistral": _LLAMA,
    # The class's MLP is 4h whatever expansion_ratio says, and nothing has a bias.
    "mpt": family(attention(fused_qkv=True, kv_heads=all_heads, rotary=0.0), mlp(_four_h, gated=False)),
    "olmo": family(attention(bias=_BIAS), _GATED, norm_weights=0),
    "olmo2": family(attention(bias=_BIAS, qk_norm="full"), _GATED),
    "olmo3": family(attention(bias=_BIAS, qk_norm="full", windows=all_but_every(4)), _GATED),
    "opt": _opt,
    "phi": family(
        attention(bias=True, qk_norm=when("qk_layernorm", "head"), qk_norm_weights=2, rotary=rotary_share(0.5)),
        _PLAIN,
        norms=1,
        norm_weights=2,
        parallel=True,
        head_bias=True,
    ),
    "phi3": family(attention(fused_qkv=True, windows=sliding, rotary=rotary_share(1.0)), mlp(fused_gate_up=True)),
    "qwen2": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "seed_oss": family(attention(qkv_bias=_BIAS, o_bias=flag("attention_out_bias")), mlp(bias=flag("mlp_bias"))),
    "smollm3": family(attention(bias=_BIAS, windows=_qwen_windows, rotates=_rope_layers), mlp(bias=flag("mlp_bias"))),
    "stablelm": family(
        attention(qkv_bias=flag("use_qkv_bias"), qk_norm=when("qk_layernorm", "full"), rotary=rotary_share(0.25)),
        _GATED,
        norms=_stablelm_norms,
        norm_weights=2,
        parallel=flag("use_parallel_residual"),
    ),
    "starcoder2": family(
        attention(bias=flag("use_bias", True), windows=sliding),
        mlp(gated=False, bias=flag("use_bias", True)),
        norm_weights=2,
    ),
}


def experts(width: str = "intermediate_size", **traits: Any) -> MlpPart:
    """Experts in every layer; ``traits`` are further fields of MoeShape."""

    def part(fields: Fields) -> Callable[[int], Mlp]:
        moe = with_experts(fields, fields.integer(width), **traits)
        return lambda _: moe

    return part


def sparse_qwen(shared: bool) -> MlpPart:
    """qwen's experts with a gated shared one, where there is one; some layers are dense."""

    def part(fields: Fields) -> Callable[[int], Mlp]:
        always = MlpShape(fields.integer("shared_expert_intermediate_size")) if shared else None
        moe = with_experts(fields, fields.integer("moe_intermediate_size"), shared=always, shared_gate=shared)
        every, dense_layers = fields.count("decoder_sparse_step", default=1), set(fields.integers("mlp_only_layers"))
        dense = MlpShape(fields.integer("intermediate_size"))
        return lambda layer: moe if layer not in dense_layers and every and (layer + 1) % every == 0 else dense

    return part


def _leading_dense(fields: Fields) -> Callable[[int], Mlp]:
    """DeepSeek's: leading dense layers, then experts with the shared ones as one MLP; the router in fp32."""
    first, bias = fields.count("first_k_dense_replace"), fields.flag("mlp_bias")
    width, number = fields.integer("moe_intermediate_size"), fields.count("n_shared_experts")
    shared = MlpShape(number * width, bias=bias) if number else None
    moe = with_experts(fields, width, shared=shared, router_dtype="fp32")
    dense = MlpShape(fields.integer("intermediate_size"), bias=bias)
    return lambda layer: dense if layer < first else moe


def _ernie_experts(fields: Fields) -> Callable[[int], Mlp]:
    """Experts with shared ones as one MLP in every ``moe_layer_interval``-th layer of a range; dense elsewhere."""
    bias, width = fields.flag("use_bias"), fields.integer("moe_intermediate_size")
    number, experts = fields.count("moe_num_shared_experts"), fields.integer(*EXPERTS)
    shared = MlpShape(number * width, bias=bias) if number else None
    moe = with_experts(fields, width, shared=shared, router_dtype="fp32", router_parameters=experts)
    dense = MlpShape(fields.integer("intermediate_size"), bias=bias)
    first, last = fields.count("moe_layer_start_index"), fields.raw("moe_layer_end_index", default=-1)
    last = last if isinstance(last, int) and last >= 0 else layer_count(fields)  # -1: the last
    every = fields.count("moe_layer_interval", default=1) or 1
    return lambda layer: moe if first <= layer <= last and (layer + 1) % every == 0 else dense


def _mimo_attention(fields: Fields) -> Callable[[int], Attention]:
    """MiMo-V2: sliding layers have key/value heads of their own number and sinks; the window counts the query too."""
    layers = layer_count(fields)
    kinds = fields.strings("layer_types", layers)
    pattern = fields.integers("hybrid_layer_pattern") or [
        int(layer > 0 and (layer + 1) % 6 != 0) for layer in range(layers)
    ]
    slides = [kind == "sliding_attention" for kind in kinds] if kinds else [bool(one) for one in pattern]
    before = fields.optional("sliding_window_size")
    window = before + 1 if before else fields.count("sliding_window") or None
    share = rotary_share(0.334)(fields)
    whole = attention(bias=_BIAS, rotary=share, v_head_dim=lambda fields: fields.integer("v_head_dim"))(fields)(0)
    heads = fields.optional("swa_num_key_value_heads") or 2 * whole.kv_heads
    local = replace(whole, kv_heads=heads, window=window, sinks=True)  # type: ignore[arg-type]
    return lambda layer: local if slides[layer] else whole


def _listed_experts(fields: Fields) -> Callable[[int], Mlp]:
    """Experts in the layers that a list says, which may be of numbers or of words; by default all but the first."""
    layers = layer_count(fields)
    words = fields.strings("mlp_layer_types", layers)
    numbers = fields.integers("moe_layer_freq") or [int(layer > 0) for layer in range(layers)]
    sparse = [word == "sparse" for word in words] if words else [bool(one) for one in numbers]
    moe = with_experts(fields, fields.integer("moe_intermediate_size"), router_dtype="fp32")
    dense = MlpShape(fields.integer("intermediate_size"))
    return lambda layer: moe if sparse[layer] else dense


def _latent(fields: Fields) -> Callable[[int], Attention]:
    """DeepSeek's multi-head latent attention."""
    core = MlaShape(
        fields.integer(*HEADS),
        fields.integer("kv_lora_rank"),
        fields.integer("qk_nope_head_dim"),
        fields.integer("qk_rope_head_dim"),
        fields.integer("v_head_dim"),
        fields.optional("q_lora_rank"),
        bias=fields.flag("attention_bias"),
        dropout=fields.number("attention_dropout"),
    )
    return lambda _: core


def _minimax_share(fields: Fields) -> float:
    rotary, dim = fields.count("rotary_dim"), fields.optional("head_dim")
    return min(rotary / dim, 1.0) if rotary and dim else rotary_share(1.0)(fields)


def _llama4(fields: Fields) -> ModelShape:
    """llama4's text tower: experts every ``interleave_moe_layer_step`` layers, with one shared expert as wide."""
    layers = layer_count(fields)
    fields.ignore("use_qk_norm")  # its norm of queries and keys has no weights
    every = fields.count("interleave_moe_layer_step", default=1) or 1
    sparse = fields.integers("moe_layers") or range(every - 1, layers, every)
    width = fields.integer("intermediate_size")
    moe = with_experts(fields, width, shared=MlpShape(width))
    dense = MlpShape(fields.integer("intermediate_size_mlp"))
    # Three layers in four attend within chunks; the fourth has no rotary embedding and attends to everything.
    period = fields.count("no_rope_layer_interval", default=4) or 4
    rotary = fields.integers("no_rope_layers")
    flags = rotary if len(rotary) == layers else [int((layer + 1) % period != 0) for layer in range(layers)]
    window = sliding_where(fields, lambda layer: bool(flags[layer]))
    rotated = attention(bias=_BIAS)(fields)(0)
    bare = replace(rotated, rotary_dim=0)  # type: ignore[arg-type]
    layers_of = stack(
        fields,
        lambda _: lambda layer: replace(rotated if flags[layer] else bare, window=window(layer)),
        lambda _: lambda layer: moe if layer in sparse else dense,
    )
    return model_of(fields, layers_of)


_DEEPSEEK = family(_latent, _leading_dense, ignored=("num_key_value_heads", "head_dim"))
_QWEN_MOE = ("use_qk_norm", "sliding_window", "shared_expert_intermediate_size")

_QWEN3_MOE = family(attention(bias=_BIAS, qk_norm="head"), sparse_qwen(shared=False), ignored=_QWEN_MOE)

MIXTURES: dict[str, Builder] = {
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "ernie4_5_moe": family(attention(bias=flag("use_bias")), _ernie_experts, head_bias=flag("use_bias")),
    "glm4_moe": family(
        attention(qkv_bias=_BIAS, qk_norm=when("use_qk_norm", "head"), rotary=rotary_share(0.5)), _leading_dense
    ),
    # Biases everywhere, a learned sink logit a head, every other layer slides.
    "gpt_oss": family(
        attention(bias=flag("attention_bias", True), sinks=True, windows=all_but_every(2)),
        experts(bias=True, router_bias=True),
    ),
    "granitemoe": family(attention(bias=_BIAS), experts()),
    "kimi_k2": _DEEPSEEK,
    "llama4_text": _llama4,
    "mimo_v2_flash": family(_mimo_attention, _listed_experts),
    "minimax_m2": family(attention(qk_norm="full", rotary=_minimax_share), experts(), ignored=("use_qk_norm",)),
    "mixtral": family(attention(windows=sliding), experts()),
    "olmoe": family(attention(bias=_BIAS, qk_norm="full"), experts()),
    "phimoe": family(attention(bias=_BIAS, windows=sliding), experts(), norm_weights=2, head_bias=flag("lm_head_bias")),
    "qwen2_moe": family(attention(qkv_bias=flag("qkv_bias", True)), sparse_qwen(shared=True), ignored=_QWEN_MOE),
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
}
