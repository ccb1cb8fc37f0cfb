"""The rules as JSON: code, slug and one line each."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sizer.render.page import Page
from sizer.rules import Rule, summary_line


def render(rules: Sequence[Rule], page: Page) -> str:
    return json.dumps(
        [{"code": rule.CODE, "slug": rule.SLUG, "summary": summary_line(rule)} for rule in rules], indent=2
    )
