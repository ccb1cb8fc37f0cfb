"""A check as a page to look at: where the step goes, the roofline, memory, and the findings, of each configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shapes.memory import Memory
from sizer.answers.operator_table import OperatorTable
from sizer.answers.overview import Overview, Overviews
from sizer.checking.findings import SEVERITIES, Report
from sizer.report.html_page import Cell, HtmlPage, text
from sizer.report.page import Page
from sizer.report.units import count_text, percent_text, seconds_text

GIB = 2**30
PHASES = ("forward", "dgrad", "wgrad", "optimizer")
SYMBOLS = {"forward": "circle", "dgrad": "square", "wgrad": "diamond", "optimizer": "x"}
#: Paul Tol's bright scheme: told apart by people who see few colours, on light and dark.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")


def render(answer: Overviews, page: Page) -> str:
    html = HtmlPage("sizer: " + ", ".join(one.report.path for one in answer.items[:3]))
    html.parts.append("<h1>sizer check</h1>")
    if len(answer.items) > 1:
        links = "".join(f'<li><a href="#c{at}">{text(one.report.path)}</a></li>' for at, one in enumerate(answer.items))
        html.parts.append(f'<nav aria-label="configurations"><ul>{links}</ul></nav>')
    for at, one in enumerate(answer.items):
        html.parts.append(f'<section id="c{at}"><h2>{text(one.report.path)}</h2>')
        _section(html, one)
        html.parts.append("</section>")
    return html.render()


def _section(html: HtmlPage, one: Overview) -> None:
    report, step = one.report, one.report.step
    workload = report.workload
    html.facts({
        "model": report.model.model_type, "parameters": count_text(report.model.parameters), "device": report.device,
        "stack": report.stack or "-", "microbatch x sequence": f"{workload.b} x {workload.s}", "type": workload.dtype,
        "step": f"{seconds_text(step.seconds)} ({seconds_text(step.low)} to {seconds_text(step.high)})",
        "MFU": percent_text(step.mfu),
    })  # fmt: skip
    html.parts.append(
        f'<p class="quiet">Times: {text(step.source)}{text(f"; stack {step.tier}" if step.tier else "")}</p>'
    )
    html.parts += [f'<p class="quiet">Note: {text(note)}</p>' for note in report.model.notes]
    _findings(html, report)
    _step_chart(html, one.table, report)
    _roofline(html, one.table)
    if one.memory is not None:
        _memory_chart(html, one.memory, report.device)
    _operators(html, one.table)


def _findings(html: HtmlPage, report: Report) -> None:
    if not report.findings:
        html.parts.append("<p>No findings.</p>")
        return
    rows = []
    for finding in report.findings:
        changes = "; ".join(
            ", ".join(f"{key} {value}" for key, value in one.change.items())
            + f": {'saves' if one.step_seconds_change <= 0 else 'adds'} {seconds_text(abs(one.step_seconds_change))}"
            + (" (within the error)" if one.within_error else "")
            for one in finding.suggestions
        )
        rows.append((
            Cell(finding.severity, float(SEVERITIES.index(finding.severity)), finding.severity),
            Cell(f"{finding.code} {finding.slug}"), Cell(f"{finding.field} = {finding.value}"), Cell(finding.message),
            Cell(seconds_text(finding.step_seconds), finding.step_seconds), Cell(changes),
        ))  # fmt: skip
    html.table("Findings", ("severity", "rule", "key", "what", "costs a step", "instead"), rows, frozenset({4}))


def _step_chart(html: HtmlPage, table: OperatorTable, report: Report) -> None:
    """A bar a phase, stacked of its operators; above it the step's parts with its interval."""
    rows = sorted(table.rows(), key=lambda row: -row["seconds"] * row["count"])
    step, data = report.step, []
    for at, (name, seconds) in enumerate(sorted(step.parts.items(), key=lambda part: -part[1])):
        data.append(_bar("whole step", name, seconds, COLOURS[at % len(COLOURS)]))
    for at, row in enumerate(rows):
        data.append(_bar(row["phase"], row["name"], row["seconds"] * row["count"], COLOURS[at % len(COLOURS)]))
    data.append({
        "type": "scatter", "x": [step.seconds * 1e3], "y": ["whole step"], "mode": "markers", "name": "step",
        "marker": {"size": 9, "color": "#888888"}, "showlegend": False,
        "error_x": {"type": "data", "symmetric": False, "array": [1e3 * (step.high - step.seconds)],
                    "arrayminus": [1e3 * (step.seconds - step.low)]},
        "hovertemplate": f"{seconds_text(step.low)} to {seconds_text(step.high)}<extra></extra>",
    })  # fmt: skip
    order = [*reversed([phase for phase in PHASES if any(row["phase"] == phase for row in rows)]), "whole step"]
    layout = {
        "barmode": "stack", "showlegend": False, "xaxis": {"title": {"text": "ms"}}, "height": 90 + 60 * len(order),
        "yaxis": {"categoryorder": "array", "categoryarray": order}, "margin": {"t": 20, "r": 20},
    }  # fmt: skip
    share = f"{step.coverage:.0%} of cases" if step.coverage else "the operators' own errors"
    html.chart(
        data,
        layout,
        f"The step as a stack of operators by phase (one microbatch), and of its parts; the line is {share}.",
    )


