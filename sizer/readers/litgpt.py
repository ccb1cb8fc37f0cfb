"""litgpt ``model_config.yaml``: the products use the padded vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shapes.model import AttentionShape, Block, MlpShape, ModelShape, MoeShape, QkNorm, Stack
from sizer.readers.fields import Fields, table
from sizer.readers.reading import Reading, reading

NAME = "litgpt"

_TABLE = table("formats")[NAME]


def read(config: Mapping[str, Any], where: str, *, fused_qkv: bool = True) -> Reading:
    """Absent keys take ``litgpt.Config``'s defaults. ``fused_qkv``: queries, keys and values are one product."""
    fields = Fields(config, where)
    hidden, heads, layers = fields.integer("n_embd"), fields.integer("n_head"), fields.layers("n_layer")
    norm = 1 if "RMSNorm" in fields.text("norm_class_name", default="LayerNorm") else 2
    if norm == 2 and "OLMo" in fields.text("name"):
        norm = 0  # OLMo's layer norms learn nothing
    second = fields.flag("norm_2", default=True) and not fields.flag("shared_attention_norm")
    norms = fields.flag("norm_1", default=True) + second
    norms += fields.flag("post_attention_norm") + fields.flag("post_mlp_norm")
    block = Block(
        _attention(fields, hidden, heads, fused_qkv),
        _mlp(fields, hidden),
        norms=norms,
        norm_weights=norm,
        parallel=fields.flag("parallel_residual", default=True),
        count=layers,
    )
    stack = Stack("decoder", hidden, (block,), final_norm=norm)
    model = ModelShape(
        "litgpt",
        (stack,),
        vocab=_vocab(fields),
        head_bias=fields.flag("lm_head_bias"),
    )
    return reading(fields, NAME, model, keys=_TABLE["dimensions"], longest=fields.optional("block_size"))


def _attention(fields: Fields, hidden: int, heads: int, fused_qkv: bool) -> AttentionShape:
    groups = fields.kv_heads(heads, "n_query_groups")
    dim = fields.optional("head_size")
    dim = dim or fields.quotient(hidden, heads, f"n_embd = {hidden}, or a head_size", "n_head")
    bias = fields.flag("bias", default=True)
    share = min(fields.number("rotary_percentage", default=0.25), 1.0)
    kind = fields.text("norm_qk_type", default="default")
    normed: QkNorm = ("full" if kind == "olmo2" else "head") if fields.flag("norm_qk") else "none"
    return AttentionShape(
        heads,
        groups,
        dim,
        qkv_bias=bias or fields.flag("attn_bias"),
        o_bias=bias,
        fused_qkv=fused_qkv,
        rotary_dim=int(dim * share),
        window=fields.optional("sliding_window_size"),
        qk_norm=normed,
    )


def _mlp(fields: Fields, hidden: int) -> MlpShape | MoeShape:
    kind, bias = fields.text("mlp_class_name", default="GptNeoxMLP"), fields.flag("bias", default=True)
    gated = kind in _TABLE["gated"]
    width = fields.integer("intermediate_size") if gated else fields.optional("intermediate_size") or 4 * hidden
    if kind != "LLaMAMoE":
        return MlpShape(width, gated=gated, bias=bias)
    experts = fields.integer("n_expert")
    top_k = fields.top_k(experts, "n_expert_per_token")
    return MoeShape(experts, top_k, fields.optional("moe_intermediate_size") or width, bias=bias, fused_gate_up=False)


def _vocab(fields: Fields) -> int:
    padded = fields.optional("padded_vocab_size")
    if padded is not None:
        return padded
    step = fields.integer("padding_multiple", default=512)
    return -(-fields.integer("vocab_size", default=50254) // step) * step
