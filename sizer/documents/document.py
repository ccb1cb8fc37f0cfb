"""What a command says, once for every format: headline, key figures, tables with typed columns, charts, notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from operator import attrgetter
from typing import Any, Literal

from shapes.frozen import frozen
from sizer.checking.findings import PricedFinding

#: Formats with room for everything, and those that a person reads in a browser.
FULL = ("html", "csv")
PAGES = ("html", "markdown")

#: A chart's row: keys are the channels of ``Layer`` that it has a value for.
Row = Mapping[str, Any]


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
class Axis:
    """``order`` names the categories of an axis that has some, from the top or the left; ``whole``: integers alone."""

    title: str
    log: bool = False
    zero: bool = True
    order: tuple[str, ...] = ()
    whole: bool = False


@frozen
class Layer:
    """Marks of one kind, one a row. Keys of a row: ``x``, ``y``, ``x2``, ``y2`` (positions), ``group`` (its colour),
    ``kind`` (its shape), ``size`` (its area), ``text`` (what is written), ``what`` (what is said of it)."""

    mark: Literal["bar", "point", "line", "rule", "text"]
    rows: Sequence[Row]
    look: Mapping[str, Any] = field(default_factory=dict)


@frozen
class Chart:
    """``caption`` says what is seen; all of it is in a table of the page too. ``colours`` and ``shapes``: group and
    kind -> how they look, in the legend's order (the palette's where none is named; where rows have no kind, shapes are
    the groups'); ``legend``: what each of them is called."""

    caption: str
    x: Axis
    y: Axis
    layers: Sequence[Layer]
    height: int = 380
    colours: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, str] = field(default_factory=dict)
    legend: tuple[str, str] = ("", "")


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


@frozen
class Bar:
    """A bar of a chart: pieces (group, length, what is said of it) from the axis on, its interval, its label."""

    name: str
    pieces: Sequence[tuple[str, float, str]]
    within: tuple[float, float] | None = None
    label: str = ""


def bars(
    caption: str,
    unit: str,
    listed: Sequence[Bar],
    scale: float = 1,
    colours: Mapping[str, str] | None = None,
    more: Sequence[Layer] = (),
    title: str = "",
) -> Chart:
    """Bars below each other; lengths are multiplied by ``scale``. ``more``: layers on top of them."""
    pieces, within, labels = [], [], []
    for bar in listed:
        end = 0.0
        for group, length, what in bar.pieces:
            start, end = end, end + length * scale
            pieces.append({"x": start, "x2": end, "y": bar.name, "group": group, "what": what})
        if bar.within is not None:
            low, high = (bound * scale for bound in bar.within)
            within.append({"x": low, "x2": high, "y": bar.name, "what": bar.pieces[0][2]})
        if bar.label:
            labels.append({"x": end, "y": bar.name, "text": bar.label})
    layers = [Layer("bar", pieces, {"stroke": "#88888880", "strokeWidth": 0.5})]
    layers += [Layer("rule", within, {"strokeWidth": 2})] if within else []
    layers += [Layer("text", labels, {"align": "left", "dx": 5})] if labels else []
    order = tuple(dict.fromkeys(bar.name for bar in listed))
    return Chart(
        caption, Axis(unit), Axis(title, order=order), [*layers, *more], 50 + 28 * len(order), colours=colours or {}
    )


def limit(value: float, label: str) -> list[Layer]:
    """A dashed line at ``value`` of the horizontal axis with its label at the end."""
    row = {"x": value, "what": label}
    look = {"align": "center", "dy": -7, "at": "start"}
    return [
        Layer("rule", [row], {"strokeDash": [5, 4], "strokeWidth": 1.5}),
        Layer("text", [{**row, "text": label}], look),
    ]


#: Divisor -> its colour: how a chart shows the power of two that divides a size, from what every kernel takes to what
#: few take; the last is for odd sizes.
_CLASSES = {64: "#4477aa", 32: "#66ccee", 16: "#228833", 8: "#ccbb44", 2: "#ee6677", 1: "#aa3377"}
ALIGNMENT_COLOURS = {"nothing (odd)" if size == 1 else str(size): colour for size, colour in _CLASSES.items()}


def alignment_class(value: int) -> str:
    """The largest of the classes that divides ``value``, as the legend names it."""
    return next(name for name, size in zip(ALIGNMENT_COLOURS, _CLASSES, strict=True) if value % size == 0)