def _bar(group: str, name: str, seconds: float, colour: str) -> dict[str, Any]:
    return {
        "type": "bar", "orientation": "h", "x": [seconds * 1e3], "y": [group], "name": name,
        "marker": {"color": colour, "line": {"width": 1, "color": "rgba(128,128,128,.5)"}},
        "hovertemplate": f"{text(name)}<br>{seconds_text(seconds)}<extra></extra>",
    }  # fmt: skip


def _roofline(html: HtmlPage, table: OperatorTable) -> None:
    """TFLOPS over FLOPs a byte of every operator, under what the memory and the matrix units allow."""
    device, dtype = table.device, table.workload.dtype
    rows = [row for row in table.rows() if row["visible_flops"] and row["bytes"]]
    bandwidth, peak = device.memory.bandwidth_bytes_per_s / 1e12, device.peak_flops.get(dtype, 0.0) / 1e12
    if not rows or not peak:
        return
    intensities = [row["visible_flops"] / row["bytes"] for row in rows]
    ridge = peak / bandwidth
    ends = (min(*intensities, ridge) / 2, max(*intensities, ridge) * 2)
    data: list[Mapping[str, Any]] = [{
        "type": "scatter", "mode": "lines", "x": [ends[0], ridge, ends[1]], "y": [ends[0] * bandwidth, peak, peak],
        "name": f"{device.name}: {peak:.0f} TFLOPS, {bandwidth:.2f} TB/s", "line": {"color": "#888888"},
    }]  # fmt: skip
    longest = max(row["seconds"] * row["count"] for row in rows)
    for phase in PHASES:
        pairs = [(row, x) for row, x in zip(rows, intensities, strict=True) if row["phase"] == phase]
        if pairs:
            data.append({
                "type": "scatter", "mode": "markers", "name": phase, "x": [x for _, x in pairs],
                "y": [row["tflops"] for row, _ in pairs],
                "error_y": {"type": "data", "thickness": 1,
                            "array": [row["tflops"] * row["error"] for row, _ in pairs]},
                "text": [f"{text(row['name'])}<br>{seconds_text(row['seconds'])} x {row['count']}, {row['bound']}-bound"
                         for row, _ in pairs],
                "hovertemplate": "%{text}<br>%{y:.0f} TFLOPS at %{x:.0f} FLOPs a byte<extra></extra>",
                "marker": {"symbol": SYMBOLS[phase], "color": COLOURS[PHASES.index(phase)], "opacity": 0.85,
                           "size": [7 + 16 * (row["seconds"] * row["count"] / longest) ** 0.5 for row, _ in pairs]},
            })  # fmt: skip
    layout = {
        "height": 480, "margin": {"t": 20, "r": 20}, "legend": {"orientation": "h", "y": -0.2},
        "xaxis": {"type": "log", "title": {"text": "FLOPs a byte"}},
        "yaxis": {"type": "log", "title": {"text": "TFLOPS"}},
    }  # fmt: skip
    left = len(table.operators) - len(rows)
    rest = f" {left} operators that only move memory have no FLOPs: they are in the table." if left else ""
    html.chart(data, layout, f"Roofline: every operator with FLOPs, its area by its share of the step.{rest}")


