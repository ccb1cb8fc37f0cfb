"""Exhaustive: every candidate measured as a sweep measures it, in turns and random order. What racing is judged by.

Each sample is a ratio to the baseline beside it, from which clock states cancel, so that LEAST of them will do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sizer.searching.strategies.contest import BURST, MOST_SAMPLES, START, Contest, Outcome, Sample

NAME = "exhaustive"

LEAST = 20
#: Intervals are looked at again after a GROWTH-th more samples: asked always, they are narrow enough by chance too.
GROWTH = 8


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
    """As ``racing.run``; of the predictions only the order is used, so that time runs out on the unlikeliest."""
    del confidence
    contest = Contest(sample, predicted_s, error, weights, regret, progress, out_of_time)
    for index in sorted(range(1, len(predicted_s)), key=contest.prior.__getitem__):
        if out_of_time():
            break
        contest.take([index], START)
        contest.tell(contest.unseen)
    finished = contest.unseen == 0
    while finished and (loose := _loose(contest, regret / 2, most_samples)):
        contest.tell(len(loose))
        for _ in range(max(1, min(len(contest.ratios[index]) for index in loose) // (GROWTH * BURST))):
            if out_of_time():
                finished = False
                break
            contest.take(loose)
    return contest.outcome(finished=finished)


def _loose(contest: Contest, precision: float, most_samples: int) -> list[int]:
    errors = contest.standard_errors()
    return [
        index
        for index, ratios in contest.ratios.items()
        if len(ratios) < most_samples and (len(ratios) < LEAST or 2 * errors[index] > precision)
    ]
