"""JSON output, versioned and described by check.schema.json and ops.schema.json beside this file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sizer.answers.operator_table import OperatorTable
from sizer.checking.findings import Report

#: Raised by one whenever a field changes its meaning or goes away.
SCHEMA_VERSION = 1


def check_json(reports: Sequence[Report]) -> str:
    return _dump({"schema_version": SCHEMA_VERSION, "reports": [report.to_dict() for report in reports]})


def ops_json(table: OperatorTable) -> str:
    return _dump({"schema_version": SCHEMA_VERSION, **table.to_dict()})


def load_schema(name: str) -> dict[str, Any]:
    """The published JSON Schema of an output: "check" or "ops"."""
    schema: dict[str, Any] = json.loads((Path(__file__).parent / f"{name}.schema.json").read_text(encoding="utf-8"))
    return schema


def _dump(document: dict[str, Any]) -> str:
    # NaN and Infinity are not JSON: fail here, not in the reader's parser.
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
