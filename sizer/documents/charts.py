"""Charts as data: axes, layers of marks, points and lines that several commands draw; a pipeline's schedule drawn."""

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Literal

from shapes.frozen import Named, Values, Words, frozen, without
from shapes.toml_table import table_of
from shapes.workload import Workload

from . import percent_text, seconds_scale

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

    Keys of a row: ``x``, ``y`` (its place), ``x2``, ``y2`` (its end), ``group`` (its colour), ``kind`` (its shape),
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
    return {key: row[key] for key in ("x", "y", group) if key in row}


def path(places: Iterable[tuple[float, float]], what: str = "", **look: object) -> Layer:
    """A line through ``places``."""
    return Layer("line", [{"x": x, "y": y, **({"what": what} if what else {})} for x, y in places], look)


#: Forwards that are drawn at most.
MOST = 600


def timeline(w: Workload, microbatches: int, seconds: float, bubble_s: float) -> list[Chart]:
    """The 1F1B schedule of a step of ``seconds``; a backward takes two forwards. Few microbatches are drawn.

    No chart without a pipeline. Stage i starts the forward of microbatch j at i + j while the pipeline fills, then at
    i + 3j, and its backward at 3p - 2 - 2i + 3j.
    """
    p, drawn = w.p, min(microbatches, MOST // w.p)
    factor, unit = seconds_scale(seconds * drawn / microbatches)
    third = (seconds - bubble_s) / microbatches / 3 * factor
    rows = [
        {
            "x": start * third,
            "x2": (start + long) * third,
            "y": stage + 1,
            "group": name,
            "what": f"{name} of microbatch {one + 1}",
        }
        for stage in range(p)
        for one in range(drawn)
        for name, start, long in (
            ("forward", stage + one * (1 if one < p - stage else 3), 1),
            ("backward", 3 * p - 2 - 2 * stage + 3 * one, 2),
        )
    ]
    chunks = f" Drawn without the {w.vpp} chunks a stage, which make the gaps so much shorter." * (w.vpp > 1)
    chart = Chart(
        f"Pipeline: when each stage computes {drawn} of {microbatches} microbatches, all drawn as slow as the slowest, "
        f"a backward as two forwards; the gaps are the bubble, {percent_text(bubble_s / seconds)} of the step.{chunks}",
        Axis(f"time, {unit}"),
        Axis("stage", whole=True),
        [Layer("rule", rows, {"strokeWidth": min(160 / p, 40)})],
        LOOKS["passes"],
    )
    return [chart] * (p > 1)
