"""`bench` as text: one line a job, fastest rate marked, and what was not measured, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from shapes.measure.runner import Sweep
from sizer.answers.bench import Bench, Peak, Row, Table
from sizer.documents.units import seconds_text, width_text
from sizer.render.page import Page

#: Rows of the fastest shapes that a maximum prints.
TOP = 10


def render(answer: Bench, page: Page) -> str:
    return "\n\n".join(
        "\n".join([*([group.title] if group.title else []), *(_part(part) for part in group.parts)])
        for group in answer.groups
    )


def _part(part: Table | Peak) -> str:
    return _peak(part) if isinstance(part, Peak) else _table(part)


def _table(table: Table) -> str:
    """The table, then outcomes that are no times, then how steady the device was."""
    rows = table.rows
    predicted = any(row.predicted_s is not None for row in rows)
    counted = any(row.count != 1 for row in rows)
    headers = ["what", *(["a step"] if counted else []), "time", "+-", "TFLOPS"]
    headers += ["predicted", "off by"] if predicted else []
    headers += ["samples", "stopped by"]
    body = [_cells(row, predicted, counted) for row in rows if row.measurement is not None and row.measurement.ok]
    lines = [f"measured on {table.environment.source.removeprefix('measured:')}"]
    if body:
        align = ["left", *["right"] * (len(headers) - 2), "left"]
        lines += ["", tabulate(body, headers, disable_numparse=True, colalign=align)]
    if counted:
        lines += ["", _step(rows)]
    failed = [row for row in rows if row.measurement is not None and not row.measurement.ok]
    lines += ["", *(f"{row.title}: {_why(row)}" for row in failed)] if failed else []
    return "\n".join([*lines, "", *_closing(table.sweep), *table.notes])


def _cells(row: Row, predicted: bool, counted: bool) -> list[str]:
    one = row.measurement
    if one is None or one.seconds is None or one.half_width is None:
        return []
    cells = [
        row.title,
        *([str(row.count)] if counted else []),
        seconds_text(one.seconds),
        width_text(one.half_width),
    ]
    cells.append(f"{one.tflops:.4g}" if one.tflops else "-")
    if predicted:
        known = row.predicted_s
        cells += [seconds_text(known), f"{100 * (known / one.seconds - 1):+.1f}%"] if known else ["-", "-"]
    return [*cells, str(len(one.samples)), str(one.stop)]


def _step(rows: Sequence[Row]) -> str:
    timed = [(row, row.measurement.seconds) for row in rows if row.measurement and row.measurement.seconds]
    total = sum(seconds * row.count for row, seconds in timed)
    text = f"a step: {seconds_text(total)} in the {len(timed)} of {len(rows)} operators that were measured"
    if timed and all(row.predicted_s is not None for row, _ in timed):
        known = sum((row.predicted_s or 0.0) * row.count for row, _ in timed)
        text += f" (predicted for the same: {seconds_text(known)}, {100 * (known / total - 1):+.1f}%)"
    return text


def _why(row: Row) -> str:
    one = row.measurement
    return f"{one.status}: {one.message}" if one is not None else ""


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


def _peak(peak: Peak) -> str:
    """The fastest shapes, and with the published maximum of this device for comparison."""
    maximum = peak.maximum
    headers = ("m", "n", "k", "time", "+-", "TFLOPS")
    table = [
        (
            one.description["m"],
            one.description["n"],
            one.description["k"],
            seconds_text(one.seconds or 0.0),
            width_text(one.half_width or 0.0),
            f"{one.tflops:.4g}",
        )
        for one in maximum.tried[:TOP]
    ]
    lines = [
        f"maximum achievable matmul, {maximum.dtype}, on {peak.environment.source.removeprefix('measured:')}",
        "",
        tabulate(table, headers, disable_numparse=True, colalign=("right",) * len(headers)),
        "",
    ]
    best = maximum.best
    if best is not None and peak.published_flops:
        lines.append(f"published maximum (mamf-finder): {peak.published_flops / 1e12:.4g} TFLOPS")
    lines.append(f"{len(maximum.tried)} shapes tried, {maximum.left} not reached, in {maximum.elapsed_s:.1f} s")
    return "\n".join(lines)
