"""Workers without processes, which die or fall silent when told to, and devices of real processes that do."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from measure_fakes import FakeExecutor, _sent

from shapes.measure.executor import Executor
from shapes.measure.jobs import Job
from shapes.measure.workers import DeviceServer, LostError


class FakeWorker:
    """A ``Worker`` over ``make(name)``.

    ``fate(keys under way)`` is asked before every message: "dies" ends the process and "hangs" keeps it silent.
    Messages are pickled, as over a wire.
    """

    def __init__(
        self, name: str, make: Callable[[str | None], Executor], fate: Callable[[list[str]], str] = lambda _: ""
    ) -> None:
        self.name, self._make, self._fate = name, make, fate
        self.starts, self.stopped = 0, threading.Event()
        self._device: DeviceServer | None = None

    def ask(self, patience_s: float, request: str, *arguments: Any) -> Iterator[Any]:
        if self._device is None:
            self.starts += 1
            self._device = DeviceServer(lambda _: self._make(self.name), None)
        keys = [job.key for job in arguments[0]] if request == "run" else []
        for place, message in enumerate(getattr(self._device, request)(*_sent(arguments))):
            fate = self._fate(keys) if place else ""
            if fate or self.stopped.is_set():
                self._device = None
                raise LostError("its process died" if fate == "dies" else f"answered nothing for {patience_s:.0f} s")
            yield _sent(message)
            keys = [key for key in keys if key != getattr(message, "key", "")]

    def stop(self) -> None:
        self.stopped.set()


class Faulty(FakeExecutor):
    """Depths of 1000 and more lose the device: killed, silent, or out of an orderly way; 7xx run out of memory."""

    def __init__(self, device: str | None) -> None:
        super().__init__(lambda job: 1e-3)
        self.faults: Counter[int] = Counter()

    def run(self, jobs: Any, settings: Any, **rest: Any) -> Iterator[Any]:
        for event in super().run(jobs, settings, **rest):
            yield event
            fault(self.asked[-1] if self.asked else None, event)


class Fatal(FakeExecutor):
    """An MLP of width 168 kills the process that prepares it; others take as long as they are wide."""

    def __init__(self, device: str | None) -> None:
        super().__init__(lambda job: 1e-6 * job.work.block.mlp.width)  # type: ignore[union-attr]

    def prepare(self, job: Job, settings: Any = None) -> Any:
        if job.work.block.mlp.width == 168:  # type: ignore[union-attr]
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().prepare(job, settings)


def fault(job: Job | None, event: Any) -> None:
    k = getattr(getattr(job, "work", None), "k", 0)
    if getattr(event, "key", None) or k < 1000:
        return
    if k < 2000:
        os.kill(os.getpid(), signal.SIGSEGV)
    elif k < 3000:
        time.sleep(3600)
    else:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
