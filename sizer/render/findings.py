"""Shared by the formats of code review: findings and broken budgets with their places, and the rules' pages."""

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import cast

from shapes.frozen import Names, frozen
from shapes.program import installed
from sizer.answers.diff import BUDGETS, Diff
from sizer.checking.findings import Checked, Fix, PricedFinding, Severity
from sizer.documents import Document, change_text, cost_text, suggestion_text
from sizer.documents.check import place_of, text_of
from sizer.readers.locate import Place
from sizer.rules import find_rule

#: The rules' page where it is not the one that the package names: a company's own copy of the documentation.
RULES_URL_VARIABLE = "SIZER_RULES_URL"


@frozen
class Annotation:
    """One complaint. ``code``: a rule's or a budget's name; ``codes``: of every rule that points at the same cause.

    ``place`` None: no key of the file is to blame. ``fixes``: what each suggestion changes, with its edits.
    """

    path: str
    place: Place | None
    severity: Severity
    code: str
    slug: str
    device: str
    field: str
    message: str
    codes: Names
    fixes: tuple[tuple[str, Fix], ...] = ()


def reviewed(document: Document) -> Checked | Diff:
    """The answer in a document of check or of diff."""
    return cast(Checked | Diff, document.answer)


def looked_at(answer: Checked | Diff) -> Iterator[tuple[str, str, Sequence[PricedFinding], float | None, set[str]]]:
    """Each path and device, with its findings (of a diff those added), its step's time and the rules not asked."""
    if isinstance(answer, Checked):
        for one in answer.reports:
            yield one.path, one.device, one.findings, one.step_s, {*one.not_applicable, *one.suppressed}
        return
    for file in answer.files:
        for each in file.devices:
            yield file.path, each.device, each.added, each.new.step_s if each.new else None, set()


def annotate(answer: Checked | Diff) -> Iterator[Annotation]:
    """A check's findings; a diff's findings added and budgets broken."""
    texts = lru_cache(None)(text_of)
    for path, device, findings, step_s, _ in looked_at(answer):
        for finding in findings:
            parts = [f"{finding.field} = {finding.value}: {finding.message}"]
            if cost := cost_text(finding, step_s):
                parts.append(f"{cost} on {device}")
            if finding.suggestions:
                parts.append(f"try {change_text(finding.suggestions[0])}")
            yield Annotation(
                path,
                place_of(finding, path, texts(path)),
                finding.severity,
                finding.code,
                finding.slug,
                device,
                finding.field,
                "; ".join(parts),
                finding.codes,
                tuple((suggestion_text(one, step_s), one.fix) for one in finding.suggestions if one.fix),
            )
    for broken in () if isinstance(answer, Checked) else answer.violations:
        name = broken.budget
        yield Annotation(broken.path, None, "error", name, "budget", broken.device, "", broken.message, (name,))


def title(code: str) -> str:
    """One line on a rule or a budget."""
    return str(BUDGETS[code]["summary"]) if code in BUDGETS else find_rule(code).summary


def rule_url(code: str) -> str | None:
    """The page of one rule: the anchor that its heading has on the page of all rules.

    That page's address is the environment's, else the package's ``Rules`` URL. None where it is not known, and for a
    plug-in's rule.
    """
    package, rule = installed(), find_rule(code)
    urls = package.metadata.get_all("Project-URL") or [] if package else []
    named = (url.partition(", ")[2] for url in urls if url.startswith("Rules, "))
    base = os.environ.get(RULES_URL_VARIABLE) or next(named, None)
    return f"{base}#{rule.code.lower()}-{rule.slug}" if base and rule.judge.__module__.startswith("sizer.") else None
