"""The rules run on a resolved input, and what they propose priced."""

from __future__ import annotations

from dataclasses import replace

from shapes.cost.predict import attention_titles
from shapes.device import Device
from shapes.operators import Collective, Elementwise, needed_flops
from sizer.checking.causes import findings_by_cause
from sizer.checking.findings import ModelSummary, Report, StepTime
from sizer.checking.grading import PricedStep, grade
from sizer.checking.proposals import Proposals, propose
from sizer.checking.suppress import Suppression
from sizer.pricing import CostSource, Pricer, Step
from sizer.rules.base import NotApplicable
from sizer.subject import Subject, resized_subject


def check_subject(subject: Subject, device: Device, suppression: Suppression | None = None) -> Report:
    """``check`` for a resolved input."""
    return report_of(propose(subject, device, suppression))


def report_of(proposals: Proposals, measured: CostSource | None = None) -> Report:
    """``proposals`` priced. ``measured``: seconds of the subject's operators and of those its changed dimensions would

    run; changes of the workload stay predicted.
    """
    subject, device = proposals.subject, proposals.device
    predicted = own = PricedStep(proposals.pricer, proposals.step)
    if measured is not None:
        pricer = Pricer(device, measured)
        own = PricedStep(pricer, pricer.step(subject.operators), measured=True)
    graded = [grade(rule, one, subject, own, predicted, proposals.broken) for rule, one in proposals.findings()]
    findings = findings_by_cause(graded, subject, measured=measured is not None)
    return Report(
        path=subject.where,
        model=summary(subject),
        workload=proposals.asked,
        device=device.name,
        step=step_time(subject, own.step, device),
        findings=tuple(findings),
        not_applicable=tuple(rule.code for rule, answer in proposals.answers if isinstance(answer, NotApplicable)),
        suppressed=tuple(rule.code for rule, answer in proposals.answers if answer is None),
        implementation=subject.implementation,
        attention=attention_titles(subject.operators, device),
        stack=subject.stack.name if own.step.cost is not None else "",
    )


def summary(subject: Subject) -> ModelSummary:
    return ModelSummary(
        subject.model_type,
        subject.parameters,
        subject.active_parameters,
        dict(subject.dimensions),
        subject.path,
        subject.notes,
        subject.unread,
    )


def step_time(subject: Subject, step: Step, device: Device) -> StepTime:
    """The step's seconds with MFU: recomputed FLOPs take time but count for nothing, every stage's count alike."""
    listed, workload = step.operators, subject.workload
    if subject.model is not None and (workload.checkpointing, workload.p, workload.cp) != ("none", 1, 1):
        plain = replace(workload, checkpointing="none", p=1, cp=1)
        listed = resized_subject(subject, subject.model, plain).operators
    flops = step.accumulation * round(needed_flops(listed)) // (workload.p * workload.cp)
    peak = device.peak_flops.get(workload.dtype)
    mfu = flops / step.seconds / peak if peak and step.seconds else 0.0
    cost = step.cost
    moved = step.accumulation * sum(
        op.bytes * op.count for op in step.operators if not isinstance(op, Elementwise | Collective)
    )
    per_request = 1 if workload.decode else workload.s
    tokens = 0 if workload.train else step.accumulation * workload.b * workload.d * per_request
    found = StepTime(
        step.seconds,
        step.low,
        step.high,
        mfu,
        flops,
        step.source,
        step.accumulation,
        *((cost.tier, cost.coverage, dict(cost.parts)) if cost is not None else ()),
    )
    if not step.seconds:
        return found
    return replace(
        found,
        mbu=moved / step.seconds / device.memory.bandwidth_bytes_per_s,
        tokens_per_s=tokens / step.seconds,
        phase=workload.phase,
        tier="extrapolated" if workload.serving else found.tier,
    )
