"""What a prediction answers: seconds, how sure, what bounds them, and how they come about."""

from __future__ import annotations

from typing import NamedTuple

from shapes.frozen import frozen
from shapes.timing import Timing


class Part(NamedTuple):
    """One contribution to an operator's time; the seconds of all parts add up to the total."""

    what: str
    seconds: float
    why: str


@frozen
class Cost:
    """Predicted seconds of ONE run of an operator (multiply by ``operator.count``), sustained as in training.

    ``low`` and ``high`` widen the prediction by ``error``, the mean absolute relative error on held-out measurements
    of this ``regime``. ``bound`` is what the time is made of: "compute", "memory", "overhead" or "communication".
    ``tile`` to ``wave_efficiency`` are of matrix products and attention, None elsewhere: output (or query) elements a
    thread block works on, blocks, waves of blocks over the device, share of the computed output that is kept, and
    share of the waves' slots that is filled. ``alignment_s``: seconds each operand's leading dimension costs, by
    operand ("A", "B", "C"). ``kernel``: of attention, what runs it in the end. ``p95``: 95th percentile of the same
    error, None where nobody judged it. ``tier``: what the price rests on, one of `shapes.cost.error.TIERS`.
    """

    seconds: float
    low: float
    high: float
    source: str
    bound: str
    error: float
    regime: str
    tile: tuple[int, int] | None = None
    tiles: int | None = None
    waves: float | None = None
    tile_efficiency: float | None = None
    wave_efficiency: float | None = None
    alignment_s: tuple[tuple[str, float], ...] = ()
    kernel: str | None = None
    p95: float | None = None
    tier: str = "fitted"

    @property
    def timing(self) -> Timing:
        """The same seconds as measured times have them."""
        return Timing(self.seconds, self.low, self.high, self.source, self.tier)
