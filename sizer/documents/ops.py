"""An operator table as a page: where the step goes, the roofline, and every operator."""

from __future__ import annotations

from typing import Any

from sizer.answers.operator_table import OperatorTable
from sizer.checking.findings import StepTime
from sizer.documents.document import Axis, Cell, Chart, Document, Facts, Layer, Section, Table, Text, cell
from sizer.documents.units import count_text, percent_text, seconds_scale, seconds_text

PHASES = ("forward", "dgrad", "wgrad", "optimizer")
WHOLE = "whole step"
#: Parts of a step and families of operators; what both have is of one colour.
COLOURS = {
    "products": "#004488",
    "MLP, experts": "#4477aa",
    "attention projections": "#66ccee",
    "head, embedding": "#99ddff",
    "attention": "#ee6677",
    "elementwise": "#228833",
    "optimizer": "#ccbb44",
    "communication": "#aa3377",
}


def document(answer: OperatorTable) -> Document:
    step, workload = answer.step, answer.workload
    facts = {
        "model": answer.model.model_type,
        "parameters": count_text(answer.model.parameters),
        "device": answer.device.name,
        "stack": answer.stack or "-",
        "microbatch x sequence": f"{workload.b} x {workload.s}",
        "type": workload.dtype,
        "step": step_fact(step),
        "MFU": percent_text(step.mfu),
    }
    notes = [Text(f"Note: {note}", quiet=True) for note in answer.model.notes]
    parts = (Facts(facts), source_line(step), *notes, *charts(answer), operators(answer))
    return Document(f"sizer ops: {answer.path}", (Section(answer.path, parts),))


def step_fact(step: StepTime) -> str:
    return f"{seconds_text(step.seconds)} ({seconds_text(step.low)} to {seconds_text(step.high)})"


def source_line(step: StepTime) -> Text:
    return Text(f"Times: {step.source}{f'; stack {step.tier}' if step.tier else ''}", quiet=True)


def charts(table: OperatorTable) -> list[Chart]:
    return [step_stack(table), *roofline(table)]


def step_stack(table: OperatorTable) -> Chart:
    """A bar a phase, stacked of its operators; above them the step's parts with its interval."""
    rows, step = sorted(table.rows, key=lambda row: (family(row), -row["seconds"] * row["count"])), table.step
    parts = sorted(step.parts.items(), key=lambda part: -part[1])
    listed = [(WHOLE, name, name, seconds) for name, seconds in parts]
    listed += [(row["phase"], family(row), row["name"], row["seconds"] * row["count"]) for row in rows]
    factor, unit = seconds_scale(step.high)
    bars, ends = [], dict.fromkeys((WHOLE, *PHASES), 0.0)
    for phase, group, name, seconds in listed:
        start, ends[phase] = ends[phase], ends[phase] + seconds * factor
        share = percent_text(seconds / step.seconds)
        bars.append(
            {
                "x": start,
                "x2": ends[phase],
                "y": phase,
                "group": group,
                "what": f"{name}, {phase}: {seconds_text(seconds)}, {share} of the step",
            }
        )
    within = {"x": step.low * factor, "x2": step.high * factor, "y": WHOLE, "what": f"step {step_fact(step)}"}
    layers = [
        Layer("bar", bars, {"stroke": "#88888880", "strokeWidth": 0.5}),
        Layer("rule", [within], {"strokeWidth": 2}),
        Layer("point", [{"x": step.seconds * factor, "y": WHOLE, "what": within["what"]}], {"color": "currentColor"}),
    ]
    cover = f"the line holds {step.coverage:.0%} of cases" if step.coverage else "the line is the operators' own errors"
    many = f" of {step.accumulation} microbatches" if step.accumulation > 1 else ""
    return Chart(
        f"The step{many} by its parts, and one microbatch as a stack of operators by phase; {cover}.",
        Axis(unit),
        Axis("", order=tuple(name for name, end in ends.items() if end)),
        layers,
        colours=COLOURS,
        height=50 * sum(end > 0 for end in ends.values()),
    )


