"""Decoder families of transformers, each a table of families.toml, and what such a table cannot say as functions."""

from collections.abc import Callable
from functools import cache
from typing import Any

from shapes.dtypes import next_multiple
from shapes.frozen import Sizes, Texts, replace
from shapes.model import (
    Augment,
    Block,
    Compressor,
    Indexer,
    Linear,
    Linears,
    MlpShape,
    MoeShape,
    RecurrentShape,
    SharedKeyShape,
    Stack,
    run_lengths,
)

from .hf_blocks import (
    EXPERTS,
    NAMES,
    TOP_K,
    Attention,
    Chosen,
    Core,
    Window,
    all_heads,
    attention,
    head_dim,
    hidden_size,
    latent,
    layer_count,
    listed,
    rotary_share,
)
from .reading import FORMATS, Fields, Values

_TABLE = FORMATS["huggingface"]


def gpt_neo_windows(fields: Fields) -> Window:
    """``attention_types``: [[["global", "local"], 12]], the kinds of layers and how often they come."""
    window, types = fields.count("window_size"), fields.required("attention_types")
    try:
        kinds = [kind for names, times in types for _ in range(times) for kind in names]
    except (TypeError, ValueError):
        kinds = []
    fields.refuse(len(kinds) != layer_count(fields), "expected the kind of each layer", "attention_types")
    return lambda layer: window if kinds[layer] == "local" else None


def by_layer(fields: Fields, **keys: str) -> Callable[[int], Sizes]:
    """Traits of each layer's attention by lists under ``keys``."""
    read = cache(fields.integers)  # once: each time checks the whole list
    for key in keys.values():
        fields.refuse(not read(key), "expected a number for each layer", key)
    return lambda layer: {trait: read(key)[layer] for trait, key in keys.items()}


def gemma_widths(fields: Fields) -> list[int]:
    """An MLP's width in each layer: of a list, or of a number, which layers with borrowed keys may double."""
    layers, borrowed = layer_count(fields), fields.count("num_kv_shared_layers")
    if isinstance(fields.raw("intermediate_size") or 0, list):
        return fields.integers("intermediate_size")
    width, doubles = fields.integer("intermediate_size", default=16384), fields.flag("use_double_wide_mlp")
    return [width * (2 if doubles and layer >= layers - borrowed else 1) for layer in range(layers)]


def layer_inputs(fields: Fields) -> Augment | None:
    """The further inputs of each layer, besides the hidden state."""
    inputs, streams = fields.count("hidden_size_per_layer_input"), fields.count("altup_num_inputs", default=1)
    return Augment(inputs, fields.count("laurel_rank"), streams) if inputs else None


def agreed(fields: Fields, of: str, other: str) -> int:
    """A size that two keys say: hunyuan's class reads one of its experts' width, its release's own code another."""
    size = fields.integer(of)
    fields.refuse(fields.config.get(other) and fields.integer(other) != size, f"expected {of} = {size}", other)
    return size


def value_steps(fields: Fields) -> Linears:
    """A number for each key/value head, of all heads' values, that its attention mask is made of."""
    fields.refuse(fields.flag("is_moe"), "expected false: cross-domain experts have no formula here", "is_moe")
    shared = fields.kv_heads(all_heads(fields), "num_key_value_heads")
    return (Linear("attention.dt_proj", shared, shared * head_dim(fields), fields.flag("attention_bias")),)


def decilm(fields: Fields) -> list[Stack]:
    """nemotron-nas: each layer as ``block_configs`` says, with attention, one matrix instead, or neither."""
    hidden, layers = hidden_size(fields), layer_count(fields)
    given = fields.each(layers, "layers", lambda one: isinstance(one, dict), "block_configs")
    plain = attention(fields, bias=fields.flag("attention_bias"), kv_heads=all_heads)(0)
    read = [Fields(one, prefix=f"block_configs.{layer}.") for layer, one in enumerate(given)]
    blocks = [_decilm_layer(own, plain, hidden, fields.flag("mlp_bias")) for own in read]
    return [Stack("decoder", hidden, run_lengths(blocks))]


