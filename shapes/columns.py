"""Many models at once: a dimension of each as one column, which runs through formulas as a number does.

A column holds a value for each distinct combination of the dimensions it depends on, not for each row: of a hundred
thousand models an attention layer's sizes take a few dozen values. Where a formula branches, the rows have to agree;
those that do not are told apart (`Split`) and run by themselves (`each_part`), so that what is found is what each row
by itself would give.

>>> table = IntegerTable({"hidden": np.array([1024, 2048, 2048]), "layers": np.array([4, 4, 8])})
>>> table.rows_of(table["hidden"] * table["layers"] // 3).tolist()
[1365, 2730, 5461]
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import starmap
from math import prod
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from .errors import ManyIntegers
from .frozen import Function, T

Array = NDArray[Any]
#: A product of integers that might pass it is worked out for each row alone: Python's integers have no bound.
LARGEST = 2**60


class Split(Exception):  # noqa: N818  # no error: how the rows part
    """Rows go different ways: those whose ``column`` has the same value stay together."""

    def __init__(self, column: "Column") -> None:
        super().__init__("rows go different ways")
        self.column = column


class IntegerTable:
    """Rows of named integers.

    ``rows``: which rows of the first table these are. ``done``: nothing more is found of them; a column that is left of
    them in a cache is equal to no number.
    """

    def __init__(self, columns: Mapping[str, Array], rows: Array | None = None) -> None:
        self.columns = columns
        self.size = len(next(iter(columns.values())))
        self.rows, self.done = np.arange(self.size) if rows is None else rows, False
        self._codes = {frozenset[str](): (np.zeros(self.size, np.intp), np.zeros(1, np.intp))}
        self._lifted = dict[tuple[frozenset[str], frozenset[str]], Array]()

    def keys(self) -> Iterable[str]:
        """Names of the columns: with ``[]`` it makes a table something to be unpacked as keywords."""
        return self.columns.keys()

    def __getitem__(self, name: str) -> Any:
        """A column; a plain integer where all rows have the same."""
        values = self.columns[name]
        if self.size and (values == values[0]).all():
            return int(values[0])
        names = _together(frozenset((name,)))
        return Column(self, names, values[self.codes(names)[1]])

    def codes(self, names: frozenset[str]) -> tuple[Array, Array]:
        """(each row's combination of the columns ``names``, a row of each combination)."""
        if names not in self._codes:
            if len(names) == 1:
                found = _renumbered(self.columns[min(names)])
            else:
                known = max((own for own in self._codes if own < names), key=len) or frozenset({min(names)})
                code, places = found = self.codes(known)
                if len(places) < self.size:  # else no two rows are alike in fewer columns already
                    found = _renumbered(code + len(places) * self.codes(names - known)[0])
            self._codes[names] = found
        return self._codes[names]

    def lifted(self, names: frozenset[str], among: frozenset[str]) -> Array:
        """For each combination of the columns ``among`` the index of its combination of the fewer columns ``names``."""
        key = names, among
        if key not in self._lifted:
            self._lifted[key] = self.codes(names)[0][self.codes(among)[1]]
        return self._lifted[key]

    def rows_of(self, value: Any) -> Array:
        """A column's or a number's value for each row; an array is its rows already."""
        if isinstance(value, Column):
            return np.asarray(value.values[self.codes(value.names)[0]])
        return np.broadcast_to(value, self.size)

    def parts(self, column: "Column") -> "Iterator[IntegerTable]":
        """The rows apart by what they have in ``column``."""
        values = self.rows_of(column)
        order = np.argsort(values, kind="stable")
        for chosen in np.split(order, np.flatnonzero(np.diff(values[order])) + 1):
            yield IntegerTable({name: own[chosen] for name, own in self.columns.items()}, self.rows[chosen])


def _renumbered(code: Array) -> tuple[Array, Array]:
    """Codes as consecutive numbers of those that occur, and a place of each."""
    _, places, numbers = np.unique(code, return_index=True, return_inverse=True)
    return numbers, places


@cache
def _together(*each: frozenset[str]) -> frozenset[str]:
    """All of the names: the same object for the same, which is hashed once."""
    return frozenset().union(*each)


class Column(NDArrayOperatorsMixin, ManyIntegers):
    """One value for each combination of the ``table``'s columns ``names``: ``values``. Arithmetic as of a number."""

    __slots__ = "_hash", "names", "table", "values"

    def __init__(self, table: IntegerTable, names: frozenset[str], values: Array) -> None:
        self.table, self.names, self.values = table, names, values
        self._hash: int | None = None

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or kwargs.keys() - {"out"}:  # what adds in place gets a column of its own
            return NotImplemented
        names = _together(*(one.names for one in inputs if isinstance(one, Column)))
        values = [self._among(one, names) for one in inputs]
        whole = ufunc is np.multiply and all(map(_whole, values))
        if whole and prod(float(np.abs(one).max()) for one in values) > LARGEST:
            every = frozenset(self.table.columns)
            raise Split(Column(self.table, every, np.arange(len(self.table.codes(every)[1]))))
        found = ufunc(*values)
        if isinstance(found, tuple):
            return tuple(Column(self.table, names, one) for one in found)
        return Column(self.table, names, found)

    def _among(self, one: Any, names: frozenset[str]) -> Any:
        if not isinstance(one, Column):
            return one
        return one.values if one.names == names else one.values[self.table.lifted(one.names, names)]

    def __bool__(self) -> bool:
        """The truth that all rows agree on."""
        if self.values.all():
            return True
        if not self.values.any():
            return False
        raise Split(self if self.values.dtype == bool else self != 0)

    def __index__(self) -> int:
        """The one value that all rows have."""
        return int(self._only())

    __int__ = __index__

    def __float__(self) -> float:
        return float(self._only())

    def _only(self) -> Any:
        if (self.values == self.values[0]).all():
            return self.values[0]
        raise Split(self)

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Column):
            if other is self:
                return True
            if other.table is not self.table:
                return False
        elif self.table.done or not isinstance(other, int | float):
            return False
        return self.__array_ufunc__(np.equal, "__call__", self, other)

    def __ne__(self, other: object) -> Any:
        found = self == other
        return not found if isinstance(found, bool) else np.logical_not(found)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((id(self.table), self.names, self.values.tobytes()))
        return self._hash

    def __round__(self) -> "Column":
        return self._rounded(np.rint)

    def __ceil__(self) -> "Column":
        return self._rounded(np.ceil)

    def _rounded(self, by: np.ufunc) -> "Column":
        return self if _whole(self.values) else Column(self.table, self.names, by(self.values).astype(np.int64))

    def __repr__(self) -> str:
        return f"Column({', '.join(sorted(self.names))}: {self.values})"


