"""What `sizer store list` and `export` answer."""

from __future__ import annotations

from typing import Any

from shapes.frozen import frozen
from shapes.measure.record import Measurement


@frozen
class Stored:
    """The measurements chosen, in the order they were made, of ``total`` in the store."""

    measurements: tuple[Measurement, ...]
    total: int

    def to_dict(self) -> dict[str, Any]:
        return {"measurements": [one.row() for one in self.measurements]}
