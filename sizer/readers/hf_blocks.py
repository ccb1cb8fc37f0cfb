"""What every Hugging Face family shares: common field names, layer patterns, blocks in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shapes.model import AttentionShape, Block, MlaShape, MlpShape, ModelShape, MoeShape, Stack
from sizer.readers.fields import Fields

#: More layers than any model has; the pattern of layers is walked, so it must end.
MAX_LAYERS = 10_000

HIDDEN = ("hidden_size", "n_embd", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads",)
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")

Mlp = MlpShape | MoeShape


def layer_count(fields: Fields, *names: str) -> int:
    names = names or LAYERS
    layers = fields.integer(*names)
    if layers > MAX_LAYERS:
        raise fields.error(f"expected at most {MAX_LAYERS} layers", *names)
    return layers


def run_lengths(blocks: list[Block]) -> tuple[Block, ...]:
    """Neighbours that are alike joined into one block with their count."""
    runs: list[Block] = []
    for block in blocks:
        if runs and replace(runs[-1], count=block.count) == block:
            runs[-1] = replace(runs[-1], count=runs[-1].count + block.count)
        else:
            runs.append(block)
    return tuple(runs)


def kv_heads(fields: Fields, *names: str) -> int:
    """Key/value heads; null or absent means one for every head. They must divide the heads."""
    names = names or KV_HEADS
    return fields.kv_heads(fields.optional(*names), fields.integer(*HEADS), *names)


def head_dim(fields: Fields) -> int:
    """The declared head_dim, never re-derived; where absent h / a, which must be whole."""
    declared = fields.optional("head_dim")
    if declared is not None:
        return declared
    hidden, heads = fields.integer(*HIDDEN), fields.integer(*HEADS)
    if hidden % heads:
        raise fields.error(
            f"expected a divisor of {fields.key_of(*HIDDEN)} = {hidden}, or a head_dim of its own", *HEADS
        )
    return hidden // heads


def rotary_share(fields: Fields, default: float, *names: str) -> float:
    """The share of a head's channels that is rotated, of the classes that read it: in ``rope_parameters`` or beside."""
    nested = fields.raw("rope_parameters", default=None)
    if isinstance(nested, dict) and "partial_rotary_factor" in nested:
        return min(fields.nested("rope_parameters").number("partial_rotary_factor", default=default), 1.0)
    return min(fields.number(*names, "partial_rotary_factor", default=default), 1.0)


def attention(fields: Fields, **traits: Any) -> AttentionShape:
    """Self-attention from the usual fields; ``traits`` are further fields of AttentionShape."""
    dim = traits.pop("head_dim", None) or head_dim(fields)
    kv = traits.pop("kv_heads", None) or kv_heads(fields)
    share = traits.pop("rotary_share", 1.0)  # most classes do not read partial_rotary_factor
    dropout = fields.number("attention_dropout", "attn_pdrop", default=0.0)
    return AttentionShape(fields.integer(*HEADS), kv, dim, rotary_dim=int(dim * share), dropout=dropout, **traits)


def decoder(
    fields: Fields,
    *,
    attention_of: Callable[[int], AttentionShape | MlaShape],
    mlp_of: Callable[[int], Mlp],
    norms: int = 2,
    norm_weights: int = 1,
    final_norm: int | None = None,
    parallel: bool = False,
    positions: int = 0,
    embedding_norm: int = 0,
    layer_names: tuple[str, ...] = (),
    **model: Any,
) -> ModelShape:
    """A decoder-only language model: one stack of layers between an embedding and a head."""
    dropout = fields.number("resid_pdrop", "hidden_dropout", "dropout", "residual_dropout", default=0.0)
    blocks = run_lengths(
        [
            Block(
                attention_of(layer),
                mlp_of(layer),
                norms=norms,
                norm_weights=norm_weights,
                parallel=parallel,
                dropout=dropout,
            )
            for layer in range(layer_count(fields, *layer_names))
        ]
    )
    stack = Stack(
        "decoder",
        fields.integer(*HIDDEN),
        blocks,
        positions=positions,
        embedding_norm=embedding_norm,
        final_norm=norm_weights if final_norm is None else final_norm,
    )
    return ModelShape(
        fields.text("model_type"),
        (stack,),
        vocab=fields.integer("vocab_size"),
        tied=fields.flag("tie_word_embeddings"),
        **model,
    )


def windows(fields: Fields, *, sliding: Callable[[int], bool]) -> Callable[[int], int | None]:
    """The attention window of each layer: from ``layer_types`` where given, else where ``sliding(layer)``."""
    window = fields.count("sliding_window", "attention_chunk_size") or None
    kinds = fields.strings("layer_types", layer_count(fields))

    def of(layer: int) -> int | None:
        local = kinds[layer] in ("sliding_attention", "chunked_attention") if kinds else sliding(layer)
        return window if local else None

    return of
