"""Repairing a store: every row that can be read is kept, the damaged files are put aside, what was lost is named.

Rows are read from the pages themselves, newest first (the log's, then the database's), so that damage to one page, to
the tree above it or to the log costs what it covers and no more. A row counts when its checksum holds. Deleted rows may
come back from a page whose list of rows is damaged.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.measure.environment import Environment
from shapes.measure.record import Measurement
from shapes.measure.store import COLUMNS, Store, measurement_of, samples_of
from shapes.measure.store_file import DamagedStoreError, beside, refuse_foreign
from shapes.measure.store_pages import Cell, carve, page_size, read_cells, read_log

Array = NDArray[Any]

#: How a measurement's record begins: no id (it is the rowid), then a uid of 32 characters, whose serial type is 77.
_MEASUREMENT = b"\x00\x4d"
_UID = re.compile("[0-9a-f]{32}")
#: Columns of the records that tell one table or index from another; an index's last is the rowid.
_ENVIRONMENT_COLUMNS, _PART_COLUMNS, _UID_INDEX_COLUMNS, _KEY_INDEX_COLUMNS = 3, 4, 2, 4
_DATABASE_HEADER = 100
_COMPANIONS = ("-wal", "-shm", "-journal")
#: What decoding a damaged row may raise.
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


@dataclass(slots=True)
class Salvaged:
    """What could be read. ``lost``: of rows that the indexes tell of and no page has, the work (or the uid).

    ``rebuilt``: measurements whose environment was lost. They are kept under what their row says of it, and stand for
    no new one.
    """

    measurements: dict[str, Measurement] = field(default_factory=dict)
    parts: dict[tuple[str, str], tuple[Array, Array]] = field(default_factory=dict)
    environments: dict[str, Environment] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    rebuilt: int = 0


@frozen
class Repair:
    """``aside``: the damaged files, as they were; empty where nothing was wrong and nothing was done."""

    path: Path
    kept: int
    lost: tuple[str, ...]
    rebuilt: int
    aside: tuple[Path, ...]


def repair(path: Path) -> Repair:
    """Make the store at ``path`` whole again. InputError for what is no store, or is in use by another process."""
    log = beside(path, "-wal")
    if not path.exists() and not log.exists():
        raise InputError("expected an existing store", where=str(path))
    if path.exists() and not path.is_file():
        raise InputError("expected a file", where=str(path))
    unfinished = path.with_name(f".{path.name}.repaired")
    try:
        if not unfinished.exists() and path.exists() and _is_sound(path):
            with Store.open(path, create=False, write=False) as store:
                return Repair(path, store.count(), (), 0, ())
        _refuse_in_use(path)
        found = salvage(path)
        if unfinished.exists():  # of a repair that was killed after it had removed the log
            for uid, one in salvage(unfinished).measurements.items():
                found.measurements.setdefault(uid, one)
        if not (found.measurements or found.environments or found.lost):
            refuse_foreign(path)  # unless its header says that it is one, which was empty
        return _replace(path, unfinished, found)
    except OSError as error:
        raise InputError(f"cannot be repaired ({error.strerror or error})", where=str(path)) from None


def salvage(path: Path) -> Salvaged:
    """Everything readable in the database at ``path`` and its log."""
    content = path.read_bytes() if path.exists() else b""
    log_path = beside(path, "-wal")
    log = read_log(log_path.read_bytes() if log_path.exists() else b"")
    size = len(log.pages[0]) if log.pages and not content else page_size(content)
    versions: dict[int, list[tuple[bytes, bool]]] = {}
    for number, page, sound in zip(reversed(log.numbers), reversed(log.pages), log.sound[::-1].tolist(), strict=True):
        if len(page) == size:
            versions.setdefault(number, []).append((page, sound))
    for at in range(0, len(content), size):
        versions.setdefault(at // size + 1, []).append((content[at : at + size].ljust(size, b"\0"), True))
    newest = {number: pages[0][0] for number, pages in versions.items()}
    free = _free_pages(newest)
    return _decoded(_cells({number: pages for number, pages in versions.items() if number not in free}, newest))


def _cells(versions: dict[int, list[tuple[bytes, bool]]], newest: dict[int, bytes]) -> list[tuple[bool, Cell]]:
    """(of a table?, cell) of every page, newest version first, older ones where a newer cannot be read whole."""
    found: list[tuple[bool, Cell]] = []
    for number, pages in versions.items():
        for page, sound in pages:
            cells = read_cells(page, number, newest)
            if cells is not None:
                found += ((cells.table, cell) for cell in cells.cells)
            if sound and cells is not None and cells.whole:
                break
            found += ((True, cell) for cell in carve(page, _MEASUREMENT, newest))
    return found


def _decoded(cells: list[tuple[bool, Cell]]) -> Salvaged:
    out = Salvaged()
    rowids: set[int] = set()
    for table, cell in cells:
        if table and len(cell.values) == _ENVIRONMENT_COLUMNS:
            with suppress(*_UNREADABLE):
                environment = Environment.from_dict(json.loads(_text(cell.values[2])))
                if environment.identity == _text(cell.values[0]):
                    out.environments.setdefault(environment.identity, environment)
    told: dict[int, str] = {}
    for table, cell in cells:
        width = len(cell.values)
        with suppress(*_UNREADABLE):
            if table and width == len(COLUMNS) + 1:
                _keep(out, dict(zip(COLUMNS, cell.values[1:], strict=True)))
                rowids.add(cell.rowid or 0)
            elif table and width == _PART_COLUMNS:
                key, identity, own, control = cell.values
                out.parts.setdefault((_text(key), _text(identity)), (samples_of(own), samples_of(control)))
            elif not table and width == _KEY_INDEX_COLUMNS:
                told[_rowid(cell)] = json.dumps(json.loads(_text(cell.values[0])), sort_keys=True)
            elif not table and width == _UID_INDEX_COLUMNS and _UID.fullmatch(_text(cell.values[0])):
                told.setdefault(_rowid(cell), f"uid {_text(cell.values[0])}")
    out.lost += [what for rowid, what in sorted(told.items()) if rowid not in rowids]
    return out


def _keep(out: Salvaged, row: dict[str, Any]) -> None:
    """Add the measurement of ``row``; raises one of _UNREADABLE where it is not as it was written."""
    identity = _text(row["identity"])
    environment = out.environments.get(identity)
    if environment is None:
        versions = (("torch", _text(row["torch"])),) if row["torch"] is not None else ()
        environment = Environment(
            _text(row["device"]),
            None,
            _text(row["driver"]) if row["driver"] is not None else None,
            None,
            versions,
            int(row["harness"]),
            {"rebuilt": "the environment of this measurement was lost from a damaged store"},
        )
    one = measurement_of(_text(row["data"]), row["samples"], environment)
    if one.uid not in out.measurements:
        out.measurements[one.uid] = one
        out.rebuilt += environment.identity != identity


def _free_pages(newest: dict[int, bytes]) -> set[int]:
    """Pages that hold deleted rows, as the header's list tells; none where that list is damaged."""
    first = newest.get(1, bytes(_DATABASE_HEADER))
    trunk, count = int.from_bytes(first[32:36], "big"), int.from_bytes(first[36:40], "big")
    free: set[int] = set()
    while trunk and trunk in newest and trunk not in free:
        page = newest[trunk]
        leaves = min(int.from_bytes(page[4:8], "big"), len(page) // 4 - 2)
        free |= {trunk, *(int.from_bytes(page[8 + 4 * i : 12 + 4 * i], "big") for i in range(leaves))}
        trunk = int.from_bytes(page[:4], "big")
    return free if len(free) == count else set()


def _text(value: object) -> str:
    if not isinstance(value, bytes):
        raise ValueError("expected text")
    return value.decode()


def _rowid(cell: Cell) -> int:
    value = cell.values[-1]
    if not isinstance(value, int):
        raise ValueError("expected a rowid")
    return value


def _is_sound(path: Path) -> bool:
    """Whether every page and row can be read. InputError for a newer schema or a locked store."""
    try:
        with Store.open(path, create=False, write=False) as store:
            return store.is_whole()
    except DamagedStoreError:
        return False


def _refuse_in_use(path: Path) -> None:
    """InputError where another process has the store open: it would go on writing to files that were put aside."""
    try:
        import fcntl
    except ImportError:
        return
    with suppress(FileNotFoundError), open(path, "r+b") as file:
        try:
            # Every connection holds a lock within these bytes (SQLite's os_unix.c, PENDING_BYTE and what follows).
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 512, 0x40000000)
        except BlockingIOError:
            raise InputError("another process uses the store: end it first", where=str(path)) from None


