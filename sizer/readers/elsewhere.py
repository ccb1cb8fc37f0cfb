"""Recipes that name a model and leave its sizes to another file: what to give instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shapes.errors import shorten

#: Keys under which trainers' recipes name a released model (Axolotl, LLaMA-Factory, TRL, torchtune, llm-foundry).
_NAMES = ("model_name_or_path", "base_model", "pretrained_model_name_or_path", "model_id", "model_name", "_component_")
#: Sizes as every framework calls them: a section that has one of them states a model.
_SIZES = ("hidden_size", "d_model", "n_embd", "dim")
MAX_SECTIONS = 200


def named_elsewhere(config: Mapping[str, Any]) -> str | None:
    """What to do with a file that names a model, or that states one in a section of its own; None for any other."""
    held = list(_sections(config))
    states = next((name for name, section in held if name and any(key in section for key in _SIZES)), None)
    if states is not None:
        return f"its section {states} states a model in names of its own: give that model's config.json, or its sizes"
    sections = sorted(held, key=lambda one: "model" not in one[0])
    names = ((key, section[key]) for _, section in sections for key in _NAMES if isinstance(section.get(key), str))
    named = next(names, None)
    if named is None:
        return None
    return f"names a model ({named[0]} = {shorten(named[1])}) without its sizes: give that model's config.json"


def _sections(config: Mapping[str, Any], prefix: str = "", depth: int = 3) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield prefix, config
    for key, value in list(config.items())[:MAX_SECTIONS]:
        if isinstance(value, Mapping) and depth:
            yield from _sections(value, f"{prefix}.{key}".lstrip("."), depth - 1)
