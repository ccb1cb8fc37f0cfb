"""Decoder families of transformers, dense and mixtures of experts: each declares where it differs from llama."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shapes.model import Linear, MlaShape, MlpShape, ModelShape
from sizer.readers.fields import Fields
from sizer.readers.hf_blocks import (
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
    "bloom": family(_FUSED, mlp(_four_h, gated=False, bias=True), norm_weights=2, embedding_norm=2),
    "cohere": _cohere(qk_norm=when("use_qk_norm", "full"), windows=_no_windows),
    "cohere2": _cohere(windows=all_but_every(4, *_PATTERN)),
    "falcon": _falcon,
    "gemma": family(attention(bias=_BIAS), _GATED),
    "gemma2": family(attention(bias=_BIAS, windows=all_but_every(2, *_PATTERN)), _GATED, norms=4),
    "gemma3_text": family(attention(bias=_BIAS, qk_norm="head", windows=all_but_every(6, *_PATTERN)), _GATED, norms=4),
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
    "llama": _LLAMA,
    "mistral": _LLAMA,
    # The class's MLP is 4h whatever expansion_ratio says, and nothing has a bias.
    "mpt": family(attention(fused_qkv=True, kv_heads=all_heads, rotary=0.0), mlp(_four_h, gated=False)),
    "olmo": family(attention(bias=_BIAS), _GATED, norm_weights=0),
    "olmo2": family(attention(bias=_BIAS, qk_norm="full"), _GATED),
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

MIXTURES: dict[str, Builder] = {
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "glm4_moe": family(
        attention(qkv_bias=_BIAS, qk_norm=when("use_qk_norm", "head"), rotary=rotary_share(0.5)), _leading_dense
    ),
    # Biases everywhere, a learned sink logit a head, every other layer slides.
    "gpt_oss": family(
        attention(bias=flag("attention_bias", True), sinks=True, windows=all_but_every(2)),
        experts(bias=True, router_bias=True),
    ),
    "kimi_k2": _DEEPSEEK,
    "llama4_text": _llama4,
    "minimax_m2": family(attention(qk_norm="full", rotary=_minimax_share), experts(), ignored=("use_qk_norm",)),
    "mixtral": family(attention(windows=sliding), experts()),
    "qwen2_moe": family(attention(qkv_bias=flag("qkv_bias", True)), sparse_qwen(shared=True), ignored=_QWEN_MOE),
    "qwen3_moe": family(attention(bias=_BIAS, qk_norm="head"), sparse_qwen(shared=False), ignored=_QWEN_MOE),
}
