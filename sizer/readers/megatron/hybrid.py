"""Hybrid models: layers of one part each by a pattern of letters, and layers that carry a state for attention.

Letters and separators are those of megatron/core/models/hybrid/hybrid_layer_allocation.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shapes.model import Block, Linear, MlpShape, MoeShape, RecurrentShape
from sizer.readers.fields import MAX_LAYERS, Fields

NAMES = ("hybrid_layer_pattern", "hybrid_override_pattern")
#: Chunks of tokens in which the scans run: MambaMixer's default, and fla's for a delta rule.
MAMBA_CHUNK, DELTA_CHUNK = 128, 64
_KNOWN = "MG*+-E"
_STRANGE = {"D": "sparse attention"}


def pattern_of(fields: Fields) -> tuple[str, tuple[str, ...]]:
    """(the layers' letters, those of each depth of multi-token prediction), without the bars between stages."""
    text = fields.text(*NAMES)
    if not text and fields.number("hybrid_attention_ratio", "hybrid_mlp_ratio", default=0.0):
        raise fields.error("expected hybrid_layer_pattern, which newer Megatron wants for it", "hybrid_attention_ratio")
    main, *depths = text.split("/")
    own = fields.text("mtp_hybrid_override_pattern")
    depths = [depth for depth in depths if depth] or [own] * (fields.count("mtp_num_layers") if own else 0)
    if len(text) > MAX_LAYERS or len(depths) * len(own) > MAX_LAYERS:
        raise fields.error(f"expected at most {MAX_LAYERS} layers", *NAMES)
    return main.replace("|", ""), tuple(depths)


class HybridParts:
    """The parts that a hybrid model's letters stand for."""

    def __init__(
        self, fields: Fields, core: Any, mlp: MlpShape | None, moe: MoeShape | None, weights: int, dropout: float
    ) -> None:
        self._fields, self._core, self._mlp, self._moe = fields, core, mlp, moe
        self._common: dict[str, Any] = {"norms": 1, "norm_weights": weights, "dropout": dropout}

    def blocks(self, pattern: str) -> list[Block]:
        """A block for each letter."""
        strange = dict.fromkeys(kind for kind in pattern if kind not in _KNOWN)
        if strange or not pattern:
            kinds = ", ".join(_STRANGE.get(kind, repr(kind)) for kind in strange)
            raise self._fields.error(f"has no formula here: {kinds or 'no'} layers", *NAMES)
        made = {letter: self._block(letter) for letter in dict.fromkeys(pattern)}
        return [made[letter] for letter in pattern]

    def _block(self, letter: str) -> Block:
        if letter == "M":
            return Block(None, None, mixer=mamba(self._fields), **self._common)
        if letter == "G":
            return Block(None, None, mixer=delta_net(self._fields, self._common["norm_weights"]), **self._common)
        if letter == "E" and self._moe is None:
            raise self._fields.error("expected num_experts: the pattern has layers of experts", "num_experts")
        part = {"-": self._mlp, "E": self._moe}.get(letter)
        return Block(None if part else self._core, part, **self._common)


def mamba(fields: Fields) -> RecurrentShape:
    """Mamba-2 as MambaMixer builds it: twice the hidden size inside where no number of heads is given."""
    dim = fields.integer("mamba_head_dim", default=64)
    heads, inside = fields.optional("mamba_num_heads"), 2 * fields.integer("hidden_size")
    if heads is None and inside % dim:
        raise fields.error(f"expected a divisor of twice the hidden size, {inside}", "mamba_head_dim")
    heads = heads or inside // dim
    groups = fields.integer("mamba_num_groups", default=8)
    if heads % groups:
        raise fields.error(f"expected a divisor of the {heads} Mamba heads", "mamba_num_groups")
    return RecurrentShape(
        "mamba2",
        heads,
        dim,
        groups,
        fields.integer("mamba_state_dim", default=128),
        MAMBA_CHUNK,
        conv_bias=True,
        norm=heads * dim,
    )


def delta_net(fields: Fields, norm_weights: int) -> RecurrentShape:
    """A gated delta net by Megatron's ``linear_`` arguments."""
    values, keys = (fields.integer(f"linear_num_{part}_heads", default=n) for part, n in (("value", 32), ("key", 16)))
    if values % keys:
        raise fields.error(f"expected a divisor of the {values} value heads", "linear_num_key_heads")
    dim = fields.integer("linear_value_head_dim", default=128)
    return RecurrentShape(
        "gated_delta",
        values,
        dim,
        keys,
        fields.integer("linear_key_head_dim", default=128),
        DELTA_CHUNK,
        conv=fields.integer("linear_conv_kernel_dim", default=4),
        norm=norm_weights * dim,
    )


def predicting(blocks: list[Block], hidden: int) -> list[Block]:
    """A depth of multi-token prediction: norms of the state and of the next embedding and a product of both in front of

    its layers, a norm behind them.
    """
    first = replace(
        blocks[0], norms=blocks[0].norms + 2, before=(Linear("mtp.eh_proj", hidden, 2 * hidden, shard="column"),)
    )
    made = [first, *blocks[1:]]
    return [*made[:-1], replace(made[-1], norms=made[-1].norms + 1)]
