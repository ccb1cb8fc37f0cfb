"""Text: by rich on a terminal, in its width, with the lines of the file that findings are about; elsewhere plain."""

import re
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

from shapes.frozen import Texts
from sizer.checking.findings import PricedFinding
from sizer.documents import Cell, Column, Document, Findings, Part, Table, Text, cost_text, numeric, suggestion_text

from . import Page

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

#: A column of texts is folded no narrower.
NARROW = 10
#: A text's style -> rich's.
STYLES = {"error": "red", "warning": "yellow", "info": "cyan", "head": "bold"}
#: Blanks at a line's end, before what ends a colour.
_PADDING = re.compile(r" +((?:\x1b\[0m)?)$")


def render(document: Document, page: Page) -> str:
    lines = []
    for section in document.seen("text"):
        for part in section.seen("text"):
            lines += _part(part, page)
        lines.append("")
    kept = [line for line, before in zip(lines, ["", *lines]) if line or before]  # noqa: B905 - the shorter ends it
    return "\n".join(kept).rstrip("\n") + "\n"


def _part(part: Part, page: Page) -> Texts:
    """Tables and findings stand apart, texts follow each other."""
    match part:
        case Text(style="page") if page.terminal:
            from rich.markdown import Markdown

            return _drawn(Markdown(str(part)), page)
        case Text(style="page" | "url"):  # an address that is cut cannot be followed
            return [str(part)]
        case Text():
            return _flowed(part, page, " " * part.indent, part.indent + 2)
        case Table():
            return _table(part, page)
        case Findings():
            return ["", *chain.from_iterable(_finding(one, part, page) for one in part.findings)]
    return []  # charts, and figures that the first line says


@cache
def _console(page: Page) -> "Console":
    from rich.console import Console
    from rich.theme import Theme

    return Console(
        width=max(page.width, 20),
        height=25,  # of a dumb terminal without it rich takes 80 columns
        theme=Theme(STYLES),
        force_terminal=True,
        color_system="standard" if page.coloured else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _drawn(what: "RenderableType", page: Page) -> Texts:
    """The lines that rich makes of it; signs that the output cannot write are as wide as what replaces them."""
    console = _console(page)
    with console.capture() as held:
        console.print(what)
    text = held.get().encode(page.encoding, "replace").decode(page.encoding)
    return [_PADDING.sub(r"\1", line) for line in text.split("\n")[:-1]]


def _flowed(part: Text, page: Page, head: str = "", hang: int = 2) -> Texts:
    """A text's pieces, each in its style, after ``head``: on as many lines as a terminal needs, the later indented.

    Elsewhere what has no head is one line.
    """
    if not page.terminal:
        said = head + page.shown(str(part))
        return textwrap.wrap(said, page.width, subsequent_indent=" " * hang) if head else [said]
    from rich.text import Text as Said

    whole = Said.assemble(head, *((page.shown(one.shown), one.style) for one in part.pieces))
    lines = whole.wrap(_console(page), max(page.width - hang, NARROW))
    return _drawn(Said("\n" + " " * hang).join(lines), page)


def _table(table: Table, page: Page) -> Texts:
    columns, rows = table.seen("text")
    if not rows:
        return []
    left_out = _narrowed(columns, rows, page) if page.terminal else []
    said, numbers = _said(columns, rows, page), numeric(rows)
    if page.terminal:
        lines = _drawn(_grid(said, numbers), page)
    else:
        import tabulate  # a check lists no table

        tabulate.MIN_PADDING = 0  # heads would be two wider than they are
        align = ["right" if number else "left" for number in numbers]
        lines = tabulate.tabulate(said, "firstrow", disable_numparse=True, colalign=align).splitlines()
    caption = table.caption and f"{table.caption}:"
    missing = f"{'left out, the terminal is too narrow: ' * bool(left_out)}{', '.join(left_out)}"
    above, below = (_flowed(Text(text), page) for text in (caption, missing))
    return ["", *above, *lines, *filter(None, [page.shown(table.left), *below]), ""]


def _said(columns: list[Column], rows: list[list[Cell]], page: Page) -> list[Texts]:
    return [[page.shown(one.name) for one in columns], *([page.shown(cell.shown) for cell in row] for row in rows)]


def _narrowed(columns: list[Column], rows: list[list[Cell]], page: Page) -> Texts:
    """Take out what does not fit: the largest priority first; texts are folded then, and the last column goes."""
    from rich.cells import cell_len

    left_out = Texts()
    while len(columns) > 1:
        sizes = (max(map(cell_len, said)) for said in zip(*_said(columns, rows, page), strict=True))
        whole = any(one.drop for one in columns)
        least = (
            size if whole or number else min(size, NARROW) for size, number in zip(sizes, numeric(rows), strict=True)
        )
        if sum(least) + 2 * len(columns) - 2 <= page.width:
            break
        at = max(range(len(columns)), key=lambda place: (columns[place].drop, place))
        left_out.insert(0, columns.pop(at).name)
        for row in rows:
            del row[at]
    return left_out


def _grid(said: list[Texts], numbers: list[bool]) -> "RenderableType":
    from rich import box
    from rich.table import Table as Grid

    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for head, number in zip(said[0], numbers, strict=True):
        grid.add_column(head, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for row in said[1:]:
        grid.add_row(*row)
    return grid


def _finding(finding: PricedFinding, part: Findings, page: Page) -> Iterator[str]:
    said = Cell(f"{part.label} {finding.severity:<7} {', '.join(finding.codes)}".lstrip(), style=finding.severity)
    price = f" {finding.field} = {finding.value}{_cost(finding, part.step_s)}"
    yield from _flowed(Text([said, Cell(price)]), page)
    if page.terminal and part.path:
        yield from _excerpt(finding, part.path, page)
    yield from _flowed(Text(finding.message), page, "  ")
    for suggestion in finding.suggestions:
        yield from _flowed(Text(suggestion_text(suggestion, part.step_s)), page, "  -> ", 5)


def _cost(finding: PricedFinding, step_s: float | None) -> str:
    """With how sure it is, or that there is no price."""
    if cost := cost_text(finding, step_s):
        sure = [finding.tier] if finding.tier in ("borrowed", "extrapolated") else []
        sure += ["within the error"] if finding.within_error else []
        return f"  {', '.join([cost.removesuffix(')'), *sure])})"
    said = finding.severity == "error" or "priced there" in finding.message or finding.step_seconds is not None
    return "  price unknown" * (finding.violated and not said)


def _excerpt(finding: PricedFinding, path: str, page: Page) -> Texts:
    """The place, and the file's line with the key marked in it; nothing where no key of the file is to blame."""
    from rich.text import Text as Said

    from sizer.documents.check import place_of, text_of

    text = text_of(path)
    place = place_of(finding, path, text)
    if text is None or not place:
        return []
    line, at = text.split("\n")[place.line - 1], place.column - 1
    start = at - page.width // 2 if at > page.width // 2 else 0  # what matters of a long line is around the key
    before, key = (page.shown(part.strip("\r").replace("\t", "  ")) for part in (line[start:at], line[at:]))
    own, comma, rest = key.partition(",")
    head = f"  {place.line:>5} | {'…' * bool(start)}{before}"
    shown = Said.assemble(head, (own.rstrip(), finding.severity), (comma + rest).rstrip(" ,"))
    shown.truncate(page.width, overflow="ellipsis")  # the console folds whatever it is told
    return [*_flowed(Text(f"  {path}:{place.line}:{place.column}"), page), *_drawn(shown, page)]