def family(row: dict[str, Any]) -> str:
    """What an operator belongs to, for its colour."""
    name = row["name"].lower()
    if row["kind"] in ("attention", "collective"):
        return "attention" if row["kind"] == "attention" else "communication"
    if row["kind"] == "elementwise":
        return "optimizer" if row["phase"] == "optimizer" else "elementwise"
    if "attention" in name or "attn" in name:
        return "attention projections"
    return "MLP, experts" if any(word in name for word in ("mlp", "expert", "router", "ffn")) else "head, embedding"


def roofline(table: OperatorTable) -> list[Chart]:
    """TFLOPS over FLOPs a byte of every operator, under what the memory and the matrix units allow."""
    device, dtype = table.device, table.workload.dtype
    rows = [row for row in table.rows if row["visible_flops"] and row["bytes"] and row["seconds"]]
    bandwidth, peak = device.memory.bandwidth_bytes_per_s / 1e12, device.peak_flops.get(dtype, 0.0) / 1e12
    if not rows or not peak:
        return []
    ridge = peak / bandwidth
    where = [row["visible_flops"] / row["bytes"] for row in rows]
    ends = (min(*where, ridge) / 2, max(*where, ridge) * 2)
    longest = max(row["seconds"] * row["count"] for row in rows)
    points, errors = [], []
    for row, x in zip(rows, where, strict=True):
        total = row["seconds"] * row["count"]
        what = (
            f"{row['name']}, {row['phase']}: {row['tflops']:.0f} TFLOPS at {x:.0f} FLOPs a byte, "
            f"{seconds_text(row['seconds'])} x {row['count']}, {row['bound']}-bound"
        )
        points.append(
            {
                "x": x,
                "y": row["tflops"],
                "group": family(row),
                "kind": row["phase"],
                "size": total / longest,
                "what": what,
            }
        )
        error = min(row["error"], 0.99)
        errors.append(
            {"x": x, "y": row["tflops"] / (1 + error), "y2": row["tflops"] / (1 - error), "group": family(row)}
        )
    roof = f"{device.name}: {peak:.0f} TFLOPS, {bandwidth:.2f} TB/s"
    layers = [
        Layer(
            "line",
            [{"x": x, "y": min(peak, x * bandwidth), "what": roof} for x in (ends[0], ridge, ends[1])],
            {"color": "#888888", "strokeWidth": 2},
        ),
        Layer("text", [{"x": ends[1], "y": peak, "text": roof}], {"align": "right", "dy": -8}),
        Layer("rule", errors, {"opacity": 0.6}),
        Layer("point", points, {"opacity": 0.8}),
    ]
    left = len(table.operators) - len(rows)
    rest = f" {left} operators that only move memory have no FLOPs: they are in the table." if left else ""
    return [
        Chart(
            f"Roofline: every operator with FLOPs, its area by its share of the step, its line its error.{rest}",
            Axis("FLOPs a byte", log=True),
            Axis("TFLOPS", log=True),
            layers,
            height=420,
            colours=COLOURS,
        )
    ]


HEAD = (
    "operator",
    "phase",
    "kind",
    "count",
    "batch",
    "m",
    "n",
    "k",
    "GFLOP",
    "time",
    "x count",
    "TFLOPS",
    "bound",
    "tile",
    "wave",
    "tier",
)


def operators(table: OperatorTable) -> Table:
    return Table("Operators", HEAD, [_cells(row) for row in table.rows])


def _cells(row: dict[str, Any]) -> list[Cell]:
    counted, total = row["visible_flops"] > 0, row["seconds"] * row["count"]

    def share(value: float | None) -> Cell:
        return cell(value, None if value is None else percent_text(value))

    return [
        cell(row["name"]),
        cell(row["phase"]),
        cell(row["kind"]),
        *(cell(row[key]) for key in ("count", "batch", "m", "n", "k")),
        cell(row["visible_flops"] / 1e9, f"{row['visible_flops'] / 1e9:,.1f}") if counted else cell(None),
        cell(row["seconds"], seconds_text(row["seconds"])),
        cell(total, seconds_text(total)),
        cell(row["tflops"], f"{row['tflops']:.0f}") if counted else cell(None),
        cell(row["bound"]),
        share(row["tile_efficiency"]),
        share(row["wave_efficiency"]),
        cell(row["tier"]),
    ]
