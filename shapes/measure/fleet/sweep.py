"""One sweep over a fleet: leases go out, bursts come in, what is lost goes back, what hangs or drifts is replaced."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from shapes.measure.executor import DeviceLostError, Event, Round, Samples, Settings
from shapes.measure.fleet.leases import Lease, Leases
from shapes.measure.fleet.members import Member, Members
from shapes.measure.fleet.messages import Burst, Gone, Greeting, Joined, Message
from shapes.measure.fleet.watch import Watch
from shapes.measure.jobs import Part
from shapes.measure.record import without_time

#: Longest wait for news: signals and limits are looked at so often.
WAIT_S = 0.5
#: torch.compile may take so many times as long as anything else before the first sample.
COMPILING = 5


class FleetSweep:
    """``events`` is the sweep. Devices that it leaves at work (an exception, a signal) are stopped."""

    def __init__(
        self,
        members: Members,
        leases: Leases,
        settings: Settings,
        *,
        deadline: float | None,
        unfinished: Samples,
        watch: Watch,
    ) -> None:
        self._members, self._settings, self._deadline, self._watch = members, settings, deadline, watch
        self._leases = leases
        self._joined = Joined(dict(unfinished))
        self._out: dict[str, list[Lease]] = {}

    def events(self) -> Iterator[Event]:
        """See ``Executor.run``."""
        try:
            while not self._leases.over:
                if self._left_s() == 0:
                    self._leases.drop()
                self._hand_out()
                for name, message in self._members.wait(WAIT_S):
                    yield from self._hear(self._members[name], message)
                for member in self._silent():
                    limit = f"answered nothing for {self._patience_s(member):.0f} s"
                    self._members.stop(member)
                    yield from self._lost(member, limit, silent=True)
                if not self._leases.over and not self._members.hope():
                    raise DeviceLostError("no device is left to measure on: what was measured is stored")
        finally:
            for name, leases in self._out.items():
                if leases:
                    self._members.stop(self._members[name])

    def _left_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _hand_out(self) -> None:
        """Keep every device in work: the next lease is there before the last one is through."""
        ready = self._members.ready()
        for member in sorted(ready, key=lambda one: len(self._out.get(one.name, ()))):
            mine = self._out.setdefault(member.name, [])
            if len(mine) > 1 or (mine and len(mine[0].left) > self._settings.interleave):
                continue
            lease = self._leases.take(self._members.expected())
            if lease is None:
                return
            if not mine:
                member.heard_s = time.monotonic()
            mine.append(lease)
            kept = self._joined.samples
            unfinished = {job.key: kept[job.key] for job in lease.jobs if job.key in kept}
            self._members.lease(member, lease.jobs, self._settings, unfinished, self._left_s())

    def _hear(self, member: Member, message: Message) -> Iterator[Event]:
        member.heard_s = time.monotonic()
        mine = self._out.get(member.name, [])
        if isinstance(message, Greeting):
            self._members.greeted(member, message)
        elif isinstance(message, Gone):
            yield from self._lost(member, message.reason, silent=False, final=message.final)
        elif isinstance(message, Burst):
            if mine:
                yield from self._burst(member, message, mine[0])
        elif mine and mine[0].left and self._left_s() != 0:
            yield from self._lost(member, "left a lease unfinished", silent=False)
        elif mine:
            self._leases.end(mine.pop(0))

    def _burst(self, member: Member, burst: Burst, lease: Lease) -> Iterator[Event]:
        done = [one for one in burst.done if self._leases.done(lease, one.key)]
        now = self._joined.take(burst)
        if now is not None:
            yield now
        reason = self._watch.control(member.name, burst.control.tolist())
        for one in done:
            member.done += 1
            member.failures = 0
            reason = self._watch.throttle(member.name, tuple(one.clocks.get("throttle", ()))) or reason
            yield one
        if reason is not None and not member.told_of_drift:
            yield from self._drifts(member, reason)

    def _drifts(self, member: Member, reason: str) -> Iterator[Event]:
        """Set ``member`` aside; what it has not finished is measured anew. The last one goes on: its rows say how."""
        if len(self._members.ready()) == 1:
            member.told_of_drift = True
            self._members.say(f"{member.label}: {reason}: kept, no other is at work")
            return
        keys = [key for lease in self._out[member.name] for key in lease.left]
        self._members.set_aside(member, f"{reason}: set aside, {len(keys)} jobs go back")
        for lease in self._out.pop(member.name):
            self._leases.end(lease)
        begun = [key for key in keys if self._joined.samples.pop(key, None) is not None]
        if begun:
            nothing = np.empty(0)
            yield Round(dict.fromkeys(begun, (nothing, nothing)), nothing)

    def _silent(self) -> list[Member]:
        now = time.monotonic()
        working = (member for member in self._members.ready() if self._out.get(member.name))
        return [member for member in working if now - member.heard_s > self._patience_s(member)]

    def _patience_s(self, member: Member) -> float:
        jobs = self._out[member.name][0].left.values()
        compiled = any(isinstance(job.work, Part) and job.work.compiled for job in jobs)
        return self._members.silent_s * (COMPILING if compiled else 1)

    def _lost(self, member: Member, reason: str, *, silent: bool, final: bool = False) -> Iterator[Event]:
        leases = self._out.pop(member.name, [])
        self._watch.forget(member.name)
        back = sum(len(lease.left) for lease in leases)
        convicted = self._leases.lost(leases[0], silent=silent) if leases else ()
        for lease in leases[1:]:
            self._leases.end(lease)
        self._members.lost(member, f"{reason}: {back} jobs go back" if back else reason, final=final)
        for job in convicted:
            self._members.say(f"{job.title}: not tried again, a device was lost with it time after time")
            yield without_time(job, self._members.environment, "error", f"the device was lost with it: {reason}")