def _decilm_layer(own: Fields, plain: Attention, hidden: int, bias: bool) -> Block:
    core, ffn = own.nested("attention"), own.nested("ffn")
    there = {name: part for name, part in (("attention", core), ("mlp", ffn)) if not part.flag("no_op")}
    straight = {
        name: Linear(f"{name}.linear", hidden, hidden)
        for name, part in there.items()
        if part.flag("replace_with_linear")
    }
    whole, attention, mlp = there.keys() - straight, None, None
    if "attention" in whole:
        group = core.integer("n_heads_in_group")
        shared = core.quotient(plain.heads, group, f"the {plain.heads} attention heads", "n_heads_in_group")
        attention = replace(plain, kv_heads=shared, window=core.optional("window_length"))
    if "mlp" in whole:
        mlp = MlpShape(next_multiple(int(2 * ffn.number("ffn_mult") * hidden / 3), 256), bias=bias)
    return Block(attention, mlp, norms=len(there), before=(*straight.values(),))


def longcat(fields: Fields) -> list[Stack]:
    """Each layer is two, of latent attention and an MLP; experts read what the first MLP reads.

    Behind some of the router's choices is no expert: ``top_k`` are those of a token that have one, in even routing.
    """
    core = latent(fields)(0)
    dense = MlpShape(fields.integer("ffn_hidden_size"))
    experts = fields.integer(*EXPERTS)
    empty = fields.count("zero_expert_num")
    chosen = fields.top_k(experts + empty, *TOP_K) * experts
    top_k = fields.quotient(
        chosen, experts + empty, f"top_k x experts = {chosen} when added to the {experts} experts", "zero_expert_num"
    )
    moe = MoeShape(
        experts,
        top_k,
        fields.integer("expert_ffn_hidden_size"),
        router_bias=fields.flag("router_bias"),
        router_dtype="fp32",
        shared=dense,
        empty=empty,
    )
    blocks = [Block(core, moe), Block(core, dense)] * fields.layers("num_layers")
    return [Stack("decoder", hidden_size(fields), run_lengths(blocks))]


