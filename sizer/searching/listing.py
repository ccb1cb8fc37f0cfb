"""Which candidates a search lists: what `check` has nothing against, distinct ones, aligned ones first in a tie.

One that breaks a rule which the baseline keeps is listed where it is better, beyond the error, than all that keep them,
or where none keeps them; it says which rule, and why it is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from itertools import islice
from math import log

from shapes.frozen import Sizes, frozen
from shapes.model.resize import dimensions
from shapes.operators import operators
from shapes.step import Pricer
from shapes.step.stack import SoftwareStack
from sizer.checking.checks import check_subject
from sizer.checking.grading import Objections, objections, worse
from sizer.rules.base import Context
from sizer.searching.pricing import rebuilt
from sizer.searching.result import Ranked
from sizer.searching.space import TIE, Space
from sizer.subject import Subject, read_subject, resized_subject

#: Dimensions that candidates alike in all others differ by: only the best of them is listed.
SMALL = frozenset({"d_ff", "vocab", "expert_d_ff", "shared_d_ff"})
#: And layers that differ by no more than this share.
FEW_LAYERS = 0.1
#: Multiples of which are preferred in a tie: what halves over 2, 4 and 8 shards stays aligned.
PREFERRED = 512
#: Tensor-parallel shards of one node, which numbers of heads are best ready for.
MOST_SHARDS = 8
#: Candidates that the rules are asked about: beyond these the list is no better.
LOOKED_AT = 64


@frozen
class Listing:
    """``best``: what is shown, in order. ``fixes``: rules that the first keeps and the baseline breaks outright.

    ``excluded``: how many were left out for the rules they break, in words.
    """

    best: tuple[Ranked, ...]
    fixes: tuple[str, ...] = ()
    excluded: Sizes = field(default_factory=dict)


def listing(
    space: Space, ranked: Sequence[Ranked], pricer: Pricer, top: int, stack: SoftwareStack | None = None
) -> Listing:
    """The ``top`` of ``ranked`` (baseline first). ``stack``: what `check` will price them on."""
    others = (one for one in ranked[1:] if one.change != ranked[0].change)

    def order(one: Ranked) -> tuple[float, ...]:
        # Ties of the objective have the same first number.
        return round(log(one.value / ranked[0].value) / TIE), -_aligned(one.change), one.value, one.parameters

    rest = sorted(others, key=order)
    if not space.ruled:
        return Listing(tuple(rest[:top]))
    own = _objections(space, space.baseline, pricer)
    passing, breaking = _judged(space, _distinct(rest), own, pricer, top)
    worth = worth_it(breaking, passing)
    checked = read_subject(space.model, stack=stack)
    before = _warned(checked, space, space.baseline, pricer)
    best = tuple(
        replace(
            one,
            warns=tuple(sorted(_warned(checked, space, one.change, pricer) - before - {*one.breaks})),
        )
        for one in (*passing, *worth)[:top]
    )
    excluded = Counter(
        f"rules of check ({', '.join(one.breaks)}), and no better beyond the error than what keeps them"
        for one in breaking[len(worth) :]
    )
    left = _objections(space, best[0].change, pricer) if best and not best[0].breaks else own
    fixes = (code for (code, field), outright in own.items() if outright and (code, field) not in left)
    return Listing(best, tuple(dict.fromkeys(fixes)), excluded)


def _judged(
    space: Space, listed: Iterable[Ranked], own: Objections, pricer: Pricer, top: int
) -> tuple[list[Ranked], list[Ranked]]:
    """The first ``top`` that break no rule which the baseline keeps, and those before them that do."""
    passing: list[Ranked] = []
    breaking: list[Ranked] = []
    for one in islice(listed, LOOKED_AT):
        # What the baseline breaks in a dimension that is searched is no excuse.
        kept = {key: outright for key, outright in own.items() if key[1] not in one.change}
        breaks = worse(_objections(space, one.change, pricer), kept)
        (breaking if breaks else passing).append(replace(one, breaks=breaks))
        if len(passing) == top:
            break
    return passing, breaking


def worth_it(breaking: Sequence[Ranked], passing: Sequence[Ranked]) -> list[Ranked]:
    """Those that break a rule and are worth it, the best first, saying why."""
    if not passing:
        return [replace(one, why="nothing that was tried keeps the rules") for one in breaking]
    best, worth = passing[0], []
    for one in breaking:
        ratio = best.value / one.value
        if ratio - 1 > (one.gain_high - one.gain_low) / 2 / one.gain:
            worth.append(replace(one, why=f"{ratio - 1:.1%} better than any that keeps the rules"))
    return worth


def _distinct(rest: Sequence[Ranked]) -> Iterator[Ranked]:
    """The first of those that are alike in every large dimension, and have about as many layers."""
    seen: dict[frozenset[tuple[str, int]], list[int]] = {}
    for one in rest:
        large = frozenset((key, value) for key, value in one.change.items() if key not in SMALL | {"layers"})
        layers, others = one.change.get("layers", 1), seen.setdefault(large, [])
        if large and any(abs(layers - other) <= FEW_LAYERS * other for other in others):
            continue
        others.append(layers)
        yield one


def _aligned(change: Sizes) -> int:
    """How well widths halve over shards, and heads: the largest powers of two that divide them."""
    widths = min(
        (change[name] & -change[name] for name in ("d_ff", "expert_d_ff", "hidden") if name in change), default=1
    )
    return min(widths, PREFERRED) * min(change.get("heads", 1) & -change.get("heads", 1), MOST_SHARDS)


def _warned(subject: Subject, space: Space, change: Sizes, pricer: Pricer) -> frozenset[str]:
    """Codes that `check` warns of, costs alone among them, of a candidate as its file's ``subject``."""
    changed = resized_subject(subject, *rebuilt(space, change))
    findings = check_subject(changed, pricer.device).findings
    return frozenset(code for one in findings if one.severity != "info" for code in one.codes)


def _objections(space: Space, change: Sizes, pricer: Pricer) -> Objections:
    """What the rules on shapes have against a candidate."""
    model, workload = rebuilt(space, change)
    step = pricer.step(operators(model, workload))
    return objections(
        Context(model, workload, pricer.device, step.operators, step.costs, dimensions(model), frozenset())
    )
