"""How the time of chosen operators comes about, part by part."""

from __future__ import annotations

import textwrap

from tabulate import tabulate

from shapes.cost import Cost, explain
from shapes.device import Device
from shapes.operators import Operator, Product
from sizer.answers.operator_table import OperatorTable
from sizer.documents.units import percent_text, seconds_text
from sizer.render.page import Page

#: Share of an operator's time below which a part is rounding.
ROUNDING = 1e-9


def render(table: OperatorTable, page: Page) -> str:
    pairs = zip(table.operators, table.costs, strict=True)
    return "\n".join(_explained(operator, cost, table.device) for operator, cost in pairs)


def _explained(operator: Operator, cost: Cost, device: Device) -> str:
    shape = " x ".join(str(getattr(operator, key)) for key in ("batch", "m", "n", "k") if hasattr(operator, key))
    layout = f" {operator.layout}" if isinstance(operator, Product) else ""
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
    # A difference of two sums that agree but for rounding is none.
    parts = [
        (part, part.seconds if abs(part.seconds) > ROUNDING * cost.seconds else 0.0)
        for part in explain(operator, cost, device)
    ]
    rows = [(part.what, seconds_text(seconds), part.why) for part, seconds in parts]
    table = tabulate(rows, tablefmt="plain", disable_numparse=True, colalign=("left", "right", "left"))
    return (
        f"{head}\n  {', '.join(facts)}; {cost.source}, {cost.regime}, {_tier(cost)}\n"
        + textwrap.indent(table, "  ")
        + "\n"
    )


def _tier(cost: Cost) -> str:
    spread = f", 95% within {percent_text(cost.p95)}" if cost.p95 is not None else ""
    return f"{cost.tier} (mean error {percent_text(cost.error)}{spread})"
