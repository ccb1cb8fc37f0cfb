"""The measurement database: SQLite in WAL mode, one row a measurement, safe under kills and several writers.

``Store.open(path)`` creates or opens it; a file that is not a store of this program is refused and left untouched.
Results are found by the work's key and the environment's identity (device name, driver, library versions, harness), so
a figure from another driver never stands for one from this. ``part`` holds the samples of what is being timed, so that
a kill loses at most the round in flight; ``claim`` (``claims.py``) says who is at work on what.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.errors import InputError
from shapes.measure import store_file
from shapes.measure.environment import Environment
from shapes.measure.record import Measurement
from shapes.measure.store_file import APPLICATION_ID, DamagedStoreError, copied, damaged, log_is_damaged, refuse_foreign

Array = NDArray[np.float64]

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
    """
    CREATE TABLE claim (
        key TEXT NOT NULL, identity TEXT NOT NULL, owner TEXT NOT NULL, host TEXT NOT NULL, process INTEGER NOT NULL,
        until REAL NOT NULL, PRIMARY KEY (key, identity));
    """,
)
SCHEMA_VERSION = len(MIGRATIONS)
_NOT_WRITABLE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
#: How a limit on the size of files (EFBIG) or a quota shows.
_NO_ROOM = (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMOPEN)
#: Reading makes files beside the database, too: where it cannot, a copy is read.
_READ_ASIDE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL)
#: A schema version that no release will reach is damage.
_LARGEST_VERSION = 1000


def default_path() -> Path:
    """SIZER_STORE, else ``measurements.db`` in the user's cache folder."""
    named = os.environ.get("SIZER_STORE")
    if named:
        return Path(named)
    from platformdirs import user_cache_path

    return user_cache_path("sizer") / "measurements.db"


