"""JSON of what a command answers, versioned; the schemas in this folder describe every command's."""

from __future__ import annotations

import json

from sizer.documents.document import Document
from sizer.render import Page

#: Raised by one whenever a field changes its meaning or goes away.
SCHEMA_VERSION = 1


def render(document: Document, page: Page) -> str:
    to_dict = getattr(document.answer, "to_dict", None)
    body = {"schema_version": SCHEMA_VERSION, **to_dict()} if to_dict is not None else document.answer
    # NaN and Infinity are not JSON: fail here, not in the reader's parser.
    return json.dumps(body, indent=2, allow_nan=False) + "\n"
