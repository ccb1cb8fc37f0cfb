"""One measurement: what was timed, where, the raw samples and what they say.

A field of ``Measurement`` declares its check once: rows, their checks when they come from a file, and the columns of
datasets follow. An imported row is checked whole: a wrong field would break every later reading.
"""

import json
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from typing import Any, Literal, get_args

import numpy as np

from shapes.errors import DAMAGED, InputError, read_bounded, refuse, within
from shapes.frozen import Named, Names, Values, among, frozen, given, without
from shapes.toml_table import LARGEST

from .environment import Environment
from .jobs import ROWS, Job, flat, key_of
from .stats import CONFIDENCE, Array, summarise

#: "wrong": the result differs from fp32; "unsupported": no kernel here does this work.
Status = Literal["ok", "oom", "error", "unsupported", "wrong"]


#: Bounds of one row: a suite's longest have a few thousand samples and labels of a line.
MAX_IMPORT = 2**29
MAX_LINE, MAX_TEXT, MAX_SAMPLES = 2**24, 10_000, 1_000_000
_LARGEST = 2**63 - 1
_YEAR_3000 = 32_503_680_000

Check = tuple[Callable[[Any], bool], str]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT and "\0" not in value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _is_time(value: Any) -> bool:
    return _is_number(value) and value > 1 / LARGEST


TEXT: Check = _is_text, f"text of at most {MAX_TEXT} characters"
NAME: Check = (
    lambda value: _is_text(value) and 0 < len(value) <= 200 and value.isprintable(),
    "printable text of 1 to 200 characters",
)
COUNT: Check = lambda value: type(value) is int and 0 <= value <= _LARGEST, "a whole number"
NUMBER: Check = _is_number, f"a finite number below {LARGEST:g}"
TIME: Check = _is_time, f"a positive number of seconds below {LARGEST:g}"
OBJECT: Check = lambda value: isinstance(value, Mapping), "an object"
STATUS: Check = (lambda value: value in get_args(Status), f"one of {', '.join(get_args(Status))}")
MOMENT: Check = lambda value: _is_number(value) and 0 <= value < _YEAR_3000, "seconds since 1970"
REASONS: Check = (lambda value: isinstance(value, list) and all(map(_is_text, value)), "a list of texts")
SAMPLES: Check = (
    lambda value: isinstance(value, list) and len(value) <= MAX_SAMPLES and all(map(_is_time, value)),
    f"a list of at most {MAX_SAMPLES} positive seconds",
)


@frozen
class Measurement:
    """The outcome of one job. Without ``status`` "ok" there are no samples and ``message`` says why.

    ``flops`` and ``bytes`` of one call; ``peak_bytes``: of memory. ``check_error`` and ``drift`` are relative,
    ``correlation`` in samples, ``clocks`` in MHz, W and C, ``created`` in seconds since 1970.
    ``samples``: seconds of one call each (for short kernels the mean over ``per_sample`` calls), in the order taken.
    ``control_s``: the control shape's median while this was measured. ``stop``: precision, time or samples.
    ``method``: the clock and the inputs. ``kernel_s``: kernels alone by torch's profiler, in a self-test.
    """

    key: str
    description: Named
    environment: Environment
    status: Status
    samples: Array = field(default_factory=lambda: np.empty(0), compare=False)
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    stop: str | None = None
    flops: int = 0
    bytes: int = 0
    per_sample: int = 1
    check_error: float | None = None
    control_s: float | None = None
    method: str = ""
    kernel_s: float | None = None
    drift: float = 0.0
    correlation: float = 1.0
    peak_bytes: int | None = None
    clocks: Named = field(default_factory=dict)
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

    def row(self, *, samples: bool = True) -> Values:
        """Flat fields for exports and calibration: kind, phase, layout, dtype, batch, m, n, k, seconds and others."""
        description = dict(self.description)
        out = {
            **{name: description.get(name) for name in ("kind", "phase", "dtype")},
            "kernel": description.get("kernel", ""),
            **flat(description),
            **{name: getattr(self, name) for name in COLUMNS if name not in _NESTED},
            "tflops": self.tflops,
            "device": self.environment.device,
            "load": self.environment.load,
            "torch": dict(self.environment.versions).get("torch"),
            "samples_taken": len(self.samples),
            "description": description,
            "clocks": dict(self.clocks),
            "environment": self.environment.to_dict(),
        }
        return {**out, "samples": [float(value) for value in self.samples]} if samples else out

    @staticmethod
    def from_row(row: Named) -> "Measurement":
        """A measurement from what ``row`` wrote; KeyError, TypeError or ValueError where one is missing."""
        description = dict(row["description"])
        plain = without(among(given(row), COLUMNS), _NESTED)
        return Measurement(
            key=key_of(description),
            description=description,
            environment=Environment.from_dict(row["environment"]),
            samples=np.array(row.get("samples") or [], dtype=np.float64),
            clocks=dict(row.get("clocks") or {}),
            **plain,
        )


