"""The priced neighbours of a dimension's value that an editor shows on its key."""

from __future__ import annotations

from sizer.checking.findings import PricedSuggestion
from sizer.checking.grading import PricedStep, Proposals, price_offer
from sizer.rules.base import Suggestion

#: Dimension -> the multiple that its neighbours are of: widths by whole tiles, a vocabulary as rules ask.
MULTIPLES = {"vocab": 64, "hidden": 128, "d_ff": 128, "expert_d_ff": 128, "shared_d_ff": 128, "head_dim": 16}

#: Values tried on one side, many of which are no model (heads that do not divide).
MOST_TRIED = 64


def neighbours(proposals: Proposals, dimension: str, each_side: int = 2) -> tuple[PricedSuggestion, ...]:
    """The nearest values below and above that make a model and break no rule that the present one keeps, ascending.

    Priced as a finding's suggestions are. Empty for a dimension that the model has not, or that a trace hides.
    """
    value = proposals.subject.dimensions.get(dimension)
    if value is None or proposals.subject.model is None:
        return ()
    by = PricedStep(proposals.pricer, proposals.step)
    found: list[PricedSuggestion] = []
    for below in (True, False):
        side: list[PricedSuggestion] = []
        for other in _values(dimension, value, below=below):
            offer = price_offer(Suggestion({dimension: other}), proposals.subject, by, proposals.broken)
            if offer is not None:
                side.append(offer.priced)
            if len(side) == each_side:
                break
        found += reversed(side) if below else side
    return tuple(found)


def _values(dimension: str, value: int, *, below: bool) -> range:
    """Multiples of ``MULTIPLES`` on one side of ``value``, nearest first."""
    of = MULTIPLES.get(dimension, 1)
    first = ((value - 1) // of if below else value // of + 1) * of
    return range(first, 0, -of)[:MOST_TRIED] if below else range(first, first + MOST_TRIED * of, of)
