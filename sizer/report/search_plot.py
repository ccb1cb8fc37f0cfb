"""A search as a picture: TFLOPS over the searched dimension, baseline and choices marked."""

from __future__ import annotations

from pathlib import Path

from shapes.errors import InputError
from sizer.searching.result import SearchResult
from sizer.searching.verdict import label


def search_plot(result: SearchResult, path: str) -> None:
    """Write a PNG or SVG; needs matplotlib (the ``plot`` extra)."""
    if Path(path).suffix not in (".png", ".svg"):
        raise InputError("expected a file name ending in .png or .svg", key="--plot", value=path)
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("plots need matplotlib: pip install 'sizer[plot]'", key="--plot", value=path) from None
    ranked = [result.baseline, *result.candidates]
    field = next(iter(result.baseline.change))
    ordered = sorted(ranked, key=lambda one: one.change.get(field, 0))
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([one.change.get(field, 0) for one in ordered], [one.tflops for one in ordered], "o-", color="tab:blue")
    axes.plot(result.baseline.change[field], result.baseline.tflops, "s", color="tab:red", label="baseline")
    axes.plot(
        result.best.change[field], result.best.tflops, "*", color="tab:green", markersize=14, label=label(result.best)
    )
    axes.set_xlabel(field)
    axes.set_ylabel("TFLOPS")
    axes.set_title(f"{result.what}, {result.source}")
    axes.legend()
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=path) from None
