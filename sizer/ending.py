"""How the program ends when it is told to, or when nobody reads what it says: one line, a documented exit code.

A signal's exit code is 128 plus its number, as shells know it: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP, 141
when the reader of its output has gone (SIGPIPE).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

#: Signals that this system has (Windows has no SIGHUP), and what is said of each.
_SAID = {
    getattr(signal, name): said
    for name, said in (("SIGINT", "interrupted"), ("SIGTERM", "terminated"), ("SIGHUP", "hung up"))
    if hasattr(signal, name)
}
#: Measuring may have so long to come to the end of a round and write its files.
PATIENCE_S = 3.0


class StopRequested(KeyboardInterrupt):
    """A signal, raised where measuring can be left: between two rounds."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Ending:
    """What the handlers know: which signal asked, whether something is under way that wants to end in order."""

    asked: int | None = None
    in_order = False
    aftermath = ""


def end_in_order_of_signals() -> None:
    """From now on signals end the program with a line, at any moment: an import's or a library's too."""
    for number in _SAID:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _asked)
    # Dying quietly when the reader of a pipe goes is what every other filter does.
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _asked(number: int, _frame: FrameType | None) -> None:
    if _Ending.in_order and _Ending.asked is None:
        _Ending.asked = number
        if hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, lambda *_: _end(number))
            signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    else:
        # Not an exception: libraries and interpreters in the middle of an import turn those into other ones.
        _end(number)


def _end(number: int) -> NoReturn:
    _say(number)
    os._exit(128 + number)


def _say(number: int) -> None:
    said = _SAID[signal.Signals(number)]
    line = f"sizer: {said}{_Ending.aftermath}\n"
    # A line of progress may stand on the terminal.
    os.write(2, (f"\r\x1b[K{line}" if os.isatty(2) else line).encode())


@contextmanager
def resumable() -> Iterator[Callable[[], None]]:
    """Measuring: a signal takes effect at the next call of what this yields, which is made between two rounds."""
    _Ending.in_order, _Ending.aftermath = True, ": what was measured is stored; the same command goes on"
    try:
        yield _raise_if_asked
        _raise_if_asked()
    except KeyboardInterrupt as error:
        number = error.number if isinstance(error, StopRequested) else int(signal.SIGINT)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        _say(number)
        sys.exit(128 + number)
    finally:
        _Ending.in_order, _Ending.asked, _Ending.aftermath = False, None, ""


def _raise_if_asked() -> None:
    if _Ending.asked is not None:
        raise StopRequested(_Ending.asked)


def hold_standard_files() -> None:
    """Open what is closed of descriptors 0 to 2, so that no file of ours becomes somebody's standard output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def flush_output() -> str | None:
    """What was said reaches its reader; the reason where it does not (a full disk)."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        give_up_output()
        return error.strerror or str(error)
    return None


def give_up_output() -> None:
    """Forget what could not be written, else the interpreter tries again at its end and says so in its own words."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
