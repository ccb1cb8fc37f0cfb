"""The one exception for input that a person can fix, and files of whatever kind a person names.

Files are read within bounds, written whole or not at all, never replaced by mistake.
"""

import errno
import os
import reprlib
import signal
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

#: What data of another form than was expected raise where they are taken apart.
DAMAGED = ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError

#: A value from a file may be nested or long without bound; what is shown of it is not.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200


class InputError(ValueError):
    """A value that a person gave and can fix.

    Printed as one line, ``where: key = value: expected``; the command line turns it into exit code 2.

    >>> str(InputError("expected a positive integer", where="config.json", key="num_attention_heads", value=0))
    'config.json: num_attention_heads = 0: expected a positive integer'
    """

    def __init__(self, expected: str, key: str | None = None, value: object = None, where: str | None = None) -> None:
        self.expected = expected
        self.where = where
        self.key = key
        self.value = value
        super().__init__(str(self))

    def __str__(self) -> str:
        parts = []
        if self.where is not None:
            parts.append(printable(self.where))
        if self.key is not None:
            parts.append(f"{printable(self.key)} = {shorten(self.value)}" if self.value is not None else self.key)
        parts.append(printable(self.expected))
        return ": ".join(parts)


@contextmanager
def within(where: str) -> Iterator[None]:
    """Add to an InputError raised here the file or object ``where`` it was found, unless it names one already."""
    try:
        yield
    except InputError as error:
        error.where = error.where or where
        raise


class ManyIntegers:
    """Base of values that formulas take for an integer and that are many: columns of `shapes.columns` (numpy)."""

    __slots__ = ()


#: Types that count as an integer.
INTEGERS: Any = (int, ManyIntegers)


def positive_int(value: Any, key: str, maximum: int = 2**48, where: str | None = None) -> int:
    """``value`` if it is an integer of 1..maximum, else an InputError. Booleans and floats are refused."""
    if isinstance(value, bool) or not isinstance(value, INTEGERS) or not 1 <= value <= maximum:
        raise InputError(f"expected an integer between 1 and {maximum}", key, value, where)
    return value  # type: ignore[no-any-return]  # an integer, as far as formulas go


def printable(text: str) -> str:
    """``text`` with what is not printable written out: names come from files, and could forge lines or colour them."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def shorten(value: object) -> str:
    """``value`` as one short line that is safe to print."""
    try:
        text = printable(_SHORT.repr(value) if not isinstance(value, int) or abs(value) < 10**40 else f"{value:.3e}")
    except (OverflowError, ValueError, RecursionError):
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else text[:59] + "…"


def refuse(
    wrong: object, expected: str, key: str | None = None, value: object = None, where: str | None = None
) -> None:
    """InputError where ``wrong`` holds."""
    if wrong:
        raise InputError(expected, key, value, where)


def one_of(name: Any, known: Collection[Any], key: str) -> Any:
    """``name``; InputError where it is none of the ``known``, which it lists."""
    if name not in known:
        raise InputError(f"expected one of {', '.join(map(str, known))}", key, name)
    return name


#: How a file is named.
AnyPath = str | os.PathLike[str]


def read_bounded(path: AnyPath, most: int) -> bytes:
    """The bytes of a file, pipe or device: at most ``most`` and one more, by which a caller sees too many."""
    where = os.fspath(path)
    try:
        with open(where, "rb") as file:
            # Room for ``most`` takes longer to set aside than most files take to read.
            data = file.read(usual := min(most + 1, 2**16))
            return data if len(data) < usual else data + file.read(most + 1 - usual)
    except IsADirectoryError:
        raise InputError("expected a file, found a directory", where=where) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {_reason(error)}", where=where) from None


def read_text(path: AnyPath, most: int) -> str:
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


def write_whole(path: AnyPath, data: bytes) -> None:
    """Write ``data`` as the file's content: whole, or the file stays as it was and no other file is left.

    A link is followed, and the file's mode and owner stay. A path that is no regular file (a device, a pipe) is written
    into, never replaced. InputError if it cannot be written.
    """
    where = os.fspath(path)
    refuse(not where, "expected a file name", "file", where)
    try:
        try:
            present = os.stat(where)
        except FileNotFoundError:
            present = None
        resolved = Path(os.path.realpath(where))
        if present and stat.S_ISDIR(present.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        irregular = present is not None and not stat.S_ISREG(present.st_mode)
        # Paths that name something else: /dev/stdout may be a file that is being appended to.
        there = resolved.parts[:2] in (("/", "dev"), ("/", "proc")) and not str(resolved).startswith("/dev/shm/")
        if irregular or there or where.startswith(("/dev/fd/", "/dev/std", "/proc/")):
            with open(where, "ab") as file:  # standard output may be a file that is appended to
                file.write(data)
        else:
            _replace(resolved, data, present)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be written: {_reason(error)}", where=where) from None


def make_folder(path: AnyPath) -> None:
    """The folder, made if missing; InputError where files could not be written into it."""
    where = os.fspath(path)
    try:
        os.makedirs(where, exist_ok=True)
        if not os.access(where, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be written: {_reason(error)}", where=where) from None


def _replace(target: Path, data: bytes, present: os.stat_result | None) -> None:
    if present and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    aside = target.parent / f".sizer-{os.urandom(8).hex()}.part"
    with _unstopped():
        try:
            with open(aside, "xb") as file:
                file.write(data)
            if present:
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
