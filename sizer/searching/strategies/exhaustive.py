"""Exhaustive: every candidate measured as a sweep measures it, in turns and random order. What racing is judged by.

Each sample is a ratio to the baseline beside it, from which clock states cancel, so that LEAST of them will do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from sizer.searching.strategies.contest import START, TURN, Contest, Outcome, Sample

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
    most_samples: int = 100,
) -> Outcome:
    """As ``racing.run``; of the predictions only the order is used, so that time runs out on the unlikeliest."""
    del error, confidence
    contest, shuffled = Contest(sample, predicted_s, weights, progress, out_of_time), random.Random(0)
    for index in sorted(range(1, len(predicted_s)), key=contest.prior.__getitem__):
        if out_of_time():
            break
        contest.look(index, START, TURN)
    finished = contest.unseen == 0
    while finished and (loose := _loose(contest, regret / 2, most_samples)):
        if out_of_time():
            finished = False
            break
        shuffled.shuffle(loose)
        contest.take(loose, TURN, TURN)
    # Of those never looked at nothing is claimed but that one in as many is the best.
    return contest.outcome(regret, contest.unseen / len(predicted_s), finished=finished)


def _loose(contest: Contest, precision: float, most_samples: int) -> list[int]:
    return [
        index
        for index in contest.ratios
        if len(contest.ratios[index]) < most_samples
        and (len(contest.ratios[index]) < LEAST or 2 * contest.standard_error(index) > precision)
    ]
