"""What a suggestion is worth, by one source of seconds, and how severe a finding is for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shapes.errors import InputError
from sizer.checking.changes import changed_subject, named_change, of_dimensions
from sizer.checking.findings import PricedFinding, PricedSuggestion, Severity
from sizer.pricing import Pricer, Step
from sizer.rules.base import Finding, Rule, Suggestion
from sizer.subject import Subject

#: A finding is a warning when fixing it saves at least this share of the step (rules.md, "Grading").
NOTABLE_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class PricedStep:
    """A subject's step by one source of seconds."""

    pricer: Pricer
    step: Step


def price_finding(
    rule: Rule, finding: Finding, subject: Subject, own: PricedStep, predicted: PricedStep
) -> PricedFinding:
    """``finding`` with its suggestions by their change in step time, and the severity that follows.

    Changes of dimensions are priced by ``own`` source of seconds, those of the workload by ``predicted``.
    """
    priced = []
    for suggestion in finding.suggestions:
        by = own if of_dimensions(suggestion.change) else predicted
        price = price_suggestion(suggestion, subject, by.step, by.pricer)
        if price is not None and by is not own:
            price = replace(price, note="; ".join(filter(None, (price.note, f"predicted for {by.pricer.device.name}"))))
        if price is not None:
            priced.append((price, by.step))
    priced.sort(key=lambda pair: pair[0].step_seconds_change)
    saved = max((saving(suggestion, step) for suggestion, step in priced), default=0.0)
    return PricedFinding(
        code=rule.CODE,
        slug=rule.SLUG,
        severity=severity(finding, priced),
        field=subject.name_of(finding.field),
        value=finding.value,
        message=finding.message,
        step_seconds=max(0.0, saved),
        suggestions=tuple(suggestion for suggestion, _ in priced),
    )


def saving(suggestion: PricedSuggestion, step: Step) -> float:
    """Seconds a suggestion saves beyond what doing less work saves; a larger model's work is not credited."""
    less_work = step.seconds * max(0.0, -suggestion.flops_change / step.flops) if step.flops else 0.0
    return -suggestion.step_seconds_change - less_work


def severity(finding: Finding, priced: Sequence[tuple[PricedSuggestion, Step]]) -> Severity:
    """A warning saves ``NOTABLE_SHARE`` of the step beyond the error and beyond doing less work."""
    if finding.error:
        return "error"
    notable = any(
        not suggestion.within_error and saving(suggestion, step) >= NOTABLE_SHARE * step.seconds
        for suggestion, step in priced
    )
    return "warning" if notable else "info"


def price_suggestion(suggestion: Suggestion, subject: Subject, step: Step, pricer: Pricer) -> PricedSuggestion | None:
    """Rebuild the model (or trace it again) with the change and compare; None where no such model or split exists."""
    try:
        changed = changed_subject(subject, suggestion.change)
    except InputError:
        return None
    after = pricer.step(changed.operators, changed.workload, changed.model)
    # At equal tokens and devices: a larger microbatch does more work, a smaller t leaves devices free.
    scale = (_tokens(subject, step) / _tokens(changed, after)) * (_devices(changed) / _devices(subject))
    gain = step.seconds - after.seconds * scale
    less_work = step.seconds * (1 - after.flops * scale / step.flops) if step.flops else 0.0
    return PricedSuggestion(
        change=named_change(suggestion.change, subject, changed), step_seconds_change=-gain,
        parameters_change=changed.parameters - subject.parameters,
        flops_change=round(after.flops * scale) - step.flops,
        within_error=gain - max(0.0, less_work) <= pricer.error_s(step, after), note=suggestion.note,
    )  # fmt: skip


def _tokens(subject: Subject, step: Step) -> int:
    """Tokens of one data-parallel rank's step."""
    return subject.workload.tokens * step.accumulation


def _devices(subject: Subject) -> int:
    """Devices that share those tokens."""
    return subject.workload.t * subject.workload.p * subject.workload.cp
