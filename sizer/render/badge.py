"""A badge: the JSON that shields.io's endpoint reads (https://shields.io/badges/endpoint-badge)."""

import json
from typing import cast

from sizer.checking.findings import Checked
from sizer.documents import Document

COLOURS = {"error": "red", "warning": "orange", "info": "blue", None: "brightgreen"}


def render(document: Document, page: object) -> str:
    answer = cast(Checked, document.answer)
    message = document.headline if answer.reports else "no configuration"
    colour = COLOURS[answer.worst()] if answer.reports else "lightgrey"
    return json.dumps({"schemaVersion": 1, "label": "sizer", "message": message, "color": colour}) + "\n"
