"""What the formats of measurements share. JSON lines and JSON alone hold everything, and JSON lines can be imported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from shapes.measure.record import Measurement

#: Columns of CSV and Parquet: the flat fields, then the environment's.
COLUMNS = (
    "kind",
    "phase",
    "dtype",
    "layout",
    "kernel",
    "batch",
    "m",
    "n",
    "k",
    "status",
    "seconds",
    "low",
    "high",
    "tflops",
    "flops",
    "bytes",
    "device",
    "torch",
    "samples_taken",
    "per_sample",
    "stop",
    "drift",
    "correlation",
    "check_error",
    "control_s",
    "peak_bytes",
    "wall_s",
    "label",
    "message",
    "created",
    "uid",
)


class Measurements(Protocol):
    """An answer that holds measurements."""

    @property
    def measurements(self) -> Iterable[Measurement]: ...


def flat(one: Measurement) -> dict[str, Any]:
    """One measurement's columns."""
    row = one.row(samples=False)
    return {name: row[name] for name in COLUMNS}
