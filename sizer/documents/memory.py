"""One device's memory as a page: components at the fullest moment, the other moments, and what each saving buys."""

from __future__ import annotations

from shapes.memory import Memory
from sizer.answers.memory_breakdown import MemoryBreakdown
from sizer.documents.document import Axis, Chart, Document, Facts, Layer, Section, Table, Text, cell, limit
from sizer.documents.units import count_text

GIB = 2**30


def document(answer: MemoryBreakdown) -> Document:
    memory, workload = answer.memory, answer.workload
    facts = {
        "model": answer.model_type,
        "parameters": count_text(answer.parameters),
        "device": answer.device,
        "needs": f"{memory.total_bytes / GIB:.1f} GiB",
        "has": f"{answer.device_bytes / GIB:.1f} GiB",
        "microbatch x sequence": f"{workload.b} x {workload.s}",
        "largest microbatch": str(answer.largest_microbatch or "none"),
        "precision": memory.precision,
        "optimizer": memory.optimizer,
        "kernels": memory.implementation,
    }
    notes = [Text(f"Note: {note}", quiet=True) for note in answer.notes]
    savings = Table(
        "What each saving buys by itself",
        ("with", "GiB", "fits", "largest microbatch"),
        [
            [
                cell(one.saving.name),
                cell(one.total_bytes, f"{one.total_bytes / GIB:.2f}"),
                cell("yes" if one.total_bytes <= answer.device_bytes else "no"),
                cell(one.largest_microbatch),
            ]
            for one in answer.savings
        ],
    )
    parts = (Facts(facts), *notes, chart(memory, answer.device), components(memory), savings)
    return Document(f"sizer memory: {answer.path}", (Section(f"{answer.path} on {answer.device}", parts),))


def chart(memory: Memory, device: str) -> Chart:
    """The fullest moment stacked of its components, the other moments whole, and what the device has."""
    fullest = memory.moment or "in use"
    bars, end = [], 0.0
    for part in (part for part in memory.parts if part.bytes):
        start, end = end, end + part.bytes / GIB
        bars.append(
            {
                "x": start,
                "x2": end,
                "y": fullest,
                "group": part.name,
                "what": f"{part.name}: {part.bytes / GIB:.2f} GiB, {part.formula}",
            }
        )
    others = [(name, size / GIB) for name, size in memory.moments if name != fullest]
    whole = [{"x": 0.0, "x2": size, "y": name, "what": f"{name}: {size:.2f} GiB"} for name, size in others]
    ends = [(fullest, end), *others]
    totals = [{"x": size, "y": name, "text": f"{size:.1f} GiB"} for name, size in ends]
    layers = [
        Layer("bar", bars, {"stroke": "#88888880", "strokeWidth": 0.5}),
        *([Layer("bar", whole, {"color": "#999999"})] if whole else []),
        Layer("text", totals, {"align": "left", "dx": 5}),
    ]
    has = ""
    if memory.device_bytes is not None:
        size = memory.device_bytes / GIB
        layers += limit(size, f"{device} has {size:.1f} GiB", along="x")
        has = f" of {size:.1f} GiB"
    return Chart(
        f"Memory of one device by moment, the fullest by component: {end:.1f} GiB{has}.",
        Axis("GiB"),
        Axis("", order=tuple(name for name, _ in ends)),
        layers,
        height=70 + 34 * len(ends),
    )


def components(memory: Memory) -> Table:
    rows = [
        [cell(part.name), cell(part.bytes, f"{part.bytes / GIB:.3f}"), cell(part.formula, None, "quiet")]
        for part in memory.parts
    ]
    rows += [
        [cell(f"total {name}".rstrip()), cell(size, f"{size / GIB:.3f}"), cell("")]
        for name, size in (memory.moments or ((memory.moment, memory.total_bytes),))
    ]
    return Table("Memory by component and moment", ("component", "GiB", "how"), rows)
