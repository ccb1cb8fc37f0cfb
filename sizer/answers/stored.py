"""What `sizer store list` and `sizer store export` answer."""

from __future__ import annotations

from shapes.frozen import frozen
from shapes.measure.record import Measurement


@frozen
class Stored:
    """The measurements chosen, in the order they were made, of ``total`` in the store."""

    measurements: tuple[Measurement, ...]
    total: int
