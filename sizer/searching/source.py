"""Where a search's seconds come from: predictions for named devices, or measurements of the device at hand.

A source says which ``devices`` its candidates are for (their alignment, memory, and the predictions that order them)
and times the candidates that are left. ``sizer.searching.measuring.Measured`` is the other one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from shapes.device import Device
from shapes.errors import InputError
from shapes.frozen import frozen
from sizer.searching.objective import Objective
from sizer.searching.predicting import TimedCandidate
from sizer.searching.space import Space

Progress = Callable[[int, int], None]


@frozen
class Times:
    """A row of candidates for every device, the baseline first; ``samples`` were taken for them."""

    rows: Sequence[Sequence[TimedCandidate]]
    samples: int = 0
    notes: tuple[str, ...] = ()


class Source(Protocol):
    """Times candidates. ``predicted``: a row for every device, the baseline first."""

    @property
    def devices(self) -> tuple[Device, ...]: ...

    @property
    def strategy(self) -> str: ...

    def times(
        self,
        space: Space,
        predicted: Sequence[Sequence[TimedCandidate]],
        objective: Objective,
        progress: Progress | None,
    ) -> Times: ...


@frozen
class Predicted:
    """The cost model's seconds on each of ``devices``."""

    devices: tuple[Device, ...]
    strategy: str = "exhaustive"

    def __post_init__(self) -> None:
        if not self.devices:
            raise InputError("expected at least one device", key="--device")
        if self.strategy != "exhaustive":
            raise InputError(
                "expected exhaustive: racing is a way to measure, add --measure", key="--strategy", value=self.strategy
            )

    def times(
        self,
        space: Space,
        predicted: Sequence[Sequence[TimedCandidate]],
        objective: Objective,
        progress: Progress | None,
    ) -> Times:
        """The predictions as they are."""
        return Times(predicted)
