"""``--set key=value``: keys of a configuration replaced or added before it is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from shapes.errors import InputError

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
