"""Dense decoder families of transformers: one function a family (or several that differ by a flag)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shapes.model import AttentionShape, Linear, MlpShape, ModelShape
from sizer.readers.fields import Fields
from sizer.readers.hf_blocks import HEADS, HIDDEN, POSITIONS, attention, decoder, head_dim, rotary_share, windows


def llama(fields: Fields) -> ModelShape:
    """llama, and mistral: every layer slides where a window is set."""
    bias = fields.flag("attention_bias")
    window = fields.count("sliding_window") or None
    core = attention(fields, qkv_bias=bias, o_bias=bias, window=window)
    mlp = MlpShape(fields.integer("intermediate_size"), bias=fields.flag("mlp_bias"))
    return decoder(fields, attention_of=lambda _: core, mlp_of=lambda _: mlp)


def qwen2(fields: Fields) -> ModelShape:
    """qwen2 and the text towers of qwen2_vl and qwen2_5_vl: biased q, k, v; a window only where it is switched on."""
    window = _qwen_windows(fields)
    mlp = MlpShape(fields.integer("intermediate_size"))
    return decoder(
        fields, attention_of=lambda layer: attention(fields, qkv_bias=True, window=window(layer)), mlp_of=lambda _: mlp
    )


def qwen3(fields: Fields) -> ModelShape:
    bias, window = fields.flag("attention_bias"), _qwen_windows(fields)
    mlp = MlpShape(fields.integer("intermediate_size"))
    return decoder(
        fields,
        mlp_of=lambda _: mlp,
        attention_of=lambda layer: attention(fields, qkv_bias=bias, o_bias=bias, qk_norm="head", window=window(layer)),
    )


def _qwen_windows(fields: Fields) -> Callable[[int], int | None]:
    fields.ignore("sliding_window", "layer_types")
    on, first = fields.flag("use_sliding_window"), fields.count("max_window_layers")
    return windows(fields, sliding=lambda layer: layer >= first) if on else lambda layer: None


def gemma(fields: Fields) -> ModelShape:
    bias = fields.flag("attention_bias")
    mlp = MlpShape(fields.integer("intermediate_size"))
    core = attention(fields, qkv_bias=bias, o_bias=bias)
    return decoder(fields, attention_of=lambda _: core, mlp_of=lambda _: mlp)


def gemma2(fields: Fields) -> ModelShape:
    """gemma2 alternates; gemma3 has one full layer in six and norms on queries and keys."""
    third = fields.text("model_type").startswith("gemma3")
    bias = fields.flag("attention_bias")
    every = fields.count("sliding_window_pattern", "_sliding_window_pattern") or (6 if third else 2)
    window = windows(fields, sliding=lambda layer: (layer + 1) % every != 0)
    mlp = MlpShape(fields.integer("intermediate_size"))
    return decoder(
        fields,
        norms=4,
        mlp_of=lambda _: mlp,
        attention_of=lambda layer: attention(
            fields, qkv_bias=bias, o_bias=bias, qk_norm="head" if third else "none", window=window(layer)
        ),
    )


def phi(fields: Fields) -> ModelShape:
    norm = "head" if fields.flag("qk_layernorm") else "none"
    share = rotary_share(fields, 0.5)
    core = attention(fields, qkv_bias=True, o_bias=True, qk_norm=norm, qk_norm_weights=2, rotary_share=share)
    mlp = MlpShape(fields.integer("intermediate_size"), gated=False, bias=True)
    return decoder(
        fields,
        attention_of=lambda _: core,
        mlp_of=lambda _: mlp,
        norms=1,
        norm_weights=2,
        parallel=True,
        head_bias=True,
    )


def phi3(fields: Fields) -> ModelShape:
    window, share = fields.count("sliding_window") or None, rotary_share(fields, 1.0)
    core = attention(fields, fused_qkv=True, window=window, rotary_share=share)
    mlp = MlpShape(fields.integer("intermediate_size"), fused_gate_up=True)
    return decoder(fields, attention_of=lambda _: core, mlp_of=lambda _: mlp)


def gpt2(fields: Fields) -> ModelShape:
    """gpt2 and gpt_bigcode (whose keys and values may be one head's)."""
    bigcode = fields.text("model_type") == "gpt_bigcode"
    shared = 1 if bigcode and fields.flag("multi_query", default=True) else fields.integer(*HEADS)
    core = attention(fields, qkv_bias=True, o_bias=True, fused_qkv=True, kv_heads=shared, rotary_share=0.0)
    positions = fields.integer(*POSITIONS)
    return decoder(
        fields,
        attention_of=lambda _: core,
        mlp_of=lambda _: _four_h(fields),
        norm_weights=2,
        positions=positions,
        max_positions=positions,
    )


def gptj(fields: Fields) -> ModelShape:
    rotary = fields.count("rotary_dim") / head_dim(fields)
    core = attention(fields, kv_heads=fields.integer(*HEADS), rotary_share=min(rotary, 1.0) or 1.0)
    return decoder(
        fields,
        attention_of=lambda _: core,
        mlp_of=lambda _: _four_h(fields),
        norms=1,
        norm_weights=2,
        parallel=True,
        head_bias=True,
        max_positions=fields.optional(*POSITIONS),
    )


def _four_h(fields: Fields) -> MlpShape:
    return MlpShape(fields.optional("n_inner") or 4 * fields.integer(*HIDDEN), gated=False, bias=True)


def gpt_neox(fields: Fields) -> ModelShape:
    bias = fields.flag("attention_bias", default=True)
    share = rotary_share(fields, 0.25, "rotary_pct")
    core = attention(
        fields,
        qkv_bias=bias,
        o_bias=bias,
        fused_qkv=True,
        kv_heads=fields.integer(*HEADS),
        rotary_share=share,
    )
    mlp = MlpShape(fields.integer("intermediate_size"), gated=False, bias=True)
    return decoder(
        fields,
        attention_of=lambda _: core,
        mlp_of=lambda _: mlp,
        norm_weights=2,
        parallel=fields.flag("use_parallel_residual", default=True),
    )


def opt(fields: Fields) -> ModelShape:
    """OPT: positions start at 2; opt-350m embeds in fewer dimensions and norms after each part, so has no last norm."""
    hidden, bias = fields.integer(*HIDDEN), fields.flag("enable_bias", default=True)
    width = fields.optional("word_embed_proj_dim") or hidden
    affine = 2 if fields.flag("layer_norm_elementwise_affine", default=True) else 0
    before = fields.flag("do_layer_norm_before", default=True) and not fields.flag("_remove_final_layer_norm")
    positions = fields.integer(*POSITIONS)
    core = attention(fields, qkv_bias=bias, o_bias=bias, kv_heads=fields.integer(*HEADS), rotary_share=0.0)
    mlp = MlpShape(fields.integer("ffn_dim"), gated=False, bias=bias)
    into = (Linear("project_in", hidden, width),) if width != hidden else ()
    out = (Linear("project_out", width, hidden),) if width != hidden else ()
    return decoder(
        fields,
        attention_of=lambda _: core,
        mlp_of=lambda _: mlp,
        norm_weights=affine,
        final_norm=affine if before else 0,
        positions=positions + 2,
        max_positions=positions,
        embedding_dim=None if width == hidden else width,
        after_embedding=into,
        before_head=out,
    )


def bloom(fields: Fields) -> ModelShape:
    hidden = fields.integer(*HIDDEN)
    core = attention(
        fields, qkv_bias=True, o_bias=True, fused_qkv=True, kv_heads=fields.integer(*HEADS), rotary_share=0.0
    )
    mlp = MlpShape(4 * hidden, gated=False, bias=True)
    return decoder(fields, attention_of=lambda _: core, mlp_of=lambda _: mlp, norm_weights=2, embedding_norm=2)


def falcon(fields: Fields) -> ModelShape:
    heads, new = fields.integer(*HEADS), fields.flag("new_decoder_architecture")
    if new:
        shared = fields.kv_heads(fields.optional("num_kv_heads"), heads, "num_kv_heads")
    else:
        shared = 1 if fields.flag("multi_query", default=True) else heads
    bias, parallel = fields.flag("bias"), fields.flag("parallel_attn", default=True)
    two_norms = not parallel or (fields.optional("num_ln_in_parallel_attn") or (2 if new else 1)) == 2
    core = attention(
        fields,
        qkv_bias=bias,
        o_bias=bias,
        fused_qkv=True,
        kv_heads=shared,
        rotary_share=0.0 if fields.flag("alibi") else 1.0,
    )
    if not fields.flag("alibi"):
        core = replace(core, dropout=0.0)  # the class drops out probabilities beside alibi alone
    width = fields.optional("ffn_hidden_size") or 4 * fields.integer(*HIDDEN)
    mlp = MlpShape(width, gated=False, bias=bias)
    return decoder(
        fields,
        attention_of=lambda _: core,
        mlp_of=lambda _: mlp,
        norms=2 if two_norms else 1,
        norm_weights=2,
        parallel=parallel,
    )


def mpt(fields: Fields) -> ModelShape:
    """MPT: the class's MLP is 4h whatever ``expansion_ratio`` says, and nothing has a bias."""
    core = attention(fields, fused_qkv=True, kv_heads=fields.integer(*HEADS), rotary_share=0.0)
    mlp = MlpShape(4 * fields.integer(*HIDDEN), gated=False)
    return decoder(fields, attention_of=lambda _: core, mlp_of=lambda _: mlp)


def stablelm(fields: Fields) -> ModelShape:
    parallel = fields.flag("use_parallel_residual")
    norm = "full" if fields.flag("qk_layernorm") else "none"
    share = rotary_share(fields, 0.25)
    core = attention(fields, qkv_bias=fields.flag("use_qkv_bias"), qk_norm=norm, rotary_share=share)
    mlp = MlpShape(fields.integer("intermediate_size"))
    return decoder(
        fields,
        attention_of=lambda _: core,
        mlp_of=lambda _: mlp,
        norms=1 if parallel else 2,
        norm_weights=2,
        parallel=parallel,
    )


def starcoder2(fields: Fields) -> ModelShape:
    bias = fields.flag("use_bias", default=True)
    core = attention(fields, qkv_bias=bias, o_bias=bias, window=fields.count("sliding_window") or None)
    mlp = MlpShape(fields.integer("intermediate_size"), gated=False, bias=bias)
    return decoder(fields, attention_of=lambda _: core, mlp_of=lambda _: mlp, norm_weights=2)


def cohere(fields: Fields) -> ModelShape:
    """cohere, and cohere2 with three sliding layers in four: one norm a layer, attention and MLP side by side."""
    second = fields.text("model_type") == "cohere2"
    bias = fields.flag("attention_bias")
    norm = "full" if fields.flag("use_qk_norm") and not second else "none"
    every = fields.count("sliding_window_pattern", "_sliding_window_pattern") or 4
    window = windows(fields, sliding=lambda layer: second and (layer + 1) % every != 0)
    mlp = MlpShape(fields.integer("intermediate_size"))

    def core(layer: int) -> AttentionShape:
        return attention(fields, qkv_bias=bias, o_bias=bias, qk_norm=norm, window=window(layer))

    return decoder(fields, attention_of=core, mlp_of=lambda _: mlp, norms=1, parallel=True)


def olmo(fields: Fields) -> ModelShape:
    """olmo's norms learn nothing; olmo2 norms after each part, and queries and keys as a whole."""
    second, bias = fields.text("model_type") == "olmo2", fields.flag("attention_bias")
    core = attention(fields, qkv_bias=bias, o_bias=bias, qk_norm="full" if second else "none")
    mlp = MlpShape(fields.integer("intermediate_size"))
    return decoder(fields, attention_of=lambda _: core, mlp_of=lambda _: mlp, norm_weights=1 if second else 0)


def glm4(fields: Fields) -> ModelShape:
    share = rotary_share(fields, 0.5)
    core = attention(fields, qkv_bias=fields.flag("attention_bias"), rotary_share=share)
    mlp = MlpShape(fields.integer("intermediate_size"), fused_gate_up=True)
    return decoder(fields, attention_of=lambda _: core, mlp_of=lambda _: mlp, norms=4)
