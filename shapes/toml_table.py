"""Files of facts: the TOML that ships in ``shapes/data``, or a user's own, read into typed values.

A `Table` names file and key of a value that is not as expected; `load` reads a file once, until it changes.
"""

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, MappingProxyType
from typing import Any, Self, TypeAlias, get_args

from .dtypes import DTYPES
from .errors import InputError, one_of, read_text, refuse
from .frozen import Function, Ints, Items, Named, Names, Numbers, T, Values, Words

#: Annotations of a record's fields: a number of 0 or more, and one of 0 to 1; plain ``float`` and ``int`` are positive.
Amount: TypeAlias = float
Share: TypeAlias = float

DATA = Path(__file__).parent / "data"

#: A file of facts is a few pages.
MAX_BYTES = 1 << 20
#: No figure of a device or stack comes near it, and products of several stay finite.
LARGEST = 1e21
#: Characters of an unknown name that are compared with the known ones: comparing is quadratic.
_LONGEST_NAME = 100


def names(kind: str) -> Names:
    """Names of the ``kind`` ("devices", "stacks") that ship with the package or lie in that folder of SIZER_DATA.

    They are sorted. Reads the folders, no file. InputError for two of a name.
    """
    held = (entry.name for folder in _folders(kind) for entry in os.scandir(folder))
    found = sorted(name[:-5] for name in held if name.endswith(".toml"))
    for name, following in pairwise(found):
        refuse(name == following, f"expected another name: {name} ships with sizer", "SIZER_DATA", kind)
    return tuple(found)


def _folders(kind: str) -> Iterator[Path]:
    """Where files of the ``kind`` are: the package's folder, and the user's."""
    yield DATA / kind
    if own := os.environ.get("SIZER_DATA"):
        refuse(not os.path.isdir(own), "expected a folder with devices/ and stacks/ in it", "SIZER_DATA", own)
        yield from Path(own).glob(kind)


def shipped(kind: str, name: str) -> Path:
    """The file of one of `names`."""
    *others, last = (folder / f"{name}.toml" for folder in _folders(kind))
    return next((one for one in others if one.is_file()), last)


def named(kind: str, name: object, key: str, known: Collection[str]) -> Path:
    """`shipped`, where ``name`` is one of ``known``; else an InputError that lists them."""
    return shipped(kind, one_of(name, known, key))


def others_words() -> Named:
    """Other programs' names of our options ("same") and their values: read where something is not known."""
    return content(DATA / "spellings.toml")


def ours(name: str, known: Collection[str]) -> str:
    """``name`` in its ``known`` spelling, or the known name that it is a synonym of; itself if it is neither."""
    if name in known:
        return name
    own, said = {squeezed(one): one for one in known}, squeezed(name)
    same = {squeezed(other): meant for other, meant in others_words()["same"].items()}
    return next((own[one] for one in (said, *map(squeezed, same.get(said, ()))) if one in own), name)


def squeezed(name: str) -> str:
    """``name`` in small letters without separators, to compare spellings."""
    return name.replace("-", "").replace("_", "").lower()


def spelled(value: Any, name: str, known: Collection[Any]) -> Any:
    """``value`` of the option ``name`` as one of the ``known``: in small letters, or by a synonym.

    An object that is neither text nor a number counts by its text: torch.bfloat16.
    """
    if value in known or isinstance(value, int | float | None):
        return value
    said = str(value).lower()
    return next((one for one in (said, *others_words()["values"].get(name, {}).get(said, ())) if one in known), value)


