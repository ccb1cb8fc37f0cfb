"""One self-contained page: texts escaped, charts as data, the plotting library inside it, nothing from a network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from typing import Any

from shapes.errors import InputError, printable

#: What the page may load: nothing but what is in it.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def text(value: object) -> str:
    """``value`` as text inside a tag or a quoted attribute."""
    return escape(printable(str(value)), quote=True)


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's cell: what is shown, and what it is sorted by where that is a number."""

    shown: str
    value: float | None = None
    style: str = ""


@dataclass
class HtmlPage:
    """A page as it is put together: ``parts`` are HTML, ``charts`` Plotly's data and layout by the figure's id."""

    title: str
    parts: list[str] = field(default_factory=list)
    charts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def chart(self, data: Sequence[Mapping[str, Any]], layout: Mapping[str, Any], caption: str) -> None:
        """A figure; what it shows is also in a table of the page, for who cannot see it."""
        name = f"chart-{len(self.charts) + 1}"
        self.charts[name] = {"data": list(data), "layout": dict(layout)}
        self.parts.append(
            f'<figure><div class="chart" id="{name}" role="img" aria-label="{text(caption)}"></div>'
            f"<figcaption>{text(caption)}</figcaption></figure>"
        )

    def table(self, caption: str, head: Sequence[str], rows: Iterable[Sequence[Cell]], right: frozenset[int]) -> None:
        """A table whose columns are sorted by their headings; ``right``: those of numbers."""
        heads = "".join(
            f'<th scope="col"{" class=number" if at in right else ""}><button type="button">{text(name)}</button></th>'
            for at, name in enumerate(head)
        )
        body = "".join(f"<tr>{''.join(_cell(cell, at in right) for at, cell in enumerate(row))}</tr>" for row in rows)
        self.parts.append(
            f'<h3>{text(caption)}</h3><div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}">'
            f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def facts(self, facts: Mapping[str, str]) -> None:
        self.parts.append(
            "<dl>" + "".join(f"<div><dt>{text(key)}</dt><dd>{text(value)}</dd></div>" for key, value in facts.items())
            + "</dl>"
        )  # fmt: skip

    def render(self) -> str:
        style, script = (_asset(name) for name in ("page.css", "page.js"))
        # In a script's text only the end of the tag and a comment's begin mean something to HTML.
        data = json.dumps(self.charts, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{text(self.title)}</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            f"<style>{style}</style></head><body><main>{''.join(self.parts)}</main>"
            f'<script type="application/json" id="charts">{data}</script>'
            f"<script>{_plotly()}</script><script>{script}</script></body></html>\n"
        )


def _cell(cell: Cell, right: bool) -> str:
    names = " ".join(filter(None, ("number" if right else "", cell.style)))
    named = f' class="{names}"' if names else ""
    value = f' data-value="{cell.value!r}"' if cell.value is not None else ""
    return f"<td{named}{value}>{text(cell.shown)}</td>"


def _asset(name: str) -> str:
    return resources.files("sizer.report").joinpath("assets", name).read_text(encoding="utf-8")


def _plotly() -> str:
    """The library's own file, without importing it."""
    try:
        return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    except (ImportError, OSError):
        raise InputError("a page's charts need plotly: pip install 'sizer[html]'", key="format", value="html") from None
