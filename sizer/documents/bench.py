"""Measurements: rates over the size that varies, times over their predictions, every figure; the jobs of a dry run;

and what a calibration is off by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from shapes.calibrate import Calibration
from shapes.measure.jobs import flat
from shapes.measure.record import Measurement
from shapes.measure.runner import Sweep
from sizer.answers.bench import Bench, Peak, Planned, Row
from sizer.answers.bench import Table as Measured
from sizer.documents.charts import ALIGNMENT_COLOURS, Axis, Bar, Chart, Layer, alignment_class, bars, limit
from sizer.documents.document import Charts, Column, Document, Part, Section, Table, Text
from sizer.documents.units import seconds_text, width_text

SIZES = ("m", "n", "k")
#: Fastest shapes of a maximum that are drawn, and that a text lists.
DRAWN, LISTED = 20, 10
#: Columns of CSV and Parquet: the flat fields, then the environment's.
FIELDS = (
    "kind",
    "phase",
    "dtype",
    "layout",
    "kernel",
    "batch",
    "m",
    "n",
    "k",
    "status",
    "seconds",
    "low",
    "high",
    "tflops",
    "flops",
    "bytes",
    "device",
    "torch",
    "samples_taken",
    "per_sample",
    "stop",
    "drift",
    "correlation",
    "check_error",
    "control_s",
    "peak_bytes",
    "wall_s",
    "label",
    "message",
    "created",
    "uid",
)


def records(measurements: Sequence[Measurement]) -> Iterator[Mapping[str, object]]:
    """A flat row each, without the samples."""
    for one in measurements:
        row = one.row(samples=False)
        yield {name: row[name] for name in FIELDS}


def document(answer: Bench) -> Document:
    sections = [Section(group.title or "Measured", list(_group(group.title, group.parts))) for group in answer.groups]
    rows = partial(records, answer.measurements)
    return Document("sizer bench", sections, answer, records=rows, fields=FIELDS)


def _group(title: str, parts: Sequence[Measured | Peak]) -> Iterator[Part]:
    if title:
        yield Text(title, "head")
    for part in parts:
        yield from _peak(part) if isinstance(part, Peak) else _sweep(part)


TIMES = (
    Column("time", lambda one: one.seconds, seconds_text),
    Column("+-", "half_width", width_text),
    Column("TFLOPS", lambda one: one.tflops or None, ".4g"),
)


def _sweep(table: Measured) -> Iterator[Part]:
    """The table, then outcomes that are no times, then how steady the device was."""
    timed = [row for row in table.rows if row.measurement is not None and row.measurement.seconds]
    counted = any(row.count != 1 for row in table.rows)
    predicted = any(row.predicted_s is not None for row in table.rows)
    columns = [
        Column("what", "title"),
        *([Column("a step", "count")] if counted else []),
        *(Column(one.name, partial(_of_measurement, one), one.show) for one in TIMES),
        *(PREDICTED if predicted else ()),
        Column("samples", lambda row: len(row.measurement.samples)),
        Column("stopped by", lambda row: row.measurement.stop, drop=1),
    ]
    yield Text(f"measured on {table.environment.source.removeprefix('measured:')}")
    yield Charts(partial(_charts, timed))
    yield Table("", columns, timed)
    if counted:
        yield Text(_step(table.rows, timed))
    failed = [row for row in table.rows if row.measurement is not None and not row.measurement.seconds]
    for row in failed:
        if row.measurement is not None:
            yield Text(f"{row.title}: {row.measurement.status}: {row.measurement.message}")
    yield from (Text(line) for line in (*_closing(table.sweep), *table.notes))


def _of_measurement(column: Column, row: Row) -> object:
    return column.of(row.measurement) if callable(column.of) else None


def _off(row: Row) -> float | None:
    one = row.measurement
    return row.predicted_s / one.seconds - 1 if row.predicted_s and one is not None and one.seconds else None


PREDICTED = (
    Column("predicted", lambda row: row.predicted_s or None, seconds_text),
    Column("off by", _off, lambda off: f"{100 * off:+.1f}%"),
)


def _seconds(row: Row) -> float:
    return (row.measurement.seconds or 0.0) if row.measurement is not None else 0.0


def _step(rows: Sequence[Row], timed: Sequence[Row]) -> str:
    total = sum(_seconds(row) * row.count for row in timed)
    text = f"a step: {seconds_text(total)} in the {len(timed)} of {len(rows)} operators that were measured"
    if timed and all(row.predicted_s is not None for row in timed):
        known = sum((row.predicted_s or 0.0) * row.count for row in timed)
        text += f" (predicted for the same: {seconds_text(known)}, {100 * (known / total - 1):+.1f}%)"
    return text


def _closing(sweep: Sweep) -> list[str]:
    lines = [f"{sweep.measured} measured, {sweep.reused} from the store, in {sweep.elapsed_s:.1f} s"]
    if sweep.left:
        lines.append(f"{len(sweep.left)} not reached in time: the same command goes on with them")
    drift = sweep.drift
    if drift.timings > 1 and not drift.steady:
        lines.append(
            f"warning: the control shape's time spread over {100 * drift.spread:.1f}% and changed by "
            f"{100 * drift.change:+.1f}%: the device is shared, hot or throttled"
        )
    return lines


def _charts(timed: Sequence[Row]) -> list[Chart]:
    return [*_landscape(timed), *_predictions(timed)]


def _landscape(timed: Sequence[Row]) -> Iterator[Chart]:
    """Rate over the one size that varies, coloured by alignment, with the prediction as a line."""
    found = [(row, row.measurement) for row in timed if row.measurement is not None]
    sizes = [flat(dict(one.description)) for _, one in found]
    varying = [size for size in SIZES if len({known[size] for known in sizes}) > 1]
    if len(varying) != 1 or any(not one.tflops for _, one in found) or any(not known[varying[0]] for known in sizes):
        return
    (size,) = varying
    points, errors, predicted = [], [], []
    for (row, one), known in zip(found, sizes, strict=True):
        rate, seconds = one.tflops or 0.0, one.seconds or 0.0
        at = {"x": known[size], "y": rate, "group": alignment_class(known[size])}
        kind = " ".join(filter(None, (known["layout"], one.description.get("dtype"))))
        points.append({**at, "kind": kind, "what": f"{row.title}: {rate:.4g} TFLOPS"})
        if one.low and one.high:
            errors.append({**at, "y": rate * seconds / one.high, "y2": rate * seconds / one.low})
        if row.predicted_s:
            predicted.append({"x": known[size], "y": rate * seconds / row.predicted_s, "what": "predicted"})
    layers = [Layer("rule", errors, {"opacity": 0.5}), Layer("point", points, {"size": 45})]
    layers += [Layer("line", predicted, {"color": "#888888"})] if predicted else []
    line = " The line is the prediction." if predicted else ""
    yield Chart(
        f"Rate over {size} with its interval, coloured by the power of two that divides it.{line}",
        Axis(size, zero=False, whole=True),
        Axis("TFLOPS", zero=False),
        layers,
        colours=ALIGNMENT_COLOURS,
        legend=("divisible by", ""),
    )


def _predictions(timed: Sequence[Row]) -> Iterator[Chart]:
    """Measured over predicted times; on the diagonal they are the same."""
    points, errors, ends = [], [], []
    for row in timed:
        one = row.measurement
        if one is None or not one.seconds or not row.predicted_s:
            continue
        said = f"{row.title}: {seconds_text(one.seconds)}, predicted {seconds_text(row.predicted_s)}"
        at = {"x": row.predicted_s, "y": one.seconds}
        points.append({**at, "group": str(one.description.get("kind")), "what": said})
        errors += [{**at, "y": one.low, "y2": one.high}] if one.low and one.high else []
        ends += [row.predicted_s, one.seconds]
    if not points:
        return
    diagonal = [{"x": end, "y": end} for end in (min(ends), max(ends))]
    layers = [
        Layer("line", diagonal, {"color": "#888888"}),
        *([Layer("rule", errors)] if errors else []),
        Layer("point", points),
    ]
    yield Chart(
        "Measured over predicted times with their intervals; on the line they are the same.",
        Axis("predicted, s", log=True),
        Axis("measured, s", log=True),
        layers,
    )


def _shape(one: Measurement) -> str:
    return " x ".join(str(one.description[size]) for size in SIZES)


def _peak(peak: Peak) -> Iterator[Part]:
    """The fastest shapes, and the published maximum of this device."""
    maximum, published = peak.maximum, peak.published_flops
    yield Text(f"maximum achievable matmul, {maximum.dtype}, on {peak.environment.source.removeprefix('measured:')}")
    yield Charts(partial(_fastest, peak))
    yield Table("", (Column("m x n x k", _shape), *TIMES), maximum.tried, LISTED)
    if maximum.best is not None and published:
        yield Text(f"published maximum (mamf-finder): {published / 1e12:.4g} TFLOPS")
    yield Text(f"{len(maximum.tried)} shapes tried, {maximum.left} not reached, in {maximum.elapsed_s:.1f} s")


def _fastest(peak: Peak) -> list[Chart]:
    listed = [
        Bar(_shape(one), [(peak.maximum.dtype, one.tflops or 0.0, f"{_shape(one)}: {one.tflops or 0.0:.4g} TFLOPS")])
        for one in peak.maximum.tried[:DRAWN]
    ]
    if not listed:
        return []
    published = peak.published_flops
    layers = limit(published / 1e12, f"published {published / 1e12:.4g}") if published else []
    caption = f"The fastest {peak.maximum.dtype} products of {len(peak.maximum.tried)} tried."
    return [bars(caption, "TFLOPS", listed, more=layers, title="m x n x k")]


def planned(answer: Planned) -> Document:
    """One job a line, in the order in which they would be measured."""
    lines = []
    for suite, jobs in answer.suites.items():
        lines += [f"{suite}: {len(jobs)} jobs", *(f"{job.priority} {job.title} ({job.label})" for job in jobs)]
    parts = [Text(line) for line in lines]
    rows = [
        {"suite": suite, "priority": job.priority, "job": job.title, "label": job.label}
        for suite, jobs in answer.suites.items()
        for job in jobs
    ]
    return Document("sizer bench --dry-run", (Section("Jobs", parts),), answer, records=lambda: rows)


def calibration(answer: Calibration) -> Document:
    """Each error on what was held out."""
    rows = []
    for name, error in answer.error.items():
        text = ", ".join(f"{k} {v:.1%}" for k, v in error.items()) if isinstance(error, dict) else f"{error:.1%}"
        rows.append((name, text))
    columns = (Column("held out", 0), Column("error", 1))
    return Document("sizer calibrate", (Section("", (Table("", columns, rows),)),), answer)
