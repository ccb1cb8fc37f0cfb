"""The rules run on a resolved input, and what they propose priced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from shapes.device import Device
from shapes.errors import InputError
from shapes.model.resize import DIMENSIONS, dimensions, resize
from shapes.workload import Workload
from sizer.checking.findings import (
    SEVERITIES,
    ModelSummary,
    PricedFinding,
    PricedSuggestion,
    Report,
    Severity,
    StepTime,
)
from sizer.checking.suppress import Suppression
from sizer.pricing import CostSource, Pricer, Step
from sizer.rules import RULES, dtype_on_device
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Rule, Suggestion
from sizer.subject import Subject, resized_subject

#: A finding is a warning when fixing it saves at least this share of the step (rules.md, "Grading").
NOTABLE_SHARE = 0.01


def check_subject(
    subject: Subject, device: Device, suppression: Suppression | None = None, measured: CostSource | None = None
) -> Report:
    """``check`` for a resolved input. ``measured``: seconds of its operators and of those its

    changed dimensions would run; changes of the workload stay predicted.
    """
    asked = subject.asked or subject.workload
    subject = _on_device(subject, device)
    predicted = Priced.by(Pricer(device), subject)
    priced = Priced.by(Pricer(device, measured), subject) if measured is not None else predicted
    answers = list(_answers(subject, asked, device, priced.step, suppression or Suppression()))
    findings = [
        _priced(rule, finding, subject, priced, predicted)
        for rule, answer in answers
        if answer is not None and not isinstance(answer, NotApplicable)
        for finding in answer
    ]
    findings.sort(key=lambda finding: (SEVERITIES.index(finding.severity), -finding.step_seconds, finding.code))
    return Report(
        path=subject.where, model=summary(subject), workload=asked, device=device.name,
        step=step_time(subject, priced.step, device), findings=tuple(findings),
        not_applicable=tuple(rule.CODE for rule, answer in answers if isinstance(answer, NotApplicable)),
        suppressed=tuple(rule.CODE for rule, answer in answers if answer is None),
        implementation=subject.implementation,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Priced:
    """A subject's step by one source of seconds."""

    pricer: Pricer
    step: Step

    @classmethod
    def by(cls, pricer: Pricer, subject: Subject) -> Priced:
        return cls(pricer, pricer.step(subject.operators))


def _answers(
    subject: Subject, asked: Workload, device: Device, step: Step, suppression: Suppression
) -> Iterator[tuple[Rule, Answer | None]]:
    """Every rule with what it says of the subject; None where it is suppressed."""
    context = Context(
        subject.model, asked, device, step.operators, step.costs, subject.dimensions, subject.given,
        subject.workload.dtype, subject.implementation,
    )  # fmt: skip
    for rule in RULES:
        yield rule, rule.check(context) if suppression.keeps(rule.CODE, subject.where) else None


def proposed_subjects(subject: Subject, device: Device, suppression: Suppression | None = None) -> list[Subject]:
    """What the changed dimensions that a check suggests would make of ``subject``."""
    asked, subject = subject.asked or subject.workload, _on_device(subject, device)
    step = Pricer(device).step(subject.operators)
    found = []
    for _, answer in _answers(subject, asked, device, step, suppression or Suppression()):
        if answer is None or isinstance(answer, NotApplicable) or subject.model is None:
            continue
        for suggestion in (one for finding in answer for one in finding.suggestions):
            if _of_dimensions(suggestion):
                with suppress(InputError):  # no such model or split: check says nothing of it either
                    found.append(changed_subject(subject, suggestion.change))
    return found


def _of_dimensions(suggestion: Suggestion) -> bool:
    return set(suggestion.change) <= set(DIMENSIONS)


def _on_device(subject: Subject, device: Device) -> Subject:
    """``subject`` in an element type the device has, so that it can be priced; SZ119 says that it was not asked for."""
    dtype = subject.workload.dtype
    if dtype in device.peak_flops:
        return subject
    instead = next((other for other in dtype_on_device.ALTERNATIVES[dtype] if other in device.peak_flops), None)
    if subject.model is None or instead is None:
        raise InputError(
            f"{device.name} has no figures for it; it has {', '.join(device.peak_flops)}", key="dtype", value=dtype
        )
    changed = resized_subject(subject, subject.model, replace(subject.workload, dtype=instead))
    asked = replace(subject.asked, dtype=instead) if subject.asked is not None else None
    return replace(
        changed, asked=asked, notes=(*subject.notes, f"times are those of {instead}: {device.name} has no {dtype}")
    )


