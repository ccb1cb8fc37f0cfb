"""Measurements as Parquet: a row each, with its raw samples."""

from __future__ import annotations

import io
import json

from shapes.errors import InputError
from sizer.render.measurements import COLUMNS, Measurements, flat
from sizer.render.page import Page


def render(answer: Measurements, page: Page) -> bytes:
    """InputError without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError("expected pyarrow to be installed: pip install sizer[parquet]", key="--format") from None
    rows = [
        {
            **flat(one),
            "samples": [float(value) for value in one.samples],
            "environment": json.dumps(one.environment.to_dict(), sort_keys=True),
        }
        for one in answer.measurements
    ]
    integers = {"batch", "m", "n", "k", "flops", "bytes", "samples_taken", "per_sample", "peak_bytes"}
    numbers = {
        "seconds",
        "low",
        "high",
        "tflops",
        "drift",
        "correlation",
        "check_error",
        "control_s",
        "wall_s",
        "created",
    }
    fields = [
        (name, pa.int64() if name in integers else pa.float64() if name in numbers else pa.string()) for name in COLUMNS
    ]
    schema = pa.schema([*fields, ("samples", pa.list_(pa.float64())), ("environment", pa.string())])
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), out)
    return out.getvalue()
