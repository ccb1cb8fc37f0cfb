"""A diff as CSV: a row a file and device, both versions' figures as columns."""

from __future__ import annotations

from dataclasses import asdict, fields

from sizer.answers.diff import Diff, Figures
from sizer.render.page import Page
from sizer.render.spreadsheet import table

NAMES = [field.name for field in fields(Figures)]


def render(answer: Diff, page: Page) -> str:
    listed = []
    for file in answer.files:
        for one in file.devices:
            old, new = (asdict(side) if side is not None else dict.fromkeys(NAMES) for side in (one.old, one.new))
            listed.append(
                {
                    "path": file.path,
                    "status": file.status,
                    "model_type": file.model_type,
                    "device": one.device,
                    **{f"{name}_{age}": side[name] for name in NAMES for age, side in (("old", old), ("new", new))},
                    "time_ratio": one.ratio,
                    "ratio_error": one.ratio_error,
                    "exceeds_error": one.exceeds_error,
                    "findings_added": " ".join(finding.code for finding in one.added),
                    "findings_fixed": " ".join(finding.code for finding in one.fixed),
                    "budgets_broken": " ".join(
                        found.budget
                        for found in answer.violations
                        if (found.path, found.device) == (file.path, one.device)
                    ),
                }
            )
    head = ("path", "status", "model_type", "device", *(f"{name}_{age}" for name in NAMES for age in ("old", "new")))
    return table(
        (*head, "time_ratio", "ratio_error", "exceeds_error", "findings_added", "findings_fixed", "budgets_broken"),
        listed,
    )
