"""One self-contained page: texts escaped, charts as data, the plotting library inside it, nothing from a network."""

import json
from collections.abc import Iterable
from functools import cache
from html import escape

from shapes.errors import InputError, printable
from shapes.program import install
from sizer.documents import (
    Cell,
    Charts,
    Document,
    Findings,
    Part,
    Table,
    Text,
    change_text,
    columns,
    numeric,
    saved_text,
)
from sizer.documents.charts import Chart
from sizer.documents.check import severity_cell

from .findings import rule_url
from .vega import ASSETS, HEIGHT, WIDTH, asset, spec

#: The page loads nothing but its own content.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def render(document: Document, page: object) -> str:
    """``document`` as a file that any browser opens, without a network or a server."""
    style, script = map(asset, ("page.css", "page.js"))
    charts = list[Chart]()
    body = "".join(_body(document, charts))
    # In a script's text only the end of the tag and a comment's begin mean something to HTML.
    specs = {"config": ASSETS["config"], "charts": [*map(spec, charts)]}
    data = json.dumps(specs, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    library = _library() if charts else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{text(document.title or "sizer")}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<style>{style}</style></head><body><main>{body}</main>"
        f'<script type="application/json" id="charts">{data}</script>'
        f'<script type="module">{library}\n{script}</script></body></html>\n'
    )


def fragment(document: Document) -> str:
    """``document`` inside another page, a notebook's: no scripts and no styles of its own; charts are pictures."""
    parts = []
    for section in document.seen("html"):
        parts.append(_heading("h3", section.title))
        for part in section.seen("html"):
            parts += map(_picture, part.make()) if isinstance(part, Charts) else [_part(part, sortable=False)]
    return f"<div>{''.join(parts)}</div>"


def text(value: object) -> str:
    """``value`` as text inside a tag or a quoted attribute."""
    return escape(printable(str(value)), quote=True)


def _heading(tag: str, title: str) -> str:
    return f"<{tag}>{text(title)}</{tag}>" if title else ""


def _body(document: Document, charts: list[Chart]) -> Iterable[str]:
    """The page's parts; ``charts`` are those it has places for."""
    sections = document.seen("html")
    yield _heading("h1", document.title or "sizer")
    links = [f'<li><a href="#s{at}">{text(one.title)}</a></li>' for at, one in enumerate(sections) if one.title]
    if len(links) > 1:
        yield f'<nav aria-label="Contents"><ul>{"".join(links)}</ul></nav>'
    for at, section in enumerate(sections):
        yield f'<section id="s{at}">{_heading("h2", section.title)}'
        for part in section.seen("html"):
            if isinstance(part, Charts):
                for chart in part.make():
                    charts.append(chart)
                    place = f'<div class="chart" id="chart-{len(charts)}" style="min-height:{HEIGHT + 60}px"></div>'
                    yield _figure(place, chart)
            else:
                yield _part(part)
        yield "</section>"


def _figure(drawn: str, chart: Chart) -> str:
    return f"<figure>{drawn}<figcaption>{text(chart.caption)}</figcaption></figure>"


def _picture(chart: Chart) -> str:
    """``chart`` as SVG, where no script runs; nothing where vl-convert is not installed."""
    try:
        from vl_convert import vegalite_to_svg
    except ImportError:
        return ""
    return _figure(vegalite_to_svg({**spec(chart), "width": WIDTH, "config": ASSETS["config"]}), chart)


def _part(part: Part, sortable: bool = True) -> str:
    match part:
        case Text(style="page"):
            return f"<pre>{escape(str(part))}</pre>"
        case Text():
            pieces = (
                f"<span class={style}>{text(said)}</span>" if style else text(said) for said, _, style in part.pieces
            )
            verdict = " class=verdict" * any(style == "head" for _, _, style in part.pieces)
            return f"<p{verdict}>{''.join(pieces)}</p>"
        case Table() if part.rows:
            return _table(part, sortable)
        case Findings():
            table = _table(Table(FINDING, part.findings, part.caption or "Findings"), sortable)
            return f"<div class=findings>{table}</div>"
    return ""


def _table(table: Table, sortable: bool) -> str:
    """Columns of numbers to the right; ``sortable``: by their headings, where the page's script is."""
    columns, rows = table.seen("html")
    by_value = numeric(rows) or [False] * len(columns)
    right = [numbers and not any(row[at].style for row in rows) for at, numbers in enumerate(by_value)]
    shown = "<button type=button>{}</button>" if sortable else "{}"
    heads = "".join(
        f"<th scope=col{' class=number' * one}{' data-sort=value' * number}>"
        f"{shown.format(text(column.name) or '#')}</th>"
        for column, one, number in zip(columns, right, by_value, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row, right))}</tr>" for row in rows)
    caption = text(table.caption or "table")
    return (
        f'{_heading("h3", table.caption)}<div class="scroll" tabindex="0" role="group" aria-label="{caption}">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell, right: bool) -> str:
    names = " ".join(filter(None, ("number" if right else "", cell.style)))
    named = f' class="{names}"' if names else ""
    value = f' data-value="{cell.value!r}"' if cell.value is not None else ""
    shown = text(cell.shown)
    if cell.style == "rule" and (url := rule_url(cell.shown.split()[0])):
        shown = f'<a href="{text(url)}">{shown}</a>'
    return f"<td{named}{value}>{shown}</td>"


#: A finding with what it costs and what would fix it.
FINDING = columns(
    "findings",
    severity=lambda one: severity_cell(one.severity),
    instead=lambda one: "; ".join(f"{change_text(each)}: {saved_text(each)}" for each in one.suggestions),
)


@cache
def _library() -> str:
    """Vega, Vega-Lite and their embedding as one script, out of the package that carries them."""
    try:
        from vl_convert import javascript_bundle
    except ImportError:
        raise InputError(f"a page's charts need vl-convert-python: {install('html')}", "format", "html") from None
    return javascript_bundle("window.vegaEmbed = vegaEmbed").replace("</script", "<\\/script").replace("<!--", "<\\!--")
