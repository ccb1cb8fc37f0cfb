"""What `sizer store list` and `sizer store export` answer."""

from __future__ import annotations

from dataclasses import dataclass

from shapes.measure.record import Measurement


@dataclass(frozen=True, slots=True)
class Stored:
    """The measurements chosen, in the order they were made, of ``total`` in the store."""

    measurements: tuple[Measurement, ...]
    total: int