def spread(*values: Any) -> tuple[Function, Array]:
    """Columns and numbers as the rows of one array of integers, and the way back from a value for each of its columns.

    The way back gives a column; a number where none of ``values`` is one.
    """
    columns = [one for one in values if isinstance(one, Column)]
    if not columns:
        return lambda found: found[0], np.array(values, np.int64)[:, None]
    table, names = columns[0].table, frozenset().union(*(one.names for one in columns))
    arrays = [columns[0]._among(one, names) for one in values]
    return lambda found: Column(table, names, found), np.array(np.broadcast_arrays(*arrays), np.int64)


def objects(table: IntegerTable, one: Any) -> list[Any]:
    """For each row ``one`` with its columns' values, frozen objects and tuples of them too, the same for the same."""
    names, made = _objects(table, one)
    return [made[place] for place in table.codes(names)[0].tolist()]


def _objects(table: IntegerTable, one: Any) -> tuple[frozenset[str], list[Any]]:
    """The columns that ``one`` depends on, and it for each combination of them."""
    if isinstance(one, Column):
        return one.names, one.values.tolist()
    whole = isinstance(one, tuple)
    inner = one if whole else (getattr(one, name) for name in getattr(one, "__match_args__", ()))
    parts = [_objects(table, part) for part in inner]
    names = frozenset().union(*(own for own, _ in parts))
    if not names:
        return names, [one]
    columns = ([made[place] for place in table.lifted(own, names).tolist()] for own, made in parts)
    rows = zip(*columns, strict=True)
    return names, [*rows] if whole else [*starmap(type(one), rows)]


def _whole(values: Any) -> bool:
    return isinstance(values, int) or getattr(values, "dtype", None) == np.int64


def each_part(table: IntegerTable, function: Callable[[IntegerTable], T]) -> Iterator[tuple[IntegerTable, T]]:
    """``function`` of the table, or of as many parts of it as rows go different ways in."""
    waiting = [table] if table.size else []
    while waiting:
        part = waiting.pop()
        try:
            found = function(part)
        except Split as split:
            waiting.extend(part.parts(split.column))
        else:
            yield part, found
        part.done = True


def rows_by(table: IntegerTable, function: Callable[[IntegerTable], Sequence[Any]], count: int) -> Array:
    """The ``count`` values that ``function`` finds of the columns, a row each, for every row of the table."""
    found = np.empty((count, table.size))
    for part, values in each_part(table, function):
        found[:, part.rows] = [*map(part.rows_of, values)]
    return found
