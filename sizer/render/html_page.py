"""One self-contained page: texts escaped, charts as data, the plotting library inside it, nothing from a network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from html import escape
from importlib import resources

from shapes.errors import InputError, printable
from sizer.documents.document import Cell, Chart, Document, Facts, Part, Table, Text
from sizer.render.vega import CONFIG, spec

#: What the page may load: nothing but what is in it.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def page(document: Document) -> str:
    """``document`` as a file that any browser opens, without a network or a server."""
    style, script = (_asset(name) for name in ("page.css", "page.js"))
    charts = [spec(chart, "container") for chart in document.charts]
    # In a script's text only the end of the tag and a comment's begin mean something to HTML.
    data = json.dumps({"config": CONFIG, "charts": charts}, separators=(",", ":"), allow_nan=False)
    data = data.replace("<", "\\u003c")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{text(document.title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<style>{style}</style></head><body><main>{''.join(_body(document))}</main>"
        f'<script type="application/json" id="charts">{data}</script>'
        f'<script type="module">{_library()}\n{script}</script></body></html>\n'
    )


def fragment(document: Document) -> str:
    """``document`` inside another page, a notebook's: neither charts nor scripts nor styles of its own."""
    parts = []
    for section in document.sections:
        parts.append(f"<h3>{text(section.title)}</h3>")
        parts += [
            _table(part, sortable=False) if isinstance(part, Table) else _part(part, 0)
            for part in section.parts
            if not isinstance(part, Chart)
        ]
    return f"<div>{''.join(parts)}</div>"


def text(value: object) -> str:
    """``value`` as text inside a tag or a quoted attribute."""
    return escape(printable(str(value)), quote=True)


def _body(document: Document) -> Iterator[str]:
    yield f"<h1>{text(document.title)}</h1>"
    if len(document.sections) > 1:
        links = (f'<li><a href="#s{at}">{text(one.title)}</a></li>' for at, one in enumerate(document.sections))
        yield f'<nav aria-label="Contents"><ul>{"".join(links)}</ul></nav>'
    drawn = 0
    for at, section in enumerate(document.sections):
        yield f'<section id="s{at}"><h2>{text(section.title)}</h2>'
        for part in section.parts:
            drawn += isinstance(part, Chart)
            yield _part(part, drawn)
        yield "</section>"


def _part(part: Part, number: int) -> str:
    match part:
        case Facts(facts):
            pairs = (f"<div><dt>{text(key)}</dt><dd>{text(value)}</dd></div>" for key, value in facts.items())
            return f"<dl>{''.join(pairs)}</dl>"
        case Text(words, quiet):
            return f"<p{' class=quiet' if quiet else ''}>{text(words)}</p>"
        case Chart():
            style = f"min-height:{part.height + 60}px"
            return (
                f'<figure><div class="chart" id="chart-{number}" style="{style}"></div>'
                f"<figcaption>{text(part.caption)}</figcaption></figure>"
            )
        case Table():
            return _table(part)
    raise TypeError(f"no part of a page: {type(part).__name__}")


def _table(table: Table, sortable: bool = True) -> str:
    """Columns of numbers to the right; ``sortable``: by their headings, where the page's script is."""
    by_value = {at for row in table.rows for at, cell in enumerate(row) if cell.value is not None}
    right = {at for at in by_value if not any(row[at].style for row in table.rows)}
    heads = "".join(
        f"<th scope=col{' class=number' if at in right else ''}{' data-sort=value' if at in by_value else ''}>"
        f"{f'<button type=button>{text(name)}</button>' if sortable else text(name)}</th>"
        for at, name in enumerate(table.head)
    )
    body = "".join(f"<tr>{''.join(_cell(cell, at in right) for at, cell in enumerate(row))}</tr>" for row in table.rows)
    return (
        f'<h3>{text(table.caption)}</h3><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{text(table.caption)}"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(cell: Cell, right: bool) -> str:
    names = " ".join(filter(None, ("number" if right else "", cell.style)))
    named = f' class="{names}"' if names else ""
    value = f' data-value="{cell.value!r}"' if cell.value is not None else ""
    shown = f'<a href="{text(cell.link)}">{text(cell.shown)}</a>' if cell.link else text(cell.shown)
    return f"<td{named}{value}>{shown}</td>"


def _asset(name: str) -> str:
    return resources.files("sizer.render").joinpath("assets", name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _library() -> str:
    """Vega, Vega-Lite and their embedding as one script, out of the package that carries them."""
    try:
        from vl_convert import javascript_bundle
    except ImportError:
        raise InputError(
            "a page's charts need vl-convert-python: pip install 'sizer[html]'", key="format", value="html"
        ) from None
    return javascript_bundle("window.vegaEmbed = vegaEmbed").replace("</script", "<\\/script").replace("<!--", "<\\!--")
