"""What a suggestion is worth, by one source of seconds, and how severe a finding is.

A severity has two sources (the paragraph "Grading" of the catalogue): what a kernel requires or a source recommends
outright is a warning when it is broken, whatever its price; a cost alone is one when fixing it saves enough of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shapes.cost.alignment import family_table
from shapes.cost.constants import gemm_constants
from shapes.device import Device
from shapes.errors import InputError
from shapes.frozen import frozen
from sizer.checking.changes import changed_subject, named_change, of_dimensions
from sizer.checking.findings import PricedSuggestion, Severity
from sizer.checking.vetting import Objections, context_of, objections, worse
from sizer.pricing import Pricer, Step
from sizer.rules.base import Finding, Rule, Suggestion
from sizer.subject import Subject
from sizer.workload_names import WORKLOAD_FIELDS

#: A cost alone is a warning when fixing it saves at least this share of the step.
NOTABLE_SHARE = 0.01

#: Where a price comes from, the surest first.
TIERS = ("measured", "fitted", "borrowed", "extrapolated")


@frozen
class PricedStep:
    """A subject's step by one source of seconds: predicted, or ``measured`` on the device at hand."""

    pricer: Pricer
    step: Step
    measured: bool = False


@frozen
class Offer:
    """A suggestion with its price, the step that it was compared with, and what of the subject's breaches it fixes."""

    priced: PricedSuggestion
    step: Step
    fixes: frozenset[tuple[str, str]]
    change: Suggestion
    tier: str

    @property
    def saving(self) -> float:
        return saving(self.priced, self.step)


@frozen
class Graded:
    """One rule's finding with what is offered against it and the severity that follows."""

    rule: Rule
    finding: Finding
    offers: tuple[Offer, ...]
    severity: Severity

    @property
    def cause(self) -> str:
        return self.finding.cause or self.finding.field


def grade(
    rule: Rule, finding: Finding, subject: Subject, own: PricedStep, predicted: PricedStep, broken: Objections
) -> Graded:
    """``finding`` with those of its suggestions that make a model, split and run, and break nothing that it keeps.

    Changes of dimensions are priced by ``own`` source of seconds, those of the workload by ``predicted``. ``broken`` is
    what the subject itself breaks.
    """
    offers = []
    for suggestion in finding.suggestions:
        by = own if of_dimensions(suggestion.change) else predicted
        offer = price_offer(suggestion, subject, by, broken, finding.at_most_s)
        # What breaks a rule is fixed whole: a kernel's padding too, where the alignment is what was found.
        alike = {key for key in broken if key[1] == finding.field}
        if offer is None or (finding.violated and not alike <= offer.fixes):
            continue
        if by is not own:
            note = "; ".join(filter(None, (suggestion.note, f"predicted for {by.pricer.device.name}")))
            offer = replace(offer, priced=replace(offer.priced, note=note))
        offers.append(offer)
    asked = finding.field not in WORKLOAD_FIELDS or finding.field in subject.given
    return Graded(rule, finding, tuple(offers), severity(finding, offers, asked=asked, measured=own.measured))


def saving(suggestion: PricedSuggestion, step: Step) -> float:
    """Seconds a suggestion saves beyond what doing less work saves; a larger model's work is not credited."""
    less_work = step.seconds * max(0.0, -suggestion.flops_change / step.flops) if step.flops else 0.0
    return -suggestion.step_seconds_change - less_work


def severity(finding: Finding, offers: Sequence[Offer], *, asked: bool = True, measured: bool = False) -> Severity:
    """A breach is a warning at any price, unless a device was asked and it makes no difference there.

    A cost alone is one that saves ``NOTABLE_SHARE`` of the step beyond the error and beyond doing less work, and not of
    a default (a microbatch of 4) that nobody ``asked`` for.
    """
    if finding.error:
        return "error"
    if finding.violated and not (measured and offers):
        return "warning"
    notable = asked and any(
        not offer.priced.within_error and offer.saving >= NOTABLE_SHARE * offer.step.seconds for offer in offers
    )
    return "warning" if notable else "info"


def price_offer(
    suggestion: Suggestion, subject: Subject, by: PricedStep, broken: Objections, at_most_s: float | None = None
) -> Offer | None:
    """Rebuild the model (or trace it again) with the change and compare.

    None where no such model or split exists, or where it breaks what the subject does not.
    """
    step, pricer = by.step, by.pricer
    try:
        changed = changed_subject(subject, suggestion.change)
    except InputError:
        return None
    after = pricer.step(changed.operators, changed.workload, changed.model)
    left = objections(context_of(changed, pricer.device, after))
    if worse(left, broken):
        return None
    # At equal tokens and devices: a larger microbatch does more work, a smaller t leaves devices free.
    scale = (_tokens(subject, step) / _tokens(changed, after)) * (_devices(changed) / _devices(subject))
    gain = step.seconds - after.seconds * scale
    if at_most_s is not None:
        gain = min(gain, at_most_s)
    note = suggestion.note
    if subject.asked is not None and changed.workload == subject.workload and changed.model == subject.model:
        note = "; ".join(filter(None, (note, "the times here are of it")))
    less_work = step.seconds * (1 - after.flops * scale / step.flops) if step.flops else 0.0
    priced = PricedSuggestion(
        change=named_change(suggestion.change, subject, changed),
        step_seconds_change=-gain,
        parameters_change=changed.parameters - subject.parameters,
        flops_change=round(after.flops * scale) - step.flops,
        within_error=gain - max(0.0, less_work) <= pricer.error_s(step, after),
        note=note,
    )
    return Offer(priced, step, frozenset(broken.keys() - left.keys()), suggestion, _tier(by, subject, suggestion))


def _tier(by: PricedStep, subject: Subject, suggestion: Suggestion) -> str:
    """Where a price comes from: the worst of products, misaligned ones and, of a workload, the software stack."""
    if by.measured:
        return "measured"
    of = [products_tier(by.pricer.device, subject.workload.dtype)]
    if by.step.cost is not None and not of_dimensions(suggestion.change):
        of.append(by.step.cost.tier)
    return max(of, key=TIERS.index)


def products_tier(device: Device, dtype: str) -> str:
    """How products are known on ``device``, misaligned ones included."""
    _, origin = gemm_constants(device, dtype)
    products = "fitted" if origin.own_device else "borrowed" if origin.same_vendor else "extrapolated"
    aligned = {"published": "fitted", "measured": "fitted"}.get(str(family_table(device)["tier"]), "extrapolated")
    return max((products, aligned), key=TIERS.index)


def _tokens(subject: Subject, step: Step) -> int:
    """Tokens of one data-parallel rank's step."""
    return subject.workload.tokens * step.accumulation


def _devices(subject: Subject) -> int:
    """Devices that share those tokens."""
    return subject.workload.t * subject.workload.p * subject.workload.cp
