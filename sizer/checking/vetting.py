"""What a model breaks outright, by the rules of check themselves: what no suggestion and no search may propose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shapes.device import Device
from sizer.pricing import Step
from sizer.rules import RULES
from sizer.rules.base import Answer, Context, NotApplicable, Rule
from sizer.subject import Subject

#: A rule's code and the field that it points at -> whether what it asks is broken outright, or is only not met whole
#: (a head dimension of 96 on an alignment of 64).
Objections = Mapping[tuple[str, str], bool]


def context_of(subject: Subject, device: Device, step: Step) -> Context:
    """What the rules may look at: ``subject`` with the workload that was asked for, its operators as in ``step``."""
    return Context(
        model=subject.model,
        workload=subject.asked or subject.workload,
        device=device,
        operators=step.operators,
        costs=step.costs,
        dimensions=subject.dimensions,
        given=subject.given,
        priced_dtype=subject.workload.dtype,
        implementation=subject.implementation,
        step=step.cost,
        stack=subject.stack.name,
    )


def objections(context: Context) -> Objections:
    """What the rules on shapes and splits have against ``context``; prices are not asked."""
    return objections_in((rule, rule.check(context)) for rule in RULES if not rule.of_costs)


def objections_in(answers: Iterable[tuple[Rule, Answer]]) -> Objections:
    """What the ``answers`` of the rules on shapes and splits object to."""
    found: dict[tuple[str, str], bool] = {}
    for rule, answer in answers:
        if not rule.of_costs and not isinstance(answer, NotApplicable):
            for finding in answer:
                key = rule.code, finding.field
                found[key] = found.get(key, False) or finding.error or finding.violated
    return found


def worse(after: Objections, before: Objections) -> tuple[str, ...]:
    """Codes of the rules that object to ``after`` and did not to ``before``, or not outright."""
    return tuple(
        dict.fromkeys(
            code
            for (code, field), outright in after.items()
            if outright > before.get((code, field), False) or (code, field) not in before
        )
    )
