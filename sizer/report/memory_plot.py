"""The components of one device's memory as a bar chart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shapes.errors import InputError
from sizer.report.picture import save

if TYPE_CHECKING:
    from sizer.answers.memory_breakdown import MemoryBreakdown


def draw(found: MemoryBreakdown, path: str) -> None:
    """One stacked bar against the device's memory, written to ``path`` (PNG, SVG or PDF by its ending)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("drawing needs matplotlib: pip install 'sizer[plot]'", key="--plot", value=path) from None
    gib = 2**30
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    axes = figure.subplots()
    start = 0.0
    for part in found.memory.parts:
        size = part.bytes / gib
        axes.barh(0, size, left=start, label=f"{part.name} {size:.2f}")
        start += size
    axes.axvline(found.device_bytes / gib, color="black", linestyle="--", label=f"{found.device}")
    axes.set_yticks([])
    axes.set_xlabel("GiB")
    axes.set_title(f"{found.model_type}, b {found.workload.b}, s {found.workload.s}")
    axes.legend(ncols=3, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.35))
    save(figure, path)
