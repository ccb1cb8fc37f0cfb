"""A configuration's named dimensions, and the same configuration with some of them changed.

The names are ``DIMENSIONS``; what each is called in a configuration is transformers' attribute, which its
``attribute_map`` leads to the key of the file (GPT-2's hidden_size is n_embd).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shapes.errors import InputError

_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "vocab": ("vocab_size",),
    "hidden": ("hidden_size", "d_model"),
    "layers": ("num_hidden_layers", "num_layers"),
    "heads": ("num_attention_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "d_ff": ("intermediate_size", "ffn_dim", "n_inner", "d_ff"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "top_k": ("num_experts_per_tok",),
    "expert_d_ff": ("moe_intermediate_size",),
}

#: Sizes of a recurrence (gated delta net, Mamba-2), which are named and not changed; where there are heads of one.
_RECURRENT: dict[str, tuple[str, ...]] = {
    "linear_value_heads": ("linear_num_value_heads",),
    "linear_key_heads": ("linear_num_key_heads",),
    "linear_key_dim": ("linear_key_head_dim",),
    "state_heads": ("mamba_n_heads", "mamba_num_heads"),
    "state_groups": ("mamba_n_groups", "n_groups"),
    "chunk": ("mamba_chunk_size", "chunk_size"),
}


#: What configurations call the longest sequence they were made for.
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")


def positions(settings: Any) -> int | None:
    """The longest sequence that a PretrainedConfig, or the language model inside it, names."""
    part = getattr(settings, "text_config", None) or settings
    found = (getattr(one, name, None) for one in (part, settings) for name in _POSITIONS)
    return next((value for value in found if isinstance(value, int) and value > 0), None)


_VARIES = object()


def held(settings: Any, attribute: str) -> Any:
    """An attribute of a configuration; ``_VARIES`` for one that transformers refuses since layers differ in it."""
    try:
        return getattr(settings, attribute, None)
    except Exception:  # AmbiguousGlobalPerLayerAttributeError, which not every version of transformers has
        return _VARIES


def named_dimensions(settings: Any) -> tuple[dict[str, int], dict[str, str]]:
    """(dimension -> size, dimension -> key of the file) of a PretrainedConfig or of the language model inside it.

    A key inside another is written ``text_config.hidden_size``. A dimension that the configuration has no plain
    positive integer for, or one that differs from layer to layer, is left out.
    """
    prefix, part = "", settings
    if getattr(settings, "hidden_size", None) is None and getattr(settings, "text_config", None) is not None:
        prefix, part = "text_config.", settings.text_config
    sizes: dict[str, int] = {}
    keys: dict[str, str] = {}
    mapped = getattr(part, "attribute_map", None) or {}
    varying: set[str] = set()
    for name, attributes in _ATTRIBUTES.items():
        for attribute in attributes:
            value = held(part, attribute)
            if value is _VARIES:
                varying.add(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                sizes[name], keys[name] = value, prefix + str(mapped.get(attribute, attribute))
                break
    recurrent = {
        name: (value, attribute)
        for name, attributes in _RECURRENT.items()
        for attribute in attributes
        if type(value := held(part, attribute)) is int and value > 0
    }
    if {"linear_value_heads", "state_heads"} & recurrent.keys():
        for name, (value, attribute) in recurrent.items():
            sizes[name], keys[name] = value, prefix + attribute
    whole = {"heads", "hidden"} <= sizes.keys() and sizes["hidden"] % sizes["heads"] == 0
    if "head_dim" not in sizes.keys() | varying and whole:
        sizes["head_dim"] = sizes["hidden"] // sizes["heads"]
    if "kv_heads" not in sizes.keys() | varying and "heads" in sizes:
        sizes["kv_heads"] = sizes["heads"]
    return sizes, keys


def changed_config(settings: Any, change: Mapping[str, int | str]) -> dict[str, Any]:
    """The content of ``settings`` with dimensions changed, and with them those that follow.

    A head_dim that was hidden / heads stays that, and as many key/value heads as heads stay as many, where the file
    has a key for them. Raises InputError for a dimension that the configuration has no key for.
    """
    sizes, keys = named_dimensions(settings)
    full = dict(change)
    if ("heads" in change or "hidden" in change) and "head_dim" not in change and {"heads", "hidden"} <= sizes.keys():
        heads, hidden = int(full.get("heads", sizes["heads"])), int(full.get("hidden", sizes["hidden"]))
        if sizes.get("head_dim") == sizes["hidden"] // sizes["heads"] and "head_dim" in keys and hidden % heads == 0:
            full["head_dim"] = hidden // heads
    if "heads" in change and sizes.get("kv_heads") == sizes["heads"] and "kv_heads" in keys:
        full.setdefault("kv_heads", full["heads"])
    content: dict[str, Any] = settings.to_dict()
    for name, value in full.items():
        if name not in keys:
            raise InputError(f"{settings.model_type} has no key for it", key=name, value=value)
        *parents, key = keys[name].split(".")
        inner = content
        for parent in parents:
            inner = inner[parent]
        inner[key] = value
    return content
