"""JSON of any answer that has ``to_dict``, versioned; the schemas beside this file describe every command's."""

from __future__ import annotations

import json
from typing import Any, Protocol

from sizer.render.page import Page

#: Raised by one whenever a field changes its meaning or goes away.
SCHEMA_VERSION = 1


class Answer(Protocol):
    """What a command answers."""

    def to_dict(self) -> dict[str, Any]: ...


def render(answer: Answer, page: Page) -> str:
    # NaN and Infinity are not JSON: fail here, not in the reader's parser.
    return json.dumps({"schema_version": SCHEMA_VERSION, **answer.to_dict()}, indent=2, allow_nan=False) + "\n"
