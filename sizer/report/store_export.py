"""Measurements as CSV, JSON, JSON lines and Parquet. Only JSON lines and JSON hold everything and can be imported."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shapes.errors import InputError
from shapes.measure.record import Measurement

SCHEMA_VERSION = 1

#: Columns of CSV and Parquet: the flat fields, then the environment's.
COLUMNS = (
    "kind", "phase", "dtype", "layout", "kernel", "batch", "m", "n", "k", "status", "seconds", "low", "high", "tflops",
    "flops", "bytes", "device", "torch", "samples_taken", "per_sample", "stop", "drift", "correlation", "check_error",
    "control_s", "peak_bytes", "wall_s", "label", "message", "created", "uid",
)  # fmt: skip


def export_text(measurements: Iterable[Measurement], format_: str) -> str:
    """``format_``: csv, json or jsonl."""
    if format_ == "jsonl":
        return "".join(json.dumps(one.row(), sort_keys=True) + "\n" for one in measurements)
    if format_ == "json":
        rows = [one.row() for one in measurements]
        return json.dumps({"schema_version": SCHEMA_VERSION, "measurements": rows}, sort_keys=True, indent=2)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for one in measurements:
        writer.writerow({name: _safe(value) for name, value in _flat(one).items()})
    return buffer.getvalue()


def write_parquet(measurements: Iterable[Measurement], path: Path) -> int:
    """One row a measurement with its raw samples; returns how many. InputError without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError("expected pyarrow to be installed: pip install sizer[parquet]", key="--format") from None
    rows = [
        {
            **_flat(one), "samples": [float(value) for value in one.samples],
            "environment": json.dumps(one.environment.to_dict(), sort_keys=True),
        }
        for one in measurements
    ]  # fmt: skip
    integers = {"batch", "m", "n", "k", "flops", "bytes", "samples_taken", "per_sample", "peak_bytes"}
    numbers = {
        "seconds", "low", "high", "tflops", "drift", "correlation", "check_error", "control_s", "wall_s", "created",
    }  # fmt: skip
    fields = [
        (name, pa.int64() if name in integers else pa.float64() if name in numbers else pa.string()) for name in COLUMNS
    ]
    schema = pa.schema([*fields, ("samples", pa.list_(pa.float64())), ("environment", pa.string())])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return len(rows)


def _flat(one: Measurement) -> dict[str, Any]:
    row = one.row(samples=False)
    return {name: row[name] for name in COLUMNS}


def _safe(value: Any) -> Any:
    # A spreadsheet runs what begins like a formula; labels and messages come from files.
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value
