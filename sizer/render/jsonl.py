"""Measurements as JSON lines, with everything that is known of them: `sizer store import` reads these."""

import json
from typing import Any

from sizer.documents import Document


def render(document: Document, page: object) -> str:
    answer: Any = document.answer
    return "".join(json.dumps(one.row(), sort_keys=True) + "\n" for one in answer.measurements)
