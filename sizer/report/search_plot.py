"""A search as a picture: TFLOPS over the searched dimension, with baseline, choices and the device's tile edges."""

from __future__ import annotations

from pathlib import Path

from shapes.errors import InputError
from sizer.report.picture import save
from sizer.searching.ranked import SearchResult
from sizer.searching.verdict import label


def draw(result: SearchResult, path: str) -> None:
    """Write a PNG or SVG; needs matplotlib (the ``plot`` extra)."""
    if Path(path).suffix not in (".png", ".svg"):
        raise InputError("expected a file name ending in .png or .svg", key="--plot", value=path)
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("plots need matplotlib: pip install 'sizer[plot]'", key="--plot", value=path) from None
    field = next(iter(result.baseline.change))
    ordered = sorted(result.ranked, key=lambda one: (one.change.get(field, 0), one.tflops))
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    if result.tile is not None:
        first, last = ordered[0].change[field], ordered[-1].change[field]
        edges = range(-(-first // result.tile) * result.tile, last + 1, result.tile)
        for edge in edges:
            axes.axvline(edge, color="0.85", label="tile edge" if edge == edges[0] else None)
    x, y = [one.change.get(field, 0) for one in ordered], [one.tflops for one in ordered]
    low = [one.tflops * (1 - one.timing.seconds / one.timing.high) for one in ordered]
    high = [one.tflops * (one.timing.seconds / max(one.timing.low, 1e-12) - 1) for one in ordered]
    style = "o-" if result.tile is not None or len(set(x)) == len(x) else "o"
    axes.errorbar(x, y, (low, high), fmt=style, markersize=3, color="tab:blue", ecolor="tab:blue", elinewidth=0.4)
    axes.plot(result.baseline.change[field], result.baseline.tflops, "s", color="tab:red", label="baseline")
    for place, one in enumerate(result.candidates):
        axes.plot(
            one.change[field], one.tflops, "*" if place == 0 else "D", color="tab:green",
            markersize=14 if place == 0 else 5, label=label(one) if place == 0 else None,
        )  # fmt: skip
    axes.set_xlabel(field)
    axes.set_ylabel("TFLOPS")
    axes.set_title(f"{result.what}, {result.source}")
    axes.legend()
    save(figure, path)
