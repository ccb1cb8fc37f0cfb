"""What crosses between a device's process and the driver.

A process times kernels by rounds of some thirty milliseconds. It sends what is new of them in bursts, a few a second:
one message each, whatever it holds. The driver joins the bursts' samples into what the seam calls a ``Round``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shapes.frozen import frozen
from shapes.measure.environment import Environment
from shapes.measure.executor import Event, Round, Samples
from shapes.measure.record import Measurement

Array = NDArray[np.float64]

#: A message is sent so often: less is lost with a process than it takes to start one, and a driver of a hundred devices
#: has less than a millisecond's work with each.
MESSAGE_S = 0.25


@frozen
class Greeting:
    """A device's process is ready: its ``environment``, ``room_bytes`` free on the device, and its ``node``."""

    environment: Environment
    room_bytes: int
    node: str
    pid: int


@frozen
class Burst:
    """What happened since the last message: new samples of every open job with the control's that belong to them,

    all of the control's, a figure a round, and what was done.
    """

    samples: Mapping[str, tuple[Array, Array]]
    control: Array
    done: tuple[Measurement, ...]


@frozen
class Over:
    """A lease is worked off."""


@frozen
class Gone:
    """The device's process is no more, or its device answers nothing. ``final``: another would be no better."""

    reason: str
    final: bool = False


Message = Greeting | Burst | Over | Gone


def bursts(events: Iterable[Event], unfinished: Samples, now: Callable[[], float] = time.monotonic) -> Iterator[Burst]:
    """``events`` of a sweep as bursts. ``unfinished``: samples that the driver has already."""
    known = {key: (len(own), len(control)) for key, (own, control) in unfinished.items()}
    new: dict[str, tuple[Array, Array]] = {}
    control: list[float] = []
    done: list[Measurement] = []
    last = now()
    for event in events:
        if isinstance(event, Measurement):
            new.pop(event.key, None)
            done.append(event)
        else:
            control.append(float(np.median(event.control)))
            new.update(event.samples)
        if now() - last >= MESSAGE_S:
            yield _burst(new, known, control, done)
            new, control, done, last = {}, [], [], now()
    if new or control or done:
        yield _burst(new, known, control, done)


def _burst(new: Samples, known: dict[str, tuple[int, int]], control: list[float], done: list[Measurement]) -> Burst:
    fresh = {}
    for key, (own, with_it) in new.items():
        first, first_with = known.get(key, (0, 0))
        fresh[key] = own[first:], with_it[first_with:]
        known[key] = len(own), len(with_it)
    return Burst(fresh, np.array(control), tuple(done))


@dataclass(slots=True)
class Joined:
    """Samples so far of every job that is under way, joined of bursts."""

    samples: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    def take(self, burst: Burst) -> Round | None:
        """The round that ``burst`` amounts to, or None where it says of done jobs only."""
        for one in burst.done:
            self.samples.pop(one.key, None)
        empty = np.empty(0)
        for key, (own, control) in burst.samples.items():
            before = self.samples.get(key, (empty, empty))
            self.samples[key] = np.concatenate((before[0], own)), np.concatenate((before[1], control))
        if not burst.control.size:
            return None
        return Round({key: self.samples[key] for key in burst.samples}, burst.control)
