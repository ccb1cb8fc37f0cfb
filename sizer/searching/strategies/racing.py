"""Racing: look at the likeliest candidates first, drop those that cannot win, measure on only where it is close.

The cost model orders the candidates and its own error is the prior: log(time) of a candidate not yet looked at lies
around its prediction (Student's t with 8 degrees of freedom: models are sometimes far off), shifted by how the
predictions of those already measured were off. A candidate is looked at while the chance that any unseen one beats the
best by more than ``regret`` is above 1 - ``confidence``; those seen are sampled on, interleaved with the baseline,
until every rival's interval is worse than the best's by less than that or is out of the race.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log, sqrt

import numpy as np

from sizer.searching.strategies.contest import BESIDE, LOOK, TURN, Array, Contest, Outcome, Sample

NAME = "racing"
#: The predictions' error is never believed to be smaller than this.
LEAST_ERROR = 0.005
#: Of what may go wrong, the part that is left to candidates never looked at.
UNSEEN = 0.9
#: A rival is within reach while it is within so many standard errors.
REACH = 3.0


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
    """Find the candidate of least ``seconds x weight``; index 0, the baseline, is always measured.

    ``predicted_s`` order the candidates, ``error`` is their relative error (one standard deviation), ``weights`` turn
    seconds into the objective (default 1). ``progress(looked at, candidates)``. ValueError: the baseline cannot run.
    """
    contest = Contest(sample, predicted_s, weights, progress, out_of_time)
    finished, chances = True, _chances(contest, error, regret)
    while _any(chances) > (1 - confidence) * UNSEEN:
        if out_of_time():
            finished = False
            break
        contest.look(int(np.argmax(chances)), LOOK, BESIDE)
        chances = _chances(contest, error, regret)
    while finished and (rivals := _rivals(contest, regret, most_samples)):
        if out_of_time():
            finished = False
            break
        contest.take(rivals, TURN, TURN)
    return contest.outcome(regret, _any(chances), finished=finished)


def _any(chances: Array) -> float:
    return 1 - float(np.prod(1 - chances))


def _chances(contest: Contest, error: float, regret: float) -> Array:
    """The chance of each candidate to beat the best seen by more than the regret; 0 for those looked at."""
    seen = list(contest.ratios)
    centres = np.array([contest.centre(index) for index in seen])
    off = centres - contest.prior[seen]
    shift = float(np.median(off))
    # The stated error weighs as much as four looks against how far off the predictions were seen to be.
    squares = 4 * error**2 + float(((off - shift) ** 2).sum())
    spread = max(sqrt(squares / (4 + len(off))), LEAST_ERROR)
    chances = _student((centres.min() + log(1 - regret) - contest.prior - shift) / spread)
    chances[[*seen, *contest.failed]] = 0.0
    return chances


def _student(t: Array) -> Array:
    """Distribution function of Student's t with 8 degrees of freedom (its closed form for an even number)."""
    square = 8 / (8 + t * t)
    below: Array = 0.5 + 0.5 * t / np.sqrt(8 + t * t) * (1 + square / 2 + 3 * square**2 / 8 + 5 * square**3 / 16)
    return below


def _rivals(contest: Contest, regret: float, most_samples: int) -> list[int]:
    """The best and those that might yet beat it by more than the regret; empty when it is settled."""
    best = contest.best
    upper = contest.centre(best) + REACH * contest.standard_error(best)
    close = [
        index
        for index in contest.ratios
        if index != best and contest.centre(index) - REACH * contest.standard_error(index) < upper + log(1 - regret)
    ]
    return [index for index in (best, *close) if len(contest.ratios[index]) < most_samples] if close else []