def openelm_widths(fields: Fields) -> list[int]:
    """make_divisible of its code: the nearest multiple of each factor, never a tenth below."""
    layers, step = layer_count(fields), fields.integer("ffn_dim_divisor", default=256)
    factors = fields.each(
        layers, "numbers", lambda one: isinstance(one, int | float) and 0 < one < 1e6, "ffn_multipliers"
    )
    wanted = [factor * hidden_size(fields) for factor in factors]
    near = [max(step, int(one + step / 2) // step * step) for one in wanted]
    return [width + step * (width < 0.9 * one) for width, one in zip(near, wanted, strict=True)]


def rotated(fields: Fields) -> float:
    """``rotary_dim`` of a head's channels, or the share that other keys say."""
    rotary = fields.count("rotary_dim")
    return min(rotary / head_dim(fields), 1.0) if rotary else rotary_share(fields, 1.0)


def listed_sparse(fields: Fields, first: int = 1) -> Chosen:
    """The layers that a list says, which may be of numbers or of words; else all from ``first`` on."""
    words, given = listed(fields, "mlp_layer_types"), fields.raw("moe_layers_enum")
    start = fields.count("first_k_dense_replace", default=first)
    freely = fields.integers("moe_layer_freq") if isinstance(fields.raw("moe_layer_freq"), list) else []
    sparse = [word == "sparse" for word in words] or freely
    if isinstance(given, str):  # "3,4,5"
        return lambda layer: str(layer) in given.replace(" ", "").split(",")
    return lambda layer: bool(sparse[layer]) if sparse else layer >= start


def chosen_latent(fields: Fields, indexer: Indexer, every: int = 1, **traits: Any) -> Core:
    """Latent attention over the keys that an indexer chooses: each layer's own, or the choice of a layer before."""
    core, own = latent(fields, **traits)(0), _runs_indexer(fields, every)
    layers = {one: replace(core, indexer=replace(indexer, reused=not one)) for one in (True, False)}
    return lambda layer: layers[own[layer]]


def rotated_in_part(fields: Fields, indexer: Indexer, turns: Chosen) -> Core:
    """Mistral Large 4: no queries' latent; layers that do not rotate have heads as wide, of the latent alone."""
    shared = fields.integers("kv_source_layers") not in ([], [*range(layer_count(fields))])
    fields.refuse(shared, "expected each layer's own number: keys of another layer have no formula", "kv_source_layers")
    chosen = chosen_latent(fields, indexer)

    def of(layer: int) -> Attention:
        core = chosen(layer)
        still = {} if turns(layer) else {"qk_nope_head_dim": core.head_dim, "qk_rope_head_dim": 0}
        return replace(core, q_lora_rank=None, **still)

    return of


def _runs_indexer(fields: Fields, every: int) -> list[bool]:
    """The layers that run their indexer (GLM-5.2 and later: one in four)."""
    layers = layer_count(fields)
    every = fields.count("index_topk_freq", default=every) or 1
    first = fields.count("index_skip_topk_offset", default=2)
    if words := fields.strings("indexer_types") or fields.raw("index_topk_pattern"):
        known = (
            isinstance(words, str | list) and len(words) >= layers and {"full", "F", "shared", "S"}.issuperset(words)
        )
        fields.refuse(not known, f"expected full or shared for {layers} layers", "indexer_types", "index_topk_pattern")
        return [word in ("full", "F") for word in words][:layers]
    return [max(layer - first + 1, 0) % every == 0 for layer in range(layers)]


def chosen_or_sliding(fields: Fields, indexer: Indexer, **near: int) -> Core:
    """dots3_note: latent attention over chosen keys, and over a window in layers with sizes of their own.

    A file gives those sizes by layer (``per_layer_config``) or as keys of their own (``near``).
    """
    traits = Values(gate="heads", key_norm=True)
    layers, each = layer_count(fields), fields.nested("per_layer_config")
    named = {one.lstrip("0") or "0": one for one in each.config}
    chosen = chosen_latent(fields, indexer, **traits)
    window = fields.count("sliding_window", "sliding_window_size", default=512)
    slides = fields.flag("use_sliding_window", default=True)
    usual = ["sliding_attention" if slides and i > 1 and i % 4 != 1 else "full_attention" for i in range(layers)]
    words = listed(fields, "layer_types") or usual
    # Files that list no layers' sizes call those with an indexer full_attention, too.
    dense = "" if fields.flag("use_dsa", default=not each.config) else "full_attention"
    near["qk_rope_head_dim"] = near["qk_rope_head_dim"] or near["head_dim"] - near["qk_nope_head_dim"]

    def of(layer: int) -> Attention:
        if words[layer] != "sliding_attention":
            return replace(chosen(layer), indexer=None) if words[layer] == dense else chosen(layer)
        given = each.nested(named.get(str(layer), "")).config if each.config else near
        own = Fields({**fields.defaults, **fields.config, **given}, prefix=f"layer {layer}: ")
        return latent(own, window=window, **traits)(layer)

    return of


def of_listed_layers(fields: Fields, key: str) -> int | None:
    """A size of the layers that attend to everything: as transformers 5.15 and later write it, by layer."""
    each = fields.nested("per_layer_config")
    found, *others = {each.nested(one).optional(key) for one in each.config} or {None}
    fields.refuse(others, f"expected one {key} for all", "per_layer_config")
    return found


def blocks_of_keys(fields: Fields, indexer: Indexer) -> Core:
    """MiniMax-M3: an indexer's heads choose blocks of keys, one head for each key/value head, in the layers listed."""
    inside = fields.nested("sparse_attention_config")
    key = "sparse_attention_freq"
    numbers = inside.raw(key) and inside.integers(key, length=layer_count(fields))
    sparse = inside.flag("use_sparse_attention", default=True) and (
        [word == "minimax_m3_sparse" for word in listed(fields, "layer_types")] or numbers
    )
    gate, share = fields.flag("attention_output_gate"), fields.integer("rotary_dim") / fields.integer("head_dim")
    core = attention(fields, qk_norm="head", gate="queries" if gate else "none", rotary=share)(0)
    chosen = replace(core, indexer=indexer)
    return lambda layer: chosen if sparse and sparse[layer] else core


def _rates(fields: Fields) -> list[int]:
    """How many tokens each layer's compressed entries stand for (0: a window alone)."""
    rates, ratios = _TABLE["rates"], fields.integers("compress_ratios")
    fields.refuse({*ratios}.difference(rates.values()), "expected 0, 4 or 128 for each layer", "compress_ratios")
    ratios = [rates[word] for word in listed(fields, "layer_types")] or ratios
    return ratios or [4 if layer > 1 and layer % 2 else 128 for layer in range(layer_count(fields))]


def shared_keys(fields: Fields, core: SharedKeyShape, indexer: Indexer) -> Core:
    """DeepSeek-V4: one key that is the value too; a window of them, and compressed ones that an indexer chooses."""
    dim, rates, given = core.head_dim, _rates(fields), fields.optional("qk_rope_head_dim")
    rotary = given or int(dim * fields.number("partial_rotary_factor", default=64 / 512))
    fields.quotient(core.heads, core.out_groups, f"the {core.heads} attention heads", "o_groups")
    core = replace(core, window=fields.count("sliding_window") or None, rotary_dim=rotary)
    said, shapes = fields.nested("compress_rates"), {0: core}
    for kind, short, name, series in _TABLE["compressors"]:
        rate = fields.optional(short) or said.optional(name) or kind
        shapes[kind] = replace(core, compressor=Compressor(rate, dim, series))
        if series == 2:
            own = Compressor(rate, indexer.head_dim, series)
            shapes[kind] = replace(shapes[kind], indexer=replace(indexer, compressor=own))
    return lambda layer: shapes[rates[layer]]


#: Groups of heads that share keys and queries, as files call them.
_GROUPS = (*NAMES["linear_key_heads"], *NAMES["state_groups"])


def recurrence(fields: Fields, key: str = "", **traits: Any) -> Callable[[int], RecurrentShape]:
    """A mixer of these traits; ``key``: what the file calls its groups."""
    heads, dim = traits["heads"], traits["head_dim"]
    traits["norm"] = {"inner": heads * dim, "head": dim}.get(traits.get("norm", ""), 0)
    traits["in_proj"] = tuple(map(tuple, traits.get("in_proj", ())))
    traits["low_rank"] = tuple(traits.get("low_rank", ()))
    said = {"groups": heads, "state": dim, **traits}
    known = (name for name in _GROUPS if name in fields.config or name in fields.defaults)
    fields.quotient(heads, said["groups"], f"the {heads} heads that keep states", key or next(known, _GROUPS[0]))
    # States are taken to be kept in fp32 (shapes.operators.cores).
    kept = "mamba_ssm_dtype", "mamba_ssm_cache_dtype"
    fields.ignore(*(name for name in kept if fields.config.get(name) == "float32"))
    shape = RecurrentShape(**said)
    return lambda _: shape


def kinds(fields: Fields, attends: Chosen, word: str = "full_attention") -> Texts:
    """The layers' kinds as the file lists them, else this ``word`` for those that ``attends`` says."""
    usual = [word if attends(layer) else "conv" for layer in range(layer_count(fields))]
    return [_TABLE["layer_kinds"][one] for one in listed(fields, "layer_types", "layers_block_type") or usual]


def state_head_dim(fields: Fields, heads: str, dim: str, expand: str, inner: str = "") -> int:
    """Channels of a Mamba head: all heads have as many as are ``inner``, or ``expand`` times the hidden size."""
    inside = fields.optional(inner) or int(fields.number(expand, default=2.0) * hidden_size(fields))
    number, given = fields.integer(heads), fields.raw(dim, default="auto")
    channels = inside // number if given == "auto" else fields.integer(dim)
    fields.refuse(number * channels != inside, f"expected {heads} x {dim} = {inside}", heads)
    return channels


def listed_parts(fields: Fields) -> Texts:
    """nemotron_h's layers of one part each: Mamba-2 (M), attention (*), an MLP (-) or experts (E)."""
    parts, pattern = _TABLE["layer_parts"], "hybrid_override_pattern"
    given = fields.strings("layers_block_type", "layer_types") or fields.text(pattern, default="ME*-")
    fields.refuse({*given}.difference(parts), f"expected layers of {', '.join(parts)}", pattern)
    return [parts[one] for one in given]


def olmo_rotary(fields: Fields) -> float:
    rotated = fields.raw("rope_parameters")
    return 0.0 if isinstance(rotated, dict) and rotated.get("rope_theta", 0) is None else 1.0
