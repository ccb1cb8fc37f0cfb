"""A device's own process: an executor of that one device driven by messages, and what it sends to the driver."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.measure.environment import Environment
from shapes.measure.executor import Event, Executor, Round, Samples, Settings
from shapes.measure.in_process import InProcess
from shapes.measure.jobs import Job
from shapes.measure.record import Measurement

Array = NDArray[np.float64]
#: Makes the executor of a process: of torch's ``device``, None being the accelerator that the process was given.
Make = Callable[[str | None], Executor]

#: A message is sent so often: less is lost with a process than it takes to start one, and a driver of a hundred devices
#: has less than a millisecond's work with each.
MESSAGE_S = 0.25


@frozen
class Greeting:
    """A device's process is ready: its ``environment`` and its ``node``."""

    environment: Environment
    node: str
    pid: int


@frozen
class Over:
    """A lease is worked off."""


class LostError(RuntimeError):
    """A device's process ended, or did not answer in time (``silent``), before it had done what was asked."""

    def __init__(self, reason: str, *, silent: bool = False) -> None:
        super().__init__(reason)
        self.silent = silent


Message = Greeting | tuple[Event, ...] | Over | LostError


class Pool(Protocol):
    """Device processes by name. Only ``wait`` waits."""

    def start(self, name: str, type_: str) -> None:
        """Begin to start a process on a device of ``type_``; its Greeting comes when it is ready."""
        ...

    def stop(self, name: str) -> None:
        """End the process at once, whatever it does; nothing more is heard of it."""
        ...

    def lease(
        self, name: str, jobs: Sequence[Job], settings: Settings, unfinished: Samples, left_s: float | None
    ) -> None:
        """Begin ``jobs``: events and an Over come of them. None is begun after ``left_s`` seconds."""
        ...

    def wait(self, timeout_s: float) -> Iterable[tuple[str, Message]]:
        """What has come, after at most ``timeout_s`` seconds; of one process in the order it was sent."""
        ...


def accelerator_or_cpu(device: str | None) -> Executor:
    """``InProcess``; InputError where torch sees no accelerator and none was named: figures would be a CPU's."""
    found = InProcess(device)
    if device is None and found.backend.device == "cpu":
        raise InputError("torch sees no accelerator in a process that was given one", where=socket.gethostname())
    return found


def bursts(events: Iterable[Event], now: Callable[[], float] = time.monotonic) -> Iterator[tuple[Event, ...]]:
    """``events`` of a sweep, a few times a second: the rounds since the last as one, then what was done."""
    samples: dict[str, tuple[Array, Array]] = {}
    control: list[float] = []
    done: list[Measurement] = []

    def joined() -> tuple[Event, ...]:
        return (Round(samples, np.array(control)), *done) if control else tuple(done)

    last = now()
    for event in events:
        if isinstance(event, Measurement):
            samples.pop(event.key, None)
            done.append(event)
        else:
            control.append(float(np.median(event.control)))
            samples.update(event.samples)
        if now() - last >= MESSAGE_S:
            yield joined()
            samples, control, done, last = {}, [], [], now()
    if control or done:
        yield joined()


class DeviceProcess:
    """One device."""

    def __init__(self, device: str | None, make: Make = accelerator_or_cpu, node: str = "") -> None:
        self._device, self._make = device, make
        self._node = node or socket.gethostname()

    def greet(self) -> Iterator[Greeting]:
        # Not when it is made: Ray says little of what goes wrong then.
        self._executor = self._make(self._device)
        yield Greeting(self._executor.environment, self._node, os.getpid())

    def run(
        self, jobs: Sequence[Job], settings: Settings, unfinished: Samples, left_s: float | None
    ) -> Iterator[tuple[Event, ...]]:
        """The jobs' samples and measurements, a message a few times a second."""
        deadline = None if left_s is None else time.monotonic() + left_s
        # What crosses a wire may be read-only.
        unfinished = {key: (np.array(own), np.array(control)) for key, (own, control) in unfinished.items()}
        for burst in bursts(self._executor.run(jobs, settings, deadline=deadline, unfinished=unfinished)):
            yield tuple(self._signed(one) if isinstance(one, Measurement) else one for one in burst)

    def _signed(self, one: Measurement) -> Measurement:
        """``one`` saying on which node it was made."""
        host = {**one.environment.host, "node": self._node}
        return replace(one, environment=replace(one.environment, host=host))
