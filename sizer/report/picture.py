"""A picture's file: the charts of a page, drawn without a browser, whole before they replace anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shapes.errors import InputError
from shapes.files import write_whole
from sizer.report.document import Chart, Document
from sizer.report.vega import CONFIG, titled

WIDTH = 620
#: Sections beside each other before a new row begins.
BESIDE = 3
#: Each chart has its own colours and shapes, and so its own legend.
APART = {"scale": {"color": "independent", "shape": "independent", "size": "independent"}}
ENDINGS = (".png", ".svg", ".pdf")


def save(document: Document, path: str) -> int:
    """Draw every chart of ``document``, its sections beside each other, as the ending of ``path`` says; how many."""
    wanted, drawn = ending(path), len(document.charts)
    if not drawn:
        raise InputError("there is nothing to draw", key="--plot", value=path)
    try:
        import vl_convert
    except ImportError:
        raise InputError(
            "drawing needs vl-convert-python: pip install 'sizer[plot]'", key="--plot", value=path
        ) from None
    whole = json.dumps(_spec(document))
    if wanted == ".svg":
        content = vl_convert.vegalite_to_svg(whole).encode()
    else:
        content = vl_convert.vegalite_to_png(whole, scale=2) if wanted == ".png" else vl_convert.vegalite_to_pdf(whole)
    write_whole(path, content)
    return drawn


def ending(path: str) -> str:
    """Which kind of picture the name of a file asks for; InputError for one that cannot be drawn."""
    found = Path(path).suffix.lower()
    if found not in ENDINGS:
        raise InputError(f"expected a file name ending in {', '.join(ENDINGS)}", key="--plot", value=path)
    return found


def _spec(document: Document) -> dict[str, Any]:
    columns = [
        {"title": {"text": section.title, "fontSize": 14}, "vconcat": charts, "resolve": APART}
        for section in document.sections
        if (charts := [titled(part, WIDTH) for part in section.parts if isinstance(part, Chart)])
    ]
    # What compares the others stands above them.
    lead = columns[:1] if len(columns) > 1 and len(columns[0]["vconcat"]) < len(columns[1]["vconcat"]) else []
    beside = {"concat": columns[len(lead) :], "columns": BESIDE, "resolve": APART}
    return {
        "background": "white", "padding": 16, "config": CONFIG, "vconcat": [*lead, beside], "resolve": APART,
        "title": {"text": document.title, "fontSize": 15},
    }  # fmt: skip
