"""One measurement: what was timed, where, the raw samples and what they say."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shapes.frozen import frozen
from shapes.measure.environment import Environment
from shapes.measure.jobs import Job, flat
from shapes.measure.stats import CONFIDENCE, summarise
from shapes.timing import Timing

#: "wrong": the result differs from fp32; "unsupported": no kernel here does this work.
Status = Literal["ok", "oom", "error", "unsupported", "wrong"]


@frozen
class Measurement:
    """The outcome of one job. Without ``status`` "ok" there are no samples and ``message`` says why.

    ``samples``: seconds of one call each (of short kernels the mean over ``per_sample`` calls), in the order taken.
    ``control_s``: the control shape's median while this was measured. ``stop``: precision, time or samples.
    """

    key: str
    description: Mapping[str, Any]
    environment: Environment
    status: Status
    samples: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), compare=False)
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    stop: str | None = None
    flops: int = 0
    bytes: int = 0
    per_sample: int = 1
    check_error: float | None = None
    control_s: float | None = None
    drift: float = 0.0
    correlation: float = 1.0
    peak_bytes: int | None = None
    clocks: Mapping[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0
    label: str = ""
    message: str = ""
    created: float = 0.0
    uid: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def half_width(self) -> float | None:
        """Half of the interval relative to the median."""
        if self.seconds is None or self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2 / self.seconds

    @property
    def tflops(self) -> float | None:
        """Achieved FLOP/s / 1e12; None for what failed or computes no products."""
        return self.flops / self.seconds / 1e12 if self.seconds and self.flops else None

    def timing(self) -> Timing:
        """As predictions are given; ValueError if there is no time (``status`` says why)."""
        if self.seconds is None or self.low is None or self.high is None:
            raise ValueError(f"{self.key}: {self.status}: {self.message}")
        return Timing(self.seconds, self.low, self.high, self.environment.source)

    def row(self, *, samples: bool = True) -> dict[str, Any]:
        """Flat fields for exports and calibration: kind, phase, layout, dtype, batch, m, n, k, seconds, device …"""
        description = dict(self.description)
        sizes = flat(description)
        out: dict[str, Any] = {
            "kind": description["kind"],
            "phase": description.get("phase"),
            "dtype": description.get("dtype"),
            "kernel": description.get("kernel", ""),
            **sizes,
            "status": self.status,
            "seconds": self.seconds,
            "low": self.low,
            "high": self.high,
            "tflops": self.tflops,
            "flops": self.flops,
            "bytes": self.bytes,
            "device": self.environment.device,
            "torch": dict(self.environment.versions).get("torch"),
            "samples_taken": len(self.samples),
            "per_sample": self.per_sample,
            "stop": self.stop,
            "drift": self.drift,
            "correlation": self.correlation,
            "check_error": self.check_error,
            "control_s": self.control_s,
            "peak_bytes": self.peak_bytes,
            "wall_s": self.wall_s,
            "label": self.label,
            "message": self.message,
            "created": self.created,
            "uid": self.uid,
            "description": description,
            "clocks": dict(self.clocks),
            "environment": self.environment.to_dict(),
        }
        return {**out, "samples": [float(value) for value in self.samples]} if samples else out

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> Measurement:
        """A measurement from what ``row`` wrote; KeyError, TypeError or ValueError where a field is wrong."""
        description = dict(row["description"])
        status: Any = row["status"]
        if status not in ("ok", "oom", "error", "unsupported", "wrong"):
            raise ValueError(f"unknown status {status!r}")
        return Measurement(
            key=key_of(description),
            description=description,
            environment=Environment.from_dict(row["environment"]),
            status=status,
            samples=np.array(row.get("samples") or [], dtype=np.float64),
            seconds=row["seconds"],
            low=row["low"],
            high=row["high"],
            stop=row.get("stop"),
            flops=int(row["flops"]),
            bytes=int(row["bytes"]),
            per_sample=int(row.get("per_sample", 1)),
            check_error=row.get("check_error"),
            control_s=row.get("control_s"),
            drift=float(row.get("drift", 0.0)),
            correlation=float(row.get("correlation", 1.0)),
            peak_bytes=row.get("peak_bytes"),
            clocks=dict(row.get("clocks") or {}),
            wall_s=float(row.get("wall_s", 0.0)),
            label=str(row.get("label", "")),
            message=str(row.get("message", "")),
            created=float(row["created"]),
            uid=str(row["uid"]),
        )


def without_time(job: Job, environment: Environment, status: Status, message: str) -> Measurement:
    """The outcome of a job that has no time."""
    return Measurement(
        key=job.key,
        description=job.describe(),
        environment=environment,
        status=status,
        label=job.label,
        message=message,
        created=time.time(),
    )


def key_of(description: Mapping[str, Any]) -> str:
    """The store's key of a description, as ``Job.key`` writes it."""
    import json

    return json.dumps(dict(description), sort_keys=True, separators=(",", ":"))


def summary_fields(samples: NDArray[np.float64], confidence: float = CONFIDENCE) -> dict[str, Any]:
    """The statistics of a measurement from its samples."""
    summary = summarise(samples, confidence)
    return {
        "seconds": summary.seconds,
        "low": summary.low,
        "high": summary.high,
        "drift": summary.drift,
        "correlation": summary.correlation,
    }
