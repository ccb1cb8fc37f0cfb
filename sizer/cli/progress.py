"""The line that a terminal shows while something takes long: what is done, of how much, the time left, the best so far.

Nothing is silent for longer than PATIENCE_S. The line is gone before anything else is said.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from threading import Event, Thread

from sizer.ending import clearing, in_order

#: Seconds after which the line is there, and after which it is drawn again.
PATIENCE_S, TICK_S = 0.5, 0.1
#: What an interrupt leaves of measuring, and how to go on.
KEPT = "what was measured is stored, the same command goes on"


class _Line:
    """What the line says, who draws it, and whether it is no longer wanted."""

    said = ""
    drawing = Thread()
    over = Event()


@contextmanager
def line() -> Iterator[None]:
    """While a command runs, the terminal on standard error has a line; elsewhere nothing is drawn."""
    _Line.said, _Line.drawing = "working", Thread(target=_draw, args=(time.monotonic(),), daemon=True)
    _Line.over.clear()
    if clearing(os.isatty(2)):
        _Line.drawing.start()
    try:
        yield
    finally:
        end_line()


def end_line() -> None:
    """The answer is there: the line goes."""
    if _Line.drawing.is_alive():
        _Line.over.set()
        _Line.drawing.join()
        os.write(2, clearing(terminal=True).encode())


def _draw(start: float) -> None:
    wait_s = PATIENCE_S
    while not _Line.over.wait(wait_s):
        wait_s, gone_s = TICK_S, time.monotonic() - start
        said = f"{'|/-'[int(gone_s / TICK_S) % 3]} {_Line.said}, {gone_s:.0f} s"
        os.write(2, f"\r{said[: shutil.get_terminal_size().columns - 1]}\x1b[K".encode())


@contextmanager
def working(what: str, how: str, limit_s: float | None = None) -> Iterator[Callable[..., None]]:
    """What to call with how far ``what`` is: ``tell(done, of, best, left_s)``, ``best`` being what is best so far.

    A signal ends it in order: the answer is of what is done by then. ``how``: to go on. ``limit_s``: it ends then.
    """
    start, _Line.said = time.monotonic(), what

    def tell(done: int, of: int, best: str = "", left_s: float | None = None) -> None:
        gone_s = time.monotonic() - start
        if done and left_s is None:
            left_s = min(gone_s / done * (of - done), (limit_s or inf) - gone_s)
        left = "" if left_s is None else f", {max(0.0, left_s):.0f} s left"
        _Line.said = f"{what}: {done:,} of {of:,}{left}{best and f'; best so far: {best}'}"

    with in_order(lambda: f", {_Line.said}; {how}"):
        yield tell
