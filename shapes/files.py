"""Files of whatever kind a person names: read within bounds, written whole or not at all, never replaced by mistake.

Errors are InputErrors of one line.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shapes.errors import InputError, refuse


def read_bounded(path: str | os.PathLike[str], most: int) -> bytes:
    """The bytes of a file, pipe or device: at most ``most`` and one more, by which a caller sees too many."""
    where = os.fspath(path)
    try:
        with open(where, "rb") as file:
            return file.read(most + 1)
    except IsADirectoryError:
        raise InputError("expected a file, found a directory", where=where) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {_reason(error)}", where=where) from None


def read_text(path: str | os.PathLike[str], most: int) -> str:
    """As ``read_bounded``, as UTF-8 text; InputError for what is larger or no text."""
    where = os.fspath(path)
    data = read_bounded(path, most)
    refuse(len(data) > most, f"expected at most {most / 2**20:g} MiB", where=where)
    return decoded(data, where)


def decoded(data: bytes, where: str) -> str:
    """UTF-8 text, with or without a mark at its start; InputError that says where it is none."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte {data[error.start]:#04x} at {error.start}"
        raise InputError(f"expected UTF-8 text, found {found}", where=where) from None


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """``data`` as the file's content: whole, or the file stays as it was and no other file is left.

    A link is followed, and the file's mode and owner stay. What is no regular file (a device, a pipe) is written into,
    never replaced. InputError where it cannot be written.
    """
    where = os.fspath(path)
    refuse(not where, "expected a file name", "file", where)
    try:
        try:
            present = os.stat(where)
        except FileNotFoundError:
            present = None
        resolved = Path(os.path.realpath(where))
        if present is not None and stat.S_ISDIR(present.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        irregular = present is not None and not stat.S_ISREG(present.st_mode)
        if irregular or _names_another(where, resolved):
            with open(where, "ab") as file:  # standard output may be a file that is appended to
                file.write(data)
        else:
            _replace(resolved, data, present)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be written: {_reason(error)}", where=where) from None


def _names_another(where: str, resolved: Path) -> bool:
    """Whether it lies where paths name something else: /dev/stdout may be a file that is being appended to."""
    there = resolved.parts[:2] in (("/", "dev"), ("/", "proc")) and not str(resolved).startswith("/dev/shm/")
    return there or where.startswith(("/dev/fd/", "/dev/std", "/proc/"))


def make_folder(path: str | os.PathLike[str]) -> None:
    """The folder, made if missing; InputError where files could not be written into it."""
    where = os.fspath(path)
    try:
        os.makedirs(where, exist_ok=True)
        if not os.access(where, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be written: {_reason(error)}", where=where) from None


def _replace(target: Path, data: bytes, present: os.stat_result | None) -> None:
    if present is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    aside = target.parent / f".sizer-{os.urandom(8).hex()}.part"
    with _unstopped():
        try:
            with open(aside, "xb") as file:
                file.write(data)
            if present is not None:
                with suppress(OSError, AttributeError):  # another's file in a shared folder; Windows
                    os.chown(aside, present.st_uid, present.st_gid)
                os.chmod(aside, stat.S_IMODE(present.st_mode))
            os.replace(aside, target)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


@contextmanager
def _unstopped() -> Iterator[None]:
    """Signals that would end the process wait until no unfinished file is left."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reason(error: OSError | ValueError) -> str:
    # ValueError: a NUL in the name; UnicodeEncodeError, which is one too: half of a surrogate pair.
    return (error.strerror or str(error)) if isinstance(error, OSError) else "expected a file name"
