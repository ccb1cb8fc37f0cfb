"""Rows that come from a file, checked whole before one is stored: a wrong field would break every later reading."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args

from shapes.errors import InputError
from shapes.measure.jobs import flat
from shapes.measure.record import Measurement, Status

#: Bounds of one row: a suite's longest have a few thousand samples and labels of a line.
MAX_LINE, MAX_TEXT, MAX_SAMPLES = 2**24, 10_000, 1_000_000
_LARGEST = 2**63 - 1

Check = tuple[Callable[[Any], bool], str]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT and "\0" not in value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def _is_time(value: Any) -> bool:
    return _is_number(value) and value > 0


TEXT: Check = _is_text, f"text of at most {MAX_TEXT} characters"
NAME: Check = lambda value: _is_text(value) and bool(value), "text that is not empty"
COUNT: Check = _is_count, "a whole number"
NUMBER: Check = _is_number, "a finite number"
TIME: Check = _is_time, "a positive number of seconds"
OBJECT: Check = lambda value: isinstance(value, Mapping), "an object"
SAMPLES: Check = (
    lambda value: isinstance(value, list) and len(value) <= MAX_SAMPLES and all(map(_is_time, value)),
    f"a list of at most {MAX_SAMPLES} positive seconds",
)

_REQUIRED: dict[str, Check] = {
    "status": (lambda value: value in get_args(Status), f"one of {', '.join(get_args(Status))}"),
    "uid": NAME,
    "created": NUMBER,
    "flops": COUNT,
    "bytes": COUNT,
    "description": OBJECT,
    "environment": OBJECT,
}
_OPTIONAL: dict[str, Check] = {
    "seconds": TIME,
    "low": TIME,
    "high": TIME,
    "samples": SAMPLES,
    "stop": TEXT,
    "per_sample": COUNT,
    "check_error": (lambda value: isinstance(value, int | float), "a number"),
    "control_s": TIME,
    "drift": NUMBER,
    "correlation": NUMBER,
    "peak_bytes": COUNT,
    "clocks": OBJECT,
    "wall_s": NUMBER,
    "label": TEXT,
    "message": TEXT,
}
_OF_ENVIRONMENT: dict[str, Check] = {"device": NAME, "versions": OBJECT, "harness": COUNT}
_OF_ENVIRONMENT_OPTIONAL: dict[str, Check] = {"uuid": TEXT, "driver": TEXT, "threads": COUNT, "host": OBJECT}
_OF_DESCRIPTION: dict[str, Check] = {"kind": NAME}
_OF_DESCRIPTION_OPTIONAL: dict[str, Check] = {"phase": TEXT, "dtype": TEXT, "kernel": TEXT, "layout": TEXT}


def read_export(lines: Iterable[str], where: str) -> Iterator[Measurement]:
    """Measurements from the JSON lines of ``sizer store export``; InputError naming the line and key that is wrong."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _measurement(line, f"{where}, line {number}")


def _measurement(line: str, where: str) -> Measurement:
    if len(line) > MAX_LINE:
        raise InputError(f"expected lines of at most {MAX_LINE // 2**20} MiB", where=where)
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError("expected a JSON object, as `sizer store export` writes", where=where) from None
    if not isinstance(row, dict):
        raise InputError("expected a JSON object, as `sizer store export` writes", where=where)
    return checked_row(row, where)


def checked_row(row: Mapping[str, Any], where: str) -> Measurement:
    """The measurement that ``row`` holds; InputError naming the field that is wrong."""
    _check(row, _REQUIRED, where, required=True)
    _check(row, _OPTIONAL, where)
    _check(row["environment"], _OF_ENVIRONMENT, where, "environment.", required=True)
    _check(row["environment"], _OF_ENVIRONMENT_OPTIONAL, where, "environment.")
    _check(row["description"], _OF_DESCRIPTION, where, "description.", required=True)
    _check(row["description"], _OF_DESCRIPTION_OPTIONAL, where, "description.")
    if row["status"] == "ok":
        low, seconds, high = (row.get(name) or 0.0 for name in ("low", "seconds", "high"))
        if not 0 < low <= seconds <= high or not row.get("samples"):
            raise InputError("expected samples, and low <= seconds <= high", where=where, key="seconds", value=seconds)
    try:
        sizes = flat(row["description"])
        one = Measurement.from_row({"seconds": None, "low": None, "high": None, **row})
        one.row(samples=False)
        json.dumps(row).encode()
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"expected a measurement exported by `sizer store export` ({error!r})", where=where) from None
    for name in ("batch", "m", "n", "k"):
        if sizes[name] is not None and not _is_count(sizes[name]):
            raise InputError("expected a whole number", where=where, key=f"description.{name}", value=sizes[name])
    return one


def _check(
    row: Mapping[str, Any], checks: dict[str, Check], where: str, prefix: str = "", *, required: bool = False
) -> None:
    for key, (holds, expected) in checks.items():
        value = row.get(key)
        if (required or value is not None) and not holds(value):
            raise InputError(f"expected {expected}", where=where, key=prefix + key, value=value)
