"""Two candidates timed interleaved: their ratio, an interval, and a verdict that may be "no significant difference"."""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from shapes.frozen import frozen
from shapes.measure.stats import correlation_length

Verdict = Literal["faster", "slower", "no significant difference"]
#: Two candidates are compared a little more strictly than 95%, whose verdicts on equal ones would be wrong in just one
#: of twenty: they are to be wrong in fewer.
COMPARE_CONFIDENCE = 0.96
#: Walsh averages grow with the square of the pairs; beyond this many, neighbouring pairs are joined by their median.
MOST_PAIRS = 400


@frozen
class Comparison:
    """``ratio`` is the first candidate's time over the second's; ``verdict`` is about the first."""

    ratio: float
    low: float
    high: float
    verdict: Verdict
    pairs: int

    @property
    def significant(self) -> bool:
        return self.verdict != "no significant difference"


def compare(first: ArrayLike, second: ArrayLike, confidence: float = COMPARE_CONFIDENCE) -> Comparison:
    """The ratio first/second of two candidates timed interleaved, ``first[i]`` and ``second[i]`` in the same round.

    Pairing by round cancels drift and clock states, whatever they are. The estimate is Hodges and Lehmann's: the median
    of all averages of two log ratios, with the interval of Wilcoxon's signed-rank test, widened where the ratios of
    successive rounds are correlated (a clock state that one candidate meets and the other does not). Rows of different
    lengths are paired from their ends. Fewer than six pairs cannot be significant: the interval is then unbounded.

    >>> compare([2.0] * 8, [1.0] * 8).ratio
    2.0
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    pairs = min(len(a), len(b))
    if not pairs:
        raise ValueError("expected at least one sample of each candidate")
    logs = np.log(a[-pairs:]) - np.log(b[-pairs:])
    if pairs > MOST_PAIRS:
        logs = np.array([np.median(part) for part in np.array_split(logs, MOST_PAIRS)])
    count = len(logs)
    rows, columns = np.triu_indices(count)
    walsh = np.sort((logs[rows] + logs[columns]) / 2)
    ratio = float(np.exp(np.median(walsh)))
    rank = _signed_rank(count, round(1 - confidence, 12))
    if rank is not None:
        middle = (len(walsh) - 1) / 2
        rank = int(middle - (middle - rank) * sqrt(correlation_length(logs)))
    if rank is None or rank < 0:
        return Comparison(ratio, 0.0, float("inf"), "no significant difference", pairs)
    low, high = float(np.exp(walsh[rank])), float(np.exp(walsh[-1 - rank]))
    verdict: Verdict = "faster" if high < 1 else "slower" if low > 1 else "no significant difference"
    return Comparison(ratio, low, high, verdict, pairs)


@lru_cache(maxsize=1024)
def _signed_rank(count: int, alpha: float) -> int | None:
    """Walsh averages to leave out at each end for an interval of 1 - alpha, or None if ``count`` pairs allow none."""
    if count > 60:  # the normal approximation is then good to a hundredth of a point
        mean, spread = count * (count + 1) / 4, sqrt(count * (count + 1) * (2 * count + 1) / 24)
        return max(0, int(mean - NormalDist().inv_cdf(1 - alpha / 2) * spread))
    ways = np.zeros(count * (count + 1) // 2 + 1)
    ways[0] = 1.0
    for rank in range(1, count + 1):
        shifted = np.zeros_like(ways)
        shifted[rank:] = ways[:-rank]
        ways = (ways + shifted) / 2
    # The sorted averages' index r is a bound that fails with probability P[W <= r] at each end (W: the statistic).
    kept = np.flatnonzero(2 * np.cumsum(ways) <= alpha)
    return int(kept[-1]) if kept.size else None
