"""Where jobs are run: one interface, so that a cluster fits behind it without a change of search or store.

``Executor.run`` takes jobs in order of importance and yields events, over as many devices as the executor has.
``prepare``, ``sample`` and ``finish`` (or ``release``) are for a search, which chooses what to time next: a prepared
job stays on one device, so that samples of two jobs may be paired.

Nothing that crosses the interface holds a device. Jobs and settings go in, samples and measurements come out, and the
driver keeps them (``runner.measure``, the store). ``shapes.measure.in_process.InProcess`` runs in this process on one
device; ``shapes.measure.workers.Workers`` runs each device in a process of its own; the first is the session's
(``workers.Session``). ``workers.here`` chooses one, for the command line and the library.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

import numpy as np

from shapes.errors import InputError
from shapes.frozen import frozen

from .environment import BURST, Environment
from .jobs import Job
from .record import Measurement, Status
from .stats import Array, Stopping

#: Job key -> (samples, the control's samples taken with them): what an interrupted run has left, or a round has so far.
Samples = Mapping[str, tuple[Array, Array]]


@frozen
class Settings(Stopping):
    """How long and how well to measure. ``precision``: half-width of the interval relative to the median.

    ``time_s``: most device time a job. ``batch_s``: device time of a job in a round. ``interleave``: how
    many jobs are open at once. ``warm_up_s``: least device time of a job before its first sample.
    ``least_samples`` before an interval is called precise. ``load``: what its rows say of these (``Environment``).
    ``profiled``: each job by torch's profiler as well, which takes longer than timing it.
    """

    time_s: float = 0.5
    batch_s: float = 0.004
    interleave: int = 8
    warm_up_s: float = 0.004
    most_warm_up_s: float = 0.05
    seed: int = 0
    load: str = BURST
    profiled: bool = False


class NotMeasured(RuntimeError):  # noqa: N818  # an outcome, not an error of this program
    """A job that has no time: ``status`` is oom, error, unsupported or wrong."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(status, message)  # both, so that it can be sent
        self.status: Status = status

    def __str__(self) -> str:
        return str(self.args[1])


class DeviceLostError(InputError):
    """The device answers nothing any more; a new process may go on where this one stopped."""


@dataclass(slots=True)
class Prepared:
    """A job that is ready to be timed.

    ``samples`` (seconds of one call) and ``controls``: those taken so far. ``held_bytes``: memory of its inputs.
    ``handle`` is what runs it, which its executor alone looks into.
    """

    job: Job
    handle: Any
    held_bytes: int
    samples: Array = field(default_factory=lambda: np.empty(0))
    controls: Array = field(default_factory=lambda: np.empty(0))


@frozen
class Round:
    """One round is over: the ``samples`` so far of every open job, and the control's of this round.

    Both empty: a sign of life, before the first job and after each that was opened.
    """

    samples: Samples
    control: Array


Event = Round | Measurement


class Executor(Protocol):
    """Runs jobs somewhere."""

    @property
    def environment(self) -> Environment:
        """The environment of the devices that run jobs, which are all alike."""

    def run(
        self, jobs: Sequence[Job], settings: Settings, *, deadline: float = inf, unfinished: Samples | None = None
    ) -> Iterator[Event]:
        """Measure ``jobs``: a Round now and then and a Measurement for every job that is done, in any order.

        No job is started when ``deadline`` (time.monotonic seconds) has passed. ``unfinished``: what an interrupted run
        has left.  DeviceLostError where the device answers nothing any more.
        """