def _memory_chart(html: HtmlPage, memory: Memory, device: str) -> None:
    data: list[dict[str, Any]] = [
        {
            "type": "bar", "orientation": "h", "x": [part.bytes / GIB], "y": [memory.moment or "in use"],
            "name": f"{part.name} {part.bytes / GIB:.2f}", "marker": {"color": COLOURS[at % len(COLOURS)]},
            "hovertemplate": f"{text(part.name)}: {part.bytes / GIB:.2f} GiB<br>{text(part.formula)}<extra></extra>",
        }
        for at, part in enumerate(memory.parts)
    ]  # fmt: skip
    data += [
        {"type": "bar", "orientation": "h", "x": [size / GIB], "y": [name], "showlegend": False,
         "marker": {"color": "#bbbbbb"}, "hovertemplate": f"{text(name)}: {size / GIB:.2f} GiB<extra></extra>"}
        for name, size in memory.moments if name != memory.moment
    ]  # fmt: skip
    layout: dict[str, Any] = {
        "barmode": "stack", "height": 240 + 30 * len(memory.moments), "xaxis": {"title": {"text": "GiB"}},
        "legend": {"orientation": "h", "y": -0.4}, "margin": {"t": 40, "r": 20},
    }  # fmt: skip
    limit = ""
    if memory.device_bytes is not None:
        size = memory.device_bytes / GIB
        layout["shapes"] = [
            {"type": "line", "x0": size, "x1": size, "y0": 0, "y1": 1, "yref": "paper", "line": {"dash": "dash"}}
        ]
        layout["annotations"] = [
            {"x": size, "y": 1.08, "yref": "paper", "showarrow": False, "text": f"{device} {size:.1f} GiB"}
        ]
        limit = f" of {size:.1f} GiB"
    html.chart(
        data, layout, f"Memory of one device by component and moment: {memory.total_bytes / GIB:.1f} GiB{limit}."
    )
    rows = [(Cell(part.name), Cell(f"{part.bytes / GIB:.3f}", float(part.bytes)), Cell(part.formula, None, "quiet"))
            for part in memory.parts]  # fmt: skip
    html.table("Memory by component", ("component", "GiB", "how"), rows, frozenset({1}))


def _operators(html: HtmlPage, table: OperatorTable) -> None:
    def number(value: float | None, shown: str = "") -> Cell:
        return Cell("" if value is None else shown or f"{value:,}", -1.0 if value is None else float(value))

    rows = [
        (
            Cell(row["name"]), Cell(row["phase"]), Cell(row["kind"]), number(row["count"]),
            *(number(row[key]) for key in ("batch", "m", "n", "k")),
            number(row["visible_flops"] / 1e9, f"{row['visible_flops'] / 1e9:,.1f}"),
            number(row["seconds"], seconds_text(row["seconds"])),
            number(row["seconds"] * row["count"], seconds_text(row["seconds"] * row["count"])),
            number(row["tflops"], f"{row['tflops']:.0f}"), Cell(row["bound"]),
        )
        for row in table.rows()
    ]  # fmt: skip
    head = ("operator", "phase", "kind", "count", "batch", "m", "n", "k", "GFLOP", "time", "x count", "TFLOPS", "bound")
    html.table("Operators", head, rows, frozenset(range(3, 12)))
