"""Stored measurements as a table, the newest last."""

from __future__ import annotations

from tabulate import tabulate

from shapes.errors import printable
from shapes.measure.record import Measurement
from sizer.answers.datasets import Stored
from sizer.documents.units import seconds_text, width_text
from sizer.render.page import Page

HEADERS = ("what", "time", "+-", "TFLOPS", "device", "label")


def render(answer: Stored, page: Page) -> str:
    rows = [
        (
            _what(one),
            seconds_text(one.seconds) if one.seconds else one.status,
            width_text(one.half_width) if one.half_width is not None else "-",
            f"{one.tflops:.4g}" if one.tflops else "-",
            printable(one.environment.device),
            printable(one.label),
        )
        for one in answer.measurements
    ]
    return f"{tabulate(rows, HEADERS, disable_numparse=True)}\n\n{len(rows)} of {answer.total} measurements"


def _what(one: Measurement) -> str:
    row = one.row(samples=False)
    sizes = " x ".join(str(row[name]) for name in ("m", "n", "k") if row[name] is not None)
    batch = f"{row['batch']} x " if (row["batch"] or 1) > 1 else ""
    words = (row["kind"], f"{batch}{sizes}", row["layout"], row["phase"], row["dtype"], row["kernel"])
    return printable(" ".join(str(word) for word in words if word))
