"""Where a rule's page is read on the web."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, metadata

from sizer.rules import find_rule

#: The rules' page where it is not the one that the package names: a company's own copy of the documentation.
RULES_URL_VARIABLE = "SIZER_RULES_URL"


def rules_url() -> str | None:
    """The page of all rules: the environment's, else the package's ``Rules`` URL; None where neither is set."""
    if found := os.environ.get(RULES_URL_VARIABLE):
        return found
    try:
        urls = metadata("sizer").get_all("Project-URL") or []
    except PackageNotFoundError:
        return None
    return next((url.partition(", ")[2] for url in urls if url.startswith("Rules, ")), None)


def rule_url(code: str) -> str | None:
    """The page of one rule: the anchor that its heading has on the rules' page."""
    base, rule = rules_url(), find_rule(code)
    return f"{base}#{rule.CODE.lower()}-{rule.SLUG}" if base else None
