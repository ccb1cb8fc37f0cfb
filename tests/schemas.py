"""The published JSON Schemas of outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "sizer" / "render" / "schemas"


def load_schema(name: str) -> dict[str, Any]:
    """The schema of a command that has one: check, deploy, diff, ops."""
    schema: dict[str, Any] = json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    return schema
