"""`bench --dry-run`: one job a line, in the order in which they would be measured."""

from __future__ import annotations

from sizer.answers.bench import Planned
from sizer.render.page import Page


def render(answer: Planned, page: Page) -> str:
    lines = []
    for suite, jobs in answer.suites.items():
        lines += [f"{suite}: {len(jobs)} jobs", *(f"{job.priority} {job.title} ({job.label})" for job in jobs)]
    return "\n".join(lines)
