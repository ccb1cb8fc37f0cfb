"""The measurement database: SQLite in WAL mode, one row a measurement, safe under kills and several writers.

``Store.open(path)`` creates or opens it; a file that is not a store of this program is refused and left untouched. A
command that measures sets a damaged store aside and goes on with a new one: its content can be measured again.
Results are found by the work's key and the environment's identity (device name, driver, library versions, harness), so
that figures from two drivers are never mixed. ``part`` holds the samples of jobs that are being timed, so that a kill
loses at most the round in flight. One process at a time measures into a store; others may read it.
"""

import json
import logging
import os
import shlex
import sqlite3
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from shapes.errors import AnyPath, InputError, refuse
from shapes.frozen import given

from .environment import Environment
from .record import Measurement
from .stats import Array

LOG = logging.getLogger(__name__)

#: In the database's header: "SIZR". Files of other programs have another number or none.
APPLICATION_ID = 0x53495A52
#: The database, its write-ahead log, the log's index: they only mean something together.
_SUFFIXES = ("", "-wal", "-shm", "-journal")
#: Bytes of a database's header; a shorter file is none.
_SMALLEST = 100
#: How often a file that seems no database is looked at again, and after how long: a checkpoint moves its header.
_LOOKS, _LOOK_S = 5, 0.02

#: How long a writer waits for another's transaction; each lasts about a millisecond.
_BUSY_S = 60.0

#: Kept in the database's header. A store of another version is set aside as a damaged one is.
SCHEMA_VERSION = 3
_SCHEMA = f"""
    CREATE TABLE environment (identity TEXT PRIMARY KEY, device TEXT NOT NULL, data TEXT NOT NULL);
    CREATE TABLE measurement (
        id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, key TEXT NOT NULL, identity TEXT NOT NULL,
        device TEXT NOT NULL, uuid TEXT, driver TEXT, torch TEXT, harness INTEGER NOT NULL,
        kind TEXT NOT NULL, phase TEXT, dtype TEXT, layout TEXT, kernel TEXT, batch INTEGER, m INTEGER, n INTEGER,
        k INTEGER, status TEXT NOT NULL, seconds REAL, low REAL, high REAL, samples BLOB NOT NULL,
        label TEXT NOT NULL, created REAL NOT NULL, data TEXT NOT NULL);
    CREATE INDEX measurement_by_key ON measurement (key, identity, created);
    CREATE TABLE part (
        key TEXT NOT NULL, identity TEXT NOT NULL, samples BLOB NOT NULL, controls BLOB NOT NULL,
        PRIMARY KEY (key, identity));
    PRAGMA user_version = {SCHEMA_VERSION};
    PRAGMA application_id = {APPLICATION_ID};
"""
_NOT_WRITABLE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
#: How a limit on the size of files (EFBIG) or a quota shows.
_NO_ROOM = (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMOPEN)


def default_path() -> Path:
    """SIZER_STORE, else ``measurements.db`` in the user's cache folder."""
    if named := os.environ.get("SIZER_STORE"):
        return Path(named)
    try:
        from platformdirs import user_cache_path
    except ImportError:  # where one measures there may be little more than torch
        return Path.home() / ".cache" / "sizer" / "measurements.db"
    return user_cache_path("sizer") / "measurements.db"


class DamagedStoreError(InputError):
    """A store of this program that cannot be read."""


