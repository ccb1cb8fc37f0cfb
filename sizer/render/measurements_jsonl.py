"""Measurements as JSON lines: what `sizer store import` reads."""

from __future__ import annotations

import json

from sizer.render.measurements import Measurements
from sizer.render.page import Page


def render(answer: Measurements, page: Page) -> str:
    return "".join(json.dumps(one.row(), sort_keys=True) + "\n" for one in answer.measurements)
