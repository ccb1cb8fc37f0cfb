"""The line of a file that a finding speaks of, as a terminal shows it: the place, the line and the key marked in it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from shapes.errors import InputError, printable
from sizer.checking.findings import PricedFinding
from sizer.readers.loading import load_text
from sizer.readers.locate import Place, locate
from sizer.render.page import Page

#: Columns of a line that are shown; what matters of a longer one is around the key.
LONGEST = 100


def place_of(finding: PricedFinding, path: str, text: str | None) -> Place | None:
    """Where the finding's field stands, else the first of the keys that would be changed."""
    if text is None:
        return None
    keys = dict.fromkeys([finding.field, *(key for one in finding.suggestions for key in one.change)])
    return next((place for key in keys if (place := locate(text, key, path)) is not None), None)


def text_of(path: str) -> str | None:
    """The file's text; None for standard input, a module, a file that is gone."""
    try:
        return load_text(Path(path))
    except InputError:
        return None


def excerpt(finding: PricedFinding, path: str, page: Page) -> list[str]:
    """Two lines, or none where no key of the file is to blame."""
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
        f"  {page.link(where, lambda: _address(path))}",
        f"  {place.line:>5} | {before if start == 0 else '…' + before}{marked}",
    ]


def _address(path: str) -> str | None:
    """The file as an address of this machine; None for a name whose bytes are no text."""
    try:
        return f"file://{quote(str(Path(path).absolute()))}"
    except UnicodeEncodeError:
        return None
