"""A check as CSV: a row a finding, with its place."""

from __future__ import annotations

from sizer.checking.findings import Checked
from sizer.render.annotations import annotate
from sizer.render.page import Page
from sizer.render.spreadsheet import table

COLUMNS = (
    "path",
    "line",
    "column",
    "device",
    "severity",
    "code",
    "slug",
    "field",
    "value",
    "step_seconds",
    "step_share",
    "suggestion",
    "saves_seconds",
    "within_error",
    "message",
)


def render(answer: Checked, page: Page) -> str:
    listed = []
    places = iter(annotate(answer))  # one a finding, in the same order
    for report in answer.reports:
        for finding in report.findings:
            place = next(places).place
            best = finding.suggestions[0] if finding.suggestions else None
            listed.append(
                {
                    "path": report.path,
                    "line": place.line if place else "",
                    "column": place.column if place else "",
                    "device": report.device,
                    "severity": finding.severity,
                    "code": finding.code,
                    "slug": finding.slug,
                    "field": finding.field,
                    "value": finding.value,
                    "step_seconds": finding.step_seconds,
                    "step_share": finding.step_seconds / report.step.seconds,
                    "suggestion": ", ".join(f"{key} {value}" for key, value in best.change.items()) if best else "",
                    "saves_seconds": -best.step_seconds_change if best else "",
                    "within_error": best.within_error if best else "",
                    "message": finding.message,
                }
            )
    return table(COLUMNS, listed)
