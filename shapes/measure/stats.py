"""Statistics of samples: a median with an interval, when to stop, whether the clock drifted.

Pure functions over arrays of seconds, without torch, clock or device. Timing samples have heavy right tails, drift with
temperature and switch between clock states, so every answer rests on ranks, not on means and variances:

* ``summarise``: the median with an order-statistic interval. A clear linear drift is taken out first, so the answer is
  the time in the middle of the measuring; the interval is widened by the samples' autocorrelation, since a hundred
  samples taken in two clock states say less than a hundred independent ones.
* ``Stopping``: stop when the interval is narrow enough or the time is up, and say which.

>>> import numpy as np
>>> summary = summarise(np.array([1.00, 1.01, 0.99, 1.02, 1.00, 0.98, 1.01, 1.00]))
>>> summary.seconds
1.0
"""

from functools import lru_cache
from math import comb, sqrt
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shapes.frozen import frozen

Array = NDArray[np.float64]
StopReason = Literal["precision", "time", "samples"]

CONFIDENCE = 0.95
#: Below six samples no pair of order statistics bounds the median at 95% (2 x 0.5**6 = 3%, 2 x 0.5**5 = 6%).
LEAST_SAMPLES = 6
#: A drift is taken out only where chance alone would show as much once in a thousand series.
DRIFT_Z = NormalDist().inv_cdf(1 - 0.001 / 2)
#: A correlation length is itself estimated from only count / length independent stretches, and biased down since the
#: row's own mean is taken out. Widening by this times length / count brings long rows of two clock states near their
#: nominal coverage (reports/bench/measure_coverage.py); short rows of lasting states stay under it.
SHORT_ROW = 8.0
#: Correlation is sought in being above each of these quantiles, not above the median alone: of a row that happens to
#: hold four fifths of one clock state the median lies inside that state, and what is above it there is only noise.
THRESHOLDS = (0.15, 0.3, 0.5, 0.7, 0.85)
#: A row is taken for correlated where the first two lags together exceed this many of their standard errors at one of
#: the thresholds: some percent of independent rows do, which costs them a few samples.
CORRELATED_Z = 2.0
#: No row is precise before this many samples: fewer may all have met one clock state, which no interval can know
#: (reports/bench/measure_coverage.py).
LEAST_PRECISE = 60
#: A correlated row is precise only after this many independent stretches, whatever its interval's width.
LEAST_STRETCHES = 20


@frozen
class Summary:
    """Seconds of one run: the median, its interval, and how the samples behaved.

    ``drift``: relative change over the measuring that was taken out (0.0: none was clear). ``correlation``: how many
    successive samples say as much as one independent one (1.0: all are independent).
    """

    seconds: float
    low: float
    high: float
    samples: int
    drift: float
    correlation: float

    @property
    def half_width(self) -> float:
        """Half the interval's width relative to the median."""
        return (self.high - self.low) / 2 / self.seconds if self.seconds else float("inf")


def summarise(samples: ArrayLike, confidence: float = CONFIDENCE) -> Summary:
    """The median of ``samples`` (seconds, in the order taken) with its interval; ValueError if there is none.

    With fewer samples than can bound a median, the interval is the samples' range widened to both sides by as much
    again, in proportion: it stays above 0.
    """
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise ValueError("expected a non-empty row of finite seconds")
    slope = _clear_slope(values)
    middle = (len(values) - 1) / 2
    level = values - slope * (np.arange(len(values)) - middle)
    correlation = correlation_length(level)
    ordered = np.sort(level)
    low, high = _interval(ordered, confidence, correlation)
    seconds = float(np.median(ordered))
    drift = float(slope * len(values) / seconds) if seconds else 0.0
    return Summary(seconds, low, high, len(values), drift, correlation)


def _interval(ordered: Array, confidence: float, correlation: float) -> tuple[float, float]:
    """Interpolated order statistics that hold the median with ``confidence``; ranks stretched by sqrt(correlation)."""
    count = len(ordered)
    if count < LEAST_SAMPLES:
        least, most = float(ordered[0]), float(ordered[-1])
        return (least**2 / most, most**2 / least) if least > 0 else (0.0, 2 * most)
    middle = (count - 1) / 2
    reach = min(middle, (middle - _lower_rank(count, confidence)) * sqrt(correlation))
    ranks = np.arange(count)
    return float(np.interp(middle - reach, ranks, ordered)), float(np.interp(middle + reach, ranks, ordered))


@lru_cache(4096)
def _lower_rank(count: int, confidence: float) -> float:
    """Fractional 0-based rank r such that the order statistics r and count-1-r hold the median with ``confidence``.

    The exact binomial coverages of neighbouring whole ranks are interpolated (Hettmansperger and Sheather 1986), so
    that small samples are neither far over nor under the stated confidence.
    """
    if count > 200:  # the normal approximation is then within 0.1 points
        return (count - 1) / 2 - NormalDist().inv_cdf((1 + confidence) / 2) * sqrt(count) / 2
    tail, rank = 0.0, 0
    below = 0.5**count
    # Coverage of ranks (rank, count-1-rank) is 1 - 2 P[Binomial <= rank].
    while 1 - 2 * (tail + below) >= confidence and rank < count // 2 - 1:
        tail += below
        rank += 1
        below = comb(count, rank) * 0.5**count
    outer, inner = 1 - 2 * tail, 1 - 2 * (tail + below)
    if rank == 0:
        return 0.0
    share = (outer - confidence) / (outer - inner)
    # Coverage is not linear in the rank between two order statistics: the formula of the paper corrects for it.
    position = (count - rank) * share / (rank + (count - 2 * rank) * share)
    return rank - 1 + min(1.0, max(0.0, position))


