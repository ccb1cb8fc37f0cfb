"""What a change of configurations costs, as text."""

from __future__ import annotations

from tabulate import tabulate

from sizer.answers.diff import DeviceDiff, Diff, FileDiff
from sizer.checking.findings import PricedFinding
from sizer.documents.diff_rows import rows, time_text
from sizer.render.page import Page


def render(answer: Diff, page: Page) -> str:
    """A table a file and device, the findings added and fixed, and the budgets broken."""
    lines = [line for file in answer.files for line in (*_file(file, answer, page), "")]
    lines += [
        page.style(f"budget {found.budget}: {found.path}: {found.message}", "error") for found in answer.violations
    ]
    return "\n".join([*lines, *(f"note: {note}" for note in answer.notes)])


def _file(file: FileDiff, answer: Diff, page: Page) -> list[str]:
    status = "" if file.status == "changed" else f" ({file.status})"
    lines = [page.style(f"{file.path}: {file.model_type}, stack {file.stack}{status}", "head")]
    lines += [f"  {key} {old} -> {new}" for key, (old, new) in file.changes.items()]
    for one in file.devices:
        lines += ["", *_device(one, answer, page)]
    return lines


def _device(one: DeviceDiff, answer: Diff, page: Page) -> list[str]:
    body = [(row.name, row.old, row.new, row.change) for row in rows(one, answer)]
    aligned = ("left", "right", "right", "right")
    lines = tabulate(body, (one.device, "old", "new", "change"), disable_numparse=True, colalign=aligned).splitlines()
    if one.ratio is not None:
        lines.append(time_text(one))
    lines += [page.style(f"added {finding_line(finding)}", finding.severity) for finding in one.added]
    return lines + [f"fixed {finding_line(finding)}" for finding in one.fixed]


def finding_line(finding: PricedFinding) -> str:
    return f"{finding.severity} {finding.code} {finding.field} = {finding.value}: {finding.message}"
