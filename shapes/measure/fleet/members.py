"""The devices of one fleet: which are ready, starting, set aside; starting one again that was lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shapes.measure.environment import Environment
from shapes.measure.executor import DeviceLostError, Samples, Settings
from shapes.measure.fleet.messages import Gone, Greeting, Message
from shapes.measure.fleet.pool import Pool
from shapes.measure.jobs import Job

#: A device that was lost so often without a result in between is not started again.
MOST_FAILURES = 5

State = Literal["starting", "ready", "aside", "stopped"]


@dataclass(slots=True)
class Member:
    """One device: an accelerator of ``type``. ``failures`` since its last result; ``heard_s``: monotonic seconds."""

    name: str
    type: str
    state: State = "starting"
    heard_s: float = field(default_factory=time.monotonic)
    done: int = 0
    failures: int = 0
    node: str = ""
    pid: int = 0
    told_of_drift: bool = False
    told_of_wait: bool = False

    @property
    def label(self) -> str:
        """For people: "H100/0 at 10.0.0.2"."""
        return f"{self.name} at {self.node}" if self.node else self.name


class Members:
    """Devices of ``pool`` whose figures stand for ``environment``. ``say`` tells a person a line of what happens.

    ``silent_s``: how long a device at work may say nothing. ``start_s``: how long one may take to be ready.
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
        self.say, self.silent_s, self.start_s = say, silent_s, start_s

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    def all(self) -> tuple[Member, ...]:
        return tuple(self._members.values())

    def ready(self) -> list[Member]:
        return [member for member in self._members.values() if member.state == "ready"]

    def expected(self) -> int:
        """Devices that are or will be at work."""
        return sum(member.state in ("ready", "starting") for member in self._members.values())

    def begin(self) -> None:
        """Start what was stopped."""
        for member in self._members.values():
            if member.state == "stopped":
                self._start(member)

    def wait(self, timeout_s: float) -> Iterable[tuple[str, Message]]:
        return self._pool.wait(timeout_s)

    def wait_for_one(self) -> Member:
        """A device that is ready. DeviceLostError where none comes."""
        self.begin()
        while not self.ready():
            for name, message in self._pool.wait(0.5):
                member = self._members[name]
                if isinstance(message, Greeting):
                    self.greeted(member, message)
                elif isinstance(message, Gone):
                    self.lost(member, message.reason, final=message.final)
            if not self.ready() and not self.hope():
                raise DeviceLostError("no device is left to measure on: what was measured is stored")
        return self.ready()[0]

    def lease(
        self, member: Member, jobs: Sequence[Job], settings: Settings, unfinished: Samples, left_s: float | None
    ) -> None:
        self._pool.lease(member.name, jobs, settings, unfinished, left_s)

    def greeted(self, member: Member, greeting: Greeting) -> None:
        """``member``'s process is ready; another environment than the fleet's is set aside."""
        member.node, member.pid, member.heard_s = greeting.node, greeting.pid, time.monotonic()
        if greeting.environment.identity != self.environment.identity:
            self.set_aside(member, f"{differences(greeting.environment, self.environment)}: set aside")
        else:
            member.state = "ready"

    def lost(self, member: Member, what: str, *, final: bool = False) -> None:
        """``member``'s process is gone: another is started in its place, unless it fails for ever (``final``)."""
        member.failures += 1
        if final:
            self.set_aside(member, f"{what}: set aside")
            return
        if member.failures >= MOST_FAILURES:
            self.set_aside(member, f"{what}; set aside after {MOST_FAILURES} failures in a row")
            return
        self.say(f"{member.label}: {what}; started again")
        self._start(member)

    def set_aside(self, member: Member, why: str) -> None:
        self._pool.stop(member.name)
        member.state = "aside"
        self.say(f"{member.label}: {why}")

    def stop(self, member: Member) -> None:
        self._pool.stop(member.name)
        member.state = "stopped" if member.state != "aside" else "aside"

    def hope(self) -> bool:
        """Whether a device is ready or may still become it; a line for one that makes itself waited for."""
        now = time.monotonic()
        starting = [member for member in self._members.values() if member.state == "starting"]
        late = [member for member in starting if now - member.heard_s > self.start_s]
        for member in late:
            if not member.told_of_wait:
                member.told_of_wait = True
                self.say(f"{member.label}: not ready after {self.start_s:.0f} s: it joins when it is")
        return bool(self.ready()) or len(late) < len(starting)

    def _start(self, member: Member) -> None:
        member.state, member.heard_s, member.told_of_wait = "starting", time.monotonic(), False
        self._pool.stop(member.name)  # a process whose device is lost may live, and would keep the device
        self._pool.start(member.name, member.type)


def differences(found: Environment, expected: Environment) -> str:
    """What of one environment is not as in another: "driver 550.54 where others have 570.86"."""
    mine = {"device": found.device, "driver": found.driver, "threads": found.threads, **dict(found.versions)}
    theirs = {
        "device": expected.device,
        "driver": expected.driver,
        "threads": expected.threads,
        **dict(expected.versions),
    }
    names = [name for name in {**theirs, **mine} if mine.get(name) != theirs.get(name)]
    return ", ".join(f"{name} {mine.get(name) or 'missing'}, not {theirs.get(name) or 'missing'}" for name in names)
