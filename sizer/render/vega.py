"""Charts in the words of Vega-Lite (https://vega.github.io/vega-lite): what a browser draws.

Colours of text and lines are the page's own (``currentColor``), so that one chart is read on light, dark and paper.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import cycle
from textwrap import wrap
from typing import Any

from sizer.documents.charts import Axis, Chart, Layer, Row


@cache
def assets() -> dict[str, Any]:
    """How charts look everywhere (``config``), and a row's key -> Vega-Lite's channels of it (``channels``).

    ``palette``: Paul Tol's bright scheme, and two of his muted one: told apart by people who see few colours, on light
    and dark; ``shapes`` of points.
    """
    found: dict[str, Any] = json.loads(asset("vega.json"))
    return found


def asset(name: str) -> str:
    """The text of a file that pages are made with."""
    return resources.files("sizer.render").joinpath("assets", name).read_text(encoding="utf-8")


def spec(chart: Chart) -> dict[str, Any]:
    """``chart`` as Vega-Lite's specification, as wide as its container."""
    rows = [row for layer in chart.layers for row in layer.rows]
    colours = _looks(rows, "group", chart.colours, assets()["palette"])
    shapes = _looks(rows, "kind", chart.shapes, assets()["shapes"])
    return {
        "width": "container",
        "height": chart.height,
        "description": chart.caption,
        "padding": {"left": 5, "right": 56, "top": 5, "bottom": 5},
        "layer": [_layer(layer, chart, colours, shapes) for layer in chart.layers if layer.rows],
    }


def _looks(rows: Iterable[Row], key: str, named: Mapping[str, str], others: Sequence[str]) -> dict[str, str]:
    """How each value of ``key`` that a row has looks: those with a look of their own first, in their order."""
    seen = dict.fromkeys(row[key] for row in rows if key in row)
    looks = {name: look for name, look in named.items() if name in seen}
    spare = cycle([look for look in others if look not in looks.values()] or others)
    return looks | {name: next(spare) for name in seen if name not in looks}


def _layer(layer: Layer, chart: Chart, colours: Mapping[str, str], shapes: Mapping[str, str]) -> dict[str, Any]:
    keys, rows = {key for row in layer.rows for key in row}, layer.rows
    encoding: dict[str, Any] = {}
    for key, found in assets()["channels"].items():
        encoding |= found if key in keys else {}
    for key, axis in (("x", chart.x), ("y", chart.y)):
        if key in keys:
            encoding[key] = _position(key, axis, layer.mark)
            rows = [{**row, key: _lines(row[key])} for row in rows] if axis.order else rows
        elif layer.mark == "text":
            # A label of a line across the chart: at the end of the other axis.
            encoding[key] = {"value": 0}
    if "group" in keys:
        encoding["color"] = _scale("group", colours, chart.legend[0])
    if "kind" in keys:
        encoding["shape"] = _scale("kind", shapes, chart.legend[1])
    elif chart.shapes and layer.mark == "point":
        # One legend for both: Vega-Lite joins those of one field and one domain.
        encoding["shape"] = _scale("group", {name: chart.shapes[name] for name in colours}, chart.legend[0])
    return {"data": {"values": list(rows)}, "mark": {"type": layer.mark, **layer.look}, "encoding": encoding}


def _position(key: str, axis: Axis, mark: str) -> dict[str, Any]:
    title = axis.title or None
    if axis.order:
        order = [_lines(name) for name in axis.order]
        return {
            "field": key,
            "type": "nominal",
            "sort": order,
            "title": title,
            "scale": {"domain": order},
            "axis": {"labelAngle": 0, "labelExpr": "split(datum.label, '\\n')"},
        }
    scale: dict[str, Any] = {"type": "log", "nice": False} if axis.log else {"zero": axis.zero}
    return {
        "field": key,
        "type": "quantitative",
        "title": title,
        "scale": scale,
        **({"stack": None} if mark == "bar" else {}),
        **({"axis": {"tickMinStep": 1}} if axis.whole else {}),
    }


def _lines(name: str) -> str:
    """A category's name on lines short enough to leave the chart its room."""
    return "\n".join(wrap(name, 34))


def _scale(field: str, looks: Mapping[str, str], title: str) -> dict[str, Any]:
    """A legend of more than one name; colours and shapes in the order that rows have them."""
    return {
        "field": field,
        "type": "nominal",
        "scale": {"domain": list(looks), "range": list(looks.values())},
        "legend": {"title": title or None} if len(looks) > 1 else None,
    }
