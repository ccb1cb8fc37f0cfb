"""Splits of a step over devices as text, the fastest first."""

from __future__ import annotations

from tabulate import tabulate

from sizer.answers.plan import Candidate, Plan
from sizer.report.page import Page


def render(found: Plan, page: Page) -> str:
    w = found.candidates[0].workload
    rows = [_row(candidate) for candidate in found.candidates[: found.top]]
    headers = [
        "t",
        "p",
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
    ]
    lines = [
        f"{found.gpus} x {found.device}, global batch {found.global_batch} x {w.s} tokens, {w.dtype}, "
        f"{w.attention} attention, {found.implementation} kernels",
        f"{len(found.candidates)} splits fit; {found.source}, advice within the cost model's error",
        "",
        tabulate(rows, headers, disable_numparse=True),
        "",
        f"the first {found.indistinguishable} are within the prediction's error of the fastest"
        if found.indistinguishable > 1
        else "the fastest is ahead by more than the prediction's error",
    ]
    if found.dropped:
        lines += ["", "not listed:"] + [f"  {number:4d}  {reason}" for reason, number in found.dropped[:12]]
    lines += ["", "assumed:"] + [f"  {text}" for text in found.assumptions]
    return "\n".join(lines)


def _row(candidate: Candidate) -> list[str]:
    w, half = candidate.workload, (candidate.high_s - candidate.low_s) / 2
    return [
        *(str(value) for value in (w.t, w.p, w.d, w.e, w.zero, w.b, candidate.microbatches)), w.checkpointing,
        f"{candidate.seconds:.3f} ± {half:.3f}", f"{candidate.communication_s / candidate.seconds:.0%}",
        f"{candidate.bubble_s / candidate.seconds:.0%}", f"{candidate.memory_bytes / 2**30:.1f}",
        "-" if candidate.mfu is None else f"{candidate.mfu:.1%}",
    ]  # fmt: skip
