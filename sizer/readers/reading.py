"""What a reader answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from shapes.errors import InputError
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
    the keys that the reader looked for.
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


def reading(fields: Fields, format_name: str, model: ModelShape, **said: Any) -> Reading:
    """What ``fields`` were read as; ``said`` are further fields of Reading."""
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
