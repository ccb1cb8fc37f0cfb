"""An executor of many devices that are alike: gives jobs out, takes back what a lost device had, starts it again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shapes.measure.environment import Environment
from shapes.measure.executor import (
    Claim,
    DeviceLostError,
    Event,
    Round,
    Samples,
    Settings,
    unclaimed,
)
from shapes.measure.fleet.device import Greeting, LostError, Message, Over, Pool
from shapes.measure.fleet.leases import Lease, Leases
from shapes.measure.jobs import Job, Part
from shapes.measure.record import outcome

Array = NDArray[np.float64]

#: A device that was lost so often without a result in between is not started again.
MOST_FAILURES = 5
#: Longest wait for news: signals and limits are looked at so often.
WAIT_S = 0.5
#: torch.compile may take so many times as long as anything else before the first sample.
COMPILING = 5


@dataclass(slots=True)
class Member:
    """One device: an accelerator of ``type``. ``failures`` since its last result; ``heard_s``: monotonic seconds."""

    name: str
    type: str
    state: Literal["starting", "ready", "aside", "stopped"] = "stopped"
    heard_s: float = field(default_factory=time.monotonic)
    done: int = 0
    failures: int = 0
    node: str = ""
    pid: int = 0
    lease: Lease | None = None

    @property
    def label(self) -> str:
        """For people: "H100/0 at 10.0.0.2"."""
        return f"{self.name} at {self.node}" if self.node else self.name


class Fleet:
    """See ``Executor``: a sweep uses every device.

    ``members``: devices of ``pool`` whose figures stand for ``environment``. ``say`` tells a person a line of what
    happens. ``silent_s``: how long a device at work may say nothing. ``start_s``: how long one may take to be ready.
    """

    def __init__(
        self,
        pool: Pool,
        members: Iterable[Member],
        environment: Environment,
        *,
        say: Callable[[str], None],
        silent_s: float,
        start_s: float,
    ) -> None:
        self._pool = pool
        self._members = {member.name: member for member in members}
        self.environment = environment
        self._say, self._silent_s, self._start_s = say, silent_s, start_s

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(self._members.values())

    @property
    def status(self) -> str:
        """A device and what it has done each, for a line of progress."""
        return ", ".join(f"{one.label} {one.done} {one.state}".removesuffix(" ready") for one in self.members)

    def close(self) -> None:
        """End the devices' processes: others may have the devices. What is asked next starts them again."""
        for member in self.members:
            self._stop(member)

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
        leases, kept = Leases(jobs, settings.interleave, claim), dict(unfinished or {})
        self._begin()
        try:
            while not leases.over:
                left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
                if left_s == 0:
                    leases.drop()
                self._hand_out(leases, settings, kept, left_s)
                for name, message in self._pool.wait(WAIT_S):
                    yield from self._hear(self._members[name], message, leases, kept, late=left_s == 0)
                for member in self._at_work():
                    patience_s = self._patience_s(member)
                    if time.monotonic() - member.heard_s > patience_s:
                        silence = LostError(f"answered nothing for {patience_s:.0f} s", silent=True)
                        yield from self._lost(member, leases, silence)
                if not leases.over:
                    self._expect_one()
        finally:
            for member in self._at_work():
                self._stop(member)

    def _hand_out(self, leases: Leases, settings: Settings, kept: Samples, left_s: float | None) -> None:
        expected = sum(member.state in ("ready", "starting") for member in self.members)
        for member in self.members:
            if member.state != "ready" or member.lease is not None:
                continue
            member.lease = leases.take(expected)
            if member.lease is None:
                return
            member.heard_s = time.monotonic()
            begun = {job.key: kept[job.key] for job in member.lease.jobs if job.key in kept}
            self._pool.lease(member.name, member.lease.jobs, settings, begun, left_s)

    def _hear(
        self, member: Member, message: Message, leases: Leases, kept: dict[str, tuple[Array, Array]], *, late: bool
    ) -> Iterator[Event]:
        member.heard_s = time.monotonic()
        lease = member.lease
        if isinstance(message, LostError):
            yield from self._lost(member, leases, message)
        elif isinstance(message, Greeting):
            self.greeted(member, message)
        elif lease is None:
            return
        elif isinstance(message, Over):
            if lease.left and not late:
                yield from self._lost(member, leases, LostError("left a lease unfinished"))
            else:
                leases.end(lease)
                member.lease = None
        else:
            for event in message:
                if isinstance(event, Round):
                    kept.update(event.samples)
                elif leases.done(lease, event.key):
                    kept.pop(event.key, None)
                    member.done, member.failures = member.done + 1, 0
                else:
                    continue
                yield event

    def _lost(self, member: Member, leases: Leases, lost: LostError) -> Iterator[Event]:
        """``member``'s process is gone: its jobs go back, but those to blame, which are an outcome."""
        lease, member.lease = member.lease, None
        convicted = leases.lost(lease, silent=lost.silent) if lease is not None else ()
        self._start_again(member, f"{lost}: {len(lease.left)} jobs go back" if lease is not None else str(lost))
        for job in convicted:
            self._say(f"{job.title}: not tried again, a device was lost with it time after time")
            yield outcome(job, self.environment, "error", message=f"the device was lost with it: {lost}")

    def _at_work(self) -> list[Member]:
        return [member for member in self.members if member.lease is not None]

    def _patience_s(self, member: Member) -> float:
        jobs = member.lease.left.values() if member.lease is not None else ()
        compiled = any(isinstance(job.work, Part) and job.work.compiled for job in jobs)
        return self._silent_s * (COMPILING if compiled else 1)

    def _begin(self) -> None:
        for member in self.members:
            if member.state == "stopped":
                self._start(member)

    def _start(self, member: Member) -> None:
        self._pool.stop(member.name)  # a process whose device is lost may live, and would keep the device
        member.state, member.heard_s = "starting", time.monotonic()
        self._pool.start(member.name, member.type)

    def _start_again(self, member: Member, what: str) -> None:
        """Another process in place of ``member``'s, which is gone, unless it was so too often."""
        member.failures += 1
        if member.failures >= MOST_FAILURES:
            self._set_aside(member, f"{what}; set aside after {MOST_FAILURES} failures in a row")
            return
        self._say(f"{member.label}: {what}; started again")
        self._start(member)

    def _stop(self, member: Member) -> None:
        self._pool.stop(member.name)
        member.lease = None
        if member.state != "aside":
            member.state = "stopped"

    def _set_aside(self, member: Member, why: str) -> None:
        self._stop(member)
        member.state = "aside"
        self._say(f"{member.label}: {why}")

    def greeted(self, member: Member, greeting: Greeting) -> None:
        """``member``'s process is ready; another environment than the fleet's is set aside."""
        member.node, member.pid, member.state = greeting.node, greeting.pid, "ready"
        if greeting.environment.identity != self.environment.identity:
            self._set_aside(member, f"{differences(greeting.environment, self.environment)}: set aside")

    def _expect_one(self) -> None:
        """DeviceLostError where no device is ready or may still become it; those that take too long are set aside."""
        for member in self.members:
            if member.state == "starting" and time.monotonic() - member.heard_s > self._start_s:
                self._set_aside(member, f"not ready after {self._start_s:.0f} s: set aside")
        if not any(member.state in ("ready", "starting") for member in self.members):
            raise DeviceLostError("no device is left to measure on: what was measured is stored")


def differences(found: Environment, expected: Environment) -> str:
    """What of one environment is not as in another: "driver 550.54, not 570.86"."""
    mine, theirs = found.facts, expected.facts
    names = [name for name in {**theirs, **mine} if mine.get(name) != theirs.get(name)]
    return ", ".join(f"{name} {mine.get(name) or 'missing'}, not {theirs.get(name) or 'missing'}" for name in names)
