"""The measurement database: SQLite in WAL mode, one row a measurement, safe under kills and several writers.

``Store.open(path)`` creates or opens it; a file that is not a store of this program is refused and left untouched.
Results are found by the work's key and the environment's identity (device name, driver, library versions, harness), so
a figure from another driver never stands for one from this. ``part`` holds the samples of what is being timed, so that
a kill loses at most the burst in flight.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.errors import InputError
from shapes.measure.environment import Environment
from shapes.measure.record import Measurement

Array = NDArray[np.float64]

#: In the file's header (bytes 68..71): "SIZR". Files of other programs have another number or none.
APPLICATION_ID = 0x53495A52
_MAGIC = b"SQLite format 3\0"
#: How long a writer waits for another's transaction; each lasts about a millisecond.
_BUSY_S = 60.0

#: ``MIGRATIONS[i]`` takes a database from schema version i to i + 1. Append; never edit one that was released.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE environment (identity TEXT PRIMARY KEY, device TEXT NOT NULL, data TEXT NOT NULL);
    CREATE TABLE measurement (
        id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, key TEXT NOT NULL, identity TEXT NOT NULL,
        device TEXT NOT NULL, uuid TEXT, driver TEXT, torch TEXT, harness INTEGER NOT NULL,
        kind TEXT NOT NULL, phase TEXT, dtype TEXT, layout TEXT, kernel TEXT, batch INTEGER, m INTEGER, n INTEGER,
        k INTEGER, status TEXT NOT NULL, seconds REAL, low REAL, high REAL, samples BLOB NOT NULL,
        label TEXT NOT NULL, created REAL NOT NULL, data TEXT NOT NULL);
    CREATE INDEX measurement_by_key ON measurement (key, identity, created);
    """,
    """
    CREATE TABLE part (
        key TEXT NOT NULL, identity TEXT NOT NULL, samples BLOB NOT NULL, controls BLOB NOT NULL,
        PRIMARY KEY (key, identity));
    """,
)
SCHEMA_VERSION = len(MIGRATIONS)


def default_path() -> Path:
    """SIZER_STORE, else ``measurements.db`` in the user's cache folder."""
    named = os.environ.get("SIZER_STORE")
    if named:
        return Path(named)
    from platformdirs import user_cache_path

    return user_cache_path("sizer") / "measurements.db"