class Store:
    """An open database. Use it as a context manager; every method commits before it returns.

    What goes wrong while it is used (a full disk, damage, another writer that does not end) is an InputError that says
    what to do.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, held: ExitStack | None = None) -> None:
        self._connection = connection
        self._held = held or ExitStack()
        self.path = path

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None = None, *, create: bool = True, write: bool = True) -> Store:
        """The store at ``path`` (None: ``default_path()``), created if missing and brought to the newest schema.

        ``write=False`` reads only, also where nothing can be written. InputError for what is no store, damaged, of a
        newer schema, not readable, (``write``) not writable, or (``create=False``) missing.
        """
        place = Path(path) if path is not None else default_path()
        where = str(place)
        try:
            if not place.exists():
                if not create:
                    raise InputError("expected an existing store", where=where)
                store_file.create(place, _empty())
            refuse_foreign(place)
            if log_is_damaged(place):
                raise damaged(place, "its log")
            return cls._connect(place, place, ExitStack(), write)
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0)
            if write or (code & 0xFF not in _READ_ASIDE and code not in _NO_ROOM):
                raise _trouble(error, place) from None
        except (OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"cannot open the store ({error})", where=where) from None
        held = ExitStack()
        try:
            return cls._connect(held.enter_context(copied(place)), place, held, write)
        except (OSError, sqlite3.Error) as error:
            held.close()
            raise InputError(f"cannot open the store ({error})", where=where) from None

    @classmethod
    def _connect(cls, place: Path, named: Path, held: ExitStack, write: bool) -> Store:
        connection = sqlite3.connect(place, timeout=_BUSY_S, isolation_level=None)
        try:
            _prepare(connection, named, write)
        except BaseException:
            connection.close()
            raise
        return cls(connection, named, held)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()
        self._held.close()

    @contextmanager
    def _guarded(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._connection
        except sqlite3.Error as error:
            raise _trouble(error, self.path) from None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything done with what this yields, or nothing; no other process writes meanwhile."""
        with self._guarded():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk has rolled it back already
                    self._connection.execute("ROLLBACK")
                raise

    def add(self, measurements: Iterable[Measurement]) -> int:
        """Write ``measurements``, all or none, and drop their unfinished samples and claims; returns how many were new.

        One that goes on from another, whose samples its own begin with, stands in that one's place: no sample counts
        twice.
        """
        added = 0
        with self.transaction() as connection:
            for one in measurements:
                environment = one.environment
                connection.execute(
                    "INSERT OR IGNORE INTO environment VALUES (?, ?, ?)",
                    (environment.identity, environment.device, json.dumps(environment.to_dict(), sort_keys=True)),
                )
                work = (one.key, environment.identity, _blob(one.samples))
                if connection.execute(_GOES_ON, work).fetchone() is None:
                    connection.execute(_BEGINS, work)
                    added += connection.execute(_INSERT, _values(one)).rowcount
                for table in ("part", "claim"):
                    connection.execute(f"DELETE FROM {table} WHERE key = ? AND identity = ?", work[:2])
        return added

    def change(self, statement: str, *values: object) -> None:
        """One statement of SQL, committed."""
        with self.transaction() as connection:
            connection.execute(statement, values)

    def find(self, key: str, environment: Environment) -> Measurement | None:
        """The newest measurement of this work in this environment, if any (whatever its outcome)."""
        with self._guarded() as connection:
            row = connection.execute(
                f"{_SELECT} WHERE key = ? AND identity = ? ORDER BY created DESC, id DESC LIMIT 1",
                (key, environment.identity),
            ).fetchone()
        return self._measurement(row) if row is not None else None

    def measurements(
        self,
        *,
        kind: str | None = None,
        device: str | None = None,
        label: str | None = None,
        status: str | None = None,
        newest: int | None = None,
    ) -> Iterator[Measurement]:
        """Measurements in the order they were made; ``device`` and ``label`` match any part of the text."""
        clauses, values = _where(kind=kind, device=device, label=label, status=status)
        order = "ORDER BY created, id"
        query = f"{_SELECT} {clauses} {order}"
        if newest is not None:
            inner = f"SELECT id FROM measurement {clauses} ORDER BY created DESC, id DESC LIMIT ?"
            query = f"{_SELECT} WHERE id IN ({inner}) {order}"
            values = (*values, newest)
        with self._guarded() as connection:
            for row in connection.execute(query, values):
                yield self._measurement(row)

    def count(self) -> int:
        with self._guarded() as connection:
            return int(connection.execute("SELECT count(*) FROM measurement").fetchone()[0])

    def is_whole(self) -> bool:
        """Whether every page and every row is as it was written."""
        try:
            with self._guarded() as connection:
                problem = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
                for row in connection.execute("SELECT samples, controls FROM part"):
                    samples_of(row[0]), samples_of(row[1])
                orphans = connection.execute(
                    "SELECT count(*) FROM measurement WHERE identity NOT IN (SELECT identity FROM environment)"
                ).fetchone()[0]
            return problem == "ok" and orphans == 0 and sum(1 for _ in self.measurements()) == self.count()
        except (DamagedStoreError, ValueError, TypeError):
            return False

    def _measurement(self, row: tuple[str, bytes, str]) -> Measurement:
        try:
            return measurement_of(row[0], row[1], Environment.from_dict(json.loads(row[2])))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise damaged(self.path, f"a measurement of it: {type(error).__name__}") from None

    def save_unfinished(self, unfinished: Mapping[str, tuple[Array, Array]], environment: Environment) -> None:
        """Keep (samples, control samples) taken so far, by the key of what is being timed."""
        with self.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO part VALUES (?, ?, ?, ?)",
                [(key, environment.identity, _blob(own), _blob(control)) for key, (own, control) in unfinished.items()],
            )

    def unfinished(self, key: str, environment: Environment) -> tuple[Array, Array] | None:
        """(samples, control samples) that an interrupted run left of this work, if any."""
        with self._guarded() as connection:
            row = connection.execute(
                "SELECT samples, controls FROM part WHERE key = ? AND identity = ?", (key, environment.identity)
            ).fetchone()
        try:
            return (samples_of(row[0]), samples_of(row[1])) if row is not None else None
        except (TypeError, ValueError):
            return None  # damaged: it is taken anew

    def merge(self, other: Store) -> int:
        """Add what ``other`` has and this has not; returns how many. Doing it twice adds nothing."""
        return self.add(other.measurements())

    def prune(
        self,
        *,
        older_than_s: float | None = None,
        failed: bool = False,
        superseded: bool = False,
        identity_other_than: str | None = None,
    ) -> int:
        """Delete measurements older than that many seconds, that failed, that a newer one of the same work and

        environment supersedes, or of another environment than the one named; returns how many rows went.
        """
        removed = 0
        with self.transaction() as connection:
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
COLUMNS = (
    "uid",
    "key",
    "identity",
    "device",
    "uuid",
    "driver",
    "torch",
    "harness",
    "kind",
    "phase",
    "dtype",
    "layout",
    "kernel",
    "batch",
    "m",
    "n",
    "k",
    "status",
    "seconds",
    "low",
    "high",
    "samples",
    "label",
    "created",
    "data",
)
#: Ends a row's JSON: SQLite keeps no checksums, and a damaged figure must not pass for a measured one.
_CHECKSUM = ', "checksum": '
#: Of one work in one environment: rows whose samples begin with these and go on, and rows that these begin with.
_OTHERS = "FROM measurement WHERE key = ?1 AND identity = ?2 AND length(samples) > 0 AND length(?3) > 0"
_GOES_ON = f"SELECT 1 {_OTHERS} AND length(samples) > length(?3) AND substr(samples, 1, length(?3)) = ?3"
_BEGINS = f"DELETE {_OTHERS} AND length(samples) < length(?3) AND samples = substr(?3, 1, length(samples))"
_INSERT = f"INSERT OR IGNORE INTO measurement ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"


