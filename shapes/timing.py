"""One type for predicted and measured times, so that nobody downstream cares and everybody says."""

from __future__ import annotations

from shapes.frozen import frozen


@frozen
class Timing:
    """Seconds of one run with an interval and where they come from.

    ``source`` is "predicted:<device>" or "measured:<device name> torch <version> …". ``low`` and ``high`` bound a
    prediction by its held-out error and a measurement by its confidence interval. ``tier``: what the seconds rest on
    (measured, fitted, published, borrowed, extrapolated).
    """

    seconds: float
    low: float
    high: float
    source: str
    tier: str = "measured"

    @property
    def measured(self) -> bool:
        return self.source.startswith("measured:")
