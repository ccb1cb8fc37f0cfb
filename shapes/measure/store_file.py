"""A store's files: the database, its log (``-wal``) and the log's index (``-shm``), which only mean something together.

SQLite takes any ``NAME-wal`` beside ``NAME`` for its own: a database that is moved without its log leaves measurements
behind, and a new one made in its place inherits them as damage. So a store is never made beside another's log.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from shapes.errors import InputError
from shapes.measure.store_pages import LOG_HEADER, read_log

#: In the database's header (bytes 68..71): "SIZR". Files of other programs have another number or none.
APPLICATION_ID = 0x53495A52
#: Bytes of a database's header; a shorter file is none.
_SMALLEST = 100


class DamagedStoreError(InputError):
    """A store that cannot be read, which ``sizer store repair`` may fix."""


def damaged(place: Path, why: object) -> DamagedStoreError:
    return DamagedStoreError(
        f"the store is damaged ({why}): `{repair_command(place)}` keeps what can be read", where=str(place)
    )


def beside(place: Path, suffix: str) -> Path:
    return place.with_name(place.name + suffix)


def repair_command(place: Path) -> str:
    """What a person types to have a damaged store repaired."""
    return f"sizer store --store {shlex.quote(str(place))} repair"


def create(place: Path, content: bytes) -> None:
    """Put a new database into place, whole or not at all; another process that is faster wins.

    InputError beside the log of a database that is gone: what the log holds would be lost, and the new one damaged.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(place)
    log = beside(place, "-wal")
    if _size(log) and not place.exists():
        raise InputError(
            f"{log.name} holds measurements of a store that was moved away without it: move it along (under that "
            f"store's name + -wal), or keep what it holds with `{repair_command(place)}`",
            where=str(place),
        )
    try:
        _create_unnamed(place, content)
    except FileExistsError:
        pass  # another process was faster; its store is as good
    except (OSError, AttributeError):  # no O_TMPFILE or no /proc here: by a name of its own
        _create_named(place, content)


def _create_unnamed(place: Path, content: bytes) -> None:
    # A file without a name cannot be left over, however the process ends.
    handle = os.open(place.parent, os.O_TMPFILE | os.O_WRONLY, 0o644)
    with open(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(handle)
        # With src_dir_fd Python calls linkat, which follows the link in /proc; without it link, which does not.
        os.link(f"/proc/self/fd/{handle}", place, src_dir_fd=handle)


def _create_named(place: Path, content: bytes) -> None:
    aside = place.with_name(f".{place.name}.{os.getpid()}.new")
    try:
        aside.write_bytes(content)
        try:
            os.link(aside, place)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            if not place.exists():
                os.replace(aside, place)
    finally:
        aside.unlink(missing_ok=True)


def _remove_leftovers(place: Path) -> None:
    """Delete what creations that were killed have left: files named for processes that are no more."""
    for left in place.parent.glob(f".{_literal(place.name)}.*.new*"):
        number = left.name.removeprefix(f".{place.name}.").split(".")[0]
        # A file of another host's process on a shared file system is young for as long as it is needed.
        if number.isdigit() and not alive(int(number)) and time.time() - left.stat().st_mtime > 5.0:
            left.unlink(missing_ok=True)


def _literal(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


def alive(process: int) -> bool:
    """Whether a process of this host has that number."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True


def refuse_foreign(place: Path) -> None:
    """InputError unless the header is SQLite's with this program's number. Takes no lock and changes nothing."""
    where = str(place)
    if not place.is_file():
        raise InputError("expected a file", where=where)
    wrong = "expected a measurement store of sizer, found another"
    # Through SQLite, immutable: closing the file by hand would drop the locks that this process holds on it.
    uri = f"file:{'//' if place.is_absolute() else ''}{quote(os.fsencode(place))}?immutable=1&mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            number = connection.execute("PRAGMA application_id").fetchone()[0]
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise
        number = None
    if number is None or _size(place) < _SMALLEST:
        hint = f"if it was one, `{repair_command(place)}` looks for what can be read"
        raise DamagedStoreError(f"{wrong} kind of file ({hint})", where=where)
    if number != APPLICATION_ID:
        raise DamagedStoreError(f"{wrong} program's database", where=where)


def log_is_damaged(place: Path) -> bool:
    """Whether sound frames of the log lie behind damaged ones, where SQLite would pass over them without a word."""
    for pause_s in (0.0, 0.01, 0.05, 0.2):  # another process may be writing while this one reads
        time.sleep(pause_s)
        try:
            content = beside(place, "-wal").read_bytes()
        except OSError:
            return False
        if len(content) <= LOG_HEADER or not read_log(content).damaged:
            return False
    return True


@contextmanager
def copied(place: Path) -> Iterator[Path]:
    """A copy of the database and its log in a temporary folder: SQLite cannot read a log where it cannot write."""
    with TemporaryDirectory(prefix="sizer-") as folder:
        copy = Path(folder) / "store.db"
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(beside(place, suffix), beside(copy, suffix))
        yield copy


def _size(place: Path) -> int:
    try:
        return place.stat().st_size
    except OSError:
        return 0
