"""What a page and a picture are made of: sections of facts, sentences, charts and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from shapes.frozen import frozen

#: A chart's row: keys are the channels of ``Layer`` that it has a value for.
Row = Mapping[str, Any]


@frozen
class Cell:
    """A table's cell: what is shown, what it is sorted by where that is a number, and where it leads to."""

    shown: str
    value: float | None = None
    style: str = ""
    link: str | None = None


def cell(value: object, shown: str | None = None, style: str = "") -> Cell:
    """A number with how it is shown, or a text; None is an empty cell, which is sorted last."""
    if value is None:
        return Cell("", None, style)
    if isinstance(value, int | float):
        return Cell(f"{value:,}" if shown is None else shown, float(value), style)
    return Cell(str(value) if shown is None else shown, None, style)


class Part:
    """One of what a section holds."""

    __slots__ = ()


@frozen
class Facts(Part):
    """Figures that are read at a glance, by name."""

    facts: Mapping[str, str]


@frozen
class Text(Part):
    """A paragraph; ``quiet``: what is only looked for."""

    text: str
    quiet: bool = False


@frozen
class Table(Part):
    """Rows under a caption; a column is one of numbers where its cells have values."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]


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
class Chart(Part):
    """``caption`` says what is seen; all of it is in a table of the page too. ``colours`` and ``shapes``: group and
    kind -> how they look, in the legend's order (the palette's where none is named; where rows have no kind, shapes are
    the groups'); ``legend``: what each of them is called."""

    caption: str
    x: Axis
    y: Axis
    layers: Sequence[Layer]
    height: int = 320
    colours: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, str] = field(default_factory=dict)
    legend: tuple[str, str] = ("", "")


@frozen
class Section:
    title: str
    parts: Sequence[Part]


@frozen
class Document:
    """A command's whole answer; in a picture its sections lie beside each other."""

    title: str
    sections: Sequence[Section]

    @property
    def charts(self) -> list[Chart]:
        return [part for section in self.sections for part in section.parts if isinstance(part, Chart)]


def limit(value: float, label: str, *, along: Literal["x", "y"]) -> list[Layer]:
    """A dashed line at ``value`` of an axis with its label at the end."""
    look = {"strokeDash": [5, 4], "strokeWidth": 1.5}
    place = {"align": "center", "dy": -7} if along == "x" else {"align": "left", "dx": 4, "dy": -7}
    return [
        Layer("rule", [{along: value, "what": label}], look),
        Layer("text", [{along: value, "text": label, "what": label}], {**place, "at": "start"}),
    ]
