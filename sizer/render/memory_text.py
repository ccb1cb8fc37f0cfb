"""One device's memory as text: the components, what fits, and what each saving buys."""

from __future__ import annotations

from tabulate import tabulate

from shapes.errors import printable
from sizer.answers.memory_breakdown import MemoryBreakdown
from sizer.render.page import Page


def render(found: MemoryBreakdown, page: Page) -> str:
    gib, memory, w = 2**30, found.memory, found.workload
    length = f"s {w.s}" + (f", context {w.context}" if w.decode else "")
    more = [f"{key} {value}, " for key, value in (("vpp", w.vpp), ("cp", w.cp), ("replicas", w.replicas)) if value > 1]
    head = [
        f"{printable(found.path)}: {found.model_type}, {found.parameters:,} parameters "
        f"({memory.parameters:,} on one device)",
        f"{w.phase}: b {w.b}, {length}, {w.dtype}, {w.attention} attention, checkpointing {w.checkpointing}, "
        f"t {w.t}, p {w.p}, {''.join(more)}d {w.d}, e {w.e}, ZeRO {w.zero}; {memory.precision}, {memory.optimizer}, "
        f"{memory.implementation} kernels",
        "",
    ]
    if w.finetune is not None:
        rank = f", rank {w.lora_rank}" if w.finetune in ("lora", "qlora") else ""
        head.insert(2, f"fine-tuning: {w.finetune}{rank}; {found.trained:,} parameters train")
    rows = [[part.name, f"{part.bytes / gib:.3f}", part.formula] for part in memory.parts]
    where = [memory.moment] if memory.moment else []
    where += [f"{memory.stage} pipeline stage"] if w.p > 1 else []
    rows.append(["total", f"{memory.total_bytes / gib:.3f}", ", ".join(where)])
    lines = [
        *head,
        tabulate(rows, ["component", "GiB", "how"], disable_numparse=True, colalign=("left", "right", "left")),
        "",
    ]
    if len(memory.moments) > 1:
        each = "; ".join(f"{name} {size / gib:.3f}" for name, size in memory.moments)
        lines += [f"by moment: {each}", ""]
    left = found.device_bytes - memory.total_bytes
    verdict = (
        f"fits with {left / gib:.2f} GiB to spare" if left >= 0 else f"does not fit: {-left / gib:.2f} GiB too much"
    )
    lines.append(f"{found.device} ({found.device_bytes / gib:.2f} GiB): {verdict}")
    largest = found.largest_microbatch
    lines.append(f"largest microbatch: {largest or 'none, not even one sequence fits'}")
    lines.append(f"smallest tensor-parallel degree that fits: {found.smallest_tp or 'none up to 64'}")
    lines.append(f"smallest pipeline-parallel degree that fits: {found.smallest_pp or 'none'}")
    if found.savings:
        table = []
        for saved in found.savings:
            fits = "yes" if saved.total_bytes <= found.device_bytes else "no"
            table.append([saved.saving.name, f"{saved.total_bytes / gib:.3f}", fits, saved.largest_microbatch or "-"])
        lines += ["", tabulate(table, ["with, by itself", "GiB", "fits", "largest microbatch"], disable_numparse=True)]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines)
