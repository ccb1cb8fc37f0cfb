"""What the rules say of a subject, before anything is priced, and of what a suggestion would make of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from shapes.device import Device
from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.json_form import Names, Values
from shapes.model.resize import DIMENSIONS, dimensions, resize
from shapes.operators import Attention, split_problems
from shapes.step import Pricer, Step
from shapes.workload import Workload
from sizer.checking.project import Suppression
from sizer.rules import RULES
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Rule
from sizer.rules.dimensions import ALTERNATIVES
from sizer.subject import Subject, resized_subject, run_on


def of_dimensions(change: Mapping[str, int | str]) -> bool:
    """Whether a change is of the model's dimensions alone, and not of its workload."""
    return set(change) <= set(DIMENSIONS)


def dimensions_and_fields(change: Mapping[str, int | str]) -> tuple[dict[str, int | str], Values]:
    """What of a change is of the model's dimensions, and what of the workload's fields."""
    dims = {key: value for key, value in change.items() if key in DIMENSIONS}
    return dims, {key: value for key, value in change.items() if key not in dims}


def changed_subject(subject: Subject, change: Mapping[str, int | str]) -> Subject:
    """``subject`` with dimensions and workload fields changed; InputError where that is no model or cannot be split."""
    dims, asked = dimensions_and_fields(change)
    model = subject.whole()
    model = resize(model, **dims) if dims else model  # type: ignore[arg-type]
    workload: Workload = replace(subject.asked or subject.workload, **asked)
    changed = resized_subject(subject, model, workload)
    if subject.asked is None:
        return changed
    # What is judged is the split that the change asks for, not the one that it replaces.
    return replace(changed, asked=workload if split_problems(model, workload) else None)


def named_change(change: Mapping[str, int | str], before: Subject, after: Subject) -> dict[str, int | str]:
    """The change under the names of the person's file, with the dimensions that follow and have a key there."""
    full = dict(change)
    if before.model is not None and after.model is not None:
        old, new = dimensions(before.model), dimensions(after.model)
        full |= {key: value for key, value in new.items() if value != old.get(key)}
    keys = before.reading.keys if before.reading is not None else {}
    return {before.name_of(key): value for key, value in full.items() if key in change or not keys or key in keys}


#: A rule's code and the field that it points at -> whether what it asks is broken outright, or is only not met whole
#: (a head dimension of 96 on an alignment of 64).
Objections = Mapping[tuple[str, str], bool]


def context_of(subject: Subject, device: Device, step: Step) -> Context:
    """What the rules may look at: ``subject`` with the workload that was asked for, its operators as in ``step``.

    Those of a vision tower are left out: dimensions that rules name are the text tower's.
    """
    own = [pair for pair in zip(step.operators, step.costs, strict=True) if not pair[0].name.startswith("vision.")]
    return Context(
        model=subject.model,
        workload=subject.asked or subject.workload,
        device=device,
        operators=[operator for operator, _ in own],
        costs=[cost for _, cost in own],
        dimensions=subject.dimensions,
        given=subject.given,
        priced_dtype=subject.workload.dtype,
        implementation=subject.implementation,
        step=step.cost,
        stack=subject.stack.name,
        unknown={one.key: (one.value, one.meant) for one in subject.unread if one.changes is None},
        parameters=subject.parameters,
        unproven=subject.unproven,
    )


def objections(context: Context, unsplit: Workload | None = None) -> Objections:
    """What the rules on shapes and splits have against ``context`` (``unsplit``: as ``_answer`` takes it)."""
    return objections_in((rule, _answer(rule, context, unsplit)) for rule in RULES if not rule.of_costs)


def objections_in(answers: Iterable[tuple[Rule, Answer]]) -> Objections:
    """What the ``answers`` of the rules on shapes and splits object to."""
    found: dict[tuple[str, str], bool] = {}
    for rule, answer in answers:
        if not rule.of_costs and not isinstance(answer, NotApplicable):
            for finding in answer:
                key = rule.code, finding.field
                found[key] = found.get(key, False) or finding.error or finding.violated
    return found


def worse(after: Objections, before: Objections, least: int = -1) -> Names:
    """Codes of the rules that object to ``after`` and did not to ``before``, or not outright.

    ``least``: 0 where what is only not met whole is no objection, no split that runs having been judged ``before``.
    """
    return tuple(dict.fromkeys(key[0] for key, outright in after.items() if outright > before.get(key, least)))


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
    unsplit = subject.workload if subject.asked is not None else None
    subject = _on_device(run_on(subject, device), device)
    # One attention factor where the subject has one head dimension that suggestions may change.
    dims = {op.head_dim for op in subject.operators if isinstance(op, Attention)}
    stack = subject.stack.for_head_dims_near(device.architecture, *dims) if len(dims) == 1 else subject.stack
    pricer = Pricer(device, stack=stack)
    step = pricer.step(subject.understood, subject.workload, subject.model)
    context = context_of(subject, device, step)
    context = replace(context, workload=asked)  # in the type that was asked for, which is SZ119's to judge
    answered = [(rule, _of_workload(_answer(rule, context, unsplit), asked)) for rule in RULES]
    answers = tuple((rule, one if suppression.keeps(rule.code, subject.where) else None) for rule, one in answered)
    return Proposals(subject, asked, device, pricer, step, objections_in(answered), answers)


def _of_workload(answer: Answer, workload: Workload) -> Answer:
    """Of a released model's findings those whose advice is the workload's, and those that no advice came with."""
    if isinstance(answer, NotApplicable) or not (workload.frozen_architecture or workload.finetune):
        return answer
    kept = []
    for finding in answer:
        advice = tuple(one for one in finding.suggestions if set(one.change).isdisjoint(DIMENSIONS))
        if advice or finding.error or not (finding.suggestions or finding.field in DIMENSIONS):
            kept.append(replace(finding, suggestions=advice))
    return kept


def _answer(rule: Rule, context: Context, unsplit: Workload | None) -> Answer:
    """The rule's answer; of a split that cannot run (``unsplit``: the workload without it) its errors alone.

    The other rules on shapes then judge the model as it is unsplit: no shard of that split will exist. Those on costs
    say nothing: what would run is not what was asked for.
    """
    answer = rule.check(context)
    # What is said of e is of experts' ranks, which may fold where no price is known of it.
    broken = not isinstance(answer, NotApplicable) and any(one.error or one.field == "e" for one in answer)
    if unsplit is None or broken:
        return answer
    if rule.of_costs:
        return NotApplicable("the split cannot be priced")
    return rule.check(replace(context, workload=unsplit))


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
