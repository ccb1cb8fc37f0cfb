"""A finding as one line of Markdown, in check's comment and in diff's."""

from __future__ import annotations

from sizer.checking.findings import PricedFinding
from sizer.documents.rule_page import rule_url
from sizer.render.markdown import code, inline


def finding_markdown(finding: PricedFinding) -> str:
    """A finding in one line, its code linked to the rule's page where that has an address."""
    url = rule_url(finding.code)
    name = f"[{finding.code}]({url})" if url else f"{finding.code} {finding.slug}"
    return f"{finding.severity} {name} {code(f'{finding.field} = {finding.value}')}: {inline(finding.message)}"
