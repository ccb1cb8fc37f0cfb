"""A search's best candidate as a JSON merge patch (RFC 7396) of the configuration, under the file's own keys."""

from __future__ import annotations

import json
from typing import Any

from sizer.render.page import Page
from sizer.searching.patch import settings
from sizer.searching.ranked import SearchResult


def render(result: SearchResult, page: Page) -> str:
    return json.dumps(_patch(result), indent=2)


def _patch(result: SearchResult) -> dict[str, Any]:
    """Nested keys become nested objects. Empty: keep what is there."""
    patch: dict[str, Any] = {}
    for key, value in settings(result).items():
        *parents, last = key.split(".")
        inner = patch
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return patch
