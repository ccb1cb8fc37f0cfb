"""Hybrid families of transformers: recurrent layers (Mamba-2, gated delta nets) between layers of attention."""

from __future__ import annotations

from collections.abc import Callable

from shapes.model import AttentionShape, Block, MlpShape, ModelShape, MoeShape, RecurrentShape, Stack
from sizer.readers.fields import Fields
from sizer.readers.hf_blocks import HIDDEN, Mlp, attention, layer_count, rotary_share, run_lengths
from sizer.readers.hf_moe import sparse_qwen, with_experts

#: Names of layers, of transformers 5 and before; the letters are nemotron_h's.
_KINDS = {
    "linear_attention": "recurrent",
    "mamba": "recurrent",
    "M": "recurrent",
    "full_attention": "attention",
    "attention": "attention",
    "*": "attention",
    "mlp": "mlp",
    "-": "mlp",
    "moe": "moe",
    "E": "moe",
}
#: Tokens of a chunk in transformers' ``chunk_gated_delta_rule`` and in fla's.
DELTA_CHUNK = 64


def _kinds(fields: Fields, listed: list[str], *names: str) -> list[str]:
    for one in listed:
        if one not in _KINDS:
            raise fields.error(f"expected layers of {', '.join(sorted(_KINDS))}, found {one!r}", *names)
    return [_KINDS[one] for one in listed]


def _layer_types(fields: Fields, usual: Callable[[int], str]) -> list[str]:
    layers = layer_count(fields)
    listed = next(
        (found for name in ("layer_types", "layers_block_type") if (found := fields.strings(name, layers))), None
    )
    return _kinds(fields, listed or [usual(layer) for layer in range(layers)], "layer_types", "layers_block_type")


def _model(fields: Fields, blocks: list[Block]) -> ModelShape:
    stack = Stack("decoder", fields.integer(*HIDDEN), run_lengths(blocks))
    return ModelShape(
        fields.text("model_type"),
        (stack,),
        vocab=fields.integer("vocab_size"),
        tied=fields.flag("tie_word_embeddings"),
    )


def _both(
    fields: Fields, kinds: list[str], core: AttentionShape, mixer: RecurrentShape, mlps: Callable[[int], Mlp]
) -> ModelShape:
    """Layers of a mixer, attention or recurrent, and an MLP each."""
    blocks = [
        Block(core, mlps(layer)) if kind == "attention" else Block(None, mlps(layer), mixer=mixer)
        for layer, kind in enumerate(kinds)
    ]
    return _model(fields, blocks)


def _mamba(
    fields: Fields, heads: int, dim: int, groups: str, state: str, conv: str, chunk: str, **traits: bool
) -> RecurrentShape:
    shared = fields.integer(groups)
    if heads % shared:
        raise fields.error(f"expected a divisor of the {heads} Mamba heads", groups)
    return RecurrentShape(
        "mamba2",
        heads,
        dim,
        shared,
        fields.integer(state),
        fields.integer(chunk),
        conv=fields.integer(conv),
        norm=heads * dim,
        **traits,
    )


