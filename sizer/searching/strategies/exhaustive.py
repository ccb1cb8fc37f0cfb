"""Exhaustive: every candidate measured as a sweep measures it, in turns and random order. What racing is judged by.

As many samples at least as `shapes.measure.stats.Stopping` wants before it calls an interval precise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import log

from shapes.measure.stats import Stopping
from sizer.searching.strategies.contest import START, TURN, Contest, Outcome, Sample

NAME = "exhaustive"

LEAST = Stopping().least_samples


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
    offsets = [log(weight) for weight in weights] if weights is not None else [0.0] * len(predicted_s)
    order = sorted(range(1, len(predicted_s)), key=lambda index: log(predicted_s[index]) + offsets[index])
    contest, shuffled = Contest(sample, offsets), random.Random(0)
    contest.take([0], START, START)
    if 0 in contest.failed:
        raise ValueError("the baseline cannot run")
    for index in order:
        if out_of_time():
            break
        contest.take([index], START, TURN)
        if progress is not None:
            progress(len(contest.ratios) + len(contest.failed), len(predicted_s))
    finished = len(contest.ratios) + len(contest.failed) == len(predicted_s)
    while finished and (loose := _loose(contest, regret / 2, most_samples)):
        if out_of_time():
            finished = False
            break
        shuffled.shuffle(loose)
        contest.take(loose, TURN, TURN)
    unseen = len(predicted_s) - len(contest.ratios) - len(contest.failed)
    # Of those never looked at nothing is claimed but that one in as many is the best.
    return contest.outcome(regret, unseen / len(predicted_s), finished=finished)


def _loose(contest: Contest, precision: float, most_samples: int) -> list[int]:
    return [
        index
        for index in contest.ratios
        if len(contest.ratios[index]) < most_samples
        and (len(contest.ratios[index]) < LEAST or 2 * contest.standard_error(index) > precision)
    ]
