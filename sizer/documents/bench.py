"""Measurements as a page: rates over the size that varies, times beside their predictions, and every figure."""

from __future__ import annotations

from collections.abc import Sequence

from shapes.measure.jobs import flat
from shapes.measure.record import Measurement
from sizer.answers.bench import Bench, Peak, Row
from sizer.answers.bench import Table as Measured
from sizer.documents.alignment_classes import COLOURS, alignment_class
from sizer.documents.document import Axis, Cell, Chart, Document, Layer, Part, Section, Table, Text, cell, limit
from sizer.documents.units import seconds_text, width_text

SIZES = ("m", "n", "k")
#: Fastest shapes of a maximum that are drawn.
SHOWN = 20


def document(answer: Bench) -> Document:
    sections = [
        Section(group.title or "Measured", [one for part in group.parts for one in _parts(part)])
        for group in answer.groups
    ]
    return Document("sizer bench", sections)


def _parts(part: Measured | Peak) -> list[Part]:
    where = Text(f"Measured on {part.environment.source.removeprefix('measured:')}", quiet=True)
    return [where, *(_peak(part) if isinstance(part, Peak) else _sweep(part))]


def _sweep(table: Measured) -> list[Part]:
    timed = [(row, row.measurement) for row in table.rows if row.measurement is not None and row.measurement.seconds]
    head = ("what", "a step", *HEAD, "predicted", "off by", "samples", "stopped by")
    rows = [
        [cell(row.title), cell(row.count), *_times(one), *_predicted(row, one), cell(len(one.samples)), cell(one.stop)]
        for row, one in timed
    ]
    parts: list[Part] = [*_landscape([one for _, one in timed], timed), *_beside(timed)]
    parts += [Table("Measurements", head, rows)]
    failed = [
        [
            cell(row.title),
            cell(row.measurement.status if row.measurement else "not reached in time"),
            cell(row.measurement.message if row.measurement else ""),
        ]
        for row in table.rows
        if row.measurement is None or not row.measurement.seconds
    ]
    parts += [Table("Not measured", ("what", "outcome", "why"), failed)] if failed else []
    return parts + [Text(f"Note: {note}", quiet=True) for note in table.notes]


HEAD = ("time", "+-", "TFLOPS")


def _times(one: Measurement) -> list[Cell]:
    width = one.half_width
    return [
        cell(one.seconds, seconds_text(one.seconds or 0.0)),
        cell(width, None if width is None else width_text(width)),
        cell(one.tflops, f"{one.tflops:.4g}") if one.tflops else cell(None),
    ]


def _predicted(row: Row, one: Measurement) -> list[Cell]:
    if row.predicted_s is None or not one.seconds:
        return [cell(None), cell(None)]
    off = row.predicted_s / one.seconds - 1
    return [cell(row.predicted_s, seconds_text(row.predicted_s)), cell(off, f"{100 * off:+.1f}%")]


def _landscape(found: Sequence[Measurement], timed: Sequence[tuple[Row, Measurement]]) -> list[Chart]:
    """Rate over the one size that varies, coloured by alignment, with the prediction as a line."""
    sizes = [flat(dict(one.description)) for one in found]
    varying = [size for size in SIZES if len({known[size] for known in sizes}) > 1]
    if len(varying) != 1 or any(not one.tflops for one in found) or any(not known[varying[0]] for known in sizes):
        return []
    (size,) = varying
    points, errors, predicted = [], [], []
    for (row, one), known in zip(timed, sizes, strict=True):
        value, rate, seconds = known[size], one.tflops or 0.0, one.seconds or 0.0
        group, kind = alignment_class(value), " ".join(filter(None, (known["layout"], one.description.get("dtype"))))
        points.append({"x": value, "y": rate, "group": group, "kind": kind, "what": f"{row.title}: {rate:.4g} TFLOPS"})
        if one.low and one.high:
            errors.append({"x": value, "y": rate * seconds / one.high, "y2": rate * seconds / one.low, "group": group})
        if row.predicted_s:
            predicted.append({"x": value, "y": rate * seconds / row.predicted_s, "what": "predicted"})
    layers = [Layer("rule", errors, {"opacity": 0.5}), Layer("point", points, {"size": 45})]
    layers += [Layer("line", predicted, {"color": "#888888"})] if predicted else []
    line = " The line is the prediction." if predicted else ""
    return [
        Chart(
            f"Rate over {size} with its interval, coloured by the power of two that divides it.{line}",
            Axis(size, zero=False, whole=True),
            Axis("TFLOPS", zero=False),
            layers,
            height=380,
            colours=COLOURS,
            legend=("divisible by", ""),
        )
    ]


def _beside(timed: Sequence[tuple[Row, Measurement]]) -> list[Chart]:
    """Measured over predicted times; on the diagonal they are the same."""
    pairs = [(row, one) for row, one in timed if row.predicted_s and one.seconds]
    if not pairs:
        return []
    points = [
        {
            "x": row.predicted_s,
            "y": one.seconds,
            "group": str(one.description.get("kind")),
            "what": f"{row.title}: {seconds_text(one.seconds or 0.0)}, "
            f"predicted {seconds_text(row.predicted_s or 0.0)}",
        }
        for row, one in pairs
    ]
    errors = [{"x": row.predicted_s, "y": one.low, "y2": one.high} for row, one in pairs if one.low and one.high]
    known = [seconds for row, one in pairs for seconds in (row.predicted_s or 0.0, one.seconds or 0.0)]
    diagonal = [{"x": end, "y": end} for end in (min(known), max(known))]
    layers = [
        Layer("line", diagonal, {"color": "#888888"}),
        *([Layer("rule", errors)] if errors else []),
        Layer("point", points),
    ]
    return [
        Chart(
            "Measured over predicted times with their intervals; on the line they are the same.",
            Axis("predicted, s", log=True),
            Axis("measured, s", log=True),
            layers,
            height=380,
        )
    ]


def _peak(peak: Peak) -> list[Part]:
    """The fastest shapes, and the published maximum of this device."""
    names = [" x ".join(str(one.description[size]) for size in SIZES) for one in peak.maximum.tried]
    shown = list(zip(names, peak.maximum.tried, strict=True))[:SHOWN]
    bars = [
        {"x": 0.0, "x2": one.tflops or 0.0, "y": name, "what": f"{name}: {one.tflops or 0.0:.4g} TFLOPS"}
        for name, one in shown
    ]
    published = peak.published_flops
    layers = [Layer("bar", bars)]
    layers += limit(published / 1e12, f"published {published / 1e12:.4g}", along="x") if published else []
    rows = [[cell(name), *_times(one)] for name, one in zip(names, peak.maximum.tried, strict=True)]
    chart = Chart(
        f"The fastest {peak.maximum.dtype} products of {len(rows)} tried.",
        Axis("TFLOPS"),
        Axis("m x n x k", order=tuple(dict.fromkeys(name for name, _ in shown))),
        layers,
        height=60 + 22 * len(bars),
    )
    return [*([chart] if bars else []), Table("Products tried", ("m x n x k", *HEAD), rows)]