def _values(one: Measurement) -> tuple[Any, ...]:
    environment, samples = one.environment, _blob(one.samples)
    row = {**one.row(samples=False), "uuid": environment.uuid}
    row.pop("environment")
    text = json.dumps(row, sort_keys=True).removesuffix("}")
    columns = {
        **{name: row.get(name) for name in COLUMNS},
        "key": one.key,
        "identity": environment.identity,
        "uuid": environment.uuid,
        "driver": environment.driver,
        "harness": environment.harness,
        "samples": samples,
        "data": f"{text}{_CHECKSUM}{_checksum(text, samples)}}}",
    }
    return tuple(columns[name] for name in COLUMNS)


def measurement_of(data: str, samples: bytes, environment: Environment) -> Measurement:
    """A measurement from its row; KeyError, TypeError, ValueError … where that is not as it was written."""
    text, mark, checksum = data.rpartition(_CHECKSUM)
    if mark and int(checksum.removesuffix("}")) != _checksum(text, samples):
        raise ValueError("the checksum does not hold")
    row = json.loads(f"{text}}}" if mark else data)  # rows of before 0.2 have none
    # The identity leaves out which card it was; the row has it.
    environment = replace(environment, uuid=row.pop("uuid", environment.uuid))
    return Measurement.from_row({**row, "environment": environment.to_dict(), "samples": samples_of(samples).tolist()})


def _checksum(text: str, samples: bytes) -> int:
    return zlib.crc32(samples, zlib.crc32(text.encode()))


def _blob(values: NDArray[np.float64]) -> bytes:
    return np.asarray(values, dtype="<f8").tobytes()


def samples_of(blob: Any) -> Array:
    """Samples from how they are stored; ValueError or TypeError where they are damaged."""
    return np.frombuffer(blob, dtype="<f8").astype(np.float64)


def _where(
    *, kind: str | None, device: str | None, label: str | None, status: str | None
) -> tuple[str, tuple[object, ...]]:
    clauses: list[str] = []
    values: list[object] = []
    for column, value in (("kind", kind), ("status", status), ("device", device), ("label", label)):
        if value is not None and not value.isprintable():
            raise InputError("expected printable text", key=column, value=value)
    for column, value in (("kind", kind), ("status", status)):
        if value is not None:
            clauses.append(f"{column} = ?")
            values.append(value)
    for column, value in (("device", device), ("label", label)):
        if value is not None:
            clauses.append(f"instr(lower(measurement.{column}), lower(?)) > 0")
            values.append(value)
    return (f"WHERE {' AND '.join(clauses)}" if clauses else ""), tuple(values)


def _empty() -> bytes:
    """A new database's file."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        _migrate(connection, 0)
        return connection.serialize()


def _trouble(error: sqlite3.Error, place: Path) -> InputError:
    """One line that says what to do, and never to move one of the store's files without the others."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or getattr(error, "sqlite_errorcode", 0) in _NO_ROOM:
        say = "the disk is full (or a limit on files is reached): what was stored is kept; make room and start again"
    elif code in _NOT_WRITABLE:
        say = f"cannot be written ({error}): name another with --store or SIZER_STORE"
    elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        say = f"another process has been writing for {_BUSY_S:.0f} s ({error}): start again when it has ended"
    elif code == sqlite3.SQLITE_IOERR:
        say = f"the disk does not answer ({error}): what was stored is kept"
    else:
        return damaged(place, error)
    return InputError(say, where=str(place))


def _prepare(connection: sqlite3.Connection, place: Path, write: bool) -> None:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if SCHEMA_VERSION < version < _LARGEST_VERSION:
        raise InputError(
            f"expected schema version {SCHEMA_VERSION} or older: a newer sizer made this store",
            where=str(place),
            key="schema version",
            value=version,
        )
    problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok" or not 0 < version < _LARGEST_VERSION:
        raise damaged(place, problem)
    if not write:
        connection.execute("PRAGMA query_only = ON")
        return
    # WAL: readers do not wait for writers. NORMAL survives every kill of a process; only a power cut can lose the last
    # measurements, and none of them half.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    if version < SCHEMA_VERSION:
        _migrate(connection, version)
    # Writing what is there already: a full disk or a read-only file is told before anything is measured.
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


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
