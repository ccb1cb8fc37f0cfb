"""Families of transformers whose attention chooses its keys: DeepSeek-V3.2 and V4, GLM-5, MiniMax-M3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shapes.model import Compressor, Indexer, Linear, SharedKeyShape, Streams
from sizer.readers.hf_blocks import Attention, all_heads, attention, hidden_size, latent, layer_count
from sizer.readers.reading import Fields


def _indexer(fields: Fields, **traits: Any) -> Indexer:
    """DeepSeek's lightning indexer, whose queries come from the queries' latent."""
    heads, dim, kept = (fields.integer(f"index_{name}") for name in ("n_heads", "head_dim", "topk"))
    return Indexer(heads, dim, kept, query_rank=fields.integer("q_lora_rank"), **traits)


def chosen_latent(fields: Fields, **traits: Any) -> Callable[[int], Attention]:
    """Latent attention over the keys that an indexer chooses: each layer's own, or the choice of a layer before."""
    core, indexer = latent(fields, **traits)(0), _indexer(fields)
    own = _runs_indexer(fields)
    layers = {one: replace(core, indexer=replace(indexer, reused=not one)) for one in (True, False)}
    return lambda layer: layers[own[layer]]


def _runs_indexer(fields: Fields) -> list[bool]:
    """The layers that run their indexer (GLM-5.2 and later: one in four)."""
    layers = layer_count(fields)
    every = fields.count("index_topk_freq", default=1) or 1
    first = fields.count("index_skip_topk_offset", default=2)
    pattern = fields.raw("index_topk_pattern", default=None)
    words = fields.strings("indexer_types", layers) or (list(pattern) if isinstance(pattern, (str, list)) else [])
    if words:
        fields.refuse(
            len(words) != layers or not {"full", "shared", "F", "S"}.issuperset(words),
            f"expected full or shared for each of the {layers} layers",
            "indexer_types",
        )
        return [word in ("full", "F") for word in words]
    return [max(layer - first + 1, 0) % every == 0 for layer in range(layers)]


def norm_gates(fields: Fields) -> tuple[Linear, ...]:
    """A.X-K2: a gate on a norm's output, of that through few channels."""
    rank, hidden = fields.integer("gated_norm_rank"), hidden_size(fields)
    return Linear("norm_gate.down", rank, hidden), Linear("norm_gate.up", hidden, rank)


def chosen_or_sliding(fields: Fields, **near: int) -> Callable[[int], Attention]:
    """dots3_note: latent attention over chosen keys, and over a window in layers with sizes of their own, which a file

    gives by layer (``per_layer_config``) or as keys of their own (``near``).
    """
    traits: dict[str, Any] = {"gate": "heads", "key_norm": True}
    layers, listed = layer_count(fields), fields.nested("per_layer_config")
    chosen, window = chosen_latent(fields, **traits), fields.count("sliding_window", "sliding_window_size", default=512)
    slides = fields.flag("use_sliding_window", default=True)
    usual = ["sliding_attention" if slides and i > 1 and i % 4 != 1 else "full_attention" for i in range(layers)]
    words = fields.strings("layer_types", layers) or usual
    # Files that list no layers' sizes call those with an indexer full_attention, too.
    dense = "" if fields.flag("use_dsa", default=not listed.config) else "full_attention"
    near["qk_rope_head_dim"] = near["qk_rope_head_dim"] or near["head_dim"] - near["qk_nope_head_dim"]

    def of(layer: int) -> Attention:
        if words[layer] != "sliding_attention":
            return replace(chosen(layer), indexer=None) if words[layer] == dense else chosen(layer)
        given = listed.nested(str(layer)).config if listed.config else near
        own = Fields({**fields.defaults, **fields.config, **given}, fields.where, prefix=f"layer {layer}: ")
        return latent(own, window=window, **traits)(layer)

    return of


def blocks_of_keys(fields: Fields) -> Callable[[int], Attention]:
    """MiniMax-M3: an indexer's heads choose blocks of keys, one head for each key/value head, in the layers listed."""
    layers, inside = layer_count(fields), fields.nested("sparse_attention_config")

    def size(name: str, legacy: str) -> int:
        found = inside.optional(legacy)
        return fields.integer(f"index_{name}") if found is None else found

    indexer = Indexer(
        size("n_heads", "sparse_num_index_heads"),
        size("head_dim", "sparse_index_dim"),
        size("topk_blocks", "sparse_topk_blocks"),
        size("block_size", "sparse_block_size"),
        grouped=True,
    )
    inside.ignore("sparse_local_block", "sparse_init_block", "sparse_score_type", "sparse_disable_index_value")
    words, numbers = fields.strings("layer_types", layers), inside.integers("sparse_attention_freq")
    sparse = [word == "minimax_m3_sparse" for word in words] if words else [bool(one) for one in numbers]
    if not inside.flag("use_sparse_attention", default=True):
        sparse = []
    fields.ignore("use_qk_norm", "partial_rotary_factor", "index_local_blocks")
    gate, share = fields.flag("attention_output_gate"), fields.integer("rotary_dim") / fields.integer("head_dim")
    whole = attention(qk_norm="head", gate="queries" if gate else "none", rotary=share)
    core = whole(fields)(0)
    chosen = replace(core, indexer=indexer)
    return lambda layer: chosen if layer < len(sparse) and sparse[layer] else core


#: The words for layers, and how many tokens their entries stand for (0: a window alone).
_RATES = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def _rates(fields: Fields) -> list[int]:
    """How many tokens each layer's compressed entries stand for."""
    layers = layer_count(fields)
    words, ratios = fields.strings("layer_types", layers), fields.integers("compress_ratios")[:layers]
    default = [128] * min(layers, 2) + [4 if layer % 2 else 128 for layer in range(max(layers - 2, 0))]
    found = [_RATES.get(word, -1) for word in words] if words else ratios or default
    fields.refuse(
        len(found) != layers or not set(_RATES.values()).issuperset(found),
        f"expected 0, 4 or 128 for each of the {layers} layers",
        "layer_types",
        "compress_ratios",
    )
    return found


def shared_keys(fields: Fields) -> Callable[[int], Attention]:
    """DeepSeek-V4: one key that is the value too; a window of them, and compressed ones that an indexer chooses."""
    heads, dim, rates = all_heads(fields), fields.integer("head_dim"), _rates(fields)
    given = fields.optional("qk_rope_head_dim")
    rotary = given or int(dim * fields.number("partial_rotary_factor", default=64 / 512))
    groups, rank = fields.integer("o_groups"), fields.integer("o_lora_rank")
    fields.quotient(heads, groups, f"the {heads} attention heads", "o_groups")
    window = fields.count("sliding_window") or None
    core = SharedKeyShape(heads, dim, fields.integer("q_lora_rank"), groups, rank, window, rotary)
    core = replace(core, dropout=fields.number("attention_dropout"))
    said, shapes = fields.nested("compress_rates"), {0: core}
    for kind, short, usual, series in ((4, "csa", 4, 2), (128, "hca", 128, 1)):
        name = next(word for word, rate in _RATES.items() if rate == kind)
        rate = fields.optional(f"compress_rate_{short}") or said.optional(name) or usual
        shapes[kind] = replace(core, compressor=Compressor(rate, dim, series))
        if series == 2:
            own = Compressor(rate, fields.integer("index_head_dim"), series)
            shapes[kind] = replace(shapes[kind], indexer=_indexer(fields, compressor=own))
    return lambda layer: shapes[rates[layer]]


def streams(fields: Fields) -> Streams:
    """Residual streams of hyper-connections."""
    return Streams(fields.integer("hc_mult"))
