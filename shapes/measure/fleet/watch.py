"""Whose clocks have changed: the control shape of every device of a kind, and what NVML says of throttling.

Devices of one kind should time the control shape alike. The reference is the fastest of their first timings: a device
whose last ones are slower by more than a limit is hot, shared, throttled or a worse card, and its figures would not
stand for the kind's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

#: Timings of the control that make one figure of it: fewer may all have met one clock state.
WINDOW = 12
#: Slower than the reference by this much is not the kind's usual spread: boost to sustained clocks are within it.
LIMIT = 0.10
#: Successive measurements under a throttle reason (not the power limit, which is normal work).
MOST_THROTTLED = 3


@dataclass(slots=True)
class _Seen:
    first: list[float] = field(default_factory=list)
    last: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    throttled: int = 0


class Watch:
    """Of the devices of one kind. ``limit`` None: timings are not judged (a CPU, which others use as well)."""

    def __init__(self, limit: float | None = LIMIT) -> None:
        self._limit = limit
        self._seen: dict[str, _Seen] = {}

    def control(self, device: str, seconds: Sequence[float]) -> str | None:
        """Timings of the control on ``device``; why it is to be set aside, or None."""
        seen = self._seen.setdefault(device, _Seen())
        for one in seconds:
            if len(seen.first) < WINDOW:
                seen.first.append(one)
            seen.last.append(one)
        references = [median(other.first) for other in self._seen.values() if len(other.first) >= WINDOW]
        if self._limit is None or not references or len(seen.last) < WINDOW:
            return None
        now, reference = median(seen.last), min(references)
        if now <= (1 + self._limit) * reference:
            return None
        return f"its control shape takes {now / reference - 1:.0%} longer than the kind's {reference * 1e6:.4g} us"

    def throttle(self, device: str, reasons: Sequence[str]) -> str | None:
        """What was said of throttling after a measurement on ``device``; why it is to be set aside, or None."""
        seen = self._seen.setdefault(device, _Seen())
        seen.throttled = seen.throttled + 1 if reasons else 0
        return f"throttled ({', '.join(reasons)})" if seen.throttled >= MOST_THROTTLED else None

    def forget(self, device: str) -> None:
        """``device`` was set aside or replaced."""
        self._seen.pop(device, None)
