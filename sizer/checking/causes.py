"""One cause is one finding: what several rules say of it, and which of their suggestions are worth a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shapes.model.resize import DIMENSIONS
from sizer.checking.findings import SEVERITIES, PricedFinding
from sizer.checking.grading import TIERS, Graded, Offer
from sizer.subject import Subject

#: Suggestions that a finding lists.
MOST = 3
#: Models whose parameters differ by no more than this share are the same size.
SAME_SIZE = 0.02
#: Savings that differ by less than this share of the step are a tie, which alignment decides.
TIE = 0.005
#: Elements whose multiples are preferred in a tie: two cache lines of bf16, and what halves over 2, 4 and 8 shards.
PREFERRED = 256
SHARDS = 8


def findings_by_cause(graded: Sequence[Graded], subject: Subject, *, measured: bool = False) -> list[PricedFinding]:
    """One finding a cause, the worst first. A cost alone that nothing saves is left out, unless it was ``measured``."""
    causes: dict[str, list[Graded]] = {}
    for one in graded:
        causes.setdefault(one.cause, []).append(one)
    merged = [
        (finding, offers)
        for alike in causes.values()
        if (merge := _merged(alike, subject, measured)) is not None
        for finding, offers in (merge,)
    ]
    merged.sort(key=lambda pair: (SEVERITIES.index(pair[0].severity), -pair[0].step_seconds, pair[0].code))
    return _priced_once(merged)


def _merged(
    alike: Sequence[Graded], subject: Subject, measured: bool
) -> tuple[PricedFinding, tuple[Offer, ...]] | None:
    """The findings of one cause as one, the outright one first; None where nothing is left to say."""
    ordered = sorted(alike, key=lambda one: (not one.finding.error, not one.finding.violated, one.rule.code))
    first, violated = ordered[0], any(one.finding.violated for one in ordered)
    outright = violated or first.finding.error
    everything = {frozenset(offer.priced.change.items()): offer for one in reversed(ordered) for offer in one.offers}
    offers = _worth_a_line(tuple(everything.values()), subject, outright=outright, error=first.finding.error)
    proposed = any(one.finding.suggestions for one in ordered)
    if not offers and proposed and not outright and not measured:
        return None
    if measured and not offers:
        offers = tuple(everything.values())[:MOST]
    best = max(offers, key=lambda offer: offer.saving, default=None)
    known = [one.finding.at_most_s for one in ordered if one.finding.at_most_s is not None and not proposed]
    seconds = max(0.0, best.saving) if best is not None else max(known, default=0.0)
    return PricedFinding(
        code=first.rule.code,
        slug=first.rule.slug,
        severity=min((one.severity for one in ordered), key=SEVERITIES.index),
        field=subject.name_of(first.finding.field),
        value=first.finding.value,
        message="; ".join(dict.fromkeys(one.finding.message for one in ordered)),
        step_seconds=seconds,
        suggestions=tuple(offer.priced for offer in offers),
        codes=tuple(dict.fromkeys(one.rule.code for one in ordered)),
        violated=violated,
        within_error=best is not None and best.priced.within_error,
        tier=max((offer.tier for offer in offers), key=TIERS.index, default="") if seconds else "",
    ), offers


def _worth_a_line(offers: tuple[Offer, ...], subject: Subject, *, outright: bool, error: bool) -> tuple[Offer, ...]:
    """At most ``MOST``: those that save; for a breach also the least dear, where nothing that fixes it saves."""
    offers = tuple(sorted(offers, key=lambda offer: _rank(offer, subject)))
    if error:  # what cannot run has no time that another could be slower than; another split is no other model
        return tuple(sorted(offers, key=lambda offer: bool(set(offer.change.change) & set(DIMENSIONS))))[:MOST]
    useful = tuple(
        offer
        for offer in offers
        if offer.priced.step_seconds_change <= 0 and (offer.saving > 0 or (outright and _same_size(offer, subject)))
    )
    if useful or not outright or not offers:
        return useful[:MOST]
    first = offers[0]
    if first.priced.step_seconds_change <= 0:
        return (first,)
    # Where another split stands in, that is no judgement of what is for the one asked for.
    stands_in = "for the split asked for, not the one priced"
    slower = stands_in if subject.asked is not None else "slower, but nothing faster fixes it"
    note = "; ".join(filter(None, (first.priced.note, slower)))
    return (replace(first, priced=replace(first.priced, note=note)),)


def _same_size(offer: Offer, subject: Subject) -> bool:
    return abs(offer.priced.parameters_change) <= SAME_SIZE * subject.parameters


def _gain_per_work(offer: Offer) -> float:
    """Seconds saved at equal FLOPs: a smaller model's lesser work taken off, a larger one's put in."""
    step, flops = offer.step, offer.priced.flops_change
    return -offer.priced.step_seconds_change + (step.seconds * flops / step.flops if step.flops else 0.0)


def _rank(offer: Offer, subject: Subject) -> tuple[bool, int, int, int, float]:
    """Equal parameters first, then what saves; in a tie what is aligned best, then what divides over a node."""
    sizes = [value for key, value in offer.change.change.items() if isinstance(value, int) and key != "heads"]
    aligned = min((min(size & -size, PREFERRED) for size in sizes), default=PREFERRED)
    heads = int(offer.change.change.get("heads", SHARDS))
    return (
        not _same_size(offer, subject),
        -round(_gain_per_work(offer) / (TIE * offer.step.seconds)) if offer.step.seconds else 0,
        -aligned,
        -min(heads & -heads, SHARDS),
        offer.priced.step_seconds_change,
    )


def _priced_once(merged: Sequence[tuple[PricedFinding, tuple[Offer, ...]]]) -> list[PricedFinding]:
    """What fixes a finding above as well is priced there alone, so that costs add up.

    So is what the first way out of an error above fixes: what cannot run is changed whatever else is.
    """
    done: list[tuple[PricedFinding, tuple[Offer, ...]]] = []
    for finding, offers in merged:
        errors = (one for one, theirs in done if one.severity == "error" and theirs and _mends(theirs[0], finding))
        if finding.severity != "error" and (first := next(errors, None)) is not None:
            done.append((_left(finding, (), first), ()))
            continue
        changes = [offer.change.change for offer in offers]
        above = [
            (one, theirs)
            for one, theirs in done
            if any(_mends(offer, one) for offer in offers) or any(offer.change.change in changes for offer in theirs)
        ]
        listed = [offer.change.change for _, theirs in above for offer in theirs]
        own = tuple(
            offer
            for offer in offers
            if offer.change.change not in listed and not any(_mends(offer, one) for one, _ in above)
        )
        there = next((one for one, theirs in above if any(_alike(offer, finding, changes) for offer in theirs)), None)
        if own == offers or (not own and there is None):
            done.append((finding, offers))
        else:
            done.append((_left(finding, own, there), own))
    return [finding for finding, _ in done]


def _left(finding: PricedFinding, own: tuple[Offer, ...], there: PricedFinding | None) -> PricedFinding:
    """``finding`` with what fixes it ``own``, and where else it is fixed."""
    message = (
        finding.message
        if own or there is None
        else f"{finding.message}; what fixes {there.code} fixes it, priced there"
    )
    best = max(own, key=lambda offer: offer.saving, default=None)
    return replace(
        finding,
        message=message,
        suggestions=tuple(offer.priced for offer in own),
        step_seconds=max(0.0, best.saving) if best is not None else 0.0,
        within_error=best is not None and best.priced.within_error,
        tier=finding.tier if own else "",
    )


def _alike(offer: Offer, finding: PricedFinding, changes: Sequence[object]) -> bool:
    return offer.change.change in changes or _mends(offer, finding)


def _mends(offer: Offer, finding: PricedFinding) -> bool:
    return any(code in finding.codes for code, _ in offer.fixes)
