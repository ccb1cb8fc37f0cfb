"""The operator table as text."""

from __future__ import annotations

import textwrap
from typing import Any

from tabulate import tabulate

from shapes.cost import Cost, explain
from shapes.errors import InputError
from shapes.operators import Gemm, GroupedGemm, Operator
from sizer.answers.operator_table import OperatorTable
from sizer.report.units import count_text, percent_text, seconds_text

HEADERS = ("operator", "phase", "kind", "count", "batch", "m", "n", "k", "GFLOP", "time", "TFLOPS", "peak", "bound",
           "tile", "wave")  # fmt: skip


def ops_text(table: OperatorTable) -> str:
    """One line an operator: time, TFLOPS and share of peak are of one run; tile and wave are efficiencies."""
    rows = table.rows()
    peak = table.device.peak_flops
    body = [_cells(row, peak.get(row["dtype"])) for row in rows]
    head = (
        f"{table.path}: {table.model.model_type}, {count_text(table.model.parameters)} parameters, "
        f"{table.device.name}, operators by {table.model.path}"
    )
    notes = [f"note: {note}" for note in table.model.notes]
    total = f"step {seconds_text(table.step.seconds)}, MFU {percent_text(table.step.mfu)} ({table.step.source})"
    aligned = ("left", "left", "left") + ("right",) * 9 + ("left", "right", "right")
    text = tabulate(body, HEADERS, tablefmt="simple", colalign=aligned, disable_numparse=True)
    return "\n".join([head, *notes, "", text, "", total]) + "\n"


def _cells(row: dict[str, Any], peak: float | None) -> list[str]:
    counted = row["flops"] > 0
    of_peak = percent_text(row["tflops"] * 1e12 / peak) if counted and peak else ""

    def number(key: str) -> str:
        return "" if row[key] is None else str(row[key])

    def share(key: str) -> str:
        return "" if row[key] is None else percent_text(row[key])

    return [
        row["name"], row["phase"], row["kind"], number("count"), number("batch"), number("m"), number("n"), number("k"),
        f"{row['flops'] / 1e9:.1f}" if counted else "", seconds_text(row["seconds"]),
        f"{row['tflops']:.0f}" if counted else "", of_peak, row["bound"],
        share("tile_efficiency"), share("wave_efficiency"),
    ]  # fmt: skip


def explain_text(table: OperatorTable, name: str) -> str:
    """How the time of each operator with ``name`` in its name comes about, part by part."""
    chosen = [
        (operator, cost)
        for operator, cost in zip(table.operators, table.costs, strict=True)
        if name.lower() in operator.name.lower()
    ]
    if not chosen:
        known = ", ".join(dict.fromkeys(operator.name for operator in table.operators))
        raise InputError(f"expected a part of an operator's name: {known}", key="--explain", value=name)
    return "\n".join(_explained(operator, cost, table) for operator, cost in chosen)


def _explained(operator: Operator, cost: Cost, table: OperatorTable) -> str:
    shape = " x ".join(str(getattr(operator, key)) for key in ("batch", "m", "n", "k") if hasattr(operator, key))
    layout = f" {operator.layout}" if isinstance(operator, Gemm | GroupedGemm) else ""
    head = (
        f"{operator.name} {operator.phase} {operator.kind} {shape}{layout} {operator.dtype}: "
        f"{seconds_text(cost.seconds)} +-{percent_text(cost.error)}, {cost.bound}-bound, x {operator.count} a step"
    )
    facts = []
    if cost.tile is not None:
        facts.append(f"tile {cost.tile[0]} x {cost.tile[1]}")
    if cost.tiles is not None and cost.waves is not None:
        facts.append(f"{cost.tiles} tiles in {cost.waves:.2f} waves")
    if cost.tile_efficiency is not None:
        facts.append(f"{percent_text(cost.tile_efficiency)} of the computed output kept")
    if cost.wave_efficiency is not None:
        facts.append(f"{percent_text(cost.wave_efficiency)} of the waves' slots filled")
    facts.append(f"{operator.bytes / 1e6:.1f} MB")
    rows = [(part.what, seconds_text(part.seconds), part.why) for part in explain(operator, cost, table.device)]
    parts = tabulate(rows, tablefmt="plain", disable_numparse=True, colalign=("left", "right", "left"))
    return f"{head}\n  {', '.join(facts)}; {cost.source}, {cost.regime}\n" + textwrap.indent(parts, "  ") + "\n"
