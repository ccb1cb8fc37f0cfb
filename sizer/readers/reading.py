"""A reader's answer, and the refusal of recipes that leave a model's sizes to another file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from shapes.errors import InputError, shorten
from shapes.frozen import frozen
from shapes.model import ModelShape
from sizer.readers.fields import Fields
from sizer.readers.unread import Unread


@frozen
class Reading:
    """A configuration as read.

    ``keys``: dimension (``DIMENSIONS``) -> its key in the file, nested ones dotted. ``workload``: fields
    of ``Workload`` that the file gives. ``longest``: the sequence to take where nobody says. ``notes``: what a person
    should know of how it was read. ``unread``: keys that matter, or that nobody knows, and were not read. ``asked``:
    the keys that the reader looked for. ``recognised``: no reader knows the type; its transformers class was recognised
    and proven (shapes.trace.prove).
    """

    model: ModelShape
    format: str
    source: str
    keys: Mapping[str, str] = field(default_factory=dict)
    workload: Mapping[str, Any] = field(default_factory=dict)
    longest: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unread: tuple[Unread, ...] = ()
    asked: frozenset[str] = frozenset()
    recognised: bool = False


def reading(fields: Fields, format_name: str, model: ModelShape, **said: Any) -> Reading:
    """The answer of a reader of ``fields``; ``said`` are further fields of Reading."""
    return Reading(model, format_name, fields.where, asked=frozenset(fields.asked), **said)


@frozen
class Source:
    """A configuration to read (a path, a mapping, "-" already read as text) with what the caller says over it.

    ``settings`` replace or add keys of it; ``training`` are files of a trainer's settings, which give the workload.
    """

    config: object
    settings: Mapping[str, Any] = field(default_factory=dict)
    training: tuple[str, ...] = ()
    text: str | None = None


class UnknownModelType(InputError):  # noqa: N818
    """A Hugging Face ``model_type`` that no reader knows; tracing may answer."""


class NoModel(InputError):  # noqa: N818
    """A file that is in none of the formats: some program's settings, perhaps."""


#: Keys under which trainers' recipes name a released model (Axolotl, LLaMA-Factory, TRL, torchtune, llm-foundry).
_NAMES = ("model_name_or_path", "base_model", "pretrained_model_name_or_path", "model_id", "model_name", "_component_")
#: Sizes as every framework calls them: a section that has one of them states a model.
_SIZES = ("hidden_size", "d_model", "n_embd", "dim")
MAX_SECTIONS = 200


def named_elsewhere(config: Mapping[str, Any]) -> str | None:
    """Advice for a file that names a model, or that states one in a section of its own; None for any other."""
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
