"""Exhaustive: every candidate measured as a sweep measures it, in turns and random order. What racing is judged by.

Each sample is a ratio to the baseline beside it, from which clock states cancel, so that LEAST of them will do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sizer.searching.strategies.contest import MOST_SAMPLES, START, Contest, Outcome, Sample

NAME = "exhaustive"

LEAST = 20


def run(
    predicted_s: Sequence[float],
    error: float,
    sample: Sample,
    *,
    weights: Sequence[float] | None = None,
    regret: float = 0.01,
    confidence: float = 0.95,
    out_of_time: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], None] | None = None,
    most_samples: int = MOST_SAMPLES,
) -> Outcome:
    """As ``racing.run``, but everything is measured, the likeliest first: time runs out on the unlikeliest."""
    del confidence
    contest = Contest(sample, predicted_s, error, weights, regret, progress, out_of_time)
    finished = True
    for index in sorted(range(1, len(predicted_s)), key=contest.prior.__getitem__):
        if not (finished := contest.take([index], START)):
            break
        contest.tell(contest.unseen)
    while finished and (loose := _loose(contest, regret / 2, most_samples)):
        contest.tell(loose)
        finished = contest.take(loose, turns=contest.turns(loose))
    return contest.outcome(finished=finished)


def _loose(contest: Contest, precision: float, most_samples: int) -> list[int]:
    errors = contest.errors()
    return [
        index
        for index, ratios in contest.ratios.items()
        if len(ratios) < most_samples and (len(ratios) < LEAST or 2 * errors[index] > precision)
    ]
