"""Formats that state a model whose parts another reader knows, under their own names: each a table of layouts.json."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from shapes.errors import InputError
from shapes.model.resize import dimensions
from sizer.readers import huggingface
from sizer.readers.fields import Fields, table, tokenizer_size
from sizer.readers.reading import Reading, at

#: What an expression of a table may call: of sizes, whose products stay floats' and integers'.
_CALLS = {"__builtins__": {}, "int": int, "max": max, "min": min}

_ABSENT = object()


def reader(name: str) -> Any:
    """A reader of the format: NAME and read."""
    return SimpleNamespace(NAME=table("layouts")[name].get("known", name), read=partial(read, name))


def read(name: str, config: Mapping[str, Any], where: str) -> Reading:
    """The model that the format's table makes of ``config``, under the names of the file."""
    row = table("layouts")[name]
    outer = fields = Fields(config, where)
    for key in filter(None, row.get("section", "").split(".")):
        fields = fields.nested(key)
    held = opened(row, fields)
    kind = dict(_kind(row, held, fields))
    limits = {**row.get("allowed", {}), **kind.pop("allowed", {})}
    built = {"family": kind.pop("family")} if "family" in kind else {}
    for key, allowed in limits.items():
        if held.get(key) not in (None, *allowed):
            said = row.get("refused", {}).get(key) or f"expected {' or '.join(map(str, allowed)) or 'none'}"
            raise fields.error(f"has no formula here: {said}", key)
    names, through = {**row["names"], **kind}, bool(row.get("through"))
    found, used = expressed(names, held, dict(fields.config) if through else {}, row.get("words", ()))
    asked = {*(row.get("kind") or row["kinds"]), *limits, *used}
    fields.ignore(*(one.replace("__", ".") for one in asked if one))
    _add_vocabulary(found, row, config, fields)
    plain = _plain(names, held)
    plain = {key: key for key in found if through} | plain
    try:
        reading = huggingface.read(found, where, **built)
    except InputError as error:
        key = plain.get(error.key or "", error.key or "").replace("__", ".")
        raise InputError(error.expected, where=where, key=key and fields.prefix + key, value=error.value) from None
    keys = {
        one: key for one in dimensions(reading.model) for key in reversed(huggingface.KEYS.get(one, ())) if key in plain
    }
    further = {fields.prefix + key for key in reading.asked} if through else set()
    return replace(
        reading,
        format=name,
        source=where,
        keys={one: fields.prefix + plain[key].replace("__", ".") for one, key in keys.items()},
        notes=(*reading.notes, *(said for key, said in row.get("unless", {}).items() if not found.get(key, True))),
        workload={**reading.workload, **_workload(row, config)},
        asked=frozenset({*outer.asked, *further, *row.get("workload", {}).values(), *row.get("tokenizer", ())}),
        unread=(),
    )


def opened(row: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """The file's keys with values over the row's defaults, those of its ``sections`` as section__key.

    Keys that the row has ``checked`` are of their kind: an expression passes over what it cannot take.
    """
    for key, kind in row.get("checked", {}).items():
        getattr(fields, kind)(key)
    held = {**row.get("defaults", {}), **{key: one for key, one in fields.config.items() if one is not None}}
    for section in filter(held.get, row.get("sections", ())):
        inner = fields.nested(section).config
        held |= {f"{section}__{key}": one for key, one in inner.items() if one is not None}
    return held


def expressed(
    names: Mapping[str, str], held: Mapping[str, Any], found: dict[str, Any], words: Collection[str]
) -> tuple[dict[str, Any], set[str]]:
    """(the other reader's keys with values, over what is ``found`` already; which keys of the file were asked)."""
    used: set[str] = set()
    for ours, said in names.items():
        value = _value(said, {**found, **held}, used, words)
        if value is not _ABSENT:
            found[ours] = value
    return found, used


def _plain(names: Mapping[str, str], held: Mapping[str, Any]) -> dict[str, str]:
    """The file's key for each of the other reader's that one key alone gives: the first, or the one that it has."""
    said = {ours: one.split(" | ") for ours, one in names.items()}
    first = {ours: one for ours, keys in said.items() for one in reversed(keys) if one.isidentifier()}
    return first | {ours: one for ours, keys in said.items() for one in reversed(keys) if one in held}


def _add_vocabulary(found: dict[str, Any], row: Mapping[str, Any], config: Mapping[str, Any], fields: Fields) -> None:
    """The vocabulary's size from a tokenizer that the file names; InputError where neither is known."""
    tokenizer = next((name for name in row.get("tokenizer", ()) if isinstance(at(config, name), str)), None)
    if tokenizer and found.get("vocab_size") is None and (size := tokenizer_size(at(config, tokenizer))):
        found["vocab_size"] = size
    if found.get("vocab_size", -1) == -1:
        expected = f"expected this key: its tokenizer's size is not known; --set {fields.prefix}vocab_size=N"
        raise fields.error(expected, "vocab_size")


def _workload(row: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, int]:
    sizes = {ours: at(config, theirs) for ours, theirs in row.get("workload", {}).items()}
    return {key: int(size) for key, size in sizes.items() if type(size) in (int, float) and 1 <= size < 2**40}


def _kind(row: Mapping[str, Any], held: Mapping[str, Any], fields: Fields) -> Mapping[str, Any]:
    """The names that are of this kind of model alone: by the values of keys, or by the flag that is set."""
    kinds: Mapping[str, Mapping[str, Any]] = row["kinds"]
    keys = row.get("kind", ())
    said = " ".join(str(held.get(key)).lower() for key in keys) if keys else next(filter(held.get, kinds), "")
    if said not in kinds:
        found = f" ({said})" if said else ""
        raise fields.error(f"has no formula here{found}: expected one of {', '.join(kinds)}", *(keys or kinds))
    return kinds[said]


def _value(said: str, held: Mapping[str, Any], used: set[str], words: Collection[str]) -> Any:
    """The first of the alternatives whose names the file has: a key, or an expression of keys (``4 * dim``)."""
    for one in said.split(" | "):
        if one.isidentifier():
            used.add(one)
            if one in held:
                return held[one]
            continue
        numbers = {key: value for key, value in held.items() if isinstance(value, int | float) and abs(value) < 2**40}
        numbers |= {key: held[key] for key in words if isinstance(held[key], str | Mapping)}
        code = compile(one, "layouts.json", "eval")
        used.update(set(code.co_names) - _CALLS.keys())
        try:
            return eval(code, _CALLS, numbers)  # the table's own expression, of the file's numbers
        except (NameError, ArithmeticError, TypeError):
            continue
    return _ABSENT
