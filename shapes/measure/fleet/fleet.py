"""An executor of many devices that are alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.measure.environment import Environment
from shapes.measure.executor import Claim, Event, NotMeasured, Prepared, Samples, Settings, unclaimed
from shapes.measure.fleet.leases import MOST_DEATHS, MOST_SILENCES, Leases
from shapes.measure.fleet.members import Member, Members
from shapes.measure.fleet.pool import LostError, Pool
from shapes.measure.fleet.sweep import FleetSweep
from shapes.measure.fleet.watch import LIMIT, Watch
from shapes.measure.jobs import Job
from shapes.measure.record import Measurement

Array = NDArray[np.float64]


@dataclass(slots=True)
class _There:
    """What a prepared job is on its device: ``id`` in the process that ``start`` counts."""

    settings: Settings
    start: int = -1
    id: int = -1


class Fleet:
    """See ``Executor``. A sweep uses every device; what is prepared one by one lies on the first that is ready.

    Its device is lost: what was prepared there is prepared again on the next.
    """

    def __init__(self, pool: Pool, members: Members, room_bytes: int, settings: Settings | None = None) -> None:
        self._pool, self._members = pool, members
        self.room_bytes = room_bytes
        self.settings = settings or Settings()
        self._home: Member | None = None
        self._starts = 0
        self._losses: dict[str, int] = {}

    @property
    def environment(self) -> Environment:
        return self._members.environment

    @property
    def members(self) -> tuple[Member, ...]:
        return self._members.all()

    @property
    def status(self) -> str:
        """A device and what it has done each, for a line of progress."""
        states = {"ready": "", "starting": " starting", "aside": " aside", "stopped": " stopped"}
        return ", ".join(f"{one.label} {one.done}{states[one.state]}" for one in self.members)

    def close(self) -> None:
        """End the devices' processes: others may have the devices. What is asked next starts them again."""
        for member in self.members:
            self._members.stop(member)

    def run(
        self,
        jobs: Sequence[Job],
        settings: Settings,
        *,
        deadline: float | None = None,
        unfinished: Samples | None = None,
        claim: Claim = unclaimed,
    ) -> Iterator[Event]:
        """See ``Executor.run``."""
        self._members.begin()
        watch = Watch(None if self.environment.cpu else LIMIT)
        leases = Leases(jobs, settings.interleave, claim)
        sweep = FleetSweep(self._members, leases, settings, deadline=deadline, unfinished=unfinished or {}, watch=watch)
        return sweep.events()

    def prepare(self, job: Job, settings: Settings | None = None) -> Prepared:
        """See ``Executor.prepare``."""
        prepared = Prepared(job, _There(settings or self.settings), 0)
        while True:
            with suppress(LostError):  # its device is replaced: once more there
                self._on_device(prepared)
                return prepared

    def sample(self, prepared: Prepared, count: int) -> Array:
        """See ``Executor.sample``."""
        taken: Array = self._call(prepared, "sample", count)
        prepared.samples = np.concatenate((prepared.samples, taken))
        return taken

    def finish(self, prepared: Prepared) -> Measurement:
        """See ``Executor.finish``."""
        result: Measurement = self._call(prepared, "finish", prepared.samples, prepared.controls)
        prepared.handle = None
        return result

    def release(self, prepared: Prepared) -> None:
        """See ``Executor.release``."""
        there: _There = prepared.handle
        if there.start == self._starts:
            self._call(prepared, "release")
        prepared.handle = None

    def _on_device(self, prepared: Prepared) -> Member:
        """The device that holds ``prepared``: prepared there again where another process held it."""
        there: _There = prepared.handle
        home = self._at_home()
        if there.start != self._starts:
            there.id, prepared.held_bytes = self._ask(home, prepared.job, "prepare", prepared.job, there.settings)
            there.start = self._starts
        return home

    def _call(self, prepared: Prepared, method: str, *arguments: Any) -> Any:
        """``method`` of what is prepared. A device that is lost is replaced and asked again; NotMeasured where the

        same job loses one device after the other.
        """
        while True:
            with suppress(LostError):
                home = self._on_device(prepared)
                return self._ask(home, prepared.job, method, prepared.handle.id, *arguments)

    def _ask(self, home: Member, job: Job, method: str, *arguments: Any) -> Any:
        try:
            return self._pool.call(home.name, method, *arguments, timeout_s=self._members.silent_s)
        except LostError as lost:
            self._pool.stop(home.name)
            self._members.lost(home, str(lost))
            self._home, self._starts = None, self._starts + 1
            self._losses[job.key] = self._losses.get(job.key, 0) + 1
            if self._losses[job.key] >= (MOST_SILENCES if lost.silent else MOST_DEATHS):
                raise NotMeasured("error", f"the device was lost with it: {lost}") from lost
            raise

    def _at_home(self) -> Member:
        if self._home is None or self._home.state != "ready":
            if self._home is not None:
                self._starts += 1
            self._home = self._members.wait_for_one()
        return self._home
