"""Parts of which the Hugging Face families are declared: attention, MLPs and experts, layers in order.

A part reads its fields and answers a layer's shape by its index. Any trait of a part or a family may be a function of
the fields (``flag("attention_bias")``), called when a file is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shapes.model import AttentionShape, Block, MlaShape, MlpShape, ModelShape, MoeShape, Stack, run_lengths
from sizer.readers.fields import Fields, table

_NAMES = table("formats")["huggingface"]["dimensions"]
HIDDEN, LAYERS, HEADS = _NAMES["hidden"], _NAMES["layers"], _NAMES["heads"]
EXPERTS, TOP_K = _NAMES["experts"], _NAMES["top_k"]
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
DROPOUT = ("resid_pdrop", "hidden_dropout", "dropout", "residual_dropout")

Attention = AttentionShape | MlaShape
Mlp = MlpShape | MoeShape
Windows = Callable[[Fields], Callable[[int], int | None]]
AttentionPart = Callable[[Fields], Callable[[int], Attention]]
MlpPart = Callable[[Fields], Callable[[int], Mlp]]
Builder = Callable[[Fields], ModelShape]


def flag(name: str, default: bool = False) -> Callable[[Fields], bool]:
    return lambda fields: fields.flag(name, default=default)


def when(name: str, trait: str) -> Callable[[Fields], str]:
    """``trait`` where the flag ``name`` is set, else "none"."""
    return lambda fields: trait if fields.flag(name) else "none"


def rotary_share(default: float, *names: str) -> Callable[[Fields], float]:
    """The share of a head's channels that is rotated, of the classes that read it: in ``rope_parameters`` or not."""

    def share(fields: Fields) -> float:
        nested = fields.raw("rope_parameters", default=None)
        if isinstance(nested, dict) and "partial_rotary_factor" in nested:
            return min(fields.nested("rope_parameters").number("partial_rotary_factor", default=default), 1.0)
        return min(fields.number(*names, "partial_rotary_factor", default=default), 1.0)

    return share


def hidden_size(fields: Fields) -> int:
    return fields.integer(*HIDDEN)


def all_heads(fields: Fields) -> int:
    """Key/value heads of classes that have one for every head and read no key for it."""
    return fields.integer(*HEADS)


def positions(fields: Fields) -> int:
    return fields.integer(*POSITIONS)


def layer_count(fields: Fields) -> int:
    return fields.layers(*LAYERS)


def head_dim(fields: Fields) -> int:
    """The declared head_dim, never re-derived; where absent h / a, which must be whole."""
    declared = fields.optional("head_dim")
    if declared is not None:
        return declared
    hidden, heads = hidden_size(fields), all_heads(fields)
    return fields.quotient(hidden, heads, f"{fields.key_of(*HIDDEN)} = {hidden}, or a head_dim of its own", *HEADS)


def sliding(fields: Fields) -> Callable[[int], int | None]:
    """Every layer slides where a window is set."""
    window = fields.count("sliding_window") or None
    return lambda _: window


def sliding_where(fields: Fields, local: Callable[[int], bool]) -> Callable[[int], int | None]:
    """The layers that ``layer_types`` names slide; without it those that ``local`` says."""
    window = fields.count("sliding_window", "attention_chunk_size") or None
    kinds = fields.strings("layer_types", layer_count(fields))

    def of(layer: int) -> int | None:
        slides = kinds[layer] in ("sliding_attention", "chunked_attention") if kinds else local(layer)
        return window if slides else None

    return of


def all_but_every(period: int, *names: str) -> Windows:
    """All layers slide but the last of each period, which ``names`` may give."""

    def windows(fields: Fields) -> Callable[[int], int | None]:
        every = (fields.count(*names) if names else 0) or period
        return sliding_where(fields, lambda layer: (layer + 1) % every != 0)

    return windows


def told(fields: Fields, traits: dict[str, Any]) -> dict[str, Any]:
    """Traits with those that are functions of the fields worked out."""
    return {name: trait(fields) if callable(trait) else trait for name, trait in traits.items()}


