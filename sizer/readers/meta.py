"""Meta's and Mistral's ``params.json``: dim, n_layers, n_heads …; experts under ``moe_args`` (Llama 4) or ``moe``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shapes.errors import InputError
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, MoeShape, Stack, run_lengths
from sizer.readers.fields import Fields, table
from sizer.readers.reading import Reading, reading

NAME = "meta"

_TABLE = table("formats")[NAME]
#: Llama 1 and 2 ship vocab_size -1, "the tokenizer's": their tokenizer has 32,000 tokens.
LLAMA_VOCAB = 32000
#: Llama 3.2's small models, (dim, n_layers), whose embeddings are tied though their files do not say so.
TIED = ((2048, 16), (3072, 28))


def read(config: Mapping[str, Any], where: str) -> Reading:
    """d_ff is ``hidden_dim`` if given, else multiple_of * ceil(multiplier * floor(8 dim / 3) / multiple_of)."""
    fields = Fields(config, where)
    dim, heads, layers = fields.integer("dim"), fields.integer("n_heads"), fields.layers("n_layers")
    kv = fields.kv_heads(heads, "n_kv_heads")
    for key, what in _TABLE["refused"].items():
        if fields.raw(key, default=None) not in (None, "transformer", -1, 0):
            raise fields.error(f"has no formula here: {what}", key)
    head = fields.optional("head_dim") or fields.quotient(dim, heads, f"dim = {dim}", "n_heads")
    bare, chunk = fields.count("nope_layer_interval"), fields.count("attention_chunk_size", "sliding_window") or None
    dense, moe, every = MlpShape(_width(fields, dim)), *_mixture(fields, dim)

    def block(layer: int) -> Block:
        whole = bool(bare) and (layer + 1) % bare == 0  # no rotation, and all of the keys
        core = AttentionShape(heads, kv, head, rotary_dim=0 if whole else head, window=None if whole else chunk)
        return Block(core, moe if moe is not None and (layer + 1) % every == 0 else dense)

    blocks = run_lengths([block(layer) for layer in range(layers)])
    vocab, notes = _vocab(fields)
    tied = fields.flag("tied_embeddings")
    if "tied_embeddings" not in config and (dim, layers) in TIED and vocab == 128256:
        tied, notes = True, (*notes, "Llama 3.2's embeddings are tied, which the file does not say")
    if any(fields.raw(key, default=None) for key in ("vision_encoder", "vision_args")):
        notes = (*notes, "language model only: the vision encoder is not counted")
    model = ModelShape("llama", (Stack("decoder", dim, blocks),), vocab=vocab, tied=tied)
    keys = _TABLE["dimensions"] | ({"d_ff": "hidden_dim"} if "hidden_dim" in config else {})
    return reading(fields, NAME, model, keys=keys, longest=fields.optional("max_seq_len"), notes=notes)


def _mixture(fields: Fields, dim: int) -> tuple[MoeShape | None, int]:
    """(experts, the period of layers that have them): Mistral's ``moe`` or Llama 4's ``moe_args``."""
    if fields.raw("moe", default=None) is not None:
        moe = fields.nested("moe")
        width = moe.optional("hidden_dim", "expert_hidden_dim") or _width(fields, dim)
        return _experts(moe, moe.integer("num_experts"), moe.integer("num_experts_per_tok"), width), 1
    if fields.raw("moe_args", default=None) is None:
        return None, 1
    moe = fields.nested("moe_args")
    width = int(fields.number("ffn_dim_multiplier", default=1.0) * int(8 * dim / 3))
    if moe.flag("auto_scale_F", default=True):
        # Narrower, so that the experts a token meets and the shared one are as wide as a dense layer's MLP.
        width = int(width / (moe.number("capacity_factor", default=1.0) + 1))
    step = fields.integer("multiple_of", default=256)
    width = -(-width // step) * step
    top_k = moe.integer("top_k", default=1)
    shared = MlpShape(width) if moe.flag("use_shared_expert", default=True) else None
    every = moe.integer("interleave_moe_layer_step", default=1)
    return _experts(moe, moe.integer("num_experts", default=8), top_k, width, shared=shared), every


def _experts(moe: Fields, experts: int, top_k: int, width: int, shared: MlpShape | None = None) -> MoeShape:
    if top_k > experts:
        raise moe.error(f"expected at most the {experts} experts there are", "num_experts_per_tok", "top_k")
    if width < 1:
        raise InputError("expected sizes that leave the experts a width", where=moe.where, key="ffn_dim_multiplier")
    return MoeShape(experts, top_k, width, shared=shared)


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
