"""How many findings each rule has, the most frequent first."""

from __future__ import annotations

from collections import Counter

from sizer.checking.findings import SEVERITIES, Checked
from sizer.render.page import Page


def render(answer: Checked, page: Page) -> str:
    """A line a rule and severity, its count first; nothing where nothing was found."""
    counted = Counter(
        (finding.code, finding.slug, finding.severity) for report in answer.reports for finding in report.findings
    )
    ranked = sorted(counted.items(), key=lambda entry: (-entry[1], entry[0][0], SEVERITIES.index(entry[0][2])))
    return "\n".join(
        f"{number:5d}  {page.style(f'{level:<7} {code}', level)} {slug}" for (code, slug, level), number in ranked
    )
