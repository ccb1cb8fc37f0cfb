"""What `sizer store list`, `export` and `compare` answer."""

from __future__ import annotations

from shapes.frozen import frozen
from shapes.json_form import AsJson
from shapes.measure.record import Measurement
from sizer.answers.datasets import Compared


@frozen
class Stored:
    """The measurements chosen, in the order they were made, of ``total`` in the store."""

    measurements: tuple[Measurement, ...]
    total: int


@frozen
class Comparison(AsJson):
    """What `sizer store compare` answers, a device each."""

    devices: tuple[Compared, ...]