def _replace(path: Path, unfinished: Path, found: Salvaged) -> Repair:
    """Copy the damaged files aside, make a store of ``found``, put it in place; whatever moment a kill comes at."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    present = [suffix for suffix in ("", *_COMPANIONS) if beside(path, suffix).exists()]
    aside = [beside(path, f".damaged-{stamp}{suffix}") for suffix in present]
    try:
        for suffix, copy in zip(present, aside, strict=True):
            shutil.copy2(beside(path, suffix), copy)
        for suffix in ("", *_COMPANIONS):
            beside(unfinished, suffix).unlink(missing_ok=True)
        with Store.open(unfinished) as store:
            store.add(found.measurements.values())
            for (key, identity), parts in found.parts.items():
                if identity in found.environments and store.find(key, found.environments[identity]) is None:
                    store.save_unfinished({key: parts}, found.environments[identity])
            kept = store.count()
    except BaseException:
        for copy in (*aside, unfinished, *(beside(unfinished, suffix) for suffix in _COMPANIONS)):
            copy.unlink(missing_ok=True)
        raise
    # The log goes first: beside the new database it would be taken for that one's.
    for suffix in _COMPANIONS:
        beside(path, suffix).unlink(missing_ok=True)
    os.replace(unfinished, path)
    return Repair(path, kept, tuple(found.lost), found.rebuilt, tuple(aside))
