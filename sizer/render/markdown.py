"""Texts from files, made safe inside GitHub's Markdown."""

from __future__ import annotations

import re
from html import escape

from shapes.errors import printable

#: What means something inside a line of Markdown or HTML.
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$])")


def inline(text: object) -> str:
    """``text`` as it is, in a line or a table's cell: no markup, no HTML, no mention, no line break."""
    escaped = _SPECIAL.sub(r"\\\1", printable(str(text)))
    escaped = escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # A mention or a reference to an issue needs its sign and a word: an empty comment between them ends both.
    return escaped.replace("@", "@<!-- -->").replace("://", ":<!-- -->//")


def html_text(text: object) -> str:
    """``text`` inside a tag of HTML, where Markdown's own escapes would be shown."""
    return escape(printable(str(text))).replace("@", "@<!-- -->")


def code(text: object) -> str:
    """``text`` as code, in a fence longer than any run of backquotes in it."""
    shown = printable(str(text)).replace("|", "\\|")
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    padding = " " if shown.startswith("`") or shown.endswith("`") or not shown.strip() else ""
    return f"{fence}{padding}{shown}{padding}{fence}"


def table(head: list[str], rows: list[list[str]], right: int = 1) -> list[str]:
    """Lines of a table whose columns from ``right`` on are numbers; cells are Markdown already."""
    rule = ["---" if index < right else "---:" for index in range(len(head))]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]


def details(summary: str, lines: list[str]) -> list[str]:
    """``lines`` folded away under ``summary``."""
    return ["<details>", f"<summary>{summary}</summary>", "", *lines, "", "</details>"]
