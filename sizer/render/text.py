"""Text: as wide as the terminal, coloured only on one, findings with the lines of the file there."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from itertools import chain

from shapes.errors import printable
from sizer.checking.findings import PricedFinding
from sizer.documents import (
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

#: A column of texts is folded no narrower.
NARROW = 10
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


def _page(part: Text, page: Page) -> list[str]:
    fitting = (part._replace(text=line, style="") for line in str(part).split("\n"))
    return [*chain.from_iterable(_flowed(line, page) for line in fitting)]


def _part(part: Part, page: Page) -> list[str]:
    """Tables and findings stand apart, texts follow each other."""
    match part:
        case Text(style="page"):
            return (_page(part, page) if page.terminal else []) or [str(part)]
        case Text():
            if part.indent:
                return _wrapped(printable(str(part)), page, part.indent, part.indent + 2)
            return _flowed(part, page)
        case Table():
            return _table(part, page)
        case Findings():
            return ["", *chain.from_iterable(_finding(one, part, page) for one in part.findings)]
    return []  # charts, and figures that the first line says


def _wrapped(text: str, page: Page, indent: int, hang: int, first: str = "") -> list[str]:
    head = first or " " * indent
    return textwrap.wrap(text, max(page.width, 40), initial_indent=head, subsequent_indent=" " * hang)


def _flowed(part: Text, page: Page) -> list[str]:
    """A text's pieces, each in its style, on as many lines as a terminal needs; elsewhere on one."""
    lines, used, hang = [""], 0, 2
    for said, _, style in part.pieces:
        text = printable(said)
        whole = not page.terminal or used + len(text) <= page.width
        for word in [text] if whole else re.findall(rf"\s*\S{{1,{page.width - hang}}}|\s+$", text):
            if page.terminal and used + len(word) > page.width:
                lines.append(" " * hang + page.style(word.lstrip(), style))
                used = hang + len(word.lstrip())
            else:
                lines[-1] += page.style(word, style)
                used += len(word)
    return lines


def _table(table: Table, page: Page) -> list[str]:
    columns, rows = table.seen("text")
    if not rows:
        return []
    lines, left_out = _aligned(columns, rows), []
    while page.terminal and max(map(len, lines)) > page.width and len(columns) > 1:
        # The largest priority goes first; then texts are folded, and where that is not enough the last column goes.
        lines = [] if any(one.drop for one in columns) else _aligned(columns, rows, page.width)
        if not lines or max(map(len, lines)) > page.width:
            at = max(range(len(columns)), key=lambda place: (columns[place].drop, place))
            left_out.append(columns.pop(at).name)
            rows = [row[:at] + row[at + 1 :] for row in rows]
            lines = _aligned(columns, rows)
    caption = [f"{table.caption}:"] if table.caption else []
    said = [f"left out, the terminal is too narrow: {', '.join(reversed(left_out))}"] if left_out else []
    above, below = ([line for one in texts for line in _flowed(Text(one), page)] for texts in (caption, said))
    return ["", *above, *lines, *below, *filter(None, [table.left]), ""]


def _aligned(columns: list[Column], rows: list[list[Cell]], width: int | None = None) -> list[str]:
    """The table's lines; within a ``width`` its texts are folded, the widest first: none where that is not enough."""
    import tabulate  # a check lists no table

    tabulate.MIN_PADDING = 0  # heads would be two wider than they are
    shown = [[printable(cell.shown) for cell in row] for row in rows]
    heads, numbers, folded = [printable(one.name) for one in columns], numeric(rows), None
    if width is not None:
        widths = [max(map(len, column)) for column in zip(heads, *shown, strict=True)]
        while sum(widths) + 2 * (len(widths) - 1) > width:
            most, at = max((0 if numbers[at] else size, at) for at, size in enumerate(widths))
            if most <= NARROW:
                return []
            widths[at] -= 1
        folded = [None if number else size for size, number in zip(widths, numbers, strict=True)]
    align = ["right" if one else "left" for one in numbers]
    return tabulate.tabulate(
        shown,
        heads,
        disable_numparse=True,
        colalign=align,
        maxcolwidths=folded,
        maxheadercolwidths=folded,  # type: ignore[arg-type]  # its stubs forbid None
    ).splitlines()


def _finding(finding: PricedFinding, part: Findings, page: Page) -> Iterator[str]:
    codes = ", ".join(finding.codes or (finding.code,))
    said = Cell(f"{part.label} {finding.severity:<7} {codes}".lstrip(), style=finding.severity)
    price = f" {finding.field} = {finding.value}{_cost(finding, part.step_s)}"
    yield from _flowed(Text([said, Cell(price)]), page)
    if page.terminal and part.path is not None:
        yield from _excerpt(finding, part.path, page)
    yield from _wrapped(finding.message, page, 2, 2)
    for suggestion in finding.suggestions:
        yield from _wrapped(suggestion_text(suggestion, part.step_s), page, 2, 5, "  -> ")


def _cost(finding: PricedFinding, step_s: float | None) -> str:
    """With how sure it is, or that there is no price."""
    if cost := cost_text(finding, step_s):
        sure = [finding.tier] if finding.tier in ("borrowed", "extrapolated") else []
        sure += ["within the error"] if finding.within_error else []
        return f"  {', '.join([cost.removesuffix(')'), *sure])})"
    unknown = finding.violated and finding.severity != "error" and "priced there" not in finding.message
    return "  price unknown" if unknown else ""


def _excerpt(finding: PricedFinding, path: str, page: Page) -> list[str]:
    """The place, and the file's line with the key marked in it; nothing where no key of the file is to blame."""
    from sizer.documents.check import place_of, text_of

    text = text_of(path)
    place = place_of(finding, path, text)
    if text is None or place is None:
        return []
    line = text.split("\n")[place.line - 1]
    longest = min(LONGEST, page.width - 10)
    start = max(0, place.column - 1 - longest // 2)
    end = start + longest
    before, key = (
        printable(part.rstrip("\r").replace("\t", "  "))
        for part in (line[start : place.column - 1], line[place.column - 1 : end])
    )
    marked = page.style(key.rstrip(" ,"), finding.severity)
    where = f"{printable(path)}:{place.line}:{place.column}"
    return [
        *_flowed(Text(f"  {where}"), page),
        f"  {place.line:>5} | {before if start == 0 else '…' + before}{marked}",
    ]
