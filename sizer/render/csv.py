"""CSV that a spreadsheet opens without running anything of it."""

import csv
import io

from shapes.errors import printable
from sizer.documents import Document

#: A cell that begins with one of these is a formula to a spreadsheet.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def render(document: Document, page: object) -> str:
    """The document's records, else its first table; a list is its items with blanks between."""
    columns, rows = document.rows()
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*map(_cell, columns)])
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return out.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, list | tuple):
        value = " ".join(map(str, value))
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if value != "-" and value.startswith(_FORMULA) else text
