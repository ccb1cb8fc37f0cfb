"""What a model breaks outright, by the rules of check themselves: what no suggestion and no search may propose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shapes.device import Device
from sizer.pricing import Step
from sizer.rules import RULES
from sizer.rules.base import Answer, Context, NotApplicable, Rule
from sizer.subject import Subject

#: A rule's code and the field that it points at.
Breach = tuple[str, str]

#: Rules that ask the memory model, which takes its time; they break nothing outright.
_OF_MEMORY = ("SZ106", "SZ107", "SZ121")


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


def breaches(context: Context) -> frozenset[Breach]:
    """What ``context`` cannot run or breaks outright, memory apart; prices are not asked."""
    context = replace(context, given=frozenset())
    return breaches_in((rule, rule.check(context)) for rule in RULES if rule.CODE not in _OF_MEMORY)


def breaches_in(answers: Iterable[tuple[Rule, Answer]]) -> frozenset[Breach]:
    """What the rules' ``answers`` say cannot run or is broken outright."""
    return frozenset(
        (rule.CODE, finding.field)
        for rule, answer in answers
        if not isinstance(answer, NotApplicable)
        for finding in answer
        if finding.error or finding.violated
    )
