"""What the strategies share: candidates timed beside the baseline, and how sure one of them is the best.

Every burst of a candidate comes with one of the baseline, and what is kept is the logarithm of their ratio: clocks that
drift through a search of minutes cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: ``sample(index, count)`` -> seconds of ``count`` more runs; None where the candidate cannot run.
Sample = Callable[[int, int], Array | None]

#: Samples of the baseline to start with, of a first look at a candidate, of the baseline beside it, of a later turn.
START, LOOK, BESIDE, TURN = 12, 2, 1, 6
#: A candidate's own spread counts from so many samples on; before, the others' stands for it.
OWN_SPREAD = 10
#: The baseline's level is the median of so many of its latest samples.
WINDOW = 12
#: Below this relative spread of a single run nothing is trusted to be known.
LEAST_SPREAD = 0.001


def _spread(ratios: Sequence[float]) -> float:
    """Standard deviation by the interquartile range: tails are heavy."""
    upper, lower = np.percentile(ratios, [75, 25])
    return max(float(upper - lower) / 1.349, LEAST_SPREAD)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a search ended. ``best`` indexes the candidates, of which 0 is the baseline.

    ``ratios``: index -> log(seconds / the baseline's at the same time), one a sample, of those looked at; ``errors``:
    index -> standard error of their median, of few samples by how far the others' spread.
    ``baseline_s``: all of the baseline's samples. ``sure``: the chance that no candidate beats ``best`` by more than
    the regret, as far as the predictions' error is what it is said to be. ``finished``: not cut short by time.
    """

    best: int
    ratios: Mapping[int, Array]
    errors: Mapping[int, float]
    baseline_s: Array
    samples: int
    spent_s: float
    sure: float
    finished: bool
    failed: tuple[int, ...]


class Contest:
    """The samples so far, the baseline's first. ValueError: the baseline cannot run.

    ``weights`` turn seconds into what is minimised (default 1). ``prior``: logarithms of that as predicted.
    ``progress`` hears of every candidate looked at.
    """

    def __init__(
        self, sample: Sample, predicted_s: Sequence[float], weights: Sequence[float] | None,
        progress: Callable[[int, int], None] | None, out_of_time: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._sample, self._progress, self._out_of_time = sample, progress, out_of_time
        self._offsets: Array = np.log(weights if weights is not None else np.ones(len(predicted_s)))
        self.prior: Array = np.log(predicted_s) + self._offsets
        self.ratios: dict[int, list[float]] = {}
        self.failed: set[int] = set()
        self.baseline_s: list[float] = []
        self.samples, self.spent_s = 0, 0.0
        self.take([], 0, START)

    @property
    def unseen(self) -> int:
        """Candidates that were not looked at."""
        return len(self.prior) - len(self.ratios) - len(self.failed)

    def look(self, index: int, count: int, beside: int) -> None:
        """The first samples of a candidate."""
        self.take([index], count, beside)
        if self._progress is not None:
            self._progress(len(self.prior) - self.unseen, len(self.prior))

    def take(self, indices: Sequence[int], count: int, beside: int) -> None:
        """``count`` samples of each candidate, after ``beside`` of the baseline. ValueError: that does not run.

        When time runs out in between, the candidates that are left go without.
        """
        for index, number in ((0, beside), *((index, count) for index in indices if index != 0)):
            if index != 0 and self._out_of_time():
                break
            seconds = self._sample(index, number)
            if seconds is None and index == 0:
                raise ValueError("the baseline cannot run")
            if seconds is None:
                self.failed.add(index)
                self.ratios.pop(index, None)
                continue
            self.samples += len(seconds)
            self.spent_s += float(seconds.sum())
            if index == 0:
                self.baseline_s.extend(seconds)
                level = float(np.median(np.log(self.baseline_s[-WINDOW:])))
            self.ratios.setdefault(index, []).extend(np.log(seconds) - level)

    def centre(self, index: int) -> float:
        """The logarithm of what is minimised, against the baseline's seconds."""
        return float(np.median(self.ratios[index]) + self._offsets[index])

    def standard_error(self, index: int) -> float:
        """Of the median. Of a few samples the spread is the larger of their own and of what others' samples have."""
        ratios = self.ratios[index]
        spread = _spread(ratios)
        if len(ratios) < OWN_SPREAD:
            known = [_spread(other) for other in self.ratios.values() if len(other) >= OWN_SPREAD]
            spread = max(spread, float(np.median(known)))
        return 1.2533 * spread / sqrt(len(ratios))

    @property
    def best(self) -> int:
        return min(self.ratios, key=self.centre)

    def chance_seen_are_no_better(self, regret: float) -> float:
        """The chance that none of those looked at beats the best by more than ``regret``."""
        best, chance = self.best, 1.0
        goal = self.centre(best) + log(1 - regret)
        for index in self.ratios:
            if index != best:
                error = sqrt(self.standard_error(index) ** 2 + self.standard_error(best) ** 2)
                chance *= 1 - NormalDist(self.centre(index), error).cdf(goal)
        return chance

    def outcome(self, regret: float, missed: float, *, finished: bool) -> Outcome:
        """``missed``: the chance that one not looked at would have won."""
        ratios = {index: np.asarray(values) for index, values in self.ratios.items()}
        sure = (1 - missed) * self.chance_seen_are_no_better(regret)
        errors = {index: self.standard_error(index) for index in ratios}
        return Outcome(
            self.best, ratios, errors, np.asarray(self.baseline_s), self.samples, self.spent_s, sure, finished,
            tuple(sorted(self.failed)),
        )  # fmt: skip
