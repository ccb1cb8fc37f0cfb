"""Decoder families of transformers, each a table of families.toml, and what such a table cannot say as functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shapes.model import AttentionShape, Augment, Block, Linear, MlpShape, ModelShape, MoeShape, Stack, run_lengths
from sizer.readers.hf_blocks import (
    EXPERTS,
    TOP_K,
    all_heads,
    head_dim,
    hidden_size,
    latent,
    layer_count,
    listed,
    model_of,
    sliding_where,
)
from sizer.readers.reading import Fields, Values


def qwen_windows(fields: Fields) -> Callable[[int], int | None]:
    fields.ignore("sliding_window", "layer_types", "max_window_layers")
    return late_windows(fields) if fields.flag("use_sliding_window") else lambda layer: None


def mimo_windows(fields: Fields) -> Callable[[int], int | None]:
    """``sliding_window_size`` leaves the query itself out."""
    layers, kinds = layer_count(fields), listed(fields, "layer_types")
    pattern = fields.integers("hybrid_layer_pattern") or [
        int(layer > 0 and (layer + 1) % 6 != 0) for layer in range(layers)
    ]
    slides = [kind == "sliding_attention" for kind in kinds] if kinds else [bool(one) for one in pattern]
    before = fields.optional("sliding_window_size")
    window = before + 1 if before else fields.count("sliding_window") or None
    return lambda layer: window if slides[layer] else None


def late_windows(fields: Fields) -> Callable[[int], int | None]:
    first = fields.count("max_window_layers")
    return sliding_where(fields, lambda layer: layer >= first)


def listed_windows(fields: Fields) -> Callable[[int], int | None]:
    return sliding_where(fields, lambda layer: False)


def gpt_neo_windows(fields: Fields) -> Callable[[int], int | None]:
    """``attention_types``: [[["global", "local"], 12]], the kinds of layers and how often they come."""
    window, types = fields.count("window_size"), fields.raw("attention_types")
    try:
        kinds = [kind for names, times in types for _ in range(times) for kind in names]
    except (TypeError, ValueError):
        kinds = []
    fields.refuse(
        len(kinds) != layer_count(fields), f"expected the kinds of {layer_count(fields)} layers", "attention_types"
    )
    return lambda layer: window if kinds[layer] == "local" else None


def laguna_gate(fields: Fields) -> str:
    return "heads" if fields.raw("gating") in (True, "per-head") else "apart"


def by_layer(fields: Fields, optional: bool = False, **keys: str) -> Callable[[int], dict[str, int]]:
    """Traits of each layer's attention by lists under ``keys``; ``optional``: which may be absent."""
    lists = {trait: fields.integers(key) for trait, key in keys.items()}
    for trait, found in lists.items():
        fields.refuse(
            len(found) != layer_count(fields) and not (optional and not found),
            f"expected a list of {layer_count(fields)} numbers",
            keys[trait],
        )
    return lambda layer: {trait: found[layer] for trait, found in lists.items() if found}


def gemma_windows(fields: Fields) -> Callable[[int], int | None]:
    """All but each sixth layer slide, the last never."""
    last = layer_count(fields) - 1
    seen = sliding_where(fields, lambda layer: (layer + 1) % 6 != 0)
    return lambda layer: None if layer == last else seen(layer)


def gemma_causal(fields: Fields) -> bool:
    return fields.raw("use_bidirectional_attention", default=None) not in (True, "all")


def borrowing(fields: Fields) -> Callable[[int], dict[str, str]]:
    """The last ``num_kv_shared_layers`` take the keys and values of the last layer of their kind before them."""
    first = layer_count(fields) - fields.count("num_kv_shared_layers")
    return lambda layer: {"keys_values": "borrowed"} if layer >= first else {}


#: Of gemma3n's class, where a file has none.
GEMMA3N_WIDTH = 16384


def gemma_widths(fields: Fields) -> list[int]:
    """An MLP's width in each layer: of a list, or of a number, which layers with borrowed keys may double."""
    layers, borrowed = layer_count(fields), fields.count("num_kv_shared_layers")
    if isinstance(fields.raw("intermediate_size", default=GEMMA3N_WIDTH), list):
        widths = fields.integers("intermediate_size")
        fields.refuse(len(widths) != layers, f"expected {layers} numbers", "intermediate_size")
        return widths
    width, doubles = fields.integer("intermediate_size", default=GEMMA3N_WIDTH), fields.flag("use_double_wide_mlp")
    return [width * (2 if doubles and layer >= layers - borrowed else 1) for layer in range(layers)]


def gemma_norms(fields: Fields) -> int:
    return 4 + 3 * fields.flag("enable_moe_block") + (fields.count("hidden_size_per_layer_input") > 0)


