"""Measurements from files: CSV, JSONL and parquet exports, this project's database.

A flat record is one measured operator: ``kind, phase, layout, dtype, batch, m, n, k, seconds, device`` (of which kind,
phase, layout and batch may be absent: a forward product).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shapes.cost.alignment import LEADING, LEVELS
from shapes.dtypes import BYTES
from shapes.errors import InputError
from shapes.frozen import frozen


@frozen
class Record:
    """One measured product; ``source`` tells frameworks (or runs) apart, whose median is taken for the truth."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    layout: str
    seconds: float
    source: str

    @property
    def aligned(self) -> bool:
        """Whether every leading dimension is a multiple of 64 bytes, from which on nothing more is won."""
        dimensions = (self.m, self.n, self.k)
        return all(dimensions[which] * BYTES[self.dtype] % LEVELS[-2] == 0 for which in LEADING[self.layout])


def read_records(paths: Iterable[str | Path]) -> tuple[Record, ...]:
    """Every product in the files.

    InputError: a file that cannot be read, is of no known kind, or lacks a column.
    """
    records: list[Record] = []
    for path in map(Path, paths):
        records.extend(_read(path))
    if not records:
        raise InputError("expected measured products", where=", ".join(map(str, paths)))
    return tuple(records)


def _read(path: Path) -> Iterator[Record]:
    readers = {".parquet": _parquet, ".csv": _csv, ".jsonl": _jsonl, ".db": _store, ".sqlite": _store}
    if path.suffix not in readers:
        raise InputError(f"expected a file of {', '.join(readers)}", where=str(path))
    try:
        yield from readers[path.suffix](path)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from None
    except KeyError as error:
        raise InputError("expected the columns m, n, k, dtype, seconds", where=str(path), key=str(error)) from None
    except InputError as error:
        raise error.at(str(path)) from None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, csv.Error) as error:
        raise InputError(f"expected measured products: {error}", where=str(path)) from None


def parquet_columns(path: Path) -> dict[str, list[Any]]:
    """A parquet file's columns as lists; InputError without pyarrow."""
    try:
        import pyarrow.parquet as parquet
    except ModuleNotFoundError:
        raise InputError("reading parquet needs pyarrow: pip install sizer[parquet]", where=str(path)) from None
    columns: dict[str, list[Any]] = parquet.read_table(path).to_pydict()
    return columns


def _parquet(path: Path) -> Iterator[Record]:
    columns = parquet_columns(path)
    yield from _flat({key: columns[key][row] for key in columns} for row in range(len(columns["m"])))


def _csv(path: Path) -> Iterator[Record]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from _flat(csv.DictReader(line for line in file if not line.startswith("#")))


def _jsonl(path: Path) -> Iterator[Record]:
    with path.open(encoding="utf-8") as file:
        yield from _flat(json.loads(line) for line in file if line.strip())


def _store(path: Path) -> Iterator[Record]:
    from shapes.measure.store import Store

    with Store.open(path, create=False, write=False) as store:
        yield from _flat(one.row(samples=False) for one in store.measurements(status="ok"))


def _flat(rows: Iterable[Mapping[str, Any]]) -> Iterator[Record]:
    """Products among flat rows: a failed measurement and every other kind of operator are left to others."""
    for row in rows:
        if (row.get("kind") or "gemm") in ("gemm", "bmm") and (row.get("status") or "ok") == "ok":
            yield _record(row)


def _record(row: Mapping[str, Any]) -> Record:
    dtype, layout = str(row["dtype"]), str(row.get("layout") or "tn")
    if dtype not in BYTES or layout not in LEADING:
        raise InputError("expected a known dtype and layout", key="dtype, layout", value=f"{dtype}, {layout}")
    m, n, k, batch = int(row["m"]), int(row["n"]), int(row["k"]), int(row.get("batch") or 1)
    seconds = float(row["seconds"])
    if not (min(m, n, k, batch) >= 1 and 0 < seconds < float("inf")):
        raise InputError("expected positive dimensions and seconds", key="m, n, k", value=f"{m}, {n}, {k}")
    return Record(m, n, k, batch, dtype, layout, seconds, str(row.get("source") or row.get("framework") or ""))
