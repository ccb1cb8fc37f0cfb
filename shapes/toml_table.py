"""A table from a TOML file that hands out typed values, and names file and key when it cannot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from shapes.dtypes import DTYPES
from shapes.errors import InputError


class Table:
    """One table of the file ``where``; ``prefix`` is the dotted path before its keys ("memory.").

    Each method answers one key and raises InputError naming it; `refuse_the_rest` then refuses what nobody asked for,
    so that a misspelt key is never silently ignored.
    """

    def __init__(self, data: object, where: str, prefix: str = "") -> None:
        if not isinstance(data, Mapping):
            raise InputError("expected a table", where=where, key=prefix.rstrip("."), value=data)
        self.data: Mapping[str, Any] = data
        self.where = where
        self.prefix = prefix
        self._asked: set[str] = set()

    def fail(self, key: str, expected: str) -> InputError:
        return InputError(expected, where=self.where, key=self.prefix + key, value=self.data.get(key))

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
        value = self._get(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.fail(key, "expected a positive number")
        return value

    def zero_or_more(self, key: str) -> float:
        value = self._get(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
            raise self.fail(key, "expected a number, 0 or more")
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

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of positive integers; an absent key is an empty one."""
        value = self._get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(type(item) is int and item > 0 for item in value):
            raise self.fail(key, "expected a list of positive integers")
        return tuple(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; an absent key is an empty one."""
        value = self._get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.fail(key, "expected a list of strings")
        return tuple(self._shown(key, item) for item in value)

    def table(self, key: str) -> Table:
        """The table below; an absent key is an empty one, whose own keys are then found missing."""
        value = self._get(key)
        return Table({} if value is None else value, self.where, f"{self.prefix}{key}.")

    def tables(self, key: str) -> Iterator[Table]:
        value = self._get(key)
        if not isinstance(value, list):
            raise self.fail(key, "expected an array of tables")
        for index, item in enumerate(value):
            yield Table(item, self.where, f"{self.prefix}{key}[{index}].")

    def documents(self) -> Mapping[str, str]:
        """Dotted field or table -> document, from the file's [[sources]], which lists the fields of each document."""
        source_of: dict[str, str] = {}
        for entry in self.tables("sources"):
            document = entry.text("document")
            source_of.update(dict.fromkeys(entry.texts("fields"), document))
            entry.refuse_the_rest()
        return MappingProxyType(source_of)

    def numbers_by_dtype(self, key: str) -> Mapping[str, float]:
        table = self._by_dtype(key)
        return MappingProxyType({dtype: table.number(dtype) for dtype in table.data})

    def integers_by_dtype(self, key: str) -> Mapping[str, int]:
        table = self._by_dtype(key)
        return MappingProxyType({dtype: table.integer(dtype) for dtype in table.data})

    def _by_dtype(self, key: str) -> Table:
        table = self.table(key)
        for dtype in table.data:
            if dtype not in DTYPES:
                raise table.fail(dtype, f"expected keys out of {', '.join(DTYPES)}")
        return table

    def read_only(self, key: str) -> Mapping[str, Any]:
        """The table below as it is, unvalidated, in read-only mappings and tuples all the way down."""
        frozen: Mapping[str, Any] = _read_only(self.table(key).data)
        return frozen

    def refuse_the_rest(self) -> None:
        for key in self.data:
            if key not in self._asked:
                import difflib  # only a wrong file pays for it

                near = difflib.get_close_matches(key, self._asked, n=1)
                raise self.fail(key, f"expected a known key{f' (did you mean {near[0]}?)' if near else ''}")


def _read_only(value: Any) -> Any:
    if isinstance(value, Mapping):
        return MappingProxyType({key: _read_only(item) for key, item in value.items()})
    return tuple(_read_only(item) for item in value) if isinstance(value, (list, tuple)) else value
