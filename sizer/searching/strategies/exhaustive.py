"""Exhaustive: every candidate measured as a sweep measures it, in rounds of random order. What racing is judged by.

Each sample is a ratio to the baseline paired with it, from which clock states cancel, so that LEAST of them will do.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from sizer.searching.strategies.paired import MOST_SAMPLES, START, Outcome, PairedSamples, Renew, Sample

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
    classes: Sequence[Hashable] | None = None,
    renew: Renew | None = None,
) -> Outcome:
    """As ``racing.run``, but everything is measured, the likeliest first: time runs out on the unlikeliest.

    Classes change nothing where all are seen; nothing is prepared twice, as in a sweep.
    """
    del confidence, classes, renew
    paired = PairedSamples(sample, predicted_s, error, weights, regret, progress, out_of_time)
    finished = True
    for index in sorted(range(1, len(predicted_s)), key=paired.prior.__getitem__):
        if not (finished := paired.take([index], START)):
            break
        paired.tell(paired.unseen)
    while finished and (loose := _loose(paired, regret / 2, most_samples)):
        paired.tell(loose)
        finished = paired.take(loose, rounds=paired.rounds(loose))
    return paired.outcome(finished=finished)


def _loose(paired: PairedSamples, precision: float, most_samples: int) -> list[int]:
    errors = paired.errors()
    return [
        index
        for index, ratios in paired.ratios.items()
        if len(ratios) < most_samples and (len(ratios) < LEAST or 2 * errors[index] > precision)
    ]
