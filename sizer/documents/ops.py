"""The operators of a step: where the time goes, the roofline, every operator; and how the time of one comes about."""

import re
from collections.abc import Sequence

from shapes.cost import Cost, Term, attention_titles
from shapes.cost.explain import explain
from shapes.frozen import Values
from shapes.operators.types import Operator
from sizer.answers.operator_table import OperatorTable
from sizer.checking.findings import StepTime

from . import (
    NOT_KNOWN,
    Cell,
    Charts,
    Document,
    Part,
    Section,
    Table,
    Text,
    columns,
    count_text,
    lines,
    notes,
    percent_text,
    seconds_text,
    step_text,
)
from .charts import LOOKS, Axis, Chart, Layer, path, points

#: Share of an operator's time below which a part is rounding.
ROUNDING = 1e-9


def document(answer: OperatorTable) -> Document:
    step, workload, model = answer.step, answer.workload, answer.model
    flops = f", {step.flops:.3g} FLOPs ({step.flops / 2:.3g} MACs)" if step else ""
    kernels = attention_titles(answer.operators, answer.device)
    parts = (
        Text([Cell(f"{answer.path}: ", style="head"), Cell(step_text(step))]),
        Text(
            f"{model.model_type}, {count_text(model.parameters)} parameters, {answer.device.name}, {workload.dtype}, "
            f"{workload.phase}, b {workload.b}, s {workload.s}{flops}"
            f"{f', stack {answer.stack}' if answer.stack else ''}"
            f"{', operators by trace' * (model.path == 'trace')}"
        ),
        *lines([f"attention: {', '.join(kernels)}"] if kernels else []),
        *notes(model.notes),
        Charts(lambda: roofline(answer)),
        operators(answer),
        *([parts_of(step)] if step else []),
    )
    return Document(f"sizer ops: {answer.path}", (Section(answer.path, parts),), answer, records=lambda: answer.rows)


def parts_of(step: StepTime) -> Table:
    """The parts of the step by time, the longest first; for a pipeline those of its slowest stage.

    The last stage has the head, and as few layers as balance it.
    """
    return Table(
        columns("ops parts", share=lambda part: part[1] / step.seconds),
        sorted(step.parts.items(), key=lambda part: -part[1]),
        f"parts of the step{', of its slowest stage' * ('pipeline bubble' in step.parts)}, as the stack runs these "
        "operators",
    )


def family(row: Values) -> str:
    """The family of an operator, for its colour: the first that its kind, phase and name look like."""
    text = "{kind} {phase} {name}".format_map(row).lower()
    return str(next(name for name, looks in LOOKS["families_of"].items() if re.search(looks, text)))


def roofline(table: OperatorTable) -> list[Chart]:
    """TFLOPS over FLOPs a byte of every operator, under the limits of memory and matrix units.

    An operator without FLOPs is at the left edge, as far below the roof as its bandwidth is below the memory's.
    """
    device, dtype = table.device, table.workload.dtype
    rows = [row for row in table.rows if row["kind"] != "collective" and row["bytes"] and row["seconds"]]
    bandwidth, peak = device.memory.bandwidth_bytes_per_s / 1e12, device.peak_flops.get(dtype, 0.0) / 1e12
    if not rows or not peak:
        return []
    ridge = peak / bandwidth
    where = [ridge, *(row["visible_flops"] / row["bytes"] for row in rows if row["visible_flops"])]
    ends = min(where) / 2, max(where) * 2
    longest = max(row["seconds"] * row["count"] for row in rows)
    roof = f"{device.name}: {peak:.0f} TFLOPS, {bandwidth:.2f} TB/s"
    return [
        Chart(
            "Roofline: every operator, its area by its share of the step, its line its error; those without FLOPs at "
            "the left edge, as far under the roof as their bandwidth.",
            Axis("FLOPs a byte", log=True),
            Axis("TFLOPS", log=True),
            [
                path(
                    ((x, min(peak, x * bandwidth)) for x in (ends[0], ridge, ends[1])),
                    roof,
                    color="#888888",
                    strokeWidth=2,
                ),
                Layer("text", [{"x": ends[1], "y": peak, "text": roof}], {"align": "right", "dy": -8}),
                *points([_operator(row, longest, 1.1 * ends[0]) for row in rows]),
            ],
            colours=LOOKS["families"],
        )
    ]


def _operator(row: Values, longest: float, edge: float) -> Values:
    """An operator's point; the one that takes longest in a step has the largest area. ``edge``: x without FLOPs."""
    x, bandwidth = row["visible_flops"] / row["bytes"] or edge, row["bytes"] / row["seconds"] / 1e12
    rate, error = x * bandwidth, min(row["error"], 0.99)
    reached = f"{rate:.0f} TFLOPS at {x:.0f} FLOPs a byte" if row["visible_flops"] else f"{bandwidth:.2f} TB/s"
    what = (
        f"{row['name']}, {row['phase']}: {reached}, "
        f"{seconds_text(row['seconds'])} x {row['count']}, {row['bound']}-bound"
    )
    looks = {"group": family(row), "kind": row["phase"], "size": row["seconds"] * row["count"] / longest}
    return {"x": x, "y": rate, "what": what, **looks, "low": rate / (1 + error), "high": rate / (1 - error)}


def operators(table: OperatorTable) -> Table:
    """A line an operator, its phases side by side; FLOPs are those that the attention's mask leaves."""
    return Table(
        columns("ops", rate=_rate),
        table.folded,
        "operators of a microbatch (once a step: of a step), share of their sum",
        table.top,
    )


def _rate(row: Values) -> float | None:
    """TFLOPS over all phases of an operator; one that only moves memory has none."""
    counted = row["visible_flops"] > 0 and row["step_seconds"]
    return row["step_flops"] / row["step_seconds"] / 1e12 if counted else None


def explained(table: OperatorTable) -> Document:
    """How the time of chosen operators comes about, part by part."""
    sections, rows = [], []
    for operator, cost in table.priced:
        if not cost:
            sections.append(Section("", [Text(f"{operator.name} {operator.phase}: its time is {NOT_KNOWN}", "head")]))
            continue
        terms = explain(operator, cost, table.device)
        sections.append(Section("", _explained(operator, cost, terms)))
        named = {"operator": operator.name, "phase": operator.phase}
        rows += [{**named, "part": one.what, "seconds": one.seconds, "why": one.why} for one in terms]
    return Document(f"sizer ops --explain: {table.path}", sections, records=lambda: rows)


def _explained(operator: Operator, cost: Cost, terms: Sequence[Term]) -> list[Part]:
    # A difference of two sums that agree but for rounding is none.
    least = ROUNDING * cost.seconds
    shown = columns("ops explained", time=lambda part: part.seconds if abs(part.seconds) > least else 0.0)
    shape = " x ".join(str(getattr(operator, key)) for key in ("batch", "m", "n", "k") if hasattr(operator, key))
    words = operator.name, operator.phase, operator.kind, shape, getattr(operator, "layout", ""), operator.dtype
    spread = f" (95% within {percent_text(cost.p95)})" if cost.p95 is not None else ""
    return [
        Text(
            f"{' '.join(filter(None, words))}: "
            f"{seconds_text(cost.seconds)} +-{percent_text(cost.error)}{spread}, {cost.bound}-bound, "
            f"x {operator.count} a step",
            "head",
        ),
        Text(f"{cost.source.replace(':', ' on ', 1)}, {cost.regime}, {cost.tier}", indent=2),
        Table(shown, terms),
    ]
