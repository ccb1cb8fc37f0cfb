"""Meta's ``params.json`` (and torchtitan's model arguments): dim, n_layers, n_heads …"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from sizer.readers.fields import Fields
from sizer.readers.hf_blocks import layer_count
from sizer.readers.reading import Reading

NAME = "meta"

KEYS = {"vocab": "vocab_size", "hidden": "dim", "layers": "n_layers", "heads": "n_heads", "kv_heads": "n_kv_heads"}
#: Llama 1 and 2 ship vocab_size -1, "the tokenizer's": their tokenizer has 32,000 tokens.
LLAMA_VOCAB = 32000


def matches(config: Mapping[str, Any]) -> bool:
    return "dim" in config and "n_layers" in config and "n_heads" in config


def read(config: Mapping[str, Any], where: str) -> Reading:
    """d_ff is ``hidden_dim`` if given, else multiple_of * ceil(multiplier * floor(8 dim / 3) / multiple_of)."""
    fields = Fields(config, where)
    dim, heads, layers = fields.integer("dim"), fields.integer("n_heads"), layer_count(fields, "n_layers")
    kv = fields.kv_heads(fields.optional("n_kv_heads"), heads, "n_kv_heads")
    declared = fields.optional("head_dim")
    if declared is None and dim % heads:
        raise fields.error(f"expected a divisor of dim = {dim}", "n_heads")
    head = declared or dim // heads
    attention = AttentionShape(heads, kv, head, rotary_dim=head)
    block = Block(attention, MlpShape(_width(fields, dim)), count=layers)
    vocab, notes = _vocab(fields)
    model = ModelShape("llama", (Stack("decoder", dim, (block,)),), vocab=vocab)
    keys = {**KEYS, **({"d_ff": "hidden_dim"} if "hidden_dim" in config else {})}
    return Reading(
        model,
        NAME,
        where,
        keys=keys,
        config=config,
        asked=frozenset(fields.asked),
        longest=fields.optional("max_seq_len"),
        notes=notes,
    )


def _width(fields: Fields, dim: int) -> int:
    given = fields.optional("hidden_dim", "intermediate_size")
    if given is not None:
        return given
    step = fields.integer("multiple_of", default=256)
    multiplier = fields.number("ffn_dim_multiplier", default=1.0)
    width = int(multiplier * int(2 * 4 * dim / 3))
    if width < 1:
        raise fields.error("expected a multiplier that leaves a width", "ffn_dim_multiplier")
    return -(-width // step) * step


def _vocab(fields: Fields) -> tuple[int, tuple[str, ...]]:
    size = fields.raw("vocab_size", default=-1)
    if size == -1 and not isinstance(size, bool):
        return LLAMA_VOCAB, (f"vocab_size is the tokenizer's: Llama's {LLAMA_VOCAB} is taken",)
    return fields.integer("vocab_size"), ()