def summary(subject: Subject) -> ModelSummary:
    return ModelSummary(
        subject.model_type, subject.parameters, subject.active_parameters, dict(subject.dimensions), subject.path,
        subject.notes, subject.unread,
    )  # fmt: skip


def step_time(subject: Subject, step: Step, device: Device) -> StepTime:
    """The step's seconds with MFU: recomputed FLOPs take time but count for nothing."""
    flops = step.flops
    if subject.model is not None and subject.workload.checkpointing != "none":
        plain = replace(subject.workload, checkpointing="none")
        flops = sum(op.flops * op.count for op in resized_subject(subject, subject.model, plain).operators)
    peak = device.peak_flops.get(subject.workload.dtype)
    mfu = flops / step.seconds / peak if peak and step.seconds else 0.0
    return StepTime(step.seconds, step.low, step.high, mfu, flops, step.source)


def _priced(rule: Rule, finding: Finding, subject: Subject, own: Priced, predicted: Priced) -> PricedFinding:
    priced = []
    for suggestion in finding.suggestions:
        by = own if _of_dimensions(suggestion) else predicted
        price = price_suggestion(suggestion, subject, by.step, by.pricer)
        if price is not None and by is not own:
            price = replace(price, note="; ".join(filter(None, (price.note, f"predicted for {by.pricer.device.name}"))))
        if price is not None:
            priced.append((price, by.step))
    priced.sort(key=lambda pair: pair[0].step_seconds_change)
    saved = max((saving(suggestion, step) for suggestion, step in priced), default=0.0)
    return PricedFinding(
        code=rule.CODE, slug=rule.SLUG, severity=_severity(finding, priced), field=subject.name_of(finding.field),
        value=finding.value, message=finding.message, step_seconds=max(0.0, saved),
        suggestions=tuple(suggestion for suggestion, _ in priced),
    )  # fmt: skip


def saving(suggestion: PricedSuggestion, step: Step) -> float:
    """Seconds a suggestion saves beyond what doing less work saves; a larger model's work is not credited."""
    less_work = step.seconds * max(0.0, -suggestion.flops_change / step.flops) if step.flops else 0.0
    return -suggestion.step_seconds_change - less_work


def _severity(finding: Finding, priced: list[tuple[PricedSuggestion, Step]]) -> Severity:
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
    after = pricer.step(changed.operators)
    # At equal tokens and devices: a larger microbatch does more work, a smaller t leaves devices free.
    scale = (subject.workload.tokens / changed.workload.tokens) * (
        changed.workload.t * changed.workload.p / (subject.workload.t * subject.workload.p)
    )
    gain = step.seconds - after.seconds * scale
    less_work = step.seconds * (1 - after.flops * scale / step.flops) if step.flops else 0.0
    return PricedSuggestion(
        change=named_change(suggestion.change, subject, changed), step_seconds_change=-gain,
        parameters_change=changed.parameters - subject.parameters,
        flops_change=round(after.flops * scale) - step.flops,
        within_error=gain - max(0.0, less_work) <= pricer.error_s(step, after), note=suggestion.note,
    )  # fmt: skip


def changed_subject(subject: Subject, change: Mapping[str, int | str]) -> Subject:
    """``subject`` with dimensions and workload fields changed; InputError where that is no model or cannot be split."""
    if subject.model is None:
        if subject.retrace is None:
            raise InputError("a module's dimensions are its own code's", where=subject.where)
        return subject.retrace(change)
    dims = {key: value for key, value in change.items() if key in DIMENSIONS}
    asked: dict[str, Any] = {key: value for key, value in change.items() if key not in DIMENSIONS}
    model = resize(subject.model, **dims) if dims else subject.model  # type: ignore[arg-type]
    workload: Workload = replace(subject.asked or subject.workload, **asked)
    return resized_subject(subject, model, workload)


def named_change(change: Mapping[str, int | str], before: Subject, after: Subject) -> dict[str, int | str]:
    """The change under the names of the person's file, with the dimensions that follow and have a key there."""
    full = dict(change)
    if before.model is not None and after.model is not None:
        old, new = dimensions(before.model), dimensions(after.model)
        full |= {key: value for key, value in new.items() if value != old.get(key)}
    keys = before.reading.keys if before.reading is not None else {}
    return {
        before.name_of(key): value for key, value in full.items() if key in change or not keys or key in keys
    }  # fmt: skip