def nearest(name: str, known: Collection[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Names that a misspelt ``name`` may mean, the likeliest first."""
    import difflib  # only a mistake pays for it

    return difflib.get_close_matches(name[:_LONGEST_NAME], known, most, cutoff)


def load(path: Path, build: Callable[[Named, str], T]) -> T:
    """The result of ``build`` for a file's content and path, remembered for both.

    InputError for a file that cannot be read, is larger than MAX_BYTES or is no TOML.
    """
    found: T = _built(build, str(path), read_text(path, MAX_BYTES))
    return found


@lru_cache(256)
def _built(build: Function, path: str, text: str) -> Any:
    return build(parse_toml(text, path), path)


def parse_toml(text: str, where: str | None = None) -> Values:
    try:
        return tomllib.loads(text)
    except (RecursionError, ValueError) as error:
        raise InputError(f"expected TOML: {error!s:.100}", where=where) from None


def content(path: Path) -> Named:
    """A file's tables as they are, unvalidated."""
    return load(path, _as_it_is)


def table_of(module: str, name: str) -> Any:
    """The table ``name``, TOML or JSON, in the folder of the ``module`` with this file."""
    path = Path(module).with_name(name)
    return content(path) if path.suffix == ".toml" else json.loads(path.read_text("utf-8"))


def check_bounds(**numbers: float | None) -> None:
    """InputError for one of ``numbers`` that is outside of its bounds (bounds.toml); None was not said."""
    for name, value in numbers.items():
        one = content(DATA / "bounds.toml")[name]
        wrong = value is not None and not eval(one["holds"], {}, {"value": value})
        refuse(wrong, one["expected"], one.get("key", name), value)


def _as_it_is(data: Named, where: str) -> Named:
    return data


@cache
def formula(text: str) -> CodeType:
    """A sum of products as tables write it (``2 rows hidden/8 + 1``; a division rounds down), for ``eval``."""
    return compile(re.sub(r"(?<=\w) +(?=\w)", "*", text.strip()).replace("/", "//"), text, "eval")


def hold(conditions: str, value: Function) -> bool:
    """Whether a table's conditions do: of names' values, ``name=value``, or ``name`` that is not 0 (``!``: not so).

    >>> hold("kind=mamba !gated", {"kind": "mamba", "gated": False}.get)
    True
    """

    listed = _conditions(conditions)
    return all((str(value(name)) == wanted if wanted else bool(value(name))) is yes for name, wanted, yes in listed)


@cache
def _conditions(text: str) -> list[tuple[str, str, bool]]:
    """(name, its value, whether it is to be so) of each."""
    return [(*one.lstrip("!").partition("=")[::2], one[0] != "!") for one in text.split()]


class Table:
    """One table of the file ``where``; ``prefix`` is the dotted path before its keys ("memory.").

    Each method answers one key and raises InputError naming it; `refuse_the_rest` then refuses what nobody asked for,
    so that a misspelt key is never silently ignored. No number is ``most``, or a positive one below its inverse.
    """

    most = LARGEST

    def __init__(self, data: object, where: str, prefix: str = "") -> None:
        if not isinstance(data, Mapping):
            raise InputError("expected a table", prefix.rstrip("."), data, where)
        self.data: Named = data
        self.where = where
        self.prefix = prefix
        self._asked = set[str]()

    def fail(self, key: str, expected: str) -> InputError:
        return InputError(expected, self.prefix + key, self.data.get(key), self.where)

    def _get(self, key: str) -> Any:
        self._asked.add(key)
        return self.data.get(key)

    def has(self, key: str) -> bool:
        return self._get(key) is not None

    def text(self, key: str) -> str:
        value = self._get(key)
        if not (isinstance(value, str) and value):
            raise self.fail(key, "expected a string that is not empty")
        return self._shown(key, value)

    def _shown(self, key: str, value: str) -> str:
        # Names and titles are printed: control characters could forge lines.
        if not value.isprintable():
            raise self.fail(key, "expected printable text")
        return value

    def number(self, key: str) -> float:
        value = self.zero_or_more(key, "expected a positive number")
        if value < 1 / self.most:
            raise self.fail(key, f"expected a positive number, from {1 / self.most:g} up")
        return value

    def zero_or_more(self, key: str, expected: str = "expected a number, 0 or more") -> float:
        value = self._get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < self.most:
            raise self.fail(key, f"{expected}, below {self.most:g}")
        return value

    def share(self, key: str) -> float:
        value = self.zero_or_more(key)
        if value > 1:
            raise self.fail(key, "expected a share, from 0 to 1")
        return value

    def integer(self, key: str) -> int:
        value = self.number(key)
        if not isinstance(value, int):
            raise self.fail(key, "expected a positive integer")
        return value

    def flag(self, key: str) -> bool | None:
        """true or false; None where the key is absent."""
        value = self._get(key)
        if value is not None and not isinstance(value, bool):
            raise self.fail(key, "expected true or false")
        return value

    def _list(self, key: str, what: str, known: Function) -> Items:
        """A list of values that are ``known``; an absent key is an empty list."""
        value = self._get(key)
        if value is not None and not (isinstance(value, list) and all(map(known, value))):
            raise self.fail(key, f"expected a list of {what}")
        return tuple(value or ())

    def integers(self, key: str) -> Ints:
        """A list of positive integers; an absent key is an empty one."""
        return self._list(key, "positive integers", lambda item: type(item) is int and item > 0)

    def texts(self, key: str) -> Names:
        """A list of strings; an absent key is an empty one."""
        found = self._list(key, "strings", lambda item: isinstance(item, str) and item)
        return tuple(self._shown(key, item) for item in found)

    def table(self, key: str) -> Self:
        """The table below; an absent key is an empty table, so that its own keys are reported as missing."""
        value = self._get(key)
        return type(self)({} if value is None else value, self.where, f"{self.prefix}{key}.")

    def tables(self, key: str) -> Iterator[Self]:
        value = self._get(key)
        if not isinstance(value, list):
            raise self.fail(key, "expected an array of tables")
        for index, item in enumerate(value):
            yield type(self)(item, self.where, f"{self.prefix}{key}[{index}].")

    def record(self, cls: type[T], **given: Any) -> T:
        """A dataclass from this table, each field read as its annotation says; ``given`` were read otherwise.

        An annotation may be a Literal of the class's module, or a dataclass there, which is a table's record. An absent
        key leaves its field's default; a key that is no field is refused.
        """
        for field in fields(cls):  # type: ignore[arg-type]  # a dataclass
            if field.name in given:
                continue
            kind, here = str(field.type).removesuffix(" | None"), self.has(field.name)
            if here or field.default is MISSING:
                of = vars(sys.modules[cls.__module__]).get(kind)
                given[field.name] = self._value(field.name, kind, of) if here or kind == field.type else None
        self.refuse_the_rest()
        return cls(**given)

    def _value(self, key: str, kind: str, of: Any) -> Any:
        """The value of an annotation ``kind``, which is ``of`` in its module."""
        if kind in _READERS:
            return _READERS[kind](self, key)
        return self.choice(key, get_args(of)) if get_args(of) else self.table(key).record(of)

    def keyed(self, read: "Callable[[Table, str], T]", known: Collection[str] | None = None) -> Mapping[str, T]:
        """Key -> the value that ``read`` gives; every key has to be one of ``known``."""
        for key in self.data:
            if known is not None and key not in known:
                raise self.fail(key, f"expected keys out of {', '.join(known)}")
        return MappingProxyType({key: read(self, key) for key in self.data})

    def choice(self, key: str, known: Collection[str]) -> str:
        value = self.text(key)
        if value not in known:
            raise self.fail(key, f"expected one of {', '.join(known)}")
        return value

    def documents(self) -> Words:
        """Dotted field or table -> document, from the file's [[sources]], which lists the fields of each document."""
        source_of = {}
        for entry in self.tables("sources"):
            source_of.update(dict.fromkeys(entry.texts("fields"), entry.text("document")))
            entry.refuse_the_rest()
        return MappingProxyType(source_of)

    def numbers_by_dtype(self, key: str, known: Collection[str] = DTYPES) -> Numbers:
        return self.table(key).keyed(Table.number, known)

    def read_only(self, key: str) -> Named:
        """The table below, unvalidated, as read-only mappings and tuples all the way down."""
        frozen: Named = _read_only(self.table(key).data)
        return frozen

    def refuse_the_rest(self, *known: str) -> None:
        """InputError for a key that nobody asked for and that is none of ``known``."""
        self._asked.update(known)
        for key in self.data:
            if key not in self._asked:
                near = nearest(key, self._asked)
                raise self.fail(key, f"expected a known key{f' (did you mean {near[0]}?)' if near else ''}")


def _read_only(value: Any) -> Any:
    if isinstance(value, Mapping):
        return MappingProxyType({key: _read_only(item) for key, item in value.items()})
    return tuple(_read_only(item) for item in value) if isinstance(value, list | tuple) else value


#: Annotation of a record's field -> what reads it.
_READERS = {
    "str": Table.text,
    "int": Table.integer,
    "float": Table.number,
    "Amount": Table.zero_or_more,
    "Share": Table.share,
    "bool": lambda table, key: bool(table.flag(key)),
    "Names": Table.texts,
    "tuple[int, ...]": Table.integers,
    "tuple[tuple[int, int], ...]": lambda table, key: tuple((one, two) for one, two in table._get(key)),
    "Named": Table.read_only,
}
