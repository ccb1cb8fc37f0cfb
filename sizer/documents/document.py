"""What a command says, once for every format: headline, key figures, tables with typed columns, charts, notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from shapes.frozen import frozen
from sizer.checking.findings import PricedFinding

if TYPE_CHECKING:
    from sizer.documents.charts import Chart

#: Formats with room for everything, and those that a person reads in a browser.
FULL = ("html", "csv")
PAGES = ("html", "markdown")


@frozen
class Cell:
    """A table's cell: how it is shown, its number (which it is sorted by), its style."""

    shown: str
    value: float | None = None
    style: str = ""


@frozen
class Column:
    """``of``: a row's key, place or attribute (dotted), or a function of the row: a number, a text, a ``Cell`` or None.

    ``show``: a format specification or a function of the value; numbers are divided by ``unit`` first (GiB of bytes).
    ``drop``: columns of larger ones are left out first where a terminal is too narrow; 0: never. ``only``: the formats
    that have the column (all where empty).
    """

    name: str
    of: str | int | Callable[[Any], Any]
    show: str | Callable[[Any], str] = ""
    drop: int = 0
    unit: float = 1
    style: str = ""
    only: tuple[str, ...] = ()

    def cell(self, row: Any) -> Cell:
        of = self.of
        if callable(of):
            value = of(row)
        else:
            value = row[of] if isinstance(of, int) or isinstance(row, Mapping) else attrgetter(of)(row)
        if isinstance(value, Cell):
            return value
        if value is None:
            return Cell("", None, self.style)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return Cell(self.show(value) if callable(self.show) else str(value), None, self.style)
        value = value / self.unit if self.unit != 1 else value
        shown = self.show(value) if callable(self.show) else format(value, self.show or ",")
        return Cell(shown, float(value), self.style)


class Part:
    """One of what a section holds."""

    __slots__ = ()
    only: tuple[str, ...] = ()


@frozen
class Facts(Part):
    """Figures that are read at a glance, by name: tiles of a page; in other formats the first line says them."""

    facts: Mapping[str, str]


@frozen
class Text(Part):
    """A paragraph or line. ``style``: head, quiet (a note), error, warning, info; ``indent``: an item of a list,
    wrapped to the width that there is."""

    text: str
    style: str = ""
    indent: int = 0
    only: tuple[str, ...] = ()


@frozen
class Table(Part):
    """Rows under a caption; a cell is worked out when it is shown. ``most``: rows that text and Markdown show."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    most: int | None = None
    only: tuple[str, ...] = ()

    def seen(self, format_: str) -> tuple[list[Column], list[list[Cell]]]:
        """The columns and rows of a format."""
        columns = [one for one in self.columns if shown_in(one, format_)]
        rows = self.rows if format_ in FULL else self.rows[: self.most]
        return columns, [[column.cell(row) for column in columns] for row in rows]

    def left(self, format_: str) -> int:
        """Rows that the format does not show."""
        return 0 if format_ in FULL or self.most is None else max(0, len(self.rows) - self.most)


@frozen
class Findings(Part):
    """Findings priced against a step of ``step_s``; ``path``: the file they point into (None: none that is there).

    ``label``: what a diff says of each, added or fixed.
    """

    caption: str
    findings: Sequence[PricedFinding]
    step_s: float
    path: str | None = None
    label: str = ""


@frozen
class Markdown(Part):
    """A rule's page: Markdown already."""

    text: str
    only: tuple[str, ...] = ()


@frozen
class Charts(Part):
    """Charts, made when somebody draws them: a text does not pay for them."""

    make: Callable[[], Iterable[Chart]]
    only: tuple[str, ...] = ()


@frozen
class Section:
    """``folded``: in a comment it is only opened by who wants it."""

    title: str
    parts: Sequence[Part]
    folded: bool = False
    only: tuple[str, ...] = ()

    def seen(self, format_: str) -> list[Part]:
        return [part for part in self.parts if shown_in(part, format_)]

    @property
    def charts(self) -> list[Chart]:
        return [chart for part in self.parts if isinstance(part, Charts) for chart in part.make()]


@frozen
class Document:
    """A command's whole answer. ``headline``: what a comment says first, of commands that have one.

    ``answer``: the library's, which is the JSON. ``records``: the answer's rows as data, which are the CSV, with at
    least the columns ``fields``; without them CSV is the first table.
    """

    title: str
    sections: Sequence[Section]
    answer: object = None
    headline: str = ""
    records: Callable[[], Iterable[Mapping[str, object]]] | None = None
    fields: tuple[str, ...] = ()

    def seen(self, format_: str) -> list[Section]:
        return [one for one in self.sections if shown_in(one, format_)]


def shown_in(one: Column | Part | Section, format_: str) -> bool:
    """Whether a format has it."""
    return not one.only or format_ in one.only


def notes(texts: Iterable[str]) -> list[Part]:
    return [Text(f"note: {text}", "quiet") for text in texts]
