"""Timing one kernel: warm up to steady clocks, cold caches, queued batches, graphs where they can be, checked results.

A ``Stopwatch`` is a prepared kernel: ``take(n)`` gives n samples of seconds. It is made of a ``TimedKernel`` (callables
over rotated inputs) and a ``Backend`` (a device). Order of making: the result is checked first, so that a wrong or
skipped kernel is never timed; then warm-up; then the choice of how to time.
"""

from collections.abc import Callable, Sequence
from math import ceil

import numpy as np

from shapes.frozen import frozen

from .backend import Backend, Call
from .stats import Array

#: Rotated inputs together exceed the last-level cache by this factor: no input is still there when its turn comes.
CACHE_FACTOR = 2
#: Most input sets made: beyond it the caches are flushed between calls instead.
MOST_SETS = 512
#: On a device with graphs what can be captured is timed by replay, whatever its length: the gap between queued launches
#: is 3 to 10 us. A graph holds enough calls to run this long, so that its own launch is lost in it.
GRAPH_S = 2e-3
#: Warm-up ends when two successive batches' medians agree within this share.
STEADY = 0.01


class WrongResultError(RuntimeError):
    """A kernel's output is not what the same product gives in fp32."""


@frozen
class TimedKernel:
    """Callables over input sets that are alike, ``calls[i]`` on the i-th.

    ``check`` returns the relative error ‖out - reference‖ / ‖reference‖ against fp32 after poisoning the output, and
    ``bound`` is what its dtype allows. ``capturable``: may be replayed from a graph. ``set_bytes``: what one call
    touches. ``needs_flush``: the sets do not exceed the cache.
    """

    calls: tuple[Call, ...]
    check: Callable[[], float]
    bound: float
    set_bytes: int
    name: str
    capturable: bool = True
    needs_flush: bool = False


def sets_needed(set_bytes: int, cache_bytes: int, free_bytes: int) -> tuple[int, bool]:
    """(how many input sets to rotate, whether a flush is needed as well).

    Enough sets to exceed the cache ``CACHE_FACTOR`` times, as far as a quarter of the free memory allows.

    >>> sets_needed(set_bytes=10, cache_bytes=50, free_bytes=1000)
    (11, False)
    """
    wanted = ceil(CACHE_FACTOR * cache_bytes / max(1, set_bytes)) + (set_bytes < CACHE_FACTOR * cache_bytes)
    fit = max(1, free_bytes // 4 // max(1, set_bytes))
    sets = max(1, min(wanted, fit, MOST_SETS))
    return sets, sets < wanted


def verify(kernel: TimedKernel) -> float:
    """Run the kernel's check; WrongResultError if its error exceeds the bound or is not a number."""
    error = kernel.check()
    if not error <= kernel.bound:
        raise WrongResultError(f"{kernel.name}: relative error {error:.2g} against fp32, at most {kernel.bound:.2g}")
    return error


def warm_up(batch: Callable[[], Array], now: Callable[[], float], *, least_s: float, most_s: float) -> None:
    """Run batches until two successive medians agree within STEADY and ``least_s`` is over, or until ``most_s``."""
    start = now()
    before = float(np.median(batch()))
    while True:
        after = float(np.median(batch()))
        spent = now() - start
        if spent >= most_s or (spent >= least_s and abs(after - before) <= STEADY * after):
            return
        before = after


class Stopwatch:
    """A kernel ready to be timed on one device. ``error``: of its check where that was made before."""

    def __init__(
        self,
        kernel: TimedKernel,
        backend: Backend,
        warm_up_s: float = 0.01,
        most_warm_up_s: float = 0.05,
        error: float | None = None,
    ) -> None:
        self.kernel = kernel
        self._backend = backend
        self._calls: Sequence[Call] = kernel.calls
        self._next = 0
        #: Calls that one sample is the mean of.
        self.per_sample = 1
        self.error = verify(kernel) if error is None else error
        self._flush = backend.flusher() if kernel.needs_flush else None
        # A first call may load libraries: it is no estimate, however long it took.
        estimate = float(np.median(self.take(3 if self.take(1)[0] < most_warm_up_s else 1)))
        if kernel.capturable and not self._flush:
            self._capture(estimate)
        if estimate < most_warm_up_s:
            per_batch = max(1, min(50, int(warm_up_s / 2 / max(estimate * self.per_sample, 1e-7))))
            warm_up(lambda: self.take(per_batch), backend.now, least_s=warm_up_s, most_s=most_warm_up_s)
        self.estimate_s = estimate

    @property
    def timed_by(self) -> str:
        """The clock that tells a call's time."""
        return self._backend.timed_by if self._calls is self.kernel.calls else f"graphs of {self.per_sample} calls"

    def take(self, samples: int) -> Array:
        """``samples`` times of one call, in seconds; of graphs each is the mean over a graph's calls."""
        sets = self._calls
        calls = [sets[(self._next + index) % len(sets)] for index in range(samples)]
        self._next = (self._next + samples) % len(sets)
        return self._backend.time_batch(calls, self._flush) / self.per_sample

    def kernel_s(self) -> float | None:
        """Seconds of one call's kernels alone, by torch's profiler; None where it sees none."""
        return self._backend.kernel_s(self.kernel.calls)

    def peak_bytes(self) -> int | None:
        """Most memory while one call runs, one set of inputs and weights included; None where the device cannot say."""
        extra = self._backend.peak_bytes(self.kernel.calls[0])
        return None if extra is None else self.kernel.set_bytes + extra

    def _capture(self, estimate: float) -> None:
        """Graphs of all input sets, over and over, or of some each, as long kernels: one way of timing a sweep."""
        sets = self.kernel.calls
        each = max(1, round(GRAPH_S / max(estimate, 1e-6)))
        parts = [sets * round(each / len(sets))]
        if each < len(sets):
            parts = [sets[start : start + each] for start in range(0, len(sets) - each + 1, each)]
        graphs = []
        for part in parts:
            graph = self._backend.capture(part)
            if not graph:
                return
            graphs.append(graph)
        self._calls, self.per_sample = graphs, len(parts[0])
