"""Which candidates a search lists: what `check` has nothing against first, distinct ones, aligned ones in a tie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import log

from shapes.model.resize import dimensions
from shapes.operators import operators
from sizer.checking.vetting import Objections, objections, worse
from sizer.pricing import Pricer
from sizer.rules.base import Context
from sizer.searching.predicting import rebuilt
from sizer.searching.ranked import Ranked
from sizer.searching.space import Space

#: Values of the objective that differ by less than this share are a tie: no device tells them apart.
TIE = 0.005
#: Dimensions that candidates alike in all others differ by: only the best of them is listed.
SMALL = frozenset({"d_ff", "vocab"})
#: Multiples of which are preferred in a tie: what halves over 2, 4 and 8 shards stays aligned.
PREFERRED = 512
#: Tensor-parallel shards of one node, which numbers of heads are best ready for.
MOST_SHARDS = 8
#: Candidates that the rules are asked about: beyond these the list is no better.
LOOKED_AT = 64


@dataclass(frozen=True, slots=True)
class Listing:
    """``best``: what is shown, in order. ``fixes``: rules that the first keeps and the baseline breaks outright."""

    best: tuple[Ranked, ...]
    fixes: tuple[str, ...] = ()


def listing(space: Space, ranked: Sequence[Ranked], pricer: Pricer, top: int) -> Listing:
    """The ``top`` of ``ranked`` (baseline first), those that break what the baseline does not last and saying so."""
    rest = sorted(ranked[1:], key=lambda one: (_level(one, ranked), -_aligned(one.change), one.value, one.parameters))
    if space.operators_of is not None:  # the book's single product is no model that rules could speak of
        return Listing(tuple(rest[:top]))
    own = _objections(space, space.baseline, pricer)
    passing: list[Ranked] = []
    breaking: list[Ranked] = []
    for one in islice(_distinct(rest), LOOKED_AT):
        # What the baseline breaks in a dimension that is searched is no excuse.
        kept = {key: outright for key, outright in own.items() if key[1] not in one.change}
        breaks = worse(_objections(space, one.change, pricer), kept)
        (breaking if breaks else passing).append(replace(one, breaks=breaks))
        if len(passing) == top:
            break
    best = (*passing, *breaking)[:top]
    fixes = tuple(
        code
        for (code, field), outright in own.items()
        if outright and best and not best[0].breaks
        and (code, field) not in _objections(space, best[0].change, pricer)
    )  # fmt: skip
    return Listing(best, tuple(dict.fromkeys(fixes)))


def _distinct(rest: Sequence[Ranked]) -> Iterator[Ranked]:
    """The first of those that are alike in every large dimension."""
    seen: set[frozenset[tuple[str, int]]] = set()
    for one in rest:
        large = frozenset((key, value) for key, value in one.change.items() if key not in SMALL)
        if large and large in seen:
            continue
        seen.add(large)
        yield one


def _level(one: Ranked, ranked: Sequence[Ranked]) -> int:
    """Ties of the objective as one integer; of several devices the value is a loss already."""
    if one.losses:
        return round(one.value / TIE)
    return round(log(one.value / ranked[0].value) / TIE)


def _aligned(change: Mapping[str, int]) -> int:
    """How well widths halve over shards, and heads: the largest powers of two that divide them."""
    widths = min((change[name] & -change[name] for name in ("d_ff", "hidden") if name in change), default=1)
    return min(widths, PREFERRED) * min(change.get("heads", 1) & -change.get("heads", 1), MOST_SHARDS)


def _objections(space: Space, change: Mapping[str, int], pricer: Pricer) -> Objections:
    model, workload = rebuilt(space, change)
    step = pricer.step(operators(model, workload))
    return objections(
        Context(model, workload, pricer.device, step.operators, step.costs, dimensions(model), frozenset())
    )
