"""Splits of a step over devices as text, the fastest first."""

from __future__ import annotations

from tabulate import tabulate

from sizer.answers.plan import Candidate, Plan
from sizer.render.page import Page

HEADERS = (
    "t",
    "p",
    "vpp",
    "cp",
    "d",
    "e",
    "ZeRO",
    "b",
    "microbatches",
    "checkpointing",
    "step s",
    "comm.",
    "bubble",
    "GiB",
    "MFU",
)


def render(found: Plan, page: Page) -> str:
    w, alike = found.candidates[0].workload, found.indistinguishable
    shown = found.candidates[: found.top]
    lines = [
        f"{found.gpus} x {found.device}, global batch {found.global_batch} x {w.s} tokens, {w.dtype}, "
        f"{w.attention} attention, {found.implementation} kernels, stack {found.stack}",
        f"{len(found.candidates)} splits fit; {found.source}; less than {found.ratio_error:.0%} apart are alike",
        "",
        f"recommended, the simplest of the {alike} within that of the fastest:",
        tabulate([_row(found.recommended)], HEADERS, disable_numparse=True),
        *_training(found),
        "",
        "the fastest:",
        tabulate([_row(candidate) for candidate in shown], HEADERS, disable_numparse=True),
    ]
    if found.dropped:
        lines += ["", "not listed:"] + [f"  {one.count:4d}  {one.reason}" for one in found.dropped[:12]]
    lines += ["", "assumed:"] + [f"  {text}" for text in found.assumptions]
    return "\n".join(lines)


def _training(found: Plan) -> list[str]:
    training = found.training(found.recommended)
    if training is None:
        return []
    cost = "" if training.cost is None else f", costing {training.cost:,.0f}"
    return [
        f"{training.tokens:.3g} tokens take {training.days:,.1f} days, {training.device_hours:,.0f} device hours and "
        f"{training.kwh:,.0f} kWh (the devices alone, at their rated power){cost}"
    ]


def _row(candidate: Candidate) -> list[str]:
    w = candidate.workload
    zero = str(w.zero) if w.replicas == 1 else f"{w.zero}, HSDP over {w.d // w.replicas}"
    degrees = (w.t, w.p, w.vpp, w.cp, w.d, w.e, zero, w.b, candidate.microbatches)
    return [
        *map(str, degrees),
        w.checkpointing,
        f"{candidate.seconds:.3f} ({candidate.low_s:.3f} to {candidate.high_s:.3f})",
        f"{candidate.communication_s / candidate.seconds:.0%}",
        f"{candidate.bubble_s / candidate.seconds:.0%}",
        f"{candidate.memory_bytes / 2**30:.1f}",
        "-" if candidate.mfu is None else f"{candidate.mfu:.1%}",
    ]