#: A row's columns, and those that hold no plain values.
COLUMNS: Names = Measurement.__match_args__[1:]
_NESTED = ("description", "environment", "samples", "clocks")
#: Path of a row's value -> the check that it has to pass.
_CHECKS = {path: globals()[check] for path, check in ROWS["checks"].items()}


def outcome(job: Job, environment: Environment, status: Status, **said: Any) -> Measurement:
    """The measurement of ``job``, made now; ``said``: its other fields, such as why it has no time."""
    return Measurement(
        key=job.key,
        description=job.describe(),
        environment=environment,
        status=status,
        label=job.label,
        created=time.time(),
        **said,
    )


def summary_fields(samples: Array, confidence: float = CONFIDENCE) -> Values:
    """The statistics of a measurement from its samples."""
    summary = summarise(samples, confidence)
    return {name: getattr(summary, name) for name in ("seconds", "low", "high", "drift", "correlation")}


def unpacked(where: str, most: int = MAX_IMPORT) -> bytes:
    """The bytes of a file, unpacked where gzip packed them or its name says so; one that was cut ends there.

    InputError for a damaged file, and for more than ``most`` bytes.
    """
    data, stream = read_bounded(where, most), zlib.decompressobj(31)  # gzip's header and trailer
    try:
        found = stream.decompress(data, most) if data.startswith(b"\x1f\x8b") or where.endswith(".gz") else data
    except zlib.error as error:
        raise InputError(f"expected gzip ({error})", where=where) from None
    refuse(stream.unconsumed_tail or len(data) > most, f"expected at most {most / 2**20:g} MiB", where=where)
    return found


def read_export(lines: Iterable[str], where: str) -> Iterator[Measurement]:
    """Measurements from the JSON lines of ``sizer store export``; InputError naming the line and key that is wrong."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        with within(f"{where}, line {number}"):
            refuse(len(line) > MAX_LINE, f"expected lines of at most {MAX_LINE // 2**20} MiB")
            row = None
            with suppress(ValueError, RecursionError):
                row = json.loads(line)
            if not isinstance(row, dict):
                raise InputError(
                    "expected JSON lines of `sizer store export`, or a program's file (`sizer store import --help`)"
                )
            found = checked_row(row)
        yield found


def checked_row(row: Named) -> Measurement:
    """The measurement that ``row`` holds; InputError naming the field that is wrong."""
    values = dict(row)
    for name in ("environment", "description", "clocks"):
        if isinstance(row.get(name), Mapping):
            values |= {f"{name}.{key}": value for key, value in row[name].items()}
    _check(values, _CHECKS)
    if row["status"] == "ok":
        low, seconds, high = (row.get(name) or 0.0 for name in ("low", "seconds", "high"))
        refuse(
            not 0 < low <= seconds <= high or not row.get("samples"),
            "expected samples, and low <= seconds <= high",
            "seconds",
            seconds,
        )
    try:
        sizes = flat(row["description"])
        one = Measurement.from_row(row)
        one.row(samples=False)
        json.dumps(row).encode()
    except DAMAGED as error:
        raise InputError(f"expected a measurement exported by `sizer store export` ({error!r})") from None
    named = {f"description.{name}": sizes[name] for name in ("batch", "m", "n", "k")}
    _check(named, dict.fromkeys(named, COUNT))
    return one


def _check(values: Named, checks: Mapping[str, Check]) -> None:
    for key, (holds, expected) in checks.items():
        value = values.get(key)
        refuse((key in ROWS["required"] or value is not None) and not holds(value), f"expected {expected}", key, value)
