"""What fits of published tables share: columns read, constants written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from shapes.errors import InputError
from shapes.program import install
from shapes.toml_table import DATA


def parquet_columns(path: Path) -> dict[str, list[Any]]:
    """A parquet file's columns as lists; InputError without pyarrow."""
    try:
        import pyarrow.parquet as parquet
    except ModuleNotFoundError:
        raise InputError(f"reading parquet needs pyarrow: {install('fit')}", where=str(path)) from None
    columns: dict[str, list[Any]] = parquet.read_table(path).to_pydict()
    return columns


def main(page: str | None, name: str, header: str, lines: Callable[[Path], Iterable[str]]) -> None:
    """The command of a fit: ``lines`` of the tables under ``header``, printed, and with --write kept as ``name``."""
    parser = argparse.ArgumentParser(description=page, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    text = header + "".join(lines(given.tables))
    sys.stdout.write(text)
    if given.write:
        (DATA / name).write_text(text)
