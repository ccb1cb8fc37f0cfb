"""A picture's file: the charts of a page, drawn without a browser, whole before they replace anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shapes.errors import InputError
from shapes.files import write_whole
from sizer.documents.charts import Chart
from sizer.documents.document import Document
from sizer.render.vega import assets, titled

WIDTH = 620
#: Sections in a row.
ROW = 4
#: Each chart has its own colours and shapes, and so its own legend.
APART = {"scale": {"color": "independent", "shape": "independent", "size": "independent"}}
ENDINGS = (".png", ".svg", ".pdf")


def save(document: Document, path: str) -> int:
    """Draw every chart of ``document``, its sections side by side, as the ending of ``path`` says; how many."""
    wanted = ending(path)
    columns = [(section.title, charts) for section in document.seen("html") if (charts := section.charts)]
    if not columns:
        raise InputError("there is nothing to draw", key="--plot", value=path)
    try:
        import vl_convert
    except ImportError:
        raise InputError(
            "drawing needs vl-convert-python: pip install 'sizer[plot]'", key="--plot", value=path
        ) from None
    whole = json.dumps(_spec(document.title, columns))
    if wanted == ".svg":
        content = vl_convert.vegalite_to_svg(whole).encode()
    else:
        content = vl_convert.vegalite_to_png(whole, scale=2) if wanted == ".png" else vl_convert.vegalite_to_pdf(whole)
    write_whole(path, content)
    return sum(len(charts) for _, charts in columns)


def ending(path: str) -> str:
    """Which kind of picture the name of a file asks for; InputError for one that cannot be drawn."""
    found = Path(path).suffix.lower()
    if found not in ENDINGS:
        raise InputError(f"expected a file name ending in {', '.join(ENDINGS)}", key="--plot", value=path)
    return found


def _spec(title: str, columns: list[tuple[str, list[Chart]]]) -> dict[str, Any]:
    """A section's charts below each other, sections side by side; no deeper, for PDF takes no deep nesting."""
    parts = [
        {"title": _heading(name), "vconcat": [titled(chart, WIDTH) for chart in charts], "resolve": APART}
        for name, charts in columns
    ]
    return {
        "background": "white",
        "padding": 16,
        "config": assets()["config"],
        "resolve": APART,
        "title": _heading(title),
        "concat": parts,
        "columns": ROW,
    }


def _heading(title: str) -> dict[str, Any]:
    return {"text": title, "fontSize": 15}
