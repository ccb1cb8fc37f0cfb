"""CSV that a spreadsheet opens without running anything of it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from shapes.errors import printable

#: A cell that begins with one of these is a formula to a spreadsheet.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def table(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """``rows`` under ``columns``; texts are made printable, and ones that would be formulas begin with a quote."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return out.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