def attention(
    *, windows: Windows | None = None, bias: Any = None, rotary: Any = 1.0, rotates: Any = None, **traits: Any
) -> AttentionPart:
    """Self-attention from the usual fields. ``bias``: of all projections; ``rotary``: the share of a head's channels

    that is rotated (most classes read no key for it); ``rotates``: fields -> (layer, its window) -> whether it rotates
    at all; ``traits``: of AttentionShape, kv_heads among them.
    """

    def part(fields: Fields) -> Callable[[int], Attention]:
        both = {} if bias is None else {"qkv_bias": bias, "o_bias": bias}
        said = told(fields, {"rotary": rotary, **both, **traits})
        heads, dim, share = all_heads(fields), head_dim(fields), said.pop("rotary")
        kv_heads = said.pop("kv_heads", None) or fields.kv_heads(heads, "num_key_value_heads")
        said.setdefault("dropout", fields.number("attention_dropout", "attn_pdrop"))
        shape = AttentionShape(heads, kv_heads, dim, rotary_dim=int(dim * share), **said)
        if windows is None and rotates is None:
            return lambda _: shape
        window, rotated = windows(fields) if windows else lambda _: None, rotates(fields) if rotates else None

        def of(layer: int) -> Attention:
            sees = window(layer)
            turns = rotated is None or rotated(layer, sees)
            return replace(shape, window=sees, rotary_dim=shape.rotary_dim if turns else 0)

        return of

    return part


def mlp(width: Any = lambda fields: fields.integer("intermediate_size"), **traits: Any) -> MlpPart:
    """An MLP in every layer; ``traits`` are further fields of MlpShape."""

    def part(fields: Fields) -> Callable[[int], Mlp]:
        shape = MlpShape(**told(fields, {"width": width, **traits}))
        return lambda _: shape

    return part


def with_experts(fields: Fields, width: int, **traits: Any) -> MoeShape:
    """A mixture of the usual names' experts; ``traits`` are further fields of MoeShape."""
    experts = fields.integer(*EXPERTS)
    return MoeShape(experts, fields.top_k(experts, *TOP_K), width, **traits)


def stack(
    fields: Fields,
    attention: AttentionPart,
    mlp: MlpPart,
    *,
    side: str = "decoder",
    dropout: Any = lambda fields: fields.number(*DROPOUT),
    norms: Any = 2,
    norm_weights: Any = 1,
    parallel: Any = False,
    **traits: Any,
) -> Stack:
    """One stack of layers; ``traits`` are further fields of Stack."""
    common = {"norms": norms, "norm_weights": norm_weights, "parallel": parallel, "dropout": dropout}
    common, traits = told(fields, common), told(fields, traits)
    core, part = attention(fields), mlp(fields)
    blocks = [Block(core(layer), part(layer), **common) for layer in range(layer_count(fields))]
    traits.setdefault("final_norm", common["norm_weights"])
    return Stack(side, hidden_size(fields), run_lengths(blocks), **traits)


_OF_STACK = ("dropout", "norms", "norm_weights", "parallel", "final_norm", "positions", "embedding_norm")


def model_of(fields: Fields, *stacks: Stack, **traits: Any) -> ModelShape:
    """A language model of these stacks; ``traits`` are further fields of ModelShape."""
    traits.setdefault("tied", flag("tie_word_embeddings"))
    return ModelShape(fields.text("model_type"), stacks, vocab=fields.integer("vocab_size"), **told(fields, traits))


def family(attention: AttentionPart, mlp: MlpPart, *, ignored: tuple[str, ...] = (), **traits: Any) -> Builder:
    """A family of decoder-only language models: one stack of layers between an embedding and a head.

    ``traits``: of Block, Stack and ModelShape, where the family differs from llama. ``ignored``: keys that its class
    has no use for.
    """

    def build(fields: Fields) -> ModelShape:
        fields.ignore(*ignored)
        layers = {name: traits[name] for name in _OF_STACK if name in traits}
        model = {name: trait for name, trait in traits.items() if name not in layers}
        return model_of(fields, stack(fields, attention, mlp, **layers), **model)

    return build
