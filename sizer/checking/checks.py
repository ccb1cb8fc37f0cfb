"""A check: a configuration is read with its project's settings; findings are priced, graded and reported."""

from collections import Counter
from dataclasses import field
from math import inf

from shapes.cost import attention_titles
from shapes.device import DEFAULT_DEVICE, Device, load_device
from shapes.errors import InputError
from shapes.frozen import Named, Names, frozen, replace
from shapes.operators.types import Operators, moved_bytes, needed_flops, possible_mfu
from shapes.step import CostSource, Pricer, Step
from sizer.rules.base import NotApplicable
from sizer.subject import Subject, read_subject, resized_subject

from .findings import ModelSummary, Report, StepTime
from .grading import Proposals, findings_by_cause, grade, propose, together
from .project import Suppression, load_defaults, load_suppression


@frozen
class Settled:
    """The input of a check: the resolved input, the device that prices it, and the rules that are suppressed."""

    subject: Subject
    device: Device
    suppression: Suppression

    def propose(self) -> Proposals:
        """The rules' proposals; an editor shows them with neighbouring values."""
        return propose(self.subject, self.device, self.suppression)


@frozen
class CheckRequest:
    """What one call asks of every configuration that it names; it has precedence over a project's settings.

    ``workload``: fields of ``Workload``; ``reading``: further keywords of ``read_subject``.
    """

    device: str | None = None
    stack: str | None = None
    select: Names = ()
    ignore: Names = ()
    extend_select: Names = ()
    workload: Named = field(default_factory=dict)
    reading: Named = field(default_factory=dict)

    def settle(self, config: str, source: object = None) -> Settled:
        """``config``, a path or "-", with its project's settings.

        ``source``: what to read in its place (standard input, an editor's text). InputError if it cannot be read.
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
    """The report on ``proposals``, priced.

    ``measured``: measured seconds of the operators, the subject's and those of changed dimensions; changes of the
    workload stay predicted.
    """
    subject, device, model = proposals.subject, proposals.device, summary(proposals.subject)
    own = proposals.timed_by(measured) if measured else proposals
    graded = [grade(rule, one, own, proposals) for rule, one in proposals.findings()]
    causes = findings_by_cause(graded, own)
    priced = subject.model is not None
    step = step_time(subject, own.step, device) if priced else None
    told = (answer.reason for _, answer in proposals.answers if isinstance(answer, NotApplicable) and answer.note)
    mixed = _by_precision(proposals.step, device, step) if step and subject.workload.low_precision else ()
    return Report(
        path=subject.where,
        model=replace(model, notes=(*model.notes, *mixed, *told, *_round(subject, device, step))),
        workload=proposals.asked,
        device=device.name,
        step=step,
        findings=tuple(cause.finding for cause in causes),
        not_applicable=tuple(rule.code for rule, answer in proposals.answers if isinstance(answer, NotApplicable)),
        suppressed=tuple(rule.code for rule, answer in proposals.answers if answer is None),
        implementation=subject.saved_by,
        attention=attention_titles(subject.operators, device),
        stack=subject.stack.name if priced and own.step.cost else "",
        joint=together(causes, graded, proposals) if priced and not measured else None,
        price_usd_per_h=device.price_usd_per_h,
    )


def _round(subject: Subject, device: Device, step: StepTime | None) -> Names:
    """A note on the shares of training, rollouts and forward passes in a round of reinforcement learning.

    Empty where the recipe does not say the lengths.
    """
    own = subject.workload
    share = subject.reading.rounds.get("share", {}) if subject.reading and own.train else {}
    if not step or len(share) < 3:
        return ()  # the file does not hold them
    response, length, passes = share.values()
    try:
        others = [read_subject(subject.reading, phase=phase) for phase in ("decode", "prefill")]
    except InputError:
        return ()  # a split that the model does not run in
    trained = step.seconds * own.model_ranks / (own.b * own.accumulation * own.s)
    decoded, passed = (
        Pricer(device).step(one.operators).seconds * one.workload.t / (one.workload.b * one.workload.s)
        for one in others
    )
    parts = trained * length, decoded * response, passed * length * passes
    training, rollouts, forward = (f"{part / sum(parts):.0%}" for part in parts)
    said = f"of a round's device time at {length:,} tokens, {response:,} of them new, this training is {training}"
    return (f"{said}, rollouts {rollouts}, forward passes ({passes}) {forward}",)


def _by_precision(step: Step, device: Device, told: StepTime) -> Names:
    """A note on MFU by each element type's own peak, as a low-precision recipe has products of several."""
    flops = Counter[str]()
    for op in step.operators:
        if op.flops and op.phase != "optimizer":
            flops[op.dtype] += op.flops * op.count
    if not flops.keys() <= device.peak_flops.keys():
        return ()
    least_s = {dtype: count / device.peak(dtype) for dtype, count in flops.most_common()}
    own = told.flops / told.seconds * sum(least_s.values()) / flops.total()
    return (f"its FLOPs are of {', '.join(least_s)}: MFU {own:.0%} over each one's own peak",)


def summary(subject: Subject) -> ModelSummary:
    """The subject's fields that ``ModelSummary`` has too."""
    return ModelSummary(*(getattr(subject, name) for name in ModelSummary.__match_args__))


def step_time(subject: Subject, step: Step, device: Device) -> StepTime:
    """The step's seconds with MFU. Recomputed FLOPs take time and are not counted; all stages' FLOPs are."""
    workload, cost = subject.workload, step.cost
    listed, ranks = _plain(subject, step), workload.model_ranks
    needed = [step.accumulation * round(needed_flops(listed, causal=one)) // ranks for one in (False, True)]
    moved = step.accumulation * moved_bytes(step.operators)
    per_request = 1 if workload.decode else workload.s
    seconds, peak = step.seconds or inf, device.peak_flops.get(workload.dtype)
    tokens = step.accumulation * workload.b * workload.d * per_request
    return StepTime(
        step.seconds,
        step.low,
        step.high,
        possible_mfu(needed, seconds * peak) if peak else None,
        needed[0],
        step.source,
        step.accumulation,
        "extrapolated" if workload.serving else cost.tier if cost else "",
        *((cost.coverage, dict(cost.parts)) if cost else (0.0, {})),
        moved / seconds / device.memory.bandwidth_bytes_per_s,
        None if workload.train else tokens / seconds,
        workload.phase,
        cost.unknown if cost else (),
    )


def _plain(subject: Subject, step: Step) -> Operators:
    """A microbatch's operators on all stages and shards together, without padding and recomputation."""
    workload = subject.workload
    plain = replace(workload, checkpointing="none", p=1, cp=1, t=1, e=1, etp=None, vocab_rows=1)
    if not subject.model or workload == plain:
        return step.operators
    return resized_subject(subject, subject.model, plain).operators
