"""Measurements: times over their predictions, a dry run's jobs, what the store holds and what a calibration found."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from shapes.calibrate import Calibration
from shapes.frozen import in_words
from shapes.measure.record import Measurement
from sizer.answers.bench import Bench, MeasuredTable, Planned, Row, SelfTest, Stored

from . import Cell, Column, Document, Part, Section, Table, Text, columns, lines, seconds_text

#: Jobs not reached that a text lists.
LISTED = 10


def records(measurements: Sequence[Measurement]) -> Table:
    """A flat row each, without the samples."""
    return Table(columns("measurements"), [one.row(samples=False) for one in measurements])


def document(answer: Bench) -> Document:
    sections = [
        Section(table.title or "Measured", [*lines([table.title], "head"), *_sweep(table)]) for table in answer.tables
    ]
    return Document("sizer bench", sections, answer, records=partial(records, answer.measurements))


def _sweep(table: MeasuredTable) -> Iterator[Part]:
    """The table, then outcomes that are no times, then how steady the device was."""
    ran: list[Any] = [row for row in table.rows if row.measurement]
    timed = [row for row in ran if row.measurement.seconds]
    counted = any(row.count != 1 for row in table.rows)
    yield Text(f"measured on {table.environment.source.removeprefix('measured:')}")
    yield Table([one for one in MEASURED if counted or one.name != "a step"], timed)
    said = [_step(table.rows, timed)] if counted else []
    said += _fastest(timed)
    said += [
        f"{row.title}: {row.measurement.status}: {row.measurement.message}"
        for row in ran
        if not row.measurement.seconds
    ]
    sweep, drift = table.sweep, table.sweep.drift
    said.append(f"{sweep.measured} measured, {sweep.reused} from the store, in {sweep.elapsed_s:.1f} s")
    if drift.timings > 1 and not drift.steady:
        said.append(
            f"warning: the control shape's time spread over {drift.spread:.1%} and changed by "
            f"{drift.change:+.1%}: the device is shared, hot or throttled"
        )
    yield from lines(said)
    yield Table(
        (Column(f"{len(sweep.left)} jobs", "title"),),
        sweep.left,
        "not reached in time, the same command goes on with them",
        LISTED,
    )
    yield from lines(table.notes)


MEASURED = columns(
    "bench",
    off=lambda row: row.predicted_s / row.measurement.seconds - 1 if row.predicted_s else None,
    samples=lambda row: len(row.measurement.samples),
)


def _fastest(timed: Sequence[Row]) -> Iterator[str]:
    """The highest rate of several products, and the published maximum (mamf-finder's) of their device."""
    rates = [(one.tflops, row.title, one) for row in timed if (one := row.measurement) and one.tflops]
    if len(rates) < 2:
        return
    rate, title, one = max(rates, key=lambda found: found[0])
    device, dtype = one.environment.accelerator, str(one.description.get("dtype"))
    published = device.mamf_flops.get(dtype) if device is not None else None
    text = f", published maximum of {dtype} {published / 1e12:.4g}" if published else ""
    yield f"highest rate: {rate:.4g} TFLOPS, {title}{text}"


def _step(rows: Sequence[Row], timed: Sequence[Any]) -> str:
    total = sum(row.measurement.seconds * row.count for row in timed)
    text = f"a step: {seconds_text(total)} in the {len(timed)} of {len(rows)} operators that were measured"
    if timed and all(row.predicted_s is not None for row in timed):
        known = sum(row.predicted_s * row.count for row in timed)
        text += f" (predicted for the same: {seconds_text(known)}, {known / total - 1:+.1%})"
    return text


def planned(answer: Planned) -> Document:
    """Each suite's jobs and the longest time that they take; in JSON and CSV a row for each job, in order."""
    parts, rows = [], []
    for suite, (jobs, each_s) in answer.items():
        counts = Counter((job.priority, job.label) for job in jobs)
        title = f"{suite}: {len(jobs)} jobs, {seconds_text(len(jobs) * each_s)} of device time at most"
        each = [(*what, count, count * each_s) for what, count in counts.items()]
        parts.append(Table(columns("bench plan"), each, title))
        rows += [{"suite": suite, "priority": one.priority, "job": one.title, "label": one.label} for one in jobs]
    return Document("sizer bench --dry-run", (Section("Jobs", tuple(parts)),), records=lambda: rows)


def self_tested(answer: SelfTest) -> Document:
    """A line a check, and what they come to."""
    words = {True: "pass", False: "FAIL", None: "n/a"}
    verdict = (
        "measuring works here" if answer.passed else "measuring does not work here: its figures are not to be used"
    )
    parts = (
        Text(answer.device),
        Table(columns("bench self-test", outcome=lambda one: words[one.passed]), answer.checks),
        Text(verdict),
    )
    return Document("sizer bench --self-test", (Section("Self-test", parts),))


def calibration(answer: Calibration) -> Document:
    """Each error on what was held out."""
    rows = [
        (name, in_words(error, "{} {:.1%}") if isinstance(error, dict) else f"{error:.1%}")
        for name, error in answer.error.items()
    ]
    return Document("sizer calibrate", (Section("", (Table(columns("calibrate"), rows),)),))


def listed(answer: Stored) -> Document:
    """Stored measurements, the newest last."""
    listing = columns("store", what=_what, time=lambda one: one.seconds or Cell(one.status))
    parts = (Table(listing, answer.measurements), Text(f"{len(answer.measurements)} of {answer.total} measurements"))
    return Document("sizer store list", (Section("Measurements", parts),), answer)


def exported(answer: Stored) -> Document:
    """Measurements for other programs."""
    return Document("sizer store export", (), answer, records=partial(records, answer.measurements))


def _what(one: Measurement) -> str:
    row = one.row(samples=False)
    sizes = " x ".join(str(row[name]) for name in ("m", "n", "k") if row[name] is not None)
    batch = f"{row['batch']} x " if (row["batch"] or 1) > 1 else ""
    words = row["kind"], f"{batch}{sizes}", row["layout"], row["phase"], row["dtype"], row["kernel"]
    return " ".join(str(word) for word in words if word)
