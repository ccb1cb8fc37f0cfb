"""Where a rule's page is read on the web."""

from __future__ import annotations

import json
import os
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from sizer.rules import find_rule

#: The rules' page where it is not the one that the package names: a company's own copy of the documentation.
RULES_URL_VARIABLE = "SIZER_RULES_URL"


def rules_url() -> str | None:
    """The page of all rules: the environment's, else the package's ``Rules`` URL, else that of the repository it was
    installed from (``pip install git+https://...``); None where none is known."""
    if found := os.environ.get(RULES_URL_VARIABLE):
        return found
    try:
        package = distribution("sizer")
    except PackageNotFoundError:
        return None
    urls = package.metadata.get_all("Project-URL") or []
    return next((url.partition(", ")[2] for url in urls if url.startswith("Rules, ")), None) or _of_origin(package)


def _of_origin(package: Distribution) -> str | None:
    """The rules' page in the repository and at the commit that pip wrote down (PEP 610)."""
    try:
        origin = json.loads(package.read_text("direct_url.json") or "{}")
        url, commit = origin["url"], origin["vcs_info"]["commit_id"]
    except (KeyError, TypeError, ValueError):
        return None
    address = str(url).removesuffix(".git")
    return f"{address}/blob/{commit}/reports/rules.md" if address.startswith("https://") else None


def rule_address(code: str) -> str:
    """The page of one rule, else the file of the rule here, whose docstring is that page."""
    return rule_url(code) or Path(find_rule(code).file).as_uri()


def rule_url(code: str) -> str | None:
    """The page of one rule: the anchor that its heading has on the rules' page."""
    base, rule = rules_url(), find_rule(code)
    return f"{base}#{rule.code.lower()}-{rule.slug}" if base else None
