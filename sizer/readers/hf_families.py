"""Families of transformers as families.toml, hybrids.toml and encoders.toml declare them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

from shapes.model import ModelShape
from sizer.readers.fields import Config, Fields, Values
from sizer.readers.hf_blocks import (
    NAMES,
    Builder,
    all_but_every,
    all_heads,
    attention,
    experts,
    family,
    mlp,
    rotary_share,
    said,
    told,
)


def _function(name: str) -> Callable[..., Any]:
    """A function of a file's fields that a table calls by its name; no module is loaded past the one that has it."""
    homes = ("blocks", "decoders", "sparse", "hybrid", "encoder")
    modules = (import_module(f"sizer.readers.hf_{one}") for one in homes)
    found: Callable[..., Any] = next(getattr(one, name) for one in modules if hasattr(one, name))
    return found


def _read(kind: str, **given: Any) -> Callable[[Fields], Any]:
    """The first of some keys, as ``Fields`` reads a ``kind``."""
    names, inside, default = _names(given.pop(kind)), given.pop("inside", None), given
    return lambda fields: getattr(fields.nested(inside) if inside else fields, kind)(*names, **default)


def _names(said: str | list[str]) -> list[str]:
    return [said] if isinstance(said, str) else said


def _either(then: Any = True, otherwise: Any = False, **given: Any) -> Any:
    yes, no, flag = _trait(then), _trait(otherwise), _read("flag", **given)
    return lambda fields: said(fields, yes if flag(fields) else no)


def _call(call: str, **given: Any) -> Any:
    traits = {name: _trait(one) for name, one in given.items()}
    return lambda fields: _function(call)(fields, **told(fields, traits))


def _total(total: list[list[str | int]]) -> Callable[[Fields], int]:
    """Each term's factors are numbers, dimensions or keys."""

    def size(fields: Fields, factor: str | int) -> int:
        return factor if isinstance(factor, int) else fields.integer(*NAMES.get(factor, [factor]))

    return lambda fields: sum(prod(size(fields, factor) for factor in term) for term in total)


#: How a trait is read -> the function of a file's fields that its table's entries make.
_WAYS: dict[str, Callable[..., Callable[[Fields], Any]]] = {
    "flag": _either,
    "total": _total,
    "shared": lambda shared: lambda fields: fields.kv_heads(all_heads(fields), shared),
    "share": lambda share, key=(): rotary_share(share, *([key] if key else ())),
    "call": _call,
    "every": lambda every, keys=(), first=False: all_but_every(every, *keys, first=first),
    **{kind: partial(_read, kind) for kind in ("integer", "count", "optional", "number", "text", "raw")},
}


def _tables(file: str) -> dict[str, str]:
    """Family -> its table's text. One family is parsed: the whole file takes as long as a tenth of a check."""
    text = (Path(__file__).parent / f"{file}.toml").read_text("utf-8")
    _, *parts = re.split(r"(?m)^\[([\w-]+)\]\n", text)
    return dict(zip(parts[::2], parts[1::2], strict=True))


_DECODERS, _HYBRIDS, _ENCODERS = map(_tables, ("families", "hybrids", "encoders"))
_TABLES = {**_DECODERS, **_HYBRIDS, **_ENCODERS, **_tables("formats")}


def _traits(table: Config) -> Values:
    """Traits by name: values as they are, else functions of a file's fields."""
    return {name: _traits(each) if name in ("local", "whole") else _trait(each) for name, each in table.items()}


def _trait(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    given = dict(given)
    other = _trait(given.pop("or", None))
    found = _WAYS[next(name for name in given if name in _WAYS)](**given)
    return found if other is None else lambda fields: found(fields) or said(fields, other)


def _table(name: str) -> Values:
    """A family's traits, with those of the family that it is like."""
    own = tomllib.loads(_TABLES[name])
    own |= own.pop(name, {})  # [name.mixer]
    found = _table(own.pop("like")) if "like" in own else {}
    for key, given in own.items():
        both = isinstance(given, dict) and key in ("attention", "mlp", "experts", "mixer")
        found[key] = {**found.get(key, {}), **given} if both else given
    return found


def declared(name: str, fields: Fields) -> ModelShape:
    """A model of the family ``name``."""
    table = _table(name)
    if "builder" in table:
        model: ModelShape = _function(table["builder"])(fields)
        return model
    core, dense, sparse, mixer = (table.pop(part, {}) for part in ("attention", "mlp", "experts", "mixer"))
    part: Any = _trait(core) if "call" in core else attention(**_traits(core))
    mlps: Any = experts(dense=_traits(dense), **_traits(sparse)) if sparse else mlp(**_traits(dense))
    traits = _traits(table) | ({"mixer": _function("recurrence")(**_traits(mixer))} if mixer else {})
    return family(part, mlps, ignored=tuple(traits.pop("ignored", ())), **traits)(fields)


def _builders(names: Iterable[str]) -> dict[str, Builder]:
    return {name: partial(declared, name) for name in names}


DECODERS, HYBRIDS, ENCODERS = map(_builders, (_DECODERS, _HYBRIDS, _ENCODERS))
