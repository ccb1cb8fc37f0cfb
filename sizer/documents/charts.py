"""Charts as data: axes, layers of marks, and the bars and limits that several commands draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from shapes.frozen import frozen

#: A chart's row: keys are the channels of ``Layer`` that it has a value for.
Row = Mapping[str, Any]


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
