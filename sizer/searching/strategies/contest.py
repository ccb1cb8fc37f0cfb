"""What the strategies share: candidates timed beside the baseline, and how sure one of them is the best.

Every burst of a candidate comes with one of the baseline, and what is kept is the logarithm of their ratio: clocks that
drift through a search of minutes cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from random import Random

import numpy as np
from numpy.typing import NDArray

from shapes.measure.stats import correlation_length

Array = NDArray[np.float64]
#: ``sample(index, count)`` -> seconds of ``count`` more runs; None where the candidate cannot run.
Sample = Callable[[int, int], Array | None]

#: Runs of the baseline to start with; of a candidate at a time; of the baseline beside it.
START, BURST, BESIDE = 12, 2, 1
#: So many candidates are timed after one burst of the baseline.
GROUP = 8
#: The baseline's level is the median of so many of its latest runs.
WINDOW = 12
#: From so many bursts on a candidate's own spread counts; before, it is no smaller than what others' is. On a restless
#: device nobody is judged by fewer, each at a time of its own: the runs of any one moment may be far off.
OWN_SPREAD = 30
#: Below this relative spread nothing is trusted to be known.
LEAST_SPREAD = 0.001
#: The predictions' error is never believed to be smaller than this.
LEAST_ERROR = 0.005
#: The standard error of a median over that of a mean.
MEDIAN = 1.2533
#: A device is restless where one in ten runs of the baseline is off the level before by over so many times the regret.
RESTLESS = 2.0
#: There the level is that of the moment: the median of so many runs of the baseline, all beside the candidates.
RESTLESS_BESIDE = 4
#: No candidate gets more runs: what is closer than they can tell stays open, and how sure the answer is says so.
MOST_SAMPLES = 10_000


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


@dataclass(frozen=True, slots=True)
class Beliefs:
    """Of every candidate the logarithm of what is minimised, and how far off that may be (one standard deviation)."""

    centre: Array
    width: Array


class Contest:
    """The samples so far, the baseline's first. ValueError: the baseline cannot run.

    ``error``: of the predictions, one standard deviation. ``regret``: a difference that does not matter. ``weights``
    turn seconds into what is minimised (default 1). ``prior``: logarithms of that as predicted. ``progress`` hears of
    every candidate looked at and, once all are that need be, of how many are settled.
    """

    def __init__(
        self, sample: Sample, predicted_s: Sequence[float], error: float, weights: Sequence[float] | None,
        regret: float, progress: Callable[[int, int], None] | None, out_of_time: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._sample, self._progress, self._out_of_time = sample, progress, out_of_time
        self._error, self._regret = error, regret
        self._offsets: Array = np.log(weights if weights is not None else np.ones(len(predicted_s)))
        self.prior: Array = np.log(predicted_s) + self._offsets
        self.ratios: dict[int, Array] = {}
        #: Median of the ratios and spread of their bursts, of those asked for since they were last added to.
        self._known: dict[int, tuple[float, float]] = {}
        self.failed: set[int] = set()
        self.baseline_s: list[float] = []
        #: How far each of the baseline's runs was from the level before.
        self._strays: Array = np.empty(0)
        self._level = 0.0
        self._order = Random(0)
        self.samples, self.spent_s = 0, 0.0
        self._take_baseline(START)

    @property
    def unseen(self) -> int:
        """Candidates that were not looked at."""
        return len(self.prior) - len(self.ratios) - len(self.failed)

    def tell(self, still_open: int) -> None:
        """How many candidates are neither out of the race nor known well enough."""
        if self._progress is not None:
            self._progress(len(self.prior) - still_open, len(self.prior))

    def take(self, indices: Sequence[int], count: int = BURST) -> None:
        """``count`` runs of each candidate, in random order, a few after each burst of the baseline.

        ValueError: the baseline cannot run.
        When time runs out in between, the candidates that are left go without.
        """
        others = [index for index in indices if index != 0]
        self._order.shuffle(others)
        for start in range(0, max(1, len(others)), GROUP):
            self._take_baseline(RESTLESS_BESIDE if self.restless else BESIDE)
            for index in others[start : start + GROUP]:
                if self._out_of_time():
                    return
                seconds = self._sample(index, count)
                if seconds is None:
                    self.failed.add(index)
                    self.ratios.pop(index, None)
                else:
                    self._add(index, seconds)

    def _take_baseline(self, count: int) -> None:
        seconds = self._sample(0, count)
        if seconds is None:
            raise ValueError("the baseline cannot run")
        runs = np.log(seconds)
        self._strays = np.append(self._strays, np.abs(runs - (self._level if self.baseline_s else np.median(runs))))
        self.baseline_s.extend(seconds)
        self._level = float(np.median(np.log(self.baseline_s[-(count if self.restless else WINDOW) :])))
        self._add(0, seconds)

    def _add(self, index: int, seconds: Array) -> None:
        self.samples += len(seconds)
        self.spent_s += float(seconds.sum())
        ratios = np.log(seconds) - self._level
        self.ratios[index] = np.concatenate((self.ratios[index], ratios)) if index in self.ratios else ratios
        self._known.pop(index, None)

    def centre(self, index: int) -> float:
        """The logarithm of what is minimised, against the baseline's seconds."""
        return self._summary(index)[0] + float(self._offsets[index])

    def bursts(self, index: int) -> int:
        return len(self.ratios[index]) // BURST

    def _summary(self, index: int) -> tuple[float, float]:
        """Median, and standard deviation of bursts by their quartiles: tails are heavy, and the runs of a burst alike.

        On a restless device successive bursts are alike too, and count as fewer.
        """
        if index not in self._known:
            ratios = self.ratios[index]
            bursts = ratios[: self.bursts(index) * BURST].reshape(-1, BURST).mean(axis=1)
            lower, upper = np.percentile(bursts, [25, 75])
            spread = max(float(upper - lower) / 1.349, LEAST_SPREAD)
            if index and self.restless:
                spread *= sqrt(correlation_length(bursts))
            self._known[index] = float(np.median(ratios)), spread
        return self._known[index]

    def standard_errors(self) -> dict[int, float]:
        """Of the medians, of few bursts by what others' bursts have for a spread."""
        counts = {index: self.bursts(index) for index in self.ratios}
        spreads = {index: self._summary(index)[1] for index in counts}
        usual = float(np.median([spreads[index] for index, count in counts.items() if count >= START // BURST]))
        return {
            index: MEDIAN * (spreads[index] if count >= OWN_SPREAD else max(spreads[index], usual)) / sqrt(count)
            for index, count in counts.items()
        }

    @property
    def restless(self) -> bool:
        """Whether the baseline does not repeat itself well within the regret."""
        return float(np.quantile(self._strays, 0.9)) > RESTLESS * self._regret

    def unsettled(self) -> list[int]:
        """Those with too few bursts for a restless device, the fewest first."""
        few = [index for index in self.ratios if index != 0 and self.bursts(index) < OWN_SPREAD]
        self._order.shuffle(few)
        return sorted(few, key=self.bursts)

    @property
    def best(self) -> int:
        return min(self.ratios, key=self.centre)

    def believed(self) -> Beliefs:
        """What is known of each one, from its prediction and its runs."""
        errors = self.standard_errors()
        seen, error = list(errors), np.array(list(errors.values()))
        centres = np.array([self.centre(index) for index in seen])
        off = centres - self.prior[seen]
        shift = float(np.median(off))
        # The stated error weighs as much as four looks against how far off the predictions were seen to be.
        squares = 4 * self._error**2 + float(((off - shift) ** 2).sum())
        spread = max(sqrt(squares / (4 + len(off))), LEAST_ERROR)
        centre, width = self.prior + shift, np.full(len(self.prior), spread)
        trust = spread**2 / (spread**2 + error**2)
        centre[seen] += trust * (centres - centre[seen])
        width[seen] = error * np.sqrt(trust)
        return Beliefs(centre, width)

    def chances_to_win(self) -> Array:
        """The chance of every candidate to beat the best seen by more than the regret; 0 of those that cannot run."""
        belief, best = self.believed(), self.best
        ahead = belief.centre[best] + log(1 - self._regret) - belief.centre
        chances = student(ahead / np.hypot(belief.width, belief.width[best]))
        chances[[best, *self.failed]] = 0.0
        return chances

    def outcome(self, *, finished: bool) -> Outcome:
        sure = 1 - any_of(self.chances_to_win())
        return Outcome(
            self.best, self.ratios, self.standard_errors(), np.asarray(self.baseline_s), self.samples, self.spent_s,
            sure, finished, tuple(sorted(self.failed)),
        )  # fmt: skip


def any_of(chances: Array) -> float:
    """The chance that one of independent ones comes true."""
    return float(1 - np.prod(1 - chances))


def student(t: Array) -> Array:
    """Distribution function of Student's t with 8 degrees of freedom (its closed form for an even number).

    Predictions and moments of a clock are both sometimes farther off than a normal distribution has it.
    """
    square = 8 / (8 + t * t)
    below: Array = 0.5 + 0.5 * t / np.sqrt(8 + t * t) * (1 + square / 2 + 3 * square**2 / 8 + 5 * square**3 / 16)
    return below
