"""Mixture-of-experts families of transformers."""

from __future__ import annotations

from collections.abc import Callable

from shapes.model import AttentionShape, MlaShape, MlpShape, ModelShape, MoeShape
from sizer.readers.fields import Fields
from sizer.readers.hf_blocks import HEADS, Mlp, attention, decoder, layer_count, rotary_share, windows

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")


def with_experts(fields: Fields, width: int, **traits: object) -> MoeShape:
    """A mixture of the usual names' experts; ``traits`` are further fields of MoeShape."""
    experts, top_k = fields.integer(*EXPERTS), fields.integer(*TOP_K)
    if top_k > experts:
        raise fields.error(f"expected at most the {experts} experts there are", *TOP_K)
    return MoeShape(experts, top_k, width, **traits)  # type: ignore[arg-type]


def mixtral(fields: Fields) -> ModelShape:
    core = attention(fields, window=fields.count("sliding_window") or None)
    moe = with_experts(fields, fields.integer("intermediate_size"))
    return decoder(fields, attention_of=lambda _: core, mlp_of=lambda _: moe)


def minimax_m2(fields: Fields) -> ModelShape:
    fields.ignore("use_qk_norm")
    rotary, dim = fields.count("rotary_dim"), fields.optional("head_dim")
    share = min(rotary / dim, 1.0) if rotary and dim else rotary_share(fields, 1.0)
    core = attention(fields, qk_norm="full", rotary_share=share)
    moe = with_experts(fields, fields.integer("intermediate_size"))
    return decoder(fields, attention_of=lambda _: core, mlp_of=lambda _: moe)


def qwen_moe(fields: Fields) -> ModelShape:
    """qwen2_moe (a gated shared expert, biased q, k, v) and qwen3_moe (neither, but norms on queries and keys)."""
    second = fields.text("model_type") == "qwen2_moe"
    fields.ignore("use_qk_norm", "sliding_window", "shared_expert_intermediate_size")
    bias = fields.flag("qkv_bias", default=True) if second else fields.flag("attention_bias")
    core = attention(fields, qkv_bias=bias, o_bias=bias and not second, qk_norm="none" if second else "head")
    return decoder(fields, attention_of=lambda _: core, mlp_of=sparse_qwen(fields, shared=second))


def sparse_qwen(fields: Fields, *, shared: bool) -> Callable[[int], Mlp]:
    """qwen's MLP of a layer: experts beside a gated shared one, where there is one, or a dense layer."""
    beside = MlpShape(fields.integer("shared_expert_intermediate_size")) if shared else None
    moe = with_experts(fields, fields.integer("moe_intermediate_size"), shared=beside, shared_gate=shared)
    every, dense_layers = fields.count("decoder_sparse_step", default=1), set(fields.integers("mlp_only_layers"))
    dense = MlpShape(fields.integer("intermediate_size"))

    def mlp(layer: int) -> Mlp:
        sparse = layer not in dense_layers and every > 0 and (layer + 1) % every == 0
        return moe if sparse else dense

    return mlp


def deepseek(fields: Fields) -> ModelShape:
    """deepseek_v2, deepseek_v3 and kimi_k2: latent attention, leading dense layers, shared experts as one MLP."""
    fields.ignore("num_key_value_heads", "head_dim")
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
    return decoder(fields, attention_of=lambda _: core, mlp_of=_leading_dense(fields, router_dtype="fp32"))


def glm4_moe(fields: Fields) -> ModelShape:
    norm = "head" if fields.flag("use_qk_norm") else "none"
    share = rotary_share(fields, 0.5)
    core = attention(fields, qkv_bias=fields.flag("attention_bias"), qk_norm=norm, rotary_share=share)
    return decoder(fields, attention_of=lambda _: core, mlp_of=_leading_dense(fields, router_dtype="fp32"))


def _leading_dense(fields: Fields, **traits: object) -> Callable[[int], Mlp]:
    first, bias = fields.count("first_k_dense_replace"), fields.flag("mlp_bias")
    width, number = fields.integer("moe_intermediate_size"), fields.count("n_shared_experts")
    shared = MlpShape(number * width, bias=bias) if number else None
    moe = with_experts(fields, width, shared=shared, **traits)
    dense = MlpShape(fields.integer("intermediate_size"), bias=bias)
    return lambda layer: dense if layer < first else moe


def gpt_oss(fields: Fields) -> ModelShape:
    """gpt-oss: biases everywhere, a learned sink logit a head, every other layer slides."""
    bias = fields.flag("attention_bias", default=True)
    window = windows(fields, sliding=lambda layer: (layer + 1) % 2 == 1)
    moe = with_experts(fields, fields.integer("intermediate_size"), bias=True, router_bias=True)

    def core(layer: int) -> AttentionShape:
        return attention(fields, qkv_bias=bias, o_bias=bias, sinks=True, window=window(layer))

    return decoder(fields, attention_of=core, mlp_of=lambda _: moe)


def llama4(fields: Fields) -> ModelShape:
    """llama4's text tower: experts every ``interleave_moe_layer_step`` layers beside one shared expert as wide."""
    bias, layers = fields.flag("attention_bias"), layer_count(fields)
    fields.ignore("use_qk_norm")  # its norm of queries and keys has no weights
    every = fields.count("interleave_moe_layer_step", default=1) or 1
    listed = fields.integers("moe_layers") or list(range(every - 1, layers, every))
    sparse, width = set(listed), fields.integer("intermediate_size")
    moe = with_experts(fields, width, shared=MlpShape(width))
    dense = MlpShape(fields.integer("intermediate_size_mlp"))
    # Three layers in four attend within chunks; the fourth has no rotary embedding and attends to everything.
    period = fields.count("no_rope_layer_interval", default=4) or 4
    rotary = fields.integers("no_rope_layers")
    flags = rotary if len(rotary) == layers else [int((layer + 1) % period != 0) for layer in range(layers)]
    window = windows(fields, sliding=lambda layer: bool(flags[layer]))

    def core(layer: int) -> AttentionShape:
        share = 1.0 if flags[layer] else 0.0
        return attention(fields, qkv_bias=bias, o_bias=bias, window=window(layer), rotary_share=share)

    return decoder(fields, attention_of=core, mlp_of=lambda layer: moe if layer in sparse else dense)
