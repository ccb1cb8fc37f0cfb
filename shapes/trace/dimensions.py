"""A configuration's named dimensions.

The names are ``DIMENSIONS``; what each is called in a configuration is transformers' attribute, which its
``attribute_map`` leads to the key of the file (GPT-2's hidden_size is n_embd).
"""

import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shapes.errors import InputError
from shapes.frozen import Counts, Named, first_of
from shapes.toml_table import DATA, content

#: Names in configurations and model classes.
NAMES = content(DATA / "trace.toml")


def positions(settings: Any) -> int | None:
    """The longest sequence that a PretrainedConfig, or the language model inside it, names."""
    part = getattr(settings, "text_config", None) or settings
    names = NAMES["attributes"]["positions"]
    found = size_in(part, names) or size_in(settings, names)
    return found and found[0]


_VARIES = object()


def _held(settings: Any, attribute: str) -> Any:
    """An attribute of a configuration; ``_VARIES`` for one that transformers refuses since layers differ in it."""
    try:
        return getattr(settings, attribute, None)
    except Exception:  # AmbiguousGlobalPerLayerAttributeError, which not every version of transformers has
        return _VARIES


def size_in(settings: Any, attributes: Iterable[str]) -> tuple[int, str] | None:
    """The first of ``attributes`` that is a plain positive integer, and its name."""
    values = ((_held(settings, attribute), attribute) for attribute in attributes)
    return first_of((value, attribute) for value, attribute in values if type(value) is int and value > 0)


def _sizes_in(part: Any, table: Mapping[str, Iterable[str]]) -> dict[str, tuple[int, str]]:
    return {name: found for name, attributes in table.items() if (found := size_in(part, attributes))}


def named_dimensions(settings: Any) -> tuple[Counts, dict[str, str]]:
    """(dimension -> size, dimension -> key of the file) of a PretrainedConfig or of the language model inside it.

    A key inside another is written ``text_config.hidden_size``. A dimension that the configuration has no plain
    positive integer for, or one that differs from layer to layer, is left out.
    """
    inside = getattr(settings, "hidden_size", None) is None and getattr(settings, "text_config", None)
    prefix, part = ("text_config.", inside) if inside else ("", settings)
    found, recurrent = _sizes_in(part, NAMES["dimensions"]), _sizes_in(part, NAMES["recurrent"])
    if {"linear_value_heads", "state_heads"} & recurrent.keys():
        found |= recurrent
    mapped = getattr(part, "attribute_map", None) or {}
    sizes = {name: size for name, (size, _) in found.items()}
    keys = {name: prefix + str(mapped.get(attribute, attribute)) for name, (_, attribute) in found.items()}
    if {"heads", "hidden"} <= sizes.keys() and sizes["hidden"] % sizes["heads"] == 0:
        _derive("head_dim", sizes["hidden"] // sizes["heads"], sizes, part)
    if "heads" in sizes:
        _derive("kv_heads", sizes["heads"], sizes, part)
    return sizes, keys


def _derive(name: str, size: int, sizes: Counts, part: Any) -> None:
    """Add a size that ``part`` does not name, unless its layers differ in it."""
    if all(_held(part, attribute) is not _VARIES for attribute in NAMES["dimensions"][name]):
        sizes.setdefault(name, size)


def is_known(model_type: str) -> bool:
    """Whether a type may be in transformers' own tables, without it and torch, which take seconds to load."""
    spec = find_spec("transformers")
    if "transformers" in sys.modules or not spec or spec.origin is None:
        return True  # where it is loaded, types may have been added
    tables = [one.read_text("utf-8") for one in Path(spec.origin).parent.glob("models/auto/*.py")]
    return not tables or any(f'"{model_type}"' in one for one in tables)


def unknown_type(config: Named, where: str) -> InputError:
    """The error that says what to do about a type that transformers does not know."""
    if "auto_map" in config:
        expected = "expected a model_type with a class in transformers: code that a configuration names is never run"
        return InputError(expected, "auto_map", config["auto_map"], where)
    expected = (
        f"expected a model_type that transformers {version('transformers')} knows, or the nn.Module itself passed to "
        "sizer.check(module, example_inputs=...)"
    )
    return InputError(expected, "model_type", config.get("model_type"), where)