class Store:
    """An open database. Use it as a context manager; every method commits before it returns."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self.path = path

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None = None, *, create: bool = True) -> Store:
        """The store at ``path`` (None: ``default_path()``), created if missing and brought to the newest schema.

        InputError for what is no store, damaged, of a newer schema, not readable, or (``create=False``) missing.
        """
        place = Path(path) if path is not None else default_path()
        where = str(place)
        try:
            if not place.exists():
                if not create:
                    raise InputError("expected an existing store", where=where)
                _create(place)
            _refuse_foreign(place)
            connection = sqlite3.connect(place, timeout=_BUSY_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise InputError(f"cannot open the store ({error})", where=where) from None
        try:
            _prepare(connection, where)
        except sqlite3.Error as error:
            connection.close()
            raise InputError(
                f"the store is damaged or locked ({error}); move it away to start anew", where=where
            ) from None
        except InputError:
            connection.close()
            raise
        return cls(connection, place)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def add(self, measurements: Iterable[Measurement]) -> int:
        """Write ``measurements`` and drop their unfinished parts, all or none; returns how many were new (by uid)."""
        added = 0
        with self._transaction() as connection:
            for one in measurements:
                environment = one.environment
                connection.execute(
                    "INSERT OR IGNORE INTO environment VALUES (?, ?, ?)",
                    (environment.identity, environment.device, json.dumps(environment.to_dict(), sort_keys=True)),
                )
                cursor = connection.execute(_INSERT, _values(one))
                added += cursor.rowcount
                connection.execute("DELETE FROM part WHERE key = ? AND identity = ?", (one.key, environment.identity))
        return added

    def find(self, key: str, environment: Environment) -> Measurement | None:
        """The newest measurement of this work in this environment, if any (whatever its outcome)."""
        row = self._connection.execute(
            f"{_SELECT} WHERE key = ? AND identity = ? ORDER BY created DESC, id DESC LIMIT 1",
            (key, environment.identity),
        ).fetchone()
        return _measurement(row) if row is not None else None

    def measurements(
        self, *, kind: str | None = None, device: str | None = None, label: str | None = None,
        status: str | None = None, newest: int | None = None,
    ) -> Iterator[Measurement]:  # fmt: skip
        """Measurements in the order they were made; ``device`` and ``label`` match any part of the text."""
        clauses, values = _where(kind=kind, device=device, label=label, status=status)
        order = "ORDER BY created, id"
        query = f"{_SELECT} {clauses} {order}"
        if newest is not None:
            inner = f"SELECT id FROM measurement {clauses} ORDER BY created DESC, id DESC LIMIT ?"
            query = f"{_SELECT} WHERE id IN ({inner}) {order}"
            values = (*values, newest)
        for row in self._connection.execute(query, values):
            yield _measurement(row)

    def count(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM measurement").fetchone()[0])

    def save_parts(self, parts: Mapping[str, tuple[Array, Array]], environment: Environment) -> None:
        """Keep (samples, control samples) taken so far, by the key of what is being timed."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO part VALUES (?, ?, ?, ?)",
                [(key, environment.identity, _blob(own), _blob(control)) for key, (own, control) in parts.items()],
            )

    def part(self, key: str, environment: Environment) -> tuple[Array, Array] | None:
        """(samples, control samples) that an interrupted run left of this work, if any."""
        row = self._connection.execute(
            "SELECT samples, controls FROM part WHERE key = ? AND identity = ?", (key, environment.identity)
        ).fetchone()
        return (_array(row[0]), _array(row[1])) if row is not None else None

    def merge(self, other: Store) -> int:
        """Add what ``other`` has and this has not; returns how many. Doing it twice adds nothing."""
        return self.add(other.measurements())

    def prune(
        self, *, older_than_s: float | None = None, failed: bool = False, superseded: bool = False,
        identity_other_than: str | None = None,
    ) -> int:  # fmt: skip
        """Delete measurements older than that many seconds, that failed, that a newer one of the same work and

        environment supersedes, or of another environment than the one named; returns how many rows went.
        """
        removed = 0
        with self._transaction() as connection:
            if older_than_s is not None:
                removed += connection.execute(
                    "DELETE FROM measurement WHERE created < ?", (time.time() - older_than_s,)
                ).rowcount
            if failed:
                removed += connection.execute("DELETE FROM measurement WHERE status != 'ok'").rowcount
            if superseded:
                removed += connection.execute(
                    "DELETE FROM measurement WHERE id NOT IN (SELECT id FROM (SELECT id, row_number() OVER "
                    "(PARTITION BY key, identity ORDER BY created DESC, id DESC) AS place FROM measurement) "
                    "WHERE place = 1)"
                ).rowcount
            if identity_other_than is not None:
                removed += connection.execute(
                    "DELETE FROM measurement WHERE identity != ?", (identity_other_than,)
                ).rowcount
            connection.execute("DELETE FROM environment WHERE identity NOT IN (SELECT identity FROM measurement)")
        return removed


_SELECT = "SELECT measurement.data, samples, environment.data FROM measurement JOIN environment USING (identity)"
_COLUMNS = (
    "uid", "key", "identity", "device", "uuid", "driver", "torch", "harness", "kind", "phase", "dtype", "layout",
    "kernel", "batch", "m", "n", "k", "status", "seconds", "low", "high", "samples", "label", "created", "data",
)  # fmt: skip
_INSERT = f"INSERT OR IGNORE INTO measurement ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"


