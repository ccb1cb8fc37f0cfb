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

from shapes.program import REQUESTS

#: Signals that this system has (Windows has no SIGHUP), and what is said of each.
_SAID = {
    getattr(signal, name): said
    for name, said in (("SIGINT", "interrupted"), ("SIGTERM", "terminated"), ("SIGHUP", "hung up"))
    if hasattr(signal, name)
}
#: What ends in order may take so long to come to the end of a round, write its files and say what it knows.
PATIENCE_S = 5.0


class _Ending:
    """What the handlers know: whether something is under way that ends in order, and what is said of its end."""

    in_order = False
    aftermath: Callable[[], str] = str


def end_in_order_of_signals() -> None:
    """From now on signals end the program with a line, at any moment: an import's or a library's too."""
    for number in _SAID:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _asked)
    # Dying quietly when the reader of a pipe goes is what every other filter does.
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _asked(number: int, _frame: FrameType | None) -> None:
    if _Ending.in_order and not REQUESTS:
        REQUESTS.append(number)
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
    line = f"sizer: {_SAID[signal.Signals(number)]}{_Ending.aftermath()}\n"
    os.write(2, (clearing(os.isatty(2)) + line).encode())


def clearing(terminal: bool) -> str:
    """What takes a line of progress off a terminal that understands it; nothing elsewhere, where none is drawn."""
    return "\r\x1b[K" if terminal and os.environ.get("TERM") != "dumb" else ""


@contextmanager
def in_order(aftermath: Callable[[], str]) -> Iterator[None]:
    """What goes on here ends in order: the first signal is a request (``shapes.program``), the second ends it.

    Who sees the request answers with what is known by then; ``aftermath`` says of what, and how to go on.
    """
    REQUESTS.clear()
    _Ending.in_order, _Ending.aftermath = True, aftermath
    try:
        yield
    except Exception:
        if not REQUESTS:
            raise
        sys.exit(128 + REQUESTS[0])  # nothing is known yet
    finally:
        if REQUESTS:
            if hasattr(signal, "setitimer"):
                signal.setitimer(signal.ITIMER_REAL, 0)
            _say(REQUESTS[0])
        _Ending.in_order, _Ending.aftermath = False, str


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
