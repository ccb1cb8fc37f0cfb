"""The operator table as text."""

from __future__ import annotations

from typing import Any

from tabulate import tabulate

from shapes.cost.predict import attention_titles
from shapes.errors import printable
from sizer.answers.operator_table import OperatorTable
from sizer.documents.units import count_text, percent_text, seconds_text, step_text
from sizer.render.page import Page

HEADERS = (
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
    "TFLOPS",
    "peak",
    "bound",
    "tile",
    "wave",
)


def render(table: OperatorTable, page: Page) -> str:
    """One line an operator: time, TFLOPS and share of peak are of one run; tile and wave are efficiencies.

    FLOPs are those that the attention's mask leaves.
    """
    rows = table.rows
    peak = table.device.peak_flops
    body = [_cells(row, peak.get(row["dtype"])) for row in rows]
    head = (
        f"{printable(table.path)}: {table.model.model_type}, {count_text(table.model.parameters)} parameters, "
        f"{table.device.name}, operators by {table.model.path}{f', stack {table.stack}' if table.stack else ''}"
    )
    kernels = attention_titles(table.operators, table.device)
    notes = [f"attention: {', '.join(kernels)}"] if kernels else []
    notes += [f"note: {note}" for note in table.model.notes]
    total = step_text(table.step)
    parts = [
        f"  {what:<22} {seconds_text(seconds):>8}  {percent_text(seconds / table.step.seconds)}"
        for what, seconds in sorted(table.step.parts.items(), key=lambda part: -part[1])
    ]
    aligned = ("left", "left", "left") + ("right",) * 9 + ("left", "right", "right")
    text = tabulate(body, HEADERS, tablefmt="simple", colalign=aligned, disable_numparse=True)
    return "\n".join([head, *notes, "", text, "", total, *parts]) + "\n"


def _cells(row: dict[str, Any], peak: float | None) -> list[str]:
    counted = row["visible_flops"] > 0
    of_peak = percent_text(row["tflops"] * 1e12 / peak) if counted and peak else ""

    def number(key: str) -> str:
        return "" if row[key] is None else str(row[key])

    def share(key: str) -> str:
        return "" if row[key] is None else percent_text(row[key])

    return [
        row["name"],
        row["phase"],
        row["kind"],
        number("count"),
        number("batch"),
        number("m"),
        number("n"),
        number("k"),
        f"{row['visible_flops'] / 1e9:.1f}" if counted else "",
        seconds_text(row["seconds"]),
        f"{row['tflops']:.0f}" if counted else "",
        of_peak,
        row["bound"],
        share("tile_efficiency"),
        share("wave_efficiency"),
    ]