def nemotron_h(fields: Fields) -> ModelShape:
    """Layers of one part each by a pattern: Mamba-2 (M), attention (*), an MLP (-) or experts (E)."""
    pattern = fields.text("hybrid_override_pattern")
    listed = fields.raw("layers_block_type", "layer_types", default=None) or list(pattern)
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise fields.error("expected a list of layer types", "layers_block_type", "layer_types")
    fields.ignore("num_hidden_layers", "expand", "mamba_expand", "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    kinds = _kinds(fields, listed or ["linear_attention", "moe", "full_attention", "mlp"], "hybrid_override_pattern")
    core = attention(fields, rotary_share=0.0)
    mixer = _mamba(
        fields,
        fields.integer("mamba_num_heads"),
        fields.integer("mamba_head_dim"),
        "n_groups",
        "ssm_state_size",
        "conv_kernel",
        "chunk_size",
        bias=fields.flag("use_bias"),
        conv_bias=fields.flag("use_conv_bias", default=True),
    )
    bias = fields.flag("mlp_bias")
    dense = MlpShape(fields.integer("intermediate_size"), False, bias)
    moe: MoeShape | None = None
    if "moe" in kinds:
        beside = MlpShape(fields.integer("moe_shared_expert_intermediate_size"), False, bias)
        moe = with_experts(
            fields,
            fields.integer("moe_intermediate_size"),
            gated=False,
            latent=fields.optional("moe_latent_size"),
            bias=bias,
            router_dtype="fp32",
            shared=beside,
        )
    parts = {
        "recurrent": Block(None, None, mixer=mixer, norms=1),
        "attention": Block(core, None, norms=1),
        "mlp": Block(None, dense, norms=1),
        "moe": Block(None, moe, norms=1),
    }
    return _model(fields, [parts[kind] for kind in kinds])


def bamba(fields: Fields) -> ModelShape:
    """Mamba-2 layers but where ``attn_layer_indices`` say attention, each with an MLP; half of a head is rotated."""
    indices = set(fields.integers("attn_layer_indices"))
    kinds = ["attention" if layer in indices else "recurrent" for layer in range(layer_count(fields))]
    core = attention(fields, qkv_bias=(bias := fields.flag("attention_bias")), o_bias=bias, rotary_share=0.5)
    mlp = MlpShape(fields.integer("intermediate_size"), bias=fields.flag("mlp_bias"))
    return _both(fields, kinds, core, _named_mamba(fields), lambda _: mlp)


def granite_hybrid(fields: Fields) -> ModelShape:
    """Mamba-2 or attention, then experts (none where there are 0) beside a shared MLP."""
    kinds = _layer_types(fields, lambda _: "linear_attention")
    rotated = fields.text("position_embedding_type") == "rope"
    bias = fields.flag("attention_bias")
    core = attention(fields, qkv_bias=bias, o_bias=bias, rotary_share=1.0 if rotated else 0.0)
    shared = MlpShape(fields.integer("shared_intermediate_size"), fused_gate_up=True)
    mlp: Mlp = shared
    if fields.count("num_local_experts"):
        mlp = with_experts(fields, fields.integer("intermediate_size"), shared=shared)
    return _both(fields, kinds, core, _named_mamba(fields), lambda _: mlp)


def _named_mamba(fields: Fields) -> RecurrentShape:
    heads = fields.integer("mamba_n_heads")
    inside = fields.integer("mamba_expand") * fields.integer(*HIDDEN)
    given = fields.raw("mamba_d_head", default="auto")
    dim = inside // heads if given == "auto" else fields.integer("mamba_d_head")
    if heads * dim != inside:
        raise fields.error(f"expected mamba_n_heads x mamba_d_head = {inside}", "mamba_n_heads")
    return _mamba(
        fields,
        heads,
        dim,
        "mamba_n_groups",
        "mamba_d_state",
        "mamba_d_conv",
        "mamba_chunk_size",
        bias=fields.flag("mamba_proj_bias"),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
    )


def qwen3_next(fields: Fields) -> ModelShape:
    """Three gated delta nets for each layer of gated attention, experts beside a gated shared one."""
    every = fields.count("full_attention_interval", default=4) or 4
    kinds = _layer_types(fields, lambda layer: "linear_attention" if (layer + 1) % every else "full_attention")
    bias = fields.flag("attention_bias")
    core = attention(
        fields, qkv_bias=bias, o_bias=bias, qk_norm="head", gated=True, rotary_share=rotary_share(fields, 0.25)
    )
    values, keys = fields.integer("linear_num_value_heads"), fields.integer("linear_num_key_heads")
    if values % keys:
        raise fields.error(f"expected a divisor of the {values} value heads", "linear_num_key_heads")
    dim = fields.integer("linear_value_head_dim")
    mixer = RecurrentShape(
        "gated_delta",
        values,
        dim,
        keys,
        fields.integer("linear_key_head_dim"),
        DELTA_CHUNK,
        conv=fields.integer("linear_conv_kernel_dim"),
        norm=dim,
        gates_apart=True,
    )
    return _both(fields, kinds, core, mixer, sparse_qwen(fields, shared=True))
