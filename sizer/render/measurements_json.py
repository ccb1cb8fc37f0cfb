"""Measurements as one JSON document, samples and environments included."""

from __future__ import annotations

import json

from sizer.render.json_document import SCHEMA_VERSION
from sizer.render.measurements import Measurements
from sizer.render.page import Page


def render(answer: Measurements, page: Page) -> str:
    rows = [one.row() for one in answer.measurements]
    return json.dumps({"schema_version": SCHEMA_VERSION, "measurements": rows}, sort_keys=True, indent=2)