def _clear_slope(values: Array) -> float:
    """Seconds per sample of a linear drift (Tukey's resistant line), or 0.0 where chance explains it."""
    count = len(values)
    third = count // 3
    if third < 4:
        return 0.0
    first, last = np.sort(values[:third]), values[-third:]
    statistic = float((np.searchsorted(first, last) + np.searchsorted(first, last, "right")).sum()) / 2
    slope = float(np.median(last) - np.median(first)) / (count - third)
    # Two clock states that last long look like a drift in a rank test; their residuals are correlated, a drift's not.
    correlation = correlation_length(values - slope * np.arange(count))
    spread = sqrt(third * third * (2 * third + 1) / 12 * correlation)
    return slope if abs(statistic - third * third / 2) > DRIFT_Z * spread else 0.0


def correlation_length(values: Array) -> float:
    """How many successive ``values`` say as much as one independent one, at least 1.0.

    The longest integrated autocorrelation time of being above one of ``THRESHOLDS`` (Geyer's initial positive
    sequence), or that of a first-order process with the same first lags where that is longer.
    """
    count = len(values)
    if count < 8:
        return 1.0
    ordered = np.sort(values)
    cuts = np.array([ordered[max(0, int(share * count) - 1)] for share in THRESHOLDS])
    signs = np.where(values > cuts[:, None], 1.0, -1.0)
    signs -= signs.mean(axis=1, keepdims=True)
    variance = (signs * signs).sum(axis=1)
    signs, variance = signs[variance > 0], variance[variance > 0]
    size = 1 << (2 * count - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(signs, size)) ** 2
    lags = np.fft.irfft(spectrum, size)[:, : max(4, count // 2)] / variance[:, None]
    correlated = [row for row in lags if float(row[1] + row[2]) >= CORRELATED_Z / sqrt(count)]
    longest = max((_integrated(row, count) for row in correlated), default=1.0)
    return longest * (1 + SHORT_ROW * longest / count) if longest > 1.0 else 1.0


def _integrated(lags: Array, count: int) -> float:
    """The autocorrelation time of one row of correlations by lag."""
    total = 1.0
    for lag in range(1, len(lags) - 1, 2):
        pair = float(lags[lag] + lags[lag + 1])
        if pair < 0.0:
            break
        total += 2 * pair
    first = max(float(lags[1]), sqrt(max(0.0, float(lags[2]))))
    # The row's own mean is taken out, which lowers its correlation by about (1 + 3 r) / count (Kendall 1954).
    first = min(1 - 1 / count, first + (1 + 3 * first) / count)
    return max(total, (1 + first) / (1 - first))


@frozen
class Stopping:
    """When a candidate has been timed enough. ``precision`` is the interval's half-width relative to the median.

    The interval narrows by chance too: asked after every sample it would stop early on the lucky narrow ones and cover
    less than it says. So it is asked seldom (each look has half as many samples more than the last), and not
    before a correlated row has shown its clock states often enough.
    """

    precision: float = 0.005
    confidence: float = CONFIDENCE
    least_samples: int = LEAST_PRECISE
    most_samples: int = 2000

    def reason(self, summary: Summary, *, out_of_time: bool) -> StopReason | None:
        """Why to stop now, or None to go on."""
        least = max(self.least_samples, LEAST_STRETCHES * summary.correlation if summary.correlation > 1.0 else 0)
        if summary.samples >= least and summary.half_width <= self.precision:
            return "precision"
        if out_of_time:
            return "time"
        return "samples" if summary.samples >= self.most_samples else None

    def next_look(self, samples: int) -> int:
        """How many samples to have before asking again."""
        return min(self.most_samples, max(self.least_samples, int(samples * 1.5) + 1))


@frozen
class Drift:
    """How a control shape, timed again and again through a sweep, behaved: relative to its median.

    ``spread`` is the 5th to 95th percentile of its timings, ``change`` the last tenth's median over the first's less 1.
    """

    spread: float
    change: float
    timings: int

    @property
    def steady(self) -> bool:
        """Whether figures of this sweep may be compared across it without the control."""
        return abs(self.change) <= 0.01 and self.spread <= 0.03


def control_drift(control: ArrayLike) -> Drift:
    """Judge a control shape's timings (seconds, in the order taken)."""
    values = np.asarray(control, dtype=np.float64)
    if not values.size:
        return Drift(0.0, 0.0, 0)
    median = float(np.median(values))
    tenth = max(1, len(values) // 10)
    low, high = np.percentile(values, (5, 95))
    change = float(np.median(values[-tenth:])) / float(np.median(values[:tenth])) - 1
    return Drift(float(high - low) / median, change, len(values))