def layer_inputs(fields: Fields) -> Augment | None:
    """What goes into each layer in addition to the hidden state."""
    inputs, streams = fields.count("hidden_size_per_layer_input"), fields.count("altup_num_inputs", default=1)
    return Augment(inputs, fields.count("laurel_rank"), streams) if inputs else None


def altup_matrices(fields: Fields) -> tuple[Linear, ...]:
    """Between the embedding (or the last layer) and each further stream."""
    hidden = hidden_size(fields)
    return tuple(Linear("altup.stream", hidden, hidden) for _ in range(1, fields.count("altup_num_inputs")))


def floored_head_dim(fields: Fields) -> int:
    """glm4_moe's class rounds down."""
    return fields.optional("head_dim") or max(1, hidden_size(fields) // all_heads(fields))


def value_steps(fields: Fields) -> tuple[Linear, ...]:
    """A number for each key/value head, of all heads' values, that its attention mask is made of."""
    fields.refuse(fields.flag("is_moe"), "expected false: cross-domain experts have no formula here", "is_moe")
    shared = fields.kv_heads(all_heads(fields), "num_key_value_heads")
    return (Linear("attention.dt_proj", shared, shared * head_dim(fields), fields.flag("attention_bias")),)


def doge_vectors(fields: Fields) -> tuple[tuple[str, int], ...]:
    shared = fields.kv_heads(all_heads(fields), "num_key_value_heads")
    return (("attention.A", shared), ("residuals", 2 * hidden_size(fields)))


def decilm(fields: Fields) -> ModelShape:
    """nemotron-nas: each layer as ``block_configs`` says, with attention, one matrix in its place, or nothing."""
    hidden, heads, layers = hidden_size(fields), all_heads(fields), layer_count(fields)
    given = fields.raw("block_configs")
    if not isinstance(given, list) or len(given) != layers or not all(isinstance(one, dict) for one in given):
        raise fields.error(f"expected a list of {layers} layers", "block_configs")
    fields.ignore("intermediate_size", "num_key_value_heads")
    dim, bias = head_dim(fields), fields.flag("attention_bias")
    plain = AttentionShape(heads, heads, dim, rotary_dim=dim, qkv_bias=bias, o_bias=bias)
    read = [Fields(one, fields.where, prefix=f"block_configs.{layer}.") for layer, one in enumerate(given)]
    blocks = [_decilm_layer(own, plain, hidden, fields.flag("mlp_bias")) for own in read]
    return model_of(fields, Stack("decoder", hidden, run_lengths(blocks)))


def _decilm_layer(own: Fields, plain: AttentionShape, hidden: int, bias: bool) -> Block:
    core, ffn = own.nested("attention"), own.nested("ffn")
    there = {name: part for name, part in (("attention", core), ("mlp", ffn)) if not part.flag("no_op")}
    straight = tuple(
        Linear(f"{name}.linear", hidden, hidden) for name, part in there.items() if part.flag("replace_with_linear")
    )
    mixes, has_mlp = (name in there and not there[name].flag("replace_with_linear") for name in ("attention", "mlp"))
    attention = mlp = None
    if mixes:
        group = core.integer("n_heads_in_group")
        shared = core.quotient(plain.heads, group, f"the {plain.heads} attention heads", "n_heads_in_group")
        attention = replace(plain, kv_heads=shared, window=core.optional("window_length"))
    if has_mlp:
        width = int(2 * ffn.number("ffn_mult") * hidden / 3)
        mlp = MlpShape(-(-width // 256) * 256, bias=bias)
    return Block(attention, mlp, norms=len(there), before=straight)


def longcat(fields: Fields) -> ModelShape:
    """Each layer is two, of latent attention and an MLP; experts read what the first MLP reads.

    Behind some of the router's choices is no expert: ``top_k`` are those of a token that have one, in even routing.
    """
    core, dense = latent(fields)(0), MlpShape(fields.integer("ffn_hidden_size"))
    experts, empty = fields.integer(*EXPERTS), fields.count("zero_expert_num")
    chosen = fields.top_k(experts + empty, *TOP_K) * experts
    width, bias = fields.integer("expert_ffn_hidden_size"), fields.flag("router_bias")
    traits: Values = {"router_bias": bias, "router_dtype": "fp32", "shared": dense, "empty": empty}
    moe = MoeShape(experts, -(-chosen // (experts + empty)), width, **traits)
    blocks = [Block(core, moe), Block(core, dense)] * fields.layers("num_layers")
    return model_of(fields, Stack("decoder", hidden_size(fields), run_lengths(blocks)))


def openelm_widths(fields: Fields) -> list[int]:
    """make_divisible of its code: the nearest multiple of each factor, never a tenth below."""
    factors, step = fields.raw("ffn_multipliers"), fields.integer("ffn_dim_divisor", default=256)
    numbers = isinstance(factors, list) and all(isinstance(one, int | float) and 0 < one < 1e6 for one in factors)
    fields.refuse(
        not numbers or len(factors) != layer_count(fields),
        f"expected a list of {layer_count(fields)} numbers",
        "ffn_multipliers",
    )
    wanted = [factor * hidden_size(fields) for factor in factors]
    near = [max(step, int(one + step / 2) // step * step) for one in wanted]
    return [width + step * (width < 0.9 * one) for width, one in zip(near, wanted, strict=True)]


def gptj_share(fields: Fields) -> float:
    return min(fields.count("rotary_dim") / head_dim(fields), 1.0) or 1.0


def where_it_slides(fields: Fields) -> Callable[[int, int | None], bool]:
    """Layers that attend to everything are not rotated, where others slide."""
    slides = fields.count("sliding_window") > 0
    return lambda _, window: window is not None or not slides


def rope_layers(fields: Fields) -> Callable[[int, int | None], bool]:
    """smollm3: all layers are rotated but the last of each interval, or those with a 0 in ``no_rope_layers``."""
    every, listed = fields.count("no_rope_layer_interval", default=4), fields.integers("no_rope_layers")
    if len(listed) == layer_count(fields):
        return lambda layer, _: bool(listed[layer])
    return lambda layer, _: not every or (layer + 1) % every != 0


def chunk_windows(fields: Fields) -> Callable[[int], int | None]:
    """llama4: the layers that are rotated attend within chunks, the others to everything."""
    rotated = rope_layers(fields)
    return sliding_where(fields, lambda layer: rotated(layer, None))


def periodic_sparse(
    fields: Fields, period: str, offset: str = "", dense: str = "", sparse: str = "", first: str = "", last: str = ""
) -> Callable[[int], bool]:
    """The last layer of each period, or that at an ``offset``, of a range, but those that are listed as ``dense``.

    The arguments are the keys that say so. A list of the ``sparse`` layers says all of it.
    """
    every = fields.count(period, default=1)
    at = fields.count(offset) if offset else every - 1
    without, alone = (fields.integers(key) if key else [] for key in (dense, sparse))
    start, end = fields.count(first) if first else 0, fields.raw(last, default=-1) if last else -1
    end = end if isinstance(end, int) and end >= 0 else layer_count(fields)  # -1: the last
    if alone or not every:
        return lambda layer: layer in alone
    return lambda layer: layer not in without and start <= layer <= end and layer % every == at


def several_sparse(fields: Fields, **keys: str) -> Callable[[int], bool]:
    """As ``periodic_sparse``; jamba's only expert is an MLP."""
    sparse, several = periodic_sparse(fields, **keys), fields.integer(*EXPERTS) > 1
    return lambda layer: several and sparse(layer)


def listed_sparse(fields: Fields, first: int = 1) -> Callable[[int], bool]:
    """The layers that a list says, which may be of numbers or of words; else all from ``first`` on."""
    words, given = listed(fields, "mlp_layer_types"), fields.raw("moe_layers_enum", default=None)
    start = fields.count("first_k_dense_replace", default=first)
    freely = fields.raw("moe_layer_freq", default=None)
    freely = fields.integers("moe_layer_freq") if isinstance(freely, list) else []
    freely = freely or [int(layer >= start) for layer in range(layer_count(fields))]
    sparse = [word == "sparse" for word in words] if words else [bool(one) for one in freely]
    if isinstance(given, str):  # "3,4,5"
        return lambda layer: str(layer) in given.replace(" ", "").split(",")
    return lambda layer: sparse[layer]


def language_tables(fields: Fields) -> tuple[tuple[str, int], ...]:
    number = fields.count("n_langs", default=1) if fields.flag("use_lang_emb", default=True) else 1
    return (("language_embeddings", number * hidden_size(fields)),) if number > 1 else ()


def embedded_width(fields: Fields) -> int | None:
    """opt-350m embeds in fewer dimensions than its layers have."""
    width = fields.optional("word_embed_proj_dim")
    return width if width != hidden_size(fields) else None


def projection(fields: Fields, name: str) -> tuple[Linear, ...]:
    """Between the embedding and the layers, or back: ``project_in`` or ``project_out``."""
    hidden, width = hidden_size(fields), embedded_width(fields)
    if width is None:
        return ()
    return (Linear(name, hidden, width) if name == "project_in" else Linear(name, width, hidden),)
