"""`check`: a configuration read as its project says, its findings priced, graded and reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Unpack

from shapes.cost.predict import attention_titles
from shapes.device import DEFAULT_DEVICE, Device, load_device
from shapes.frozen import frozen
from shapes.operators import Collective, Elementwise, needed_flops
from shapes.step import CostSource, Pricer, Step
from shapes.step.stack import SoftwareStack
from shapes.workload import WorkloadKeywords
from sizer.checking.findings import ModelSummary, Report, StepTime
from sizer.checking.grading import PricedStep, findings_by_cause, grade
from sizer.checking.project import Suppression, load_defaults, load_suppression
from sizer.checking.proposals import Proposals, propose
from sizer.rules.base import NotApplicable
from sizer.subject import Subject, read_subject, resized_subject

if TYPE_CHECKING:
    from shapes.measure.executor import Executor


def check(
    config: object,
    *,
    device: str | Device | None = None,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    trace: bool = False,
    config_format: str | None = None,
    example_inputs: object = None,
    dims: Mapping[str, int] | None = None,
    measure: bool | Executor = False,
    time_limit_s: float | None = None,
    store: str | None = None,
    stack: str | SoftwareStack | None = None,
    **workload: Unpack[WorkloadKeywords],
) -> Report:
    """Every finding of the rule catalogue on ``config``, each priced in step seconds on ``device`` (h100-sxm).

    ``config``: a path, a mapping, a transformers ``PretrainedConfig``, a ``shapes.ModelShape`` or an ``nn.Module`` with
    its ``example_inputs`` (and ``dims``, the dimensions of it worth naming: ``{"vocab": 50257}``). ``workload``: fields
    of ``shapes.Workload`` (b, s, dtype, phase, attention, gpus, global_batch …; t or tp, p or pp, d or dp, e or ep). A
    split that does not divide is a finding, and the times are those of the nearest that does. ``measure``: operators
    are timed on the device at hand, or by an executor of its own (``shapes.measure.Executor``), for at most
    ``time_limit_s``, samples kept in ``store``. ``stack``: the software that runs it (``shapes/stacks``; None: the
    one that the configuration's format is run by). Raises ``InputError`` for what it cannot read.
    """
    subject = read_subject(
        config,
        nearest=True,
        trace=trace,
        config_format=config_format,
        example_inputs=example_inputs,
        dims=dims,
        stack=stack,
        **workload,
    )
    suppression = Suppression(tuple(select), tuple(ignore))
    if measure is False:
        return check_subject(subject, load_device(device or DEFAULT_DEVICE), suppression)
    from shapes.measure import InProcess
    from sizer.checking.measured import check_measured

    executor = InProcess() if measure is True else measure
    return check_measured(subject, executor, device, suppression, time_limit_s=time_limit_s, store=store)


@frozen
class Settled:
    """What to check: the resolved input, the device it is priced on and the rules that are kept."""

    subject: Subject
    device: Device
    suppression: Suppression

    def check(self) -> Report:
        return report_of(self.propose())

    def propose(self) -> Proposals:
        """What the rules propose, which an editor shows with neighbouring values."""
        return propose(self.subject, self.device, self.suppression)


@frozen
class Request:
    """What one call asks of every configuration that it names; what is said here comes before what a project says.

    ``workload``: fields of ``Workload``; ``reading``: further keywords of ``read_subject``.
    """

    device: str | None = None
    stack: str | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    workload: Mapping[str, Any] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)

    def settle(self, config: str, source: object = None) -> Settled:
        """``config``, a path or "-", with what its project says of it.

        ``source``: what is read in its place (standard input, an editor's text). InputError for what cannot be read.
        """
        project = load_defaults(config)
        target = load_device(self.device or project.device or DEFAULT_DEVICE)
        suppression = load_suppression(config, select=self.select, ignore=self.ignore, extend_select=self.extend_select)
        workload = {**project.workload, **self.workload}
        read = config if source is None else source
        subject = read_subject(read, nearest=True, stack=self.stack or project.stack, **self.reading, **workload)
        return Settled(subject, target, suppression)


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
