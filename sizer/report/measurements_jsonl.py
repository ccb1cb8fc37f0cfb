"""Measurements as JSON lines: what `sizer store import` reads."""

from __future__ import annotations

import json

from sizer.report.measurements import Measurements
from sizer.report.page import Page


def render(answer: Measurements, page: Page) -> str:
    return "".join(json.dumps(one.row(), sort_keys=True) + "\n" for one in answer.measurements)
