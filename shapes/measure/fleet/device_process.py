"""What runs in a device's own process: an executor of that one device, driven by messages."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shapes.errors import InputError
from shapes.measure.executor import Executor, NotMeasured, Prepared, Samples, Settings
from shapes.measure.fleet.messages import Burst, Greeting, bursts
from shapes.measure.in_process import InProcess
from shapes.measure.jobs import Job
from shapes.measure.record import Measurement, Status

Array = NDArray[np.float64]

#: Makes the executor of a process: of torch's ``device``, None being the accelerator that the process was given.
Make = Callable[[str | None], Executor]


def accelerator_or_cpu(device: str | None) -> Executor:
    """``InProcess``; InputError where torch sees no accelerator and none was named: figures would be a CPU's."""
    found = InProcess(device)
    if device is None and found.backend.device == "cpu":
        raise InputError("torch sees no accelerator in a process that was given one", where=socket.gethostname())
    return found


class DeviceProcess:
    """One device. Outcomes that are no times are returned, not raised: they must cross a wire whole."""

    def __init__(self, device: str | None, make: Make = accelerator_or_cpu, node: str = "") -> None:
        self._device, self._make = device, make
        self._node = node or socket.gethostname()
        self._prepared: dict[int, Prepared] = {}
        self._next = 0

    def greet(self) -> Greeting:
        # Not when it is made: Ray says little of what goes wrong then.
        self._executor = self._make(self._device)
        return Greeting(self._executor.environment, self._executor.room_bytes, self._node, os.getpid())

    def run(
        self, jobs: Sequence[Job], settings: Settings, unfinished: Samples, left_s: float | None
    ) -> Iterator[Burst]:
        """The jobs' samples and measurements, a message several times a second."""
        deadline = None if left_s is None else time.monotonic() + left_s
        # What crosses a wire may be read-only.
        unfinished = {key: (np.array(own), np.array(control)) for key, (own, control) in unfinished.items()}
        events = self._executor.run(jobs, settings, deadline=deadline, unfinished=unfinished)
        for burst in bursts(events, unfinished):
            yield replace(burst, done=tuple(self._signed(one) for one in burst.done))

    def prepare(self, job: Job, settings: Settings | None) -> tuple[int, int] | tuple[Status, str]:
        try:
            prepared = self._executor.prepare(job, settings)
        except NotMeasured as outcome:
            return outcome.status, str(outcome)
        self._next += 1
        self._prepared[self._next] = prepared
        return self._next, prepared.held_bytes

    def sample(self, id_: int, count: int) -> Array | tuple[Status, str]:
        try:
            return self._executor.sample(self._prepared[id_], count)
        except NotMeasured as outcome:
            return outcome.status, str(outcome)

    def finish(self, id_: int, samples: Array, controls: Array) -> Measurement:
        prepared = self._prepared.pop(id_)
        prepared.samples, prepared.controls = np.array(samples), np.array(controls)
        return self._signed(self._executor.finish(prepared))

    def release(self, id_: int) -> None:
        self._executor.release(self._prepared.pop(id_))

    def _signed(self, one: Measurement) -> Measurement:
        """``one`` saying on which node it was made."""
        host = {**one.environment.host, "node": self._node}
        return replace(one, environment=replace(one.environment, host=host))
