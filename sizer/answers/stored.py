"""What `sizer store list`, `export` and `compare` answer."""

from __future__ import annotations

from typing import Any

from shapes.frozen import frozen
from shapes.measure.record import Measurement
from sizer.answers.datasets import Compared


@frozen
class Stored:
    """The measurements chosen, in the order they were made, of ``total`` in the store."""

    measurements: tuple[Measurement, ...]
    total: int


@frozen
class Comparison:
    """What `sizer store compare` answers, a device each."""

    devices: tuple[Compared, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"devices": [one.to_dict() for one in self.devices]}
