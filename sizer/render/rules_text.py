"""The rules as a table."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from sizer.render.page import Page
from sizer.rules import Rule


def render(rules: Sequence[Rule], page: Page) -> str:
    lines = [(rule.code, rule.slug, rule.summary) for rule in rules]
    return tabulate(lines, ("code", "slug", "asks that"), tablefmt="simple")
