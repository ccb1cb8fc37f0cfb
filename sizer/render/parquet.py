"""Measurements as Parquet: a row each, with its raw samples."""

from __future__ import annotations

import io
import json
from typing import Any

from shapes.errors import InputError
from shapes.measure.dataset import COLUMNS
from sizer.documents.bench import SIZES
from sizer.documents.document import Document
from sizer.render import Page

#: Column -> Parquet's type; the others are texts.
TYPES = {
    **{name: kind for name, (kind, _) in COLUMNS.items()},
    **dict.fromkeys(("batch", *SIZES, "samples_taken"), "int64"),
    "tflops": "float64",
}


def render(document: Document, page: Page) -> bytes:
    """InputError without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError("expected pyarrow to be installed: pip install sizer[parquet]", key="--format") from None
    answer: Any = document.answer
    rows = [
        {
            **one.row(samples=False),
            "samples": [float(value) for value in one.samples],
            "environment": json.dumps(one.environment.to_dict(), sort_keys=True),
        }
        for one in answer.measurements
    ]
    columns = [(name, pa.type_for_alias(TYPES.get(name, "string"))) for name in document.fields]
    schema = pa.schema([*columns, ("samples", pa.list_(pa.float64())), ("environment", pa.string())])
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), out)
    return out.getvalue()
