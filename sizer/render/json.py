"""JSON of a command's answer, versioned; the schemas in this folder describe every command's."""

import json

from sizer.documents import Document

#: Raised by one whenever a field changes its meaning or goes away.
SCHEMA_VERSION = 1


def render(document: Document, page: object) -> str:
    answer = document.answer
    if answer is None:
        answer = {"schema_version": SCHEMA_VERSION, "rows": document.rows()[1]}
    elif hasattr(answer, "to_dict"):
        answer = {"schema_version": SCHEMA_VERSION, **answer.to_dict()}
    # NaN and Infinity are not JSON: fail here, not in the reader's parser.
    return json.dumps(answer, indent=2, allow_nan=False) + "\n"
