"""Hybrid families of transformers: recurrent layers between layers of attention. What hybrids.toml cannot say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shapes.model import RecurrentShape
from sizer.readers.hf_blocks import (
    HEADS,
    NAMES,
    hidden_size,
    layer_count,
    rotary_share,
    told,
)
from sizer.readers.reading import Fields, table

#: Names of layers -> what they are.
_KINDS: dict[str, str] = table("formats")["huggingface"]["layer_kinds"]
#: Groups of heads that share keys and queries, as files call them.
_GROUPS = (*NAMES["linear_key_heads"], *NAMES["state_groups"])


def recurrence(key: str = "", **traits: Any) -> Callable[[Fields], Callable[[int], RecurrentShape]]:
    """A mixer of these traits, each a value or a function of the fields; ``key``: what the file calls its groups."""

    def part(fields: Fields) -> Callable[[int], RecurrentShape]:
        said = told(fields, traits)
        heads, dim = said["heads"], said["head_dim"]
        said["norm"] = {"inner": heads * dim, "head": dim}.get(said.get("norm", 0), 0)
        said["in_proj"] = tuple(map(tuple, said.get("in_proj", ())))
        said["low_rank"] = tuple(said.get("low_rank", ()))
        said = {"groups": heads, "state": dim, **said}
        known = (name for name in _GROUPS if name in fields.config or name in fields.defaults)
        fields.quotient(heads, said["groups"], f"the {heads} heads that keep states", key or next(known, _GROUPS[0]))
        # States are taken to be kept in fp32 (shapes.operators.cores).
        kept = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
        fields.ignore(*(name for name in kept if fields.config.get(name) == "float32"))
        shape = RecurrentShape(**said)
        return lambda _: shape

    return part


def _kinds(fields: Fields, listed: list[str], *names: str) -> list[str]:
    for one in listed:
        fields.refuse(one not in _KINDS, f"expected layers of {', '.join(sorted(_KINDS))}, found {one!r}", *names)
    return [_KINDS[one] for one in listed]


def _layer_kinds(fields: Fields, whole: Callable[[int], bool]) -> list[str]:
    """The layers' kinds as the file lists them, else attention where ``whole`` says."""
    layers, names = layer_count(fields), ("layer_types", "layers_block_type")
    listed = next((found for name in names if (found := fields.strings(name, layers))), None)
    return _kinds(fields, listed or ["attention" if whole(layer) else "mamba" for layer in range(layers)], *names)


def by_period(fields: Fields, every: int, key: str = "", offset: str = "") -> list[str]:
    """Attention in one layer of each period: the last one, or that at ``offset``."""
    period = (fields.optional(key) if key else None) or every
    at = fields.count(offset) if offset else period - 1
    return _layer_kinds(fields, lambda layer: layer % period == at)


def by_list(fields: Fields, key: str = "", otherwise: bool = False) -> list[str]:
    """Attention in the layers that are listed; without a list in all layers, or ``otherwise`` False: in none."""
    listed = key and fields.raw(key, default=None) is not None
    whole = fields.integers(key) if listed else range(layer_count(fields) if otherwise else 0)
    return _layer_kinds(fields, lambda layer: layer in whole)


def both_kinds(fields: Fields) -> list[str]:
    return ["both"] * layer_count(fields)


def inner_width(fields: Fields, expand: str) -> int:
    return int(fields.number(expand, default=2.0) * hidden_size(fields))


def state_head_dim(fields: Fields, heads: str, dim: str, expand: str, inner: str = "") -> int:
    """Channels of a Mamba head: all heads have as many as are ``inner``, or ``expand`` times the hidden size."""
    inside = (fields.optional(inner) if inner else None) or inner_width(fields, expand)
    number, given = fields.integer(heads), fields.raw(dim, default="auto")
    channels = inside // number if given == "auto" else fields.integer(dim)
    fields.refuse(number * channels != inside, f"expected {heads} x {dim} = {inside}", heads)
    return channels


def step_rank(fields: Fields, key: str) -> int:
    """The rank of Mamba-1's time steps."""
    automatic = fields.raw(key, default="auto") == "auto"
    return -(-hidden_size(fields) // 16) if automatic else fields.integer(key)


def listed_parts(fields: Fields) -> list[str]:
    """nemotron_h's layers of one part each: Mamba-2 (M), attention (*), an MLP (-) or experts (E)."""
    pattern = fields.text("hybrid_override_pattern")
    listed = fields.raw("layers_block_type", "layer_types", default=None) or list(pattern)
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise fields.error("expected a list of layer types", "layers_block_type", "layer_types")
    usual = ["linear_attention", "moe", "full_attention", "mlp"]
    return _kinds(fields, listed or usual, "hybrid_override_pattern")


def parts_with_experts(fields: Fields) -> list[bool]:
    return [kind == "moe" for kind in listed_parts(fields)]


def granite_rotary(fields: Fields) -> float:
    return float(fields.text("position_embedding_type") == "rope")


def wherever(fields: Fields, key: str) -> Callable[[int], bool]:
    """In all layers or in none."""
    on = fields.raw(key, default=0) not in (0, None)
    return lambda _: on


def olmo_rotary(fields: Fields) -> float:
    rotated = fields.raw("rope_parameters", default=None)
    return 0.0 if isinstance(rotated, dict) and rotated.get("rope_theta", 0) is None else 1.0


def olmo_linear(fields: Fields, key: str, share: int = 0) -> int:
    """Attention's heads where the file does not say, of three quarters of its channels, values of twice as many."""
    heads = fields.integer(*HEADS)
    return fields.integer(key, default=share * int(0.75 * hidden_size(fields) / heads) or heads)


def kimi_kinds(fields: Fields) -> list[str]:
    own = fields.nested("linear_attn_config")
    whole = own.integers("full_attn_layers")
    own.ignore("kda_layers", "gate_lower_bound")
    return _layer_kinds(fields, lambda layer: layer + 1 in whole if whole else layer > 0 and layer % 4 == 0)


def kimi_latent_norm(fields: Fields) -> list[tuple[str, int]]:
    narrow = fields.optional("routed_expert_hidden_size")
    return [("moe.latent_norm", narrow)] if narrow and fields.flag("latent_moe_use_norm") else []


def minimax_share(fields: Fields) -> float:
    rotary, dim = fields.count("rotary_dim"), fields.optional("head_dim")
    return min(rotary / dim, 1.0) if rotary and dim else rotary_share(1.0)(fields)


def minimax_kinds(fields: Fields) -> list[str]:
    """Every other layer attends, or as MiniMax's files list them."""
    own = fields.integers("attn_type_list")
    whole = own if len(own) == layer_count(fields) else [1, 0] * layer_count(fields)
    return _layer_kinds(fields, lambda layer: bool(whole[layer]))


def lfm2_width(fields: Fields) -> int:
    width = fields.integer("block_ff_dim", "intermediate_size")
    if not fields.flag("block_auto_adjust_ff_dim", default=True):
        return width
    step = fields.integer("block_multiple_of")
    width = int(fields.number("block_ffn_dim_multiplier", default=1.0) * int(2 * width / 3))
    return -(-width // step) * step
