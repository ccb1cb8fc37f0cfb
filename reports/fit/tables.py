"""Columns of published tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shapes.errors import InputError
from shapes.package import install


def parquet_columns(path: Path) -> dict[str, list[Any]]:
    """A parquet file's columns as lists; InputError without pyarrow."""
    try:
        import pyarrow.parquet as parquet
    except ModuleNotFoundError:
        raise InputError(f"reading parquet needs pyarrow: {install('parquet')}", where=str(path)) from None
    columns: dict[str, list[Any]] = parquet.read_table(path).to_pydict()
    return columns