def _values(one: Measurement) -> tuple[Any, ...]:
    row = one.row(samples=False)
    row.pop("environment")
    environment = one.environment
    columns = {
        **{name: row.get(name) for name in _COLUMNS},
        "key": one.key, "identity": environment.identity, "uuid": environment.uuid, "driver": environment.driver,
        "harness": environment.harness, "samples": _blob(one.samples),
        "data": json.dumps({**row, "uuid": environment.uuid}, sort_keys=True),
    }  # fmt: skip
    return tuple(columns[name] for name in _COLUMNS)


def _measurement(row: tuple[str, bytes, str]) -> Measurement:
    data, environment = json.loads(row[0]), json.loads(row[2])
    # The identity leaves out which card it was; the row has it.
    environment["uuid"] = data.pop("uuid", environment.get("uuid"))
    return Measurement.from_row({**data, "environment": environment, "samples": _array(row[1]).tolist()})


def _blob(values: NDArray[np.float64]) -> bytes:
    return np.asarray(values, dtype="<f8").tobytes()


def _array(blob: bytes) -> NDArray[np.float64]:
    return np.frombuffer(blob, dtype="<f8").astype(np.float64)


def _where(
    *, kind: str | None, device: str | None, label: str | None, status: str | None
) -> tuple[str, tuple[object, ...]]:
    clauses: list[str] = []
    values: list[object] = []
    for column, value in (("kind", kind), ("status", status)):
        if value is not None:
            clauses.append(f"{column} = ?")
            values.append(value)
    for column, value in (("device", device), ("label", label)):
        if value is not None:
            clauses.append(f"instr(lower(measurement.{column}), lower(?)) > 0")
            values.append(value)
    return (f"WHERE {' AND '.join(clauses)}" if clauses else ""), tuple(values)


def _create(place: Path) -> None:
    """Make an empty store aside and link it into place: a kill leaves no half-made file under its name."""
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = place.with_name(f".{place.name}.{os.getpid()}.new")
    aside.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(aside, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            _migrate(connection, 0)
        try:
            os.link(aside, place)
        except FileExistsError:
            pass  # another process was faster; its store is as good
        except OSError:  # a file system without hard links
            if not place.exists():
                os.replace(aside, place)
    finally:
        aside.unlink(missing_ok=True)


def _refuse_foreign(place: Path) -> None:
    """InputError unless the header is SQLite's with this program's number; reads 100 bytes and opens nothing else."""
    if not place.is_file():
        raise InputError("expected a file", where=str(place))
    with open(place, "rb") as file:
        header = file.read(100)
    if not header.startswith(_MAGIC) or len(header) < 100:
        raise InputError("expected a measurement store of sizer, found another kind of file", where=str(place))
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise InputError("expected a measurement store of sizer, found another program's database", where=str(place))


def _prepare(connection: sqlite3.Connection, where: str) -> None:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA_VERSION:
        raise InputError(
            f"expected schema version {SCHEMA_VERSION} or older: a newer sizer made this store", where=where,
            key="schema version", value=version,
        )  # fmt: skip
    problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise InputError(f"the store is damaged ({problem}); move it away to start anew", where=where)
    # WAL: readers do not wait for writers. NORMAL survives every kill of a process; only a power cut can lose the last
    # measurements, and none of them half.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    if version < SCHEMA_VERSION:
        _migrate(connection, version)


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have migrated while this one waited for the lock.
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        for number in range(version, SCHEMA_VERSION):
            for statement in MIGRATIONS[number].split(";"):
                if statement.strip():
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number + 1}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def read_export(lines: Iterable[str], where: str) -> Iterator[Measurement]:
    """Measurements from an exported JSONL; InputError naming the line that is none."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row: Mapping[str, Any] = json.loads(line)
            one = Measurement.from_row(row)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"expected a measurement exported by `sizer store export` ({error!r})", where=f"{where}, line {number}"
            ) from None
        yield one
