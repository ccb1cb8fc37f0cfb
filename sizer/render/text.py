"""Text: as wide as the terminal, coloured and linked only on one, findings with the lines of the file there."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote

from shapes.errors import printable
from sizer.checking.findings import PricedFinding
from sizer.documents.document import (
    Cell,
    Column,
    Document,
    Findings,
    Part,
    Table,
    Text,
    cost_text,
    numeric,
    suggestion_text,
)
from sizer.render import Page

#: Columns of a file's line that are shown; what matters of a longer one is around the key.
LONGEST = 100


def render(document: Document, page: Page) -> str:
    lines: list[str] = []
    for section in document.seen("text"):
        for part in section.seen("text"):
            lines += _part(part, page)
        lines.append("")
    kept = [line for line, before in zip(lines, ["", *lines], strict=False) if line or before]
    return "\n".join(kept).rstrip("\n") + "\n"


def _part(part: Part, page: Page) -> list[str]:
    """Tables and findings stand apart, texts follow each other."""
    match part:
        case Text(style="page"):
            return [str(part)]
        case Text():
            if part.indent:
                return _wrapped(printable(str(part)), page, part.indent, part.indent + 2)
            return ["".join(page.style(printable(one.shown), one.style) for one in part.pieces)]
        case Table():
            return _table(part, page)
        case Findings():
            return ["", *(line for one in part.findings for line in _finding(one, part, page))]
    return []  # charts, and figures that the first line says


def _wrapped(text: str, page: Page, indent: int, hang: int, first: str = "") -> list[str]:
    head = first or " " * indent
    return textwrap.wrap(text, max(page.width, 40), initial_indent=head, subsequent_indent=" " * hang)


def _table(table: Table, page: Page) -> list[str]:
    columns, rows = table.seen("text")
    if not rows:
        return []
    lines, left_out = _aligned(columns, rows), []
    while page.terminal and max(map(len, lines)) > page.width and any(one.drop for one in columns):
        at = max(range(len(columns)), key=lambda place: columns[place].drop)
        left_out.append(columns.pop(at).name)
        rows = [row[:at] + row[at + 1 :] for row in rows]
        lines = _aligned(columns, rows)
    if left_out:
        lines.append(f"left out, the terminal is too narrow: {', '.join(reversed(left_out))}")
    return ["", *([f"{printable(table.caption)}:"] if table.caption else []), *lines, *filter(None, [table.left]), ""]


def _aligned(columns: list[Column], rows: list[list[Cell]]) -> list[str]:
    from tabulate import tabulate  # a check lists no table

    shown = [[printable(cell.shown) for cell in row] for row in rows]
    align = ["right" if one else "left" for one in numeric(rows)]
    heads = [printable(one.name) for one in columns]
    return tabulate(shown, heads, disable_numparse=True, colalign=align).splitlines()


def _finding(finding: PricedFinding, part: Findings, page: Page) -> Iterator[str]:
    codes = ", ".join(page.link(code, partial(_rule_address, code)) for code in finding.codes or (finding.code,))
    label = page.style(f"{part.label} {finding.severity:<7} {codes}".lstrip(), finding.severity)
    yield f"{label} {finding.field} = {finding.value}{_cost(finding, part.step_s)}"
    if page.terminal and part.path is not None:
        yield from _excerpt(finding, part.path, page)
    yield from _wrapped(finding.message, page, 2, 2)
    for suggestion in finding.suggestions:
        yield from _wrapped(suggestion_text(suggestion, part.step_s), page, 2, 5, "  -> ")


def _cost(finding: PricedFinding, step_s: float) -> str:
    """With how sure it is, or that there is no price."""
    if cost := cost_text(finding, step_s):
        sure = [finding.tier] if finding.tier in ("borrowed", "extrapolated") else []
        sure += ["within the error"] if finding.within_error else []
        return f"  {', '.join([cost.removesuffix(')'), *sure])})"
    unknown = finding.violated and finding.severity != "error" and "priced there" not in finding.message
    return "  price unknown" if unknown else ""


def _rule_address(code: str) -> str:
    from sizer.render.findings import rule_address  # reads the package's metadata

    return rule_address(code)


def _excerpt(finding: PricedFinding, path: str, page: Page) -> list[str]:
    """The place, and the file's line with the key marked in it; nothing where no key of the file is to blame."""
    from sizer.documents.check import place_of, text_of

    text = text_of(path)
    place = place_of(finding, path, text)
    if text is None or place is None:
        return []
    line = text.split("\n")[place.line - 1]
    start = max(0, place.column - 1 - LONGEST // 2)
    end = max(start + LONGEST, place.end_column - 1)
    before, key = (
        printable(part.rstrip("\r").replace("\t", "  "))
        for part in (line[start : place.column - 1], line[place.column - 1 : end])
    )
    marked = page.style(key.rstrip(" ,"), finding.severity)
    where = f"{printable(path)}:{place.line}:{place.column}"
    return [
        f"  {page.link(where, partial(_file_address, path))}",
        f"  {place.line:>5} | {before if start == 0 else '…' + before}{marked}",
    ]


def _file_address(path: str) -> str | None:
    """The file as an address of this machine; None for a name whose bytes are no text."""
    try:
        return f"file://{quote(str(Path(path).absolute()))}"
    except UnicodeEncodeError:
        return None
