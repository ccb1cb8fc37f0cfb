"""Measurements as CSV: a row each, without their samples."""

from __future__ import annotations

import csv
import io
from typing import Any

from sizer.render.measurements import COLUMNS, Measurements, flat
from sizer.render.page import Page


def render(answer: Measurements, page: Page) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for one in answer.measurements:
        writer.writerow({name: _safe(value) for name, value in flat(one).items()})
    return buffer.getvalue()


def _safe(value: Any) -> Any:
    # A spreadsheet runs what begins like a formula; labels and messages come from files.
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value
