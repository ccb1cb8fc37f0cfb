"""The workload's fields under both their spellings: the literature's letters inside, words for people.

The one place where they are translated: ``check(config, tp=8)`` and ``--tp 8`` are ``Workload(t=8)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from shapes.errors import InputError
from shapes.workload import Workload

#: A field of ``Workload`` -> what people call it, as reports and options do; the others go by their own names.
WORDS: dict[str, str] = {
    "b": "microbatch",
    "s": "sequence",
    "t": "tp",
    "p": "pp",
    "d": "dp",
    "e": "ep",
    "decoder_s": "decoder_sequence",
}

_LETTERS = {word: letter for letter, word in WORDS.items()}
WORKLOAD_FIELDS = tuple(field.name for field in fields(Workload))


def option_of(field: str) -> str:
    """The command-line option of a field: t -> --tp, zero -> --zero."""
    return "--" + WORDS.get(field, field).replace("_", "-")


def workload_fields(asked: Mapping[str, Any]) -> dict[str, Any]:
    """``asked`` under the fields' own names. InputError for a name that is none, and for one given in both spellings.

    >>> workload_fields({"tp": 8, "b": 1})
    {'t': 8, 'b': 1}
    """
    found: dict[str, Any] = {}
    for name, value in asked.items():
        field = _LETTERS.get(name, name)
        if field not in WORKLOAD_FIELDS:
            known = (f"{one} ({WORDS[one]})" if one in WORDS else one for one in sorted(WORKLOAD_FIELDS))
            raise InputError(f"expected one of {', '.join(known)}", key=name, value=value)
        if field in found:
            raise InputError(f"expected {field} or {WORDS[field]}, not both", key=name, value=value)
        found[field] = value
    return found
