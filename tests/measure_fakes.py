"""A device with a clock of its own, and an executor that answers from a formula: measuring without waiting."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from shapes.measure.environment import Environment
from shapes.measure.executor import Event, Prepared, Round, Samples, Settings
from shapes.measure.in_process import ALIVE
from shapes.measure.jobs import Job
from shapes.measure.record import Measurement, summary_fields

#: What `python -c` runs as `python -m sizer`, with the small cache of conftest.py: filling 300 MiB takes minutes.
SMALL_CACHE_PROGRAM = """
import runpy
from shapes.measure import backend
backend.cpu_cache_bytes = lambda: 2**14
runpy.run_module("sizer", run_name="__main__", alter_sys=True)
"""
ENVIRONMENT = Environment("Fake 1", (("torch", "0.0"),), "fake-uuid", "1.0", host={"node": "there"})


class FakeBackend:
    """Calls take the seconds that they return; nothing else passes time."""

    device = "cpu"
    timed_by = "fake clock"

    def __init__(self, cache_bytes: int = 1000, free_bytes: int = 10**9, graphs: bool = False) -> None:
        self.cache_bytes, self.free_bytes, self._graphs = cache_bytes, free_bytes, graphs
        self.clock = 0.0
        self.flushes = 0
        self.synchronizations = 0

    def now(self) -> float:
        return self.clock

    def synchronize(self) -> None:
        self.synchronizations += 1

    def time_batch(
        self, calls: Sequence[Callable[[], object]], flush: Callable[[], object] | None = None
    ) -> NDArray[np.float64]:
        seconds = []
        for call in calls:
            if flush is not None:
                flush()
            taken = call()
            assert isinstance(taken, float)
            seconds.append(taken)
            self.clock += taken
        self.synchronize()
        return np.array(seconds)

    def flusher(self) -> Callable[[], object]:
        def flush() -> None:
            self.flushes += 1

        return flush

    def capture(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object] | None:
        return (lambda: float(sum(call() for call in calls))) if self._graphs else None  # type: ignore[misc]

    def peak_bytes(self, call: Callable[[], object]) -> int | None:
        return None

    def kernel_s(self, calls: Sequence[Callable[[], object]]) -> float | None:
        return None

    def release(self) -> None:
        pass


class FakeExecutor:
    """Answers each job with ``seconds_of(job)``, one round a job, and counts what it was asked. No torch, no device.

    ``room_bytes`` as of a device; what is prepared holds ``held_bytes`` of it.
    """

    def __init__(
        self, seconds_of: Callable[[Job], float], wall_s: float = 0.0, room_bytes: int = 10**9, held_bytes: int = 10**3
    ) -> None:
        self.environment = ENVIRONMENT
        self.room_bytes = room_bytes
        self.asked: list[Job] = []
        self.open: set[str] = set()
        self._seconds_of, self._wall_s, self._held_bytes = seconds_of, wall_s, held_bytes
        self._noise = np.random.default_rng(0)

    def prepare(self, job: Job, settings: Settings | None = None) -> Prepared:
        self.asked.append(job)
        self.open.add(job.key)
        return Prepared(job, self._seconds_of(job), self._held_bytes)

    def sample(self, prepared: Prepared, count: int) -> NDArray[np.float64]:
        taken = prepared.handle * self._noise.lognormal(0, 0.001, count)
        prepared.samples = np.concatenate((prepared.samples, taken))
        return taken

    def release(self, prepared: Prepared) -> None:
        self.open.remove(prepared.job.key)

    def finish(self, prepared: Prepared) -> Measurement:
        self.release(prepared)
        return measurement(prepared.job, prepared.samples)

    def run(
        self,
        jobs: Sequence[Job],
        settings: Settings,
        *,
        deadline: float = inf,
        unfinished: Samples | None = None,
    ) -> Iterator[Event]:
        yield ALIVE
        for job in jobs:
            if time.monotonic() >= deadline:
                return
            time.sleep(self._wall_s)
            self.asked.append(job)
            samples = np.full(12, self._seconds_of(job))
            yield Round({job.key: (samples, samples)}, samples)
            yield measurement(job, samples)


class RemoteExecutor(FakeExecutor):
    """A fake on the far side of a wire, as an actor of a cluster is: what crosses is pickled, handles are numbers."""

    def __init__(self, seconds_of: Callable[[Job], float]) -> None:
        super().__init__(seconds_of)
        self._there: dict[int, Prepared] = {}

    def prepare(self, job: Job, settings: Settings | None = None) -> Prepared:
        there = super().prepare(_sent(job), _sent(settings))
        self._there[id(there)] = there
        return Prepared(job, id(there), there.held_bytes)

    def sample(self, prepared: Prepared, count: int) -> NDArray[np.float64]:
        taken = _sent(super().sample(self._there[prepared.handle], count))
        prepared.samples = np.concatenate((prepared.samples, taken))
        return taken

    def finish(self, prepared: Prepared) -> Measurement:
        there = self._there[prepared.handle]
        there.samples = _sent(prepared.samples)
        return _sent(super().finish(there))

    def run(
        self,
        jobs: Sequence[Job],
        settings: Settings,
        *,
        deadline: float = inf,
        unfinished: Samples | None = None,
    ) -> Iterator[Event]:
        arguments = (
            _sent((list(jobs), settings)),
            {"deadline": deadline, "unfinished": _sent(unfinished)},
        )
        for event in super().run(*arguments[0], **arguments[1]):
            yield _sent(event)


T = TypeVar("T")


def _sent(value: T) -> T:
    sent: T = pickle.loads(pickle.dumps(value))
    return sent


def measurement(job: Job, samples: NDArray[np.float64], **changes: object) -> Measurement:
    """What a sweep would record of ``job``."""
    values: dict[str, object] = {
        "key": job.key,
        "description": job.describe(),
        "environment": ENVIRONMENT,
        "status": "ok",
        "samples": samples,
        "stop": "precision",
        "flops": job.work.flops,
        "bytes": getattr(job.work, "bytes", 1000),
        "created": time.time(),
        **summary_fields(samples),
        **changes,
    }
    return Measurement(**values)  # type: ignore[arg-type]
