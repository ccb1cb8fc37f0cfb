"""What check and diff complain of, each with its place: what every format of code review shows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from shapes.frozen import frozen
from sizer.answers.diff import Diff
from sizer.checking.findings import Checked, PricedFinding, Severity
from sizer.documents.units import percent_text, seconds_text
from sizer.readers.locate import Place
from sizer.render.excerpt import place_of, text_of
from sizer.rules import find_rule

#: Budgets of `diff` beside the rules: name -> one line.
BUDGETS = {
    "max-step-regression": "A token takes longer than before by more than allowed",
    "max-memory": "A device needs more memory than allowed",
}


@frozen
class Annotation:
    """One complaint. ``code``: a rule's or a budget's name; ``codes``: of every rule that points at the same cause.

    ``place`` None: no key of the file is to blame.
    """

    path: str
    place: Place | None
    severity: Severity
    code: str
    slug: str
    device: str
    field: str
    message: str
    codes: tuple[str, ...]


def annotate(answer: Checked | Diff) -> Iterator[Annotation]:
    """A check's findings; a diff's findings added and budgets broken."""
    texts = lru_cache(maxsize=None)(text_of)
    if isinstance(answer, Checked):
        for report in answer.reports:
            for finding in report.findings:
                yield _of_finding(report.path, report.device, finding, report.step.seconds, texts(report.path))
        return
    for file in answer.files:
        for one in file.devices:
            for finding in one.added:
                step_s = one.new.step_s if one.new is not None else 0.0
                yield _of_finding(file.path, one.device, finding, step_s, texts(file.path))
    for broken in answer.violations:
        yield Annotation(
            broken.path, None, "error", broken.budget, "budget", broken.device, "", broken.message, (broken.budget,)
        )


def title(code: str) -> str:
    """One line on a rule or a budget."""
    return BUDGETS[code] if code in BUDGETS else find_rule(code).summary


def _of_finding(path: str, device: str, finding: PricedFinding, step_s: float, text: str | None) -> Annotation:
    parts = [f"{finding.field} = {finding.value}: {finding.message}"]
    if finding.step_seconds > 0 and step_s:
        share = percent_text(finding.step_seconds / step_s)
        parts.append(f"costs {seconds_text(finding.step_seconds)} a step ({share}) on {device}")
    if finding.suggestions:
        best = finding.suggestions[0]
        parts.append("try " + ", ".join(f"{key} {value}" for key, value in best.change.items()))
    return Annotation(
        path,
        place_of(finding, path, text),
        finding.severity,
        finding.code,
        finding.slug,
        device,
        finding.field,
        "; ".join(parts),
        finding.codes or (finding.code,),
    )
