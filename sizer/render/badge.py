"""A badge: the JSON that shields.io's endpoint reads (https://shields.io/badges/endpoint-badge)."""

from __future__ import annotations

import json

from sizer.checking.findings import Checked
from sizer.render.page import Page

COLOURS = {"error": "red", "warning": "orange", "info": "blue", None: "brightgreen"}


def render(answer: Checked, page: Page) -> str:
    parts = [
        f"{number} {level}{'s' if number != 1 and level != 'info' else ''}"
        for level, number in answer.tally().items()
        if number
    ]
    message = ", ".join(parts) or ("no findings" if answer.reports else "no configuration")
    colour = COLOURS[answer.worst()] if answer.reports else "lightgrey"
    return json.dumps({"schemaVersion": 1, "label": "sizer", "message": message, "color": colour}) + "\n"
