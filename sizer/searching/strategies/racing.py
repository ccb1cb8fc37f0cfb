"""Racing: look at the likeliest candidates first, drop those that cannot win, measure on only where it is close.

The cost model orders the candidates and its own error is the prior: log(time) of a candidate not yet looked at is
normal around its prediction, shifted by how the predictions of those already measured were off. A candidate is looked
at while the chance that any unseen one beats the best by more than ``regret`` is above 1 - ``confidence``; those seen
are sampled on, interleaved, until every rival's interval is worse than the best's by less than that or is out of the
race.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import log, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: ``sample(index, count)`` -> seconds of ``count`` more runs; None where the candidate cannot run.
Sample = Callable[[int, int], Array | None]

NAME = "racing"
#: Samples of a first look, and of each later turn.
LOOK, TURN = 10, 15
#: Below this relative spread of a single run nothing is trusted to be known.
LEAST_SPREAD = 0.001
#: The predictions' error is never believed to be smaller than this.
LEAST_ERROR = 0.005


@dataclass(slots=True)
class _Seen:
    logs: list[float] = field(default_factory=list)

    @property
    def centre(self) -> float:
        return float(np.median(self.logs))

    @property
    def half_width(self) -> float:
        """Three standard errors of the median, from the interquartile range: tails are heavy."""
        upper, lower = np.percentile(self.logs, [75, 25])
        spread = max(float(upper - lower) / 1.349, LEAST_SPREAD)
        return 3 * 1.2533 * spread / sqrt(len(self.logs))


@dataclass(frozen=True, slots=True)
class Race:
    """How a race ended. ``best`` indexes the candidates; ``seconds`` are medians of those that were looked at.

    ``sure``: the chance that no candidate beats ``best`` by more than the regret, as far as the prior is right.
    """

    best: int
    seconds: dict[int, float]
    samples: int
    spent_s: float
    sure: float
    finished: bool
    failed: tuple[int, ...]


def race(
    predicted_s: Sequence[float],
    error: float,
    sample: Sample,
    *,
    weights: Sequence[float] | None = None,
    regret: float = 0.01,
    confidence: float = 0.95,
    out_of_time: Callable[[], bool] = lambda: False,
    most_samples: int = 100,
) -> Race:
    """Find the candidate of least ``seconds x weight``; index 0, the baseline, is always measured.

    ``predicted_s`` order the candidates, ``error`` is their relative error (one standard deviation), ``weights`` turn
    seconds into the objective (default 1).
    """
    offsets = [log(weight) for weight in weights] if weights is not None else [0.0] * len(predicted_s)
    prior = [log(seconds) + offset for seconds, offset in zip(predicted_s, offsets, strict=True)]
    seen: dict[int, _Seen] = {}
    failed: set[int] = set()
    spent, taken, finished = 0.0, 0, True

    def take(index: int, count: int) -> None:
        nonlocal spent, taken
        seconds = sample(index, count)
        if seconds is None:
            failed.add(index)
            seen.pop(index, None)
            return
        spent += float(seconds.sum())
        taken += len(seconds)
        seen.setdefault(index, _Seen()).logs.extend(np.log(seconds) + offsets[index])

    take(0, LOOK)
    chances = _chances(prior, seen, failed, error, regret)
    # Half of what may go wrong is left to the measuring of those seen.
    while chances and 1 - float(np.prod([1 - chance for chance in chances.values()])) > (1 - confidence) / 2:
        if out_of_time():
            finished = False
            break
        take(max(chances, key=lambda index: chances[index]), LOOK)
        chances = _chances(prior, seen, failed, error, regret)
    if not seen:
        raise ValueError("no candidate could be run")
    while finished and (rivals := _rivals(seen, regret, most_samples)):
        if out_of_time():
            finished = False
            break
        for index in rivals:
            take(index, TURN)
    best = min(seen, key=lambda index: seen[index].centre)
    missed = 1 - float(np.prod([1 - chance for chance in chances.values()])) if chances else 0.0
    medians = {index: float(np.exp(one.centre - offsets[index])) for index, one in seen.items()}
    return Race(best, medians, taken, spent, 1 - missed, finished, tuple(sorted(failed)))


def _chances(
    prior: Sequence[float], seen: dict[int, _Seen], failed: set[int], error: float, regret: float
) -> dict[int, float]:
    """The chance of each candidate not yet looked at to beat the best seen by more than the regret."""
    if not seen:
        return {index: 0.5 for index in range(len(prior)) if index not in failed}
    best = min(one.centre for one in seen.values())
    off = [one.centre - prior[index] for index, one in seen.items()]
    shift = float(np.median(off))
    # The stated error weighs as much as four looks against how far off the predictions were seen to be.
    squares = 4 * error**2 + sum((value - shift) ** 2 for value in off)
    spread = max(sqrt(squares / (4 + len(off))), LEAST_ERROR)
    normal = NormalDist(0.0, spread)
    goal = best + log(1 - regret)
    return {
        index: normal.cdf(goal - (prior[index] + shift))
        for index in range(len(prior))
        if index not in seen and index not in failed
    }


def _rivals(seen: dict[int, _Seen], regret: float, most_samples: int) -> list[int]:
    """The best and those that might yet beat it by more than the regret; empty when it is settled."""
    best = min(seen, key=lambda index: seen[index].centre)
    upper = seen[best].centre + seen[best].half_width
    close = [
        index for index, one in seen.items() if index != best and one.centre - one.half_width < upper + log(1 - regret)
    ]
    turns = [index for index in (best, *close) if len(seen[index].logs) < most_samples]
    return turns if close else []
