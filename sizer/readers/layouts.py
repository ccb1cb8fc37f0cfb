"""Formats that state a model whose parts another reader knows, under their own names: each a table of layouts.json."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from shapes.errors import InputError
from shapes.frozen import Names, Words, given, replace
from shapes.model.resize import dimensions

from . import huggingface
from .expressions import check_allowed, expressed, flat, notes_of, workload
from .reading import Config, Fields, Reading, Values, at, did_you_mean, table, tokenizer_size


def reader(name: str) -> Any:
    """A reader of the format: NAME and read."""
    row = table("layouts")[name]
    return SimpleNamespace(NAME=row.get("known", name), read=partial(read_named if "model" in row else read, name))


def read_named(name: str, config: Config, where: str) -> Reading:
    """A model that the file names in a table of sizes, or whose sizes are in a section of it, and its training."""
    row, fields = table("layouts")[name], Fields(config)
    held = flat(row["defaults"] | given(config))
    check_allowed(row, held, fields)
    inline = row.get("given", "")
    sizes = fields.nested(inline).config if config.get(inline) else _named(row["model"], fields)
    more, used = expressed(row.get("names", {}), held, {})
    fields.ignore(inline, *used)
    reading = (partial(read, row["like"]) if "like" in row else huggingface.read)({**sizes, **more}, where)
    settled, notes = workload(row, {**held, "layers": reading.model.layers}, fields)
    return replace(
        reading,
        format=name,
        workload=settled,
        notes=(*reading.notes, *notes),
        keys={},
        unread=(),
        asked=frozenset(fields.asked),
        longest=reading.longest if inline else None,
    )


def _named(said: Sequence[str], fields: Fields) -> Config:
    """The sizes of the model that keys name one after another, by its folder's name where they name one."""
    file, *keys = said
    held = table(file)["models"]
    for spelled in keys:
        key = next((one for one in spelled.split("|") if at(fields.config, one)), spelled)
        name = Path(str(at(fields.config, key) or "")).name
        fields.ignore(key)
        plain, known = re.sub("(_(flex|varlen)(_attn)?)+$", "", name).lower(), {one.lower(): one for one in held}
        if plain not in known:
            near = did_you_mean(plain, known)
            guess = f"did you mean {known[near]}?" if near else f"expected one of {', '.join(list(held)[:20])}"
            raise InputError(f"is no model that is known here: {guess}", key, name)
        held = held[known[plain]]
    return {**held, "name": name}


def read(name: str, config: Config, where: str) -> Reading:
    """The model that the format's table makes of ``config``, under the names of the file."""
    row = table("layouts")[name]
    outer = fields = Fields(config)
    for key in filter(None, row.get("section", "").split(".")):
        fields = fields.nested(key)
    called = f"{at(config, 'name')} {at(config, 'run.name')} {[*fields.config]}"
    for one, what in row.get("others", {}).items():
        outer.refuse(one in called, f"has no formula here: {what}", "name")
    usual = row.get("defaults", {})
    held = usual | flat(config) | flat(fields.config) | given(fields.config)
    kind = dict(_kind(row, held, fields))
    # An expression passes over what it cannot take.
    for key, what in row.get("checked", {}).items():
        if what != "nested" or fields.config.get(key):
            getattr(fields, what)(key)
    limits = row.get("allowed", {}) | kind.pop("allowed", {})
    built = {"family": kind.pop("family")} if "family" in kind else {}
    check_allowed(row | {"allowed": limits}, held, fields)
    names, through = row["names"] | kind, bool(row.get("through"))
    found, used = expressed(names, held, dict(fields.config) if through else {})
    asked = {*(row.get("kind") or row["kinds"]), *limits, *used}
    fields.ignore(*(one.replace("__", ".") for one in asked if one))
    builder: Any = import_module(f"sizer.readers.{row['builder']}") if "builder" in row else huggingface
    for key, said in row.get("needed", {}).items():
        fields.refuse(key not in found, said, key)
    taken = _add_vocabulary(found, row, config, fields) if builder is huggingface else ()
    plain = {**{key: key for key in found if through}, **_plain(names, held)}
    spelled = {ours: fields.prefix + key.replace("__", ".") for ours, key in plain.items()}
    try:
        reading: Reading = builder.read(found, where, **built)
    except InputError as error:
        raise _in_file_terms(error, spelled, fields) from None
    sizes = ((one, key) for one in dimensions(reading.model) for key in reversed(builder.KEYS.get(one, ())))
    settled, notes = workload(row, flat(usual | given(config)), outer)
    further = {fields.prefix + key for key in reading.asked} if through else set()
    return replace(
        reading,
        format=name,
        source=where,
        keys={one: spelled[key] for one, key in sizes if key in spelled},
        notes=(*reading.notes, *taken, *notes_of(row, found), *notes),
        workload={**reading.workload, **settled},
        asked=frozenset({*outer.asked, *further, *row.get("tokenizer", ())}),
        unread=(),
        pixels=found.get("token_side", 0),
    )


def _in_file_terms(error: InputError, spelled: Words, fields: Fields) -> InputError:
    """Another reader's error, with its key as the file spells it."""
    key = error.key and spelled.get(error.key, fields.prefix + error.key.replace("__", "."))
    expected = re.sub(
        r"--set (\w*)",
        lambda found: f"--set {key if found[1] == error.key else fields.prefix + found[1]}",
        error.expected,
    )
    return InputError(expected, key, error.value)


def _plain(names: Words, held: Config) -> Words:
    """The other reader's keys that one key of the file alone gives: each with that key.

    Of its spellings the one that the file has, that of the same name first; where it has none, the first.
    """
    said = ((ours, sorted(filter(str.isidentifier, one.split(" | ")), key=ours.__ne__)) for ours, one in names.items())
    return {ours: next((one for one in keys if one in held), keys[0]) for ours, keys in said if keys}


def _add_vocabulary(found: Values, row: Config, config: Config, fields: Fields) -> Names:
    """The vocabulary's size from a tokenizer that the file names, and a note; InputError where neither is known."""
    said = (at(config, name) for name in row.get("tokenizer", ()))
    tokenizer = next((name for name in said if isinstance(name, str)), row.get("usual_tokenizer", ""))
    if found.get("vocab_size") is None and (size := tokenizer_size(tokenizer)):
        found["vocab_size"] = size
        return (f"no vocab_size: {size:,} tokens of {tokenizer} are taken",)
    fields.refuse(
        found.get("vocab_size", -1) == -1,
        f"expected this key: its tokenizer's size is not known; --set {fields.prefix}vocab_size=N",
        "vocab_size",
    )
    return ()


def _kind(row: Config, held: Config, fields: Fields) -> Config:
    """The names of this kind of model: chosen by the values of keys, or by the flag that is set."""
    kinds: Mapping[str, Config] = row["kinds"]
    keys = row.get("kind", ())
    said = " ".join(str(held.get(key)).lower() for key in keys) if keys else next(filter(held.get, kinds), "")
    known = row.get("known_kinds") or f"one of {', '.join(kinds)}"
    fields.refuse(said not in kinds, f"has no formula here: expected {known}", *(keys or kinds))
    return kinds[said]