class Store(ExitStack):
    """An open database. Use it as a context manager; every method commits before it returns.

    A failure while it is used (a full disk, damage, another writer that does not end) is an InputError that says what
    to do.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        super().__init__()
        self._connection = connection
        self.callback(connection.close)
        self.path = path
        self._inode = _inode(path)

    @classmethod
    def open(
        cls, path: AnyPath | None = None, *, create: bool = True, write: bool = True, measuring: bool = False
    ) -> "Store":
        """The store at ``path`` (None: ``default_path()``), created if missing.

        ``write=False`` changes no row. ``measuring``: a damaged store is renamed, which
        is logged, and a new one is opened; no other process measures into it. InputError for what is no store, damaged,
        of another schema, not to be opened, (``measuring``) in use, (``create=False``) missing.
        """
        place = Path(path) if path is not None else default_path()
        try:
            opened = cls._open(place, create, write)
        except DamagedStoreError:
            if not measuring:
                raise
            moved = _move_aside(place)
            LOG.warning(
                "sizer: the store was damaged and is now %s: measuring goes on with a new one; `sqlite3 %s .recover` "
                "writes what can be read of the old one",
                moved,
                shlex.quote(str(moved)),
            )
            opened = cls._open(place, create, write)
        except InputError:
            raise
        except (OSError, ValueError) as error:
            raise InputError(f"cannot open the store ({error})", where=str(place)) from None
        if measuring:
            opened._lock()
        return opened

    @classmethod
    def in_memory(cls) -> "Store":
        """One that ends with its process."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.executescript(_SCHEMA)
        return cls(connection, Path(":memory:"))

    @classmethod
    def _open(cls, place: Path, create: bool, write: bool) -> "Store":
        try:
            if not place.exists():
                refuse(not create, "expected an existing store", where=str(place))
                _create(place)
            _refuse_foreign(place)
            store = cls(sqlite3.connect(place, timeout=_BUSY_S, isolation_level=None), place)
            try:
                _prepare(store._connection, place, write)
            except BaseException:
                store.close()
                raise
            return store
        except sqlite3.Error as error:
            raise _trouble(error, place) from None

    def _lock(self) -> None:
        """Until it is closed, however its process ends, no other measures into this store."""
        # SQLite's own lock on an empty database: every system has it, and lets go of it with the process.
        lock = sqlite3.connect(_companion(self.path, "-lock"), timeout=0, isolation_level=None)
        self.callback(lock.close)
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            self.close()
            raise InputError(
                "another process measures into this store: wait for it, or name another with --store (`sizer store "
                "import` joins what both export)",
                where=str(self.path),
            ) from None

    @contextmanager
    def _guarded(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._connection
        except sqlite3.Error as error:
            raise _trouble(error, self.path) from None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything done with what this yields, or nothing; no other process writes meanwhile."""
        refuse(
            _inode(self.path) != self._inode,
            "was moved or replaced while it was in use: start again",
            where=str(self.path),
        )
        with self._guarded(), self._connection as connection:  # which commits, or rolls back
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    def add(self, measurements: Iterable[Measurement]) -> int:
        """Write ``measurements``, all or none, and drop their unfinished samples; returns how many were new.

        A measurement that begins with all samples of another one replaces it, so that no sample counts twice.
        """
        added = 0
        with self.transaction() as connection:
            for one in measurements:
                environment = one.environment
                connection.execute(
                    "INSERT OR IGNORE INTO environment VALUES (?, ?, ?)",
                    (environment.identity, environment.device, json.dumps(environment.to_dict(), sort_keys=True)),
                )
                work = one.key, environment.identity, _blob(one.samples)
                if connection.execute(_GOES_ON, work).fetchone() is None:
                    connection.execute(_BEGINS, work)
                    added += _insert(connection, one)
                connection.execute("DELETE FROM part WHERE key = ? AND identity = ?", work[:2])
        return added

    def find(self, key: str, environment: Environment) -> Measurement | None:
        """The newest measurement of this work in this environment, if any (whatever its outcome).

        One that cannot be read is as if it were not there: it is made again.
        """
        with self._guarded() as connection:
            query = f"{_SELECT} WHERE key = ? AND identity = ? ORDER BY created DESC, id DESC LIMIT 1"
            row = connection.execute(query, (key, environment.identity)).fetchone()
        return row and _readable(row)

    def measurements(self, *, newest: int | None = None, **of: str | None) -> Iterator[Measurement]:
        """Measurements in the order they were made, the ``newest`` so many.

        ``of`` a kind, status, device or label: of the latter two any part of the text.
        """
        clauses, values = _where(of)
        chosen = f"SELECT id FROM measurement {clauses} ORDER BY created DESC, id DESC LIMIT ?"
        query = f"{_SELECT} WHERE id IN ({chosen}) ORDER BY created, id"
        with self._guarded() as connection:
            for row in connection.execute(query, (*values, -1 if newest is None else newest)):
                one = _readable(row)
                if not one:
                    raise InputError("a measurement was damaged: `sizer store prune` deletes it", where=str(self.path))
                yield one

    def count(self) -> int:
        with self._guarded() as connection:
            return int(connection.execute("SELECT count(*) FROM measurement").fetchone()[0])

    def save_unfinished(self, unfinished: Mapping[str, tuple[Array, Array]], environment: Environment) -> None:
        """Keep (samples, control samples) taken so far, by the key of the job."""
        with self.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO part VALUES (?, ?, ?, ?)",
                [(key, environment.identity, _blob(own), _blob(control)) for key, (own, control) in unfinished.items()],
            )

    def unfinished(self, keys: Iterable[str], environment: Environment) -> dict[str, tuple[Array, Array]]:
        """(samples, control samples) that an interrupted run left of each of ``keys``, where it left some."""
        found = {}
        with self._guarded() as connection:
            for key in keys:
                row = connection.execute(
                    "SELECT samples, controls FROM part WHERE key = ? AND identity = ?", (key, environment.identity)
                ).fetchone()
                if row is not None:
                    with suppress(TypeError, ValueError):  # damaged: it is taken anew
                        found[key] = _samples_of(row[0]), _samples_of(row[1])
        return found

    def prune(self) -> int:
        """Delete measurements that failed or cannot be read; returns how many rows went."""
        with self.transaction() as connection:
            rows = connection.execute(_SELECT.replace("SELECT", "SELECT id, status,", 1)).fetchall()
            gone = [(id_,) for id_, status, *row in rows if status != "ok" or not _readable(row)]
            connection.executemany("DELETE FROM measurement WHERE id = ?", gone)
            connection.execute("DELETE FROM environment WHERE identity NOT IN (SELECT identity FROM measurement)")
        return len(gone)


_SELECT = "SELECT measurement.data, samples, environment.data FROM measurement JOIN environment USING (identity)"
#: Ends a row's JSON: SQLite keeps no checksums, and a damaged figure must not pass for a measured one.
_CHECKSUM = ', "checksum": '
#: Rows of one job in one environment: those whose samples begin with these and go on, and those that these begin with.
_OTHERS = "FROM measurement WHERE key = ?1 AND identity = ?2 AND length(samples) > 0 AND length(?3) > 0"
_GOES_ON = f"SELECT 1 {_OTHERS} AND length(samples) > length(?3) AND substr(samples, 1, length(?3)) = ?3"
_BEGINS = f"DELETE {_OTHERS} AND length(samples) < length(?3) AND samples = substr(?3, 1, length(samples))"


def _insert(connection: sqlite3.Connection, one: Measurement) -> int:
    """Write ``one`` unless it is there; returns how many rows that made."""
    environment, samples = one.environment, _blob(one.samples)
    row = {**one.row(samples=False), "uuid": environment.uuid}
    row.pop("environment")
    text = json.dumps(row, sort_keys=True).removesuffix("}")
    values = {
        **row,
        "key": one.key,
        "identity": environment.identity,
        "driver": environment.driver,
        "harness": environment.harness,
        "samples": samples,
        "data": f"{text}{_CHECKSUM}{_checksum(text, samples)}}}",
    }
    _, *columns = (column[1] for column in connection.execute("PRAGMA table_info(measurement)"))
    named = ", ".join(f":{name}" for name in columns)
    statement = f"INSERT OR IGNORE INTO measurement ({', '.join(columns)}) VALUES ({named})"
    return connection.execute(statement, values).rowcount


def _readable(row: Iterable[Any]) -> Measurement | None:
    """The measurement of a row of _SELECT; None where it is not as it was written."""
    data, samples, environment = row
    with suppress(KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        text, _, checksum = data.rpartition(_CHECKSUM)
        if int(checksum.removesuffix("}")) == _checksum(text, samples):
            said = json.loads(f"{text}}}")
            # The identity leaves out which card it was; the row has it.
            found = {**json.loads(environment), "uuid": said.pop("uuid")}
            return Measurement.from_row({**said, "environment": found, "samples": _samples_of(samples).tolist()})
    return None


def _checksum(text: str, samples: bytes) -> int:
    return zlib.crc32(samples, zlib.crc32(text.encode()))


def _blob(values: Array) -> bytes:
    return np.asarray(values, dtype="<f8").tobytes()


def _samples_of(blob: Any) -> Array:
    """Samples from how they are stored; ValueError or TypeError where they are damaged."""
    return np.frombuffer(blob, dtype="<f8").astype(np.float64)


def _where(columns: Mapping[str, str | None]) -> tuple[str, tuple[object, ...]]:
    asked = given(columns)
    for column, value in asked.items():
        refuse(not value.isprintable(), "expected printable text", column, value)
    clauses = (
        f"{column} = ?" if column in ("kind", "status") else f"instr(lower(measurement.{column}), lower(?)) > 0"
        for column in asked
    )
    return f"WHERE {' AND '.join(clauses)}" * bool(asked), tuple(asked.values())


def _companion(place: Path, suffix: str) -> Path:
    return place.with_name(place.name + suffix)


def _inode(place: Path) -> int | None:
    """The number of the file at ``place``; None where there is none."""
    with suppress(OSError):
        return place.stat().st_ino
    return None


def _create(place: Path) -> None:
    """Put a new database into place, whole or not at all; another process that is faster wins.

    InputError next to the log of a database that is gone: SQLite would take it for the new one's.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    log = _companion(place, "-wal")
    refuse(
        log.exists() and log.stat().st_size and not place.exists(),
        f"{log.name} holds measurements of a store that was moved away without it: move it along (under that "
        "store's name + -wal), or away",
        where=str(place),
    )
    aside = place.with_name(f".{place.name}.{uuid.uuid4().hex}.new")
    try:
        with Store.in_memory() as store:
            aside.write_bytes(store._connection.serialize())
        try:
            os.link(aside, place)
        except OSError:  # a file system without hard links, or another process was faster: its store is as good
            if not place.exists():
                os.replace(aside, place)
    finally:
        aside.unlink(missing_ok=True)


def _move_aside(place: Path) -> Path:
    """Rename a damaged database with its log, so that SQLite's shell finds both; returns the database's new name."""
    mark = f".damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    for suffix in _SUFFIXES:
        with suppress(FileNotFoundError):
            os.replace(_companion(place, suffix), _companion(place, mark + suffix))
    return _companion(place, mark)


def _damaged(place: Path, why: object) -> DamagedStoreError:
    named = shlex.quote(str(place))
    return DamagedStoreError(
        f"the store is damaged ({why}): `sqlite3 {named} .recover` writes what can be read; measuring sets it aside",
        where=str(place),
    )


def _refuse_foreign(place: Path) -> None:
    """InputError unless the header is SQLite's with this program's number. Takes no lock and changes nothing."""
    where = str(place)
    refuse(not place.is_file(), "expected a file", where=where)
    wrong = "expected a measurement store of sizer, found another"
    for _ in range(_LOOKS):
        if (number := _program_of(place)) is not None:
            break
        time.sleep(_LOOK_S)  # a checkpoint of another process may be under way
    refuse(number is None, f"{wrong} kind of file: name another with --store or SIZER_STORE", where=where)
    refuse(number != APPLICATION_ID, f"{wrong} program's database", where=where)


def _program_of(place: Path) -> int | None:
    """The number in the header of a database; None: it is none, or another process is writing just there."""
    # Through SQLite, immutable: closing the file by hand would drop the locks that this process holds on it.
    uri = f"file:{'//' if place.is_absolute() else ''}{quote(os.fsencode(place))}?immutable=1&mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            number = connection.execute("PRAGMA application_id").fetchone()[0]
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_CORRUPT and _companion(place, "-wal").exists():
            return APPLICATION_ID  # cut off in a checkpoint: SQLite makes it whole by its log
        if code not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise
        return None
    return None if place.stat().st_size < _SMALLEST else number


def _trouble(error: sqlite3.Error, place: Path) -> InputError:
    """One line that says what to do, and never to move one of the store's files without the others."""
    exact = getattr(error, "sqlite_errorcode", 0)
    code = exact & 0xFF
    if code == sqlite3.SQLITE_FULL or exact in _NO_ROOM:
        say = "the disk is full (or a limit on files is reached): what was stored is kept; make room and start again"
    elif code in _NOT_WRITABLE:
        say = f"cannot be written ({error}), nor read so: name another, or a copy, with --store or SIZER_STORE"
    elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        say = f"another process has been writing for {_BUSY_S:.0f} s ({error}): start again when it has ended"
    elif code == sqlite3.SQLITE_IOERR:
        say = f"the disk does not answer ({error}): what was stored is kept"
    else:
        return _damaged(place, error)
    return InputError(say, where=str(place))


def _prepare(connection: sqlite3.Connection, place: Path, write: bool) -> None:
    run = connection.execute
    version = run("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        raise _damaged(place, f"schema version {version}, not {SCHEMA_VERSION}")
    problem = run("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise _damaged(place, problem)
    if not write:
        run("PRAGMA query_only = ON")
        return
    # WAL: readers do not wait for writers. NORMAL survives every kill of a process; only a power cut can lose the last
    # measurements, and none of them half.
    run("PRAGMA journal_mode = WAL")
    run("PRAGMA synchronous = NORMAL")
    # Writing what is there already: a full disk or a read-only file is told before anything is measured.
    run(f"PRAGMA user_version = {SCHEMA_VERSION}")
