"""Hybrid families of transformers: recurrent layers (Mamba-2, gated delta nets) between layers of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shapes.model import DELTA_CHUNK, Block, MlpShape, ModelShape, MoeShape, RecurrentShape, Stack, run_lengths
from sizer.readers.fields import Fields
from sizer.readers.hf_blocks import (
    Attention,
    Builder,
    Mlp,
    attention,
    flag,
    hidden_size,
    layer_count,
    mlp,
    model_of,
    rotary_share,
    with_experts,
)
from sizer.readers.hf_decoders import sparse_qwen

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
_BIAS = flag("attention_bias")


def _kinds(fields: Fields, listed: list[str], *names: str) -> list[str]:
    for one in listed:
        if one not in _KINDS:
            raise fields.error(f"expected layers of {', '.join(sorted(_KINDS))}, found {one!r}", *names)
    return [_KINDS[one] for one in listed]


def _layer_types(fields: Fields, usual: Callable[[int], str]) -> list[str]:
    layers, names = layer_count(fields), ("layer_types", "layers_block_type")
    listed = next((found for name in names if (found := fields.strings(name, layers))), None)
    return _kinds(fields, listed or [usual(layer) for layer in range(layers)], *names)


def _model(fields: Fields, blocks: list[Block]) -> ModelShape:
    return model_of(fields, Stack("decoder", hidden_size(fields), run_lengths(blocks)))


def _both(
    fields: Fields, kinds: list[str], core: Attention, mixer: RecurrentShape, mlps: Callable[[int], Mlp]
) -> ModelShape:
    """Layers of a mixer, attention or recurrent, and an MLP each."""
    blocks = [
        Block(core, mlps(layer)) if kind == "attention" else Block(None, mlps(layer), mixer=mixer)
        for layer, kind in enumerate(kinds)
    ]
    return _model(fields, blocks)


def mamba(
    fields: Fields, heads: int, dim: int, groups: int, name: str, state: int, chunk: int, **traits: Any
) -> RecurrentShape:
    """Mamba-2 of so many heads and groups of them, which the key ``name`` says."""
    fields.quotient(heads, groups, f"the {heads} Mamba heads", name)
    return RecurrentShape("mamba2", heads, dim, groups, state, chunk, norm=heads * dim, **traits)


def delta_net(fields: Fields, read: Callable[[str], int], norm_weights: int = 1, **traits: Any) -> RecurrentShape:
    """A gated delta net by its ``linear_`` keys, which ``read`` reads."""
    values, keys, dim = (read(f"linear_{name}") for name in ("num_value_heads", "num_key_heads", "value_head_dim"))
    fields.quotient(values, keys, f"the {values} value heads", "linear_num_key_heads")
    return RecurrentShape(
        "gated_delta",
        values,
        dim,
        keys,
        read("linear_key_head_dim"),
        DELTA_CHUNK,
        conv=read("linear_conv_kernel_dim"),
        norm=norm_weights * dim,
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
    mixer = mamba(
        fields,
        fields.integer("mamba_num_heads"),
        fields.integer("mamba_head_dim"),
        fields.integer("n_groups"),
        "n_groups",
        fields.integer("ssm_state_size"),
        fields.integer("chunk_size"),
        conv=fields.integer("conv_kernel"),
        bias=fields.flag("use_bias"),
        conv_bias=fields.flag("use_conv_bias", default=True),
    )
    bias = fields.flag("mlp_bias")
    dense = MlpShape(fields.integer("intermediate_size"), False, bias)
    moe: MoeShape | None = None
    if "moe" in kinds:
        moe = with_experts(
            fields,
            fields.integer("moe_intermediate_size"),
            gated=False,
            latent=fields.optional("moe_latent_size"),
            bias=bias,
            router_dtype="fp32",
            shared=MlpShape(fields.integer("moe_shared_expert_intermediate_size"), False, bias),
        )
    parts = {
        "recurrent": Block(None, None, mixer=mixer, norms=1),
        "attention": Block(attention(rotary=0.0)(fields)(0), None, norms=1),
        "mlp": Block(None, dense, norms=1),
        "moe": Block(None, moe, norms=1),
    }
    return _model(fields, [parts[kind] for kind in kinds])


def bamba(fields: Fields) -> ModelShape:
    """Mamba-2 layers but where ``attn_layer_indices`` say attention, each with an MLP; half of a head is rotated."""
    indices = fields.integers("attn_layer_indices")
    kinds = ["attention" if layer in indices else "recurrent" for layer in range(layer_count(fields))]
    core = attention(bias=_BIAS, rotary=0.5)(fields)(0)
    return _both(fields, kinds, core, _named_mamba(fields), mlp(bias=flag("mlp_bias"))(fields))


def granite_hybrid(fields: Fields) -> ModelShape:
    """Mamba-2 or attention, then experts (none where there are 0) with a shared MLP."""
    kinds = _layer_types(fields, lambda _: "linear_attention")
    rotated = fields.text("position_embedding_type") == "rope"
    core = attention(bias=_BIAS, rotary=1.0 if rotated else 0.0)(fields)(0)
    shared = MlpShape(fields.integer("shared_intermediate_size"), fused_gate_up=True)
    part: Mlp = shared
    if fields.count("num_local_experts"):
        part = with_experts(fields, fields.integer("intermediate_size"), shared=shared)
    return _both(fields, kinds, core, _named_mamba(fields), lambda _: part)


def _named_mamba(fields: Fields) -> RecurrentShape:
    heads = fields.integer("mamba_n_heads")
    inside = fields.integer("mamba_expand") * hidden_size(fields)
    given = fields.raw("mamba_d_head", default="auto")
    dim = inside // heads if given == "auto" else fields.integer("mamba_d_head")
    if heads * dim != inside:
        raise fields.error(f"expected mamba_n_heads x mamba_d_head = {inside}", "mamba_n_heads")
    return mamba(
        fields,
        heads,
        dim,
        fields.integer("mamba_n_groups"),
        "mamba_n_groups",
        fields.integer("mamba_d_state"),
        fields.integer("mamba_chunk_size"),
        conv=fields.integer("mamba_d_conv"),
        bias=fields.flag("mamba_proj_bias"),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
    )


def qwen3_next(fields: Fields) -> ModelShape:
    """Three gated delta nets for each layer of gated attention, experts with a gated shared one."""
    every = fields.count("full_attention_interval", default=4) or 4
    kinds = _layer_types(fields, lambda layer: "linear_attention" if (layer + 1) % every else "full_attention")
    core = attention(bias=_BIAS, qk_norm="head", gated=True, rotary=rotary_share(0.25))(fields)(0)
    mixer = delta_net(fields, fields.integer, gates_apart=True)
    return _both(fields, kinds, core, mixer, sparse_qwen(shared=True)(fields))


HYBRIDS: dict[str, Builder] = {
    "bamba": bamba,
    "granitemoehybrid": granite_hybrid,
    "nemotron_h": nemotron_h,
    "qwen3_next": qwen3_next,
}
