"""Charts in the words of Vega-Lite (https://vega.github.io/vega-lite): what a browser draws.

Colours of text and lines are the page's own (``currentColor``), so that one chart is read on light, dark and paper.
"""

import json
from importlib import resources
from itertools import cycle

from shapes.frozen import Values, Words, among
from sizer.documents.charts import Axis, Chart, Layer

#: A chart's size in pixels, without axes and legend. On a page it is as wide as its place.
HEIGHT, WIDTH = 380, 640


def asset(name: str) -> str:
    """The text of a file that pages are made with."""
    return resources.files("sizer.render").joinpath("assets", name).read_text(encoding="utf-8")


#: How charts look everywhere (``config``, ``padding``), a row's key -> Vega-Lite's channels of it, shapes of points.
ASSETS: Values = json.loads(asset("vega.json"))


def spec(chart: Chart) -> Values:
    """``chart`` as Vega-Lite's specification, as wide as its container."""
    rows = [row for layer in chart.layers for row in layer.rows]
    groups, kinds = (dict.fromkeys(row[key] for row in rows if key in row) for key in ("group", "kind"))
    colours = among(chart.colours, groups)
    shapes = among(chart.shapes or dict(zip(kinds, cycle(ASSETS["shapes"]))), kinds or groups)
    return {
        "width": "container",
        "height": HEIGHT,
        "description": chart.caption,
        "padding": ASSETS["padding"],
        "layer": [_layer(layer, chart, colours, shapes) for layer in chart.layers if layer.rows],
    }


def _layer(layer: Layer, chart: Chart, colours: Words, shapes: Words) -> Values:
    keys = {key for row in layer.rows for key in row}
    encoding = {"x": _position("x", chart.x), "y": _position("y", chart.y)}
    for key, found in ASSETS["channels"].items():
        encoding |= found if key in keys else {}
    if "group" in keys:
        encoding["color"] = _scale("group", colours, chart.legend)
    if "kind" in keys:
        encoding["shape"] = _scale("kind", shapes)
    elif chart.shapes and layer.mark == "point":
        # One legend for both: Vega-Lite joins those of one field and one domain.
        encoding["shape"] = _scale("group", shapes, chart.legend)
    return {"data": {"values": list(layer.rows)}, "mark": {"type": layer.mark, **layer.look}, "encoding": encoding}


def _position(key: str, axis: Axis) -> Values:
    return {
        "field": key,
        "type": "quantitative",
        "title": axis.title,
        "scale": {"type": "log", "nice": False} if axis.log else {"zero": False, "padding": 24 * axis.whole},
        "axis": {"tickMinStep": +axis.whole},
    }


def _scale(field: str, looks: Words, title: str = "") -> Values:
    """A legend of more than one name; colours and shapes in the order that rows have them."""
    return {
        "field": field,
        "type": "nominal",
        "scale": {"domain": list(looks), "range": list(looks.values())},
        "legend": {"title": title or None} if len(looks) > 1 else None,
    }
