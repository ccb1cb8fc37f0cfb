"""Configurations that are no files: objects that hold a configuration, and ``--set key=value`` over any of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from shapes.errors import InputError

#: What an object's fields are called, under llama's names: for the dataclasses that people write themselves.
_LLAMA = {
    "num_hidden_layers": ("num_hidden_layers", "num_layers", "n_layers", "n_layer"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_kv_heads"),
    "max_position_embeddings": ("max_position_embeddings", "max_seq_len", "seq_length"),
}


def as_llama(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """An object's fields as llama's configuration, where they are llama's own names and say no type; else None."""
    if "model_type" in found or not {"hidden_size", "intermediate_size", "num_attention_heads"} <= found.keys():
        return None
    named = {ours: next((found[name] for name in names if name in found), None) for ours, names in _LLAMA.items()}
    theirs = {name for names in _LLAMA.values() for name in names}
    if named["num_hidden_layers"] is None:
        return None
    rest = {key: value for key, value in found.items() if key not in theirs}
    return {"model_type": "llama", **rest, **{key: value for key, value in named.items() if value is not None}}


def plain_mapping(source: object) -> tuple[Mapping[str, Any], str]:
    """(its keys, what to call it). InputError for an object that holds none."""
    if isinstance(source, Mapping):
        return source, "<dict>"
    named = type(source).__name__
    if callable(getattr(source, "named_parameters", None)):
        # A transformers model knows its own configuration.
        inner = getattr(source, "config", None)
        if inner is not None:
            return plain_mapping(inner)[0], named
        raise InputError("expected example_inputs: the arguments of one forward call", where=named)
    to_dict = getattr(source, "to_dict", None)
    if callable(to_dict) and not isinstance(source, type):
        found = to_dict()
        if isinstance(found, Mapping):
            return found, named
    if dataclasses.is_dataclass(source) and not isinstance(source, type):
        return dataclasses.asdict(source), named
    held = getattr(source, "__dict__", None)
    if held and not isinstance(source, type) and not callable(source):
        return {key: value for key, value in held.items() if not key.startswith("_")}, named
    raise InputError(
        "expected a path, a mapping, a PretrainedConfig, an nn.Module, a dataclass or a namespace, or a ModelShape, "
        f"found {named}",
        key="config",
    )


#: More than anyone types; a value is a number, a word or a short list.
MAX_VALUE = 10_000


def parse_setting(text: str) -> tuple[str, Any]:
    """``key=value`` as (key, value): a JSON value, else the text itself. InputError without a key."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or len(value) > MAX_VALUE:
        raise InputError("expected KEY=VALUE", key="--set", value=text)
    try:
        return key.strip(), json.loads(value)
    except (ValueError, RecursionError):
        words: dict[str, Any] = {"True": True, "False": False, "None": None}
        return key.strip(), words.get(value, value)


def with_settings(
    config: Mapping[str, Any],
    settings: Mapping[str, Any],
    normalised: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
) -> dict[str, Any]:
    """``config`` with ``settings`` over it; a dotted key goes into the mapping it names."""
    changed = dict(config)
    for key, value in normalised(settings).items():
        *parents, last = key.split(".") if key not in changed else [key]
        inner = changed
        for parent in parents:
            below = inner.get(parent)
            inner[parent] = dict(below) if isinstance(below, Mapping) else {}
            inner = inner[parent]
        inner[last] = value
        unknown = changed.get("_unknown")
        if isinstance(unknown, Mapping) and key in unknown:
            changed["_unknown"] = {name: what for name, what in unknown.items() if name != key}
    return changed
