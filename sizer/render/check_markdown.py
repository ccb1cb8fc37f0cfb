"""A check as a comment: a row a configuration, the findings folded under it."""

from __future__ import annotations

from sizer.checking.findings import SEVERITIES, Checked, PricedSuggestion, Report
from sizer.documents.units import count_text, percent_text, seconds_text
from sizer.render.findings_markdown import finding_markdown
from sizer.render.markdown import code, details, html_text, inline, table
from sizer.render.page import Page

#: How a comment on a pull request is found again.
MARKER = "<!-- sizer check -->"
#: Configurations whose row is shown, and findings of each.
SHOWN = 12


def render(answer: Checked, page: Page) -> str:
    """The summary fits one screen; everything else is behind a fold."""
    said = ", ".join(f"{number} {level}" for level, number in answer.tally().items() if number) or "no findings"
    head = ["configuration", "device", "parameters", "step", "MFU", "findings"]
    lines = [MARKER, f"### sizer: {said}", "", *table(head, [_row(one) for one in answer.reports[:SHOWN]], right=2)]
    if len(answer.reports) > SHOWN:
        lines += [f"… and {len(answer.reports) - SHOWN} more below"]
    for report in answer.reports:
        if report.findings:
            lines += ["", *_findings(report)]
    return "\n".join(lines) + "\n"


def _row(report: Report) -> list[str]:
    counts = [
        f"{number} {level}" for level in SEVERITIES if (number := sum(f.severity == level for f in report.findings))
    ]
    step = f"{seconds_text(report.step.seconds)} ({seconds_text(report.step.low)} to {seconds_text(report.step.high)})"
    return [
        code(report.path),
        inline(report.device),
        count_text(report.model.parameters),
        step,
        percent_text(report.step.mfu),
        ", ".join(counts) or "-",
    ]


def _findings(report: Report) -> list[str]:
    lines = []
    for finding in report.findings[:SHOWN]:
        cost = ""
        if finding.step_seconds > 0:
            share = percent_text(finding.step_seconds / report.step.seconds)
            cost = f", costs {seconds_text(finding.step_seconds)} a step ({share})"
        lines.append(f"- {finding_markdown(finding)}{cost}")
        lines += [f"  - {_suggestion(one)}" for one in finding.suggestions[:2]]
    lines += [f"- … {len(report.findings) - SHOWN} more"] if len(report.findings) > SHOWN else []
    plural = "s" if len(report.findings) != 1 else ""
    return details(html_text(f"{report.path}: {len(report.findings)} finding{plural} on {report.device}"), lines)


def _suggestion(one: PricedSuggestion) -> str:
    change = code(", ".join(f"{key} = {value}" for key, value in one.change.items()))
    seconds = one.step_seconds_change
    gain = f"{'saves' if seconds <= 0 else 'adds'} {seconds_text(abs(seconds))}"
    return f"{change}: {gain}" + (", within the error" if one.within_error and seconds < 0 else "")
