"""Charts as data: axes, layers of marks, points and lines that several commands draw."""

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Literal

from shapes.frozen import Named, Values, Words, among, frozen, without
from shapes.toml_table import table_of

#: Colours, shapes and sizes by what they mean; how points and labels look.
LOOKS = table_of(__file__, "looks.toml")
#: A chart's row: keys are the channels of ``Layer`` that it has a value for.
Row = Named


@frozen
class Axis:
    """An axis of numbers in the unit that ``title`` says; ``whole``: integers alone."""

    title: str
    log: bool = False
    whole: bool = False


@frozen
class Layer:
    """Marks of one kind, one a row.

    Keys of a row: ``x``, ``y`` (its place), ``y2`` (its end), ``group`` (its colour), ``kind`` (its shape),
    ``size`` (its area), ``text`` (the text drawn), ``what`` (its description).
    """

    mark: Literal["point", "line", "rule", "text"]
    rows: Sequence[Row]
    look: Named


@frozen
class Chart:
    """A chart of layers of marks; ``caption`` says what is seen; a table of the page has all of it too.

    ``colours`` and ``shapes``: group and kind -> how they look, in the legend's order (shapes of their own where none
    is named; where rows have no kind, shapes are the groups'). ``legend``: what groups are called. A layer without rows
    is not drawn.
    """

    caption: str
    x: Axis
    y: Axis
    layers: Sequence[Layer]
    colours: Words
    shapes: Words = field(default_factory=dict)
    legend: str = ""


def points(rows: Sequence[Row], *more: Layer) -> list[Layer]:
    """A point each, with its vertical interval (``low``, ``high``) and its ``label`` where it has one.

    ``more``: what lies below them.
    """
    within = [{**_at(row), "y": row["low"], "y2": row["high"]} for row in rows if row.get("high") is not None]
    labels = [{**_at(row, ""), "text": row["label"]} for row in rows if row.get("label")]
    drawn = [without(row, ("low", "high", "label")) for row in rows]
    return [
        *more,
        Layer("rule", within, {"opacity": 0.5}),
        Layer("point", drawn, LOOKS["points"]),
        # The first above its point, the second below: on a phone they would lie on each other.
        *(Layer("text", [row], {**LOOKS["labels"], "dy": dy}) for row, dy in zip(labels, (-9, 18))),  # noqa: B905 - the shorter ends it
    ]


def _at(row: Row, group: str = "group") -> Values:
    return among(row, ("x", "y", group))


def path(places: Iterable[tuple[float, float]], what: str = "", **look: object) -> Layer:
    """A line through ``places``."""
    return Layer("line", [{"x": x, "y": y, **({"what": what} if what else {})} for x, y in places], look)
