"""What the rules say of a subject, before anything is priced. This is the one place that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from shapes.device import Device
from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.model.resize import DIMENSIONS
from shapes.operators import Attention
from shapes.software_stack import SoftwareStack
from shapes.workload import Workload
from sizer.checking.changes import changed_subject, of_dimensions
from sizer.checking.suppress import Suppression
from sizer.checking.vetting import Objections, context_of, objections_in
from sizer.pricing import Pricer, Step
from sizer.rules import RULES
from sizer.rules.base import Answer, Finding, NotApplicable, Rule
from sizer.rules.element_types import ALTERNATIVES
from sizer.subject import Subject, resized_subject, run_on


@frozen
class Proposals:
    """Each rule's answer about ``subject`` (None: the rule is suppressed), by the predicted costs of ``step``.

    ``subject`` is in an element type that ``device`` has; ``asked`` is the workload as the person gave it; ``broken``
    is what the rules on shapes have against the subject, the suppressed ones too.
    """

    subject: Subject
    asked: Workload
    device: Device
    pricer: Pricer
    step: Step
    broken: Objections
    answers: tuple[tuple[Rule, Answer | None], ...]

    def findings(self) -> Iterator[tuple[Rule, Finding]]:
        for rule, answer in self.answers:
            if answer is not None and not isinstance(answer, NotApplicable):
                yield from ((rule, finding) for finding in answer)

    def changed_subjects(self) -> list[Subject]:
        """What the changed dimensions that are suggested would make of the subject: what measuring would time."""
        found: list[Subject] = []
        if self.subject.model is None:
            return found
        for _, finding in self.findings():
            for suggestion in finding.suggestions:
                if of_dimensions(suggestion.change):
                    with suppress(InputError):  # no such model or split: it has no price either
                        found.append(changed_subject(self.subject, suggestion.change))
        return found


def propose(subject: Subject, device: Device, suppression: Suppression | None = None) -> Proposals:
    """Run every rule once; suppressed ones only for what a suggestion may find broken already."""
    asked, suppression = subject.asked or subject.workload, suppression or Suppression()
    subject = _on_device(run_on(subject, device), device)
    pricer = Pricer(device, stack=_comparing_heads(subject, device))
    step = pricer.step(subject.operators, subject.workload, subject.model)
    context = context_of(subject, device, step)
    context = replace(context, workload=asked)  # in the type that was asked for, which is SZ119's to judge
    answered = [(rule, _of_workload(_settled(rule.check(context)), asked)) for rule in RULES]
    answers = tuple((rule, one if suppression.keeps(rule.code, subject.where) else None) for rule, one in answered)
    return Proposals(subject, asked, device, pricer, step, objections_in(answered), answers)


def _comparing_heads(subject: Subject, device: Device) -> SoftwareStack:
    """The stack, with one attention factor where the subject has one head dimension that suggestions may change."""
    dims = {op.head_dim for op in subject.operators if isinstance(op, Attention)}
    return subject.stack.for_head_dims_near(device.architecture, *dims) if len(dims) == 1 else subject.stack


def _of_workload(answer: Answer, workload: Workload) -> Answer:
    """Of a released model's findings those whose advice is the workload's, and those that no advice came with."""
    if isinstance(answer, NotApplicable) or not (workload.frozen_architecture or workload.finetune):
        return answer
    kept = []
    for finding in answer:
        advice = tuple(one for one in finding.suggestions if not set(one.change) & set(DIMENSIONS))
        if advice or finding.error or (not finding.suggestions and finding.field not in DIMENSIONS):
            kept.append(replace(finding, suggestions=advice))
    return tuple(kept)


def _settled(answer: Answer) -> Answer:
    """A rule may yield its findings; they are read more than once."""
    return answer if isinstance(answer, NotApplicable) else tuple(answer)


def _on_device(subject: Subject, device: Device) -> Subject:
    """``subject`` in an element type the device has, so that it can be priced; SZ119 says that it was not asked for."""
    dtype = subject.workload.dtype
    if dtype in device.peak_flops:
        return subject
    instead = next((other for other in ALTERNATIVES[dtype] if other in device.peak_flops), None)
    if subject.model is None or instead is None:
        raise InputError(
            f"{device.name} has no figures for it; it has {', '.join(device.peak_flops)}", key="dtype", value=dtype
        )
    changed = resized_subject(subject, subject.model, replace(subject.workload, dtype=instead, recipe=None))
    asked = replace(subject.asked, dtype=instead, recipe=None) if subject.asked is not None else None
    return replace(
        changed, asked=asked, notes=(*subject.notes, f"times are those of {instead}: {device.name} has no {dtype}")
    )
