"""The process at its terminal: a line of progress while it works, and how it ends.

The line says what is done, of how much, the time left, the best so far. Nothing is silent for longer than PATIENCE_S.
The line is gone before anything else is said. The process ends with one line and a documented exit code when it is
told to, or when nobody reads what it says.

A signal's exit code is 128 plus its number, as shells know it: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP, 141
when the reader of its output has gone (SIGPIPE).
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from shapes.program import REQUESTS

#: Signals that this system has (Windows has no SIGHUP) -> the words for each.
_SAID = {
    getattr(signal, name): said
    for name, said in (("SIGINT", "interrupted"), ("SIGTERM", "terminated"), ("SIGHUP", "hung up"))
    if hasattr(signal, name)
}
#: Seconds to end in order: to finish a round, write files and print what is known.
ENDING_S = 10.0


class _Ending:
    """State of the signal handlers: whether work is under way that ends in order, and the words for its end."""

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


def _asked(number: int, _frame: object) -> None:
    if _Ending.in_order and not REQUESTS:
        REQUESTS.append(number)
        if hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, lambda *_: _end(number))
            signal.setitimer(signal.ITIMER_REAL, ENDING_S)
    else:
        # Not an exception: libraries and interpreters in the middle of an import turn those into other ones.
        _end(number)


def _end(number: int) -> None:
    _say(number)
    os._exit(128 + number)


def _say(number: int) -> None:
    line = f"sizer: {_SAID[signal.Signals(number)]}{_Ending.aftermath()}\n"
    os.write(2, (clearing(os.isatty(2)) + line).encode())


def clearing(terminal: bool) -> str:
    """The escape sequence that clears a line of progress; empty where none is drawn."""
    return "\r\x1b[K\x1b[?25h" if terminal and os.environ.get("TERM") != "dumb" else ""


@contextmanager
def in_order(aftermath: Callable[[], str]) -> Iterator[None]:
    """End the work below in order: the first signal is a request (``shapes.program``), the second ends the process.

    Code that sees the request answers with what is known by then; ``aftermath`` says what that is and how to go on.
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
            end_line()
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
    """Flush the output; the reason if it does not reach its reader (a full disk)."""
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


#: Seconds after which the line is there, and after which it is drawn again.
PATIENCE_S, TICK_S = 0.5, 0.1
#: What an interrupt leaves of measuring, or of pricing, and how to go on.
KEPT = "what was measured is stored, the same command goes on"
PRICED = "the answer is of what was priced, the same command prices all"


class _Line:
    """State of the line of progress: its words, how much is done of how much, its drawer, and whether it is over."""

    said, done = "", 0
    of: int | None = None
    drawing = Thread()
    over = Event()


@contextmanager
def line() -> Iterator[None]:
    """While a command runs, the terminal on standard error has a line; elsewhere nothing is drawn."""
    _Line.said, _Line.of, _Line.drawing = "working", None, Thread(target=_draw, daemon=True)
    _Line.over.clear()
    if clearing(os.isatty(2)):
        _Line.drawing.start()
    try:
        yield
    finally:
        end_line()


def end_line() -> None:
    """The answer is there: the line goes."""
    _Line.over.set()
    if _Line.drawing.is_alive():
        _Line.drawing.join()


def _draw() -> None:
    if _Line.over.wait(PATIENCE_S):
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TimeElapsedColumn

    on = Console(stderr=True)
    with Progress(
        *(SpinnerColumn("line"), TimeElapsedColumn(), BarColumn(5), "{task.description}"),
        console=on,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bar:
        task = bar.add_task("", total=None)
        while not _Line.over.wait(TICK_S):
            said = _Line.said[: on.width - 16]
            bar.update(task, description=said, completed=_Line.done, total=_Line.of, refresh=True)


@contextmanager
def working(what: str, how: str) -> Iterator[Callable[..., None]]:
    """Show the progress of ``what`` by calls of ``tell(done, of, best, left_s)``; ``best``: the best so far, in words.

    A signal ends the work in order: the answer covers what is done by then. ``how``: words on how to go on.
    """
    start = last = 0.0
    answered, _Line.said = False, what

    def tell(done: int, of: int, best: str = "", left_s: float | None = None) -> None:
        nonlocal start, last
        now = time.monotonic()
        if not last or done < _Line.done:  # what comes next takes as long as it takes itself
            start = last or now
        last = now
        if done and left_s is None:
            left_s = (now - start) / done * (of - done)
        left = "" if left_s is None else f", {max(0.0, left_s):.0f} s left"
        _Line.done, _Line.of = done, of
        _Line.said = f"{what}: {done:,} of {of:,}{left}{best and f'; best so far: {best}'}"

    with in_order(lambda: f", {_Line.said}; {how if answered or _Line.said != what else 'nothing is known yet'}"):
        yield tell
        answered = True
