"""The rules as JSON: code, slug and one line each."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sizer.render.page import Page
from sizer.rules import Rule


def render(rules: Sequence[Rule], page: Page) -> str:
    return json.dumps([{"code": rule.code, "slug": rule.slug, "summary": rule.summary} for rule in rules], indent=2)
