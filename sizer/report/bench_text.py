"""`bench` as text: one line a job, fastest rate marked, and what was not measured, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence

from shapes.measure.environment import Environment
from shapes.measure.mamf import Maximum
from shapes.measure.runner import Sweep
from sizer.answers.bench import Row
from sizer.report.units import seconds_text

#: Rows of the fastest shapes that a maximum prints.
TOP = 10


def bench_text(rows: Sequence[Row], sweep: Sweep, environment: Environment) -> str:
    """The table, then outcomes that are no times, then how steady the device was."""
    from tabulate import tabulate

    predicted = any(row.predicted_s is not None for row in rows)
    counted = any(row.count != 1 for row in rows)
    headers = ["what", *(["a step"] if counted else []), "time", "+-", "TFLOPS"]
    headers += ["predicted", "off by"] if predicted else []
    headers += ["samples", "stopped by"]
    table = [_cells(row, predicted, counted) for row in rows if row.measurement is not None and row.measurement.ok]
    lines = [f"measured on {environment.source.removeprefix('measured:')}"]
    if table:
        align = ["left", *["right"] * (len(headers) - 2), "left"]
        lines += ["", tabulate(table, headers, disable_numparse=True, colalign=align)]
    if counted:
        lines += ["", _step(rows)]
    failed = [row for row in rows if row.measurement is not None and not row.measurement.ok]
    lines += ["", *(f"{row.title}: {_why(row)}" for row in failed)] if failed else []
    return "\n".join([*lines, "", *_closing(sweep)])


def width_text(half_width: float) -> str:
    """Half of an interval's width; past the figure itself its size says nothing more."""
    return f"{100 * half_width:.2f}%" if half_width <= 1 else ">100%"


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


def maximum_text(maximum: Maximum, environment: Environment, published_flops: float | None) -> str:
    """The fastest shapes, and the published maximum of this device beside the best."""
    from tabulate import tabulate

    headers = ("m", "n", "k", "time", "+-", "TFLOPS")
    table = [
        (one.description["m"], one.description["n"], one.description["k"], seconds_text(one.seconds or 0.0),
         width_text(one.half_width or 0.0), f"{one.tflops:.4g}")
        for one in maximum.tried[:TOP]
    ]  # fmt: skip
    lines = [
        f"maximum achievable matmul, {maximum.dtype}, on {environment.source.removeprefix('measured:')}", "",
        tabulate(table, headers, disable_numparse=True, colalign=("right",) * len(headers)), "",
    ]  # fmt: skip
    best = maximum.best
    if best is not None and published_flops:
        lines.append(f"published maximum (mamf-finder): {published_flops / 1e12:.4g} TFLOPS")
    lines.append(f"{len(maximum.tried)} shapes tried, {maximum.left} not reached, in {maximum.elapsed_s:.1f} s")
    return "\n".join(lines)
