"""Who measures which jobs: leases of the driver, given back when a device is lost; and on which devices (``--on``).

Jobs go out in the order they were given, the most wanted first, in leases of several so that a device can time them in
turn. Each job is done once: a result counts only from the lease that holds the job. Of a lost device's jobs those that
may have been under way are suspects; a suspect is leased alone, and one that has lost its device alone as well is
convicted: it is not tried a sixth time (a third, where the device fell silent).
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shapes.errors import InputError
from shapes.measure.executor import Claim, unclaimed
from shapes.measure.jobs import Job

#: A lease is so many times the jobs that are timed in turn: its last ones share their rounds with fewer others.
ROUNDS_OF_JOBS = 4
#: A job that has lost its device so often, the last time alone, is not tried again: processes are killed from outside
#: too, so that a few times say nothing of the job (of 50 kills in a minute's work, three convicted four innocent ones:
#: reports/fleet.md). A device that falls silent does so of itself.
MOST_DEATHS, MOST_SILENCES = 5, 2

#: A type of accelerator as its cluster names it.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
#: What devices are called whose node does not name their type.
UNNAMED = "GPU"


@dataclass(slots=True, eq=False)
class Lease:
    """``jobs`` that one device has, in order; ``left`` are those that are not done."""

    jobs: tuple[Job, ...]
    left: dict[str, Job] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left = {job.key: job for job in self.jobs}


class Leases:
    """``jobs`` (keys unlike each other) in order of importance; ``interleave``: how many a device times in turn.

    ``claim`` is asked of each before it is given out; what it refuses is left out.
    """

    def __init__(self, jobs: Sequence[Job], interleave: int, claim: Claim = unclaimed) -> None:
        self._jobs = {job.key: job for job in jobs}
        self._place = {key: place for place, key in enumerate(self._jobs)}
        self._waiting = list(enumerate(self._jobs))
        self._interleave, self._claim = interleave, claim
        self._losses: Counter[str] = Counter()
        self._out: list[Lease] = []

    @property
    def over(self) -> bool:
        return not self._waiting and not self._out

    def take(self, devices: int) -> Lease | None:
        """The next jobs for one of ``devices`` devices, or None: fewer towards the end, so that all end together."""
        if not self._waiting:
            return None
        share = -(-len(self._waiting) // (2 * max(1, devices)))
        most = max(1, min(ROUNDS_OF_JOBS * self._interleave, share))
        taken: list[Job] = []
        while self._waiting and len(taken) < most:
            _, key = self._waiting[0]
            suspect = key in self._losses
            if suspect and taken:
                break
            heapq.heappop(self._waiting)
            if self._claim(self._jobs[key]):
                taken.append(self._jobs[key])
                most = 1 if suspect else most
        if not taken:
            return None
        lease = Lease(tuple(taken))
        self._out.append(lease)
        return lease

    def done(self, lease: Lease, key: str) -> bool:
        """Whether ``key`` was this lease's to do; it is done then."""
        if lease not in self._out or key not in lease.left:
            return False
        del lease.left[key]
        return True

    def end(self, lease: Lease) -> None:
        """The device is through with ``lease``; what it did not reach waits again."""
        self._out.remove(lease)
        for key in lease.left:
            heapq.heappush(self._waiting, (self._place[key], key))

    def lost(self, lease: Lease, *, silent: bool) -> tuple[Job, ...]:
        """The device was lost while it worked on ``lease``: its jobs wait again, but those convicted, which it returns.

        ``silent``: it did not die, it answered nothing any more.
        """
        suspects = list(lease.left)[: self._interleave]
        alone = len(lease.jobs) == 1
        convicted = []
        for key in suspects:
            self._losses[key] += 1
            if alone and self._losses[key] >= (MOST_SILENCES if silent else MOST_DEATHS):
                convicted.append(lease.left.pop(key))
        self.end(lease)
        return tuple(convicted)

    def drop(self) -> None:
        """Nothing more is wanted: what waits is left."""
        self._waiting.clear()


def parse_on(text: str) -> dict[str, int | None]:
    """``--on``: type -> how many devices of it (None: as many as there are).

    >>> parse_on("H100:2,A100")
    {'H100': 2, 'A100': None}
    """
    wanted: dict[str, int | None] = {}
    for part in text.split(","):
        name, colon, count = part.strip().partition(":")
        if not _NAME.fullmatch(name) or name in wanted:
            raise InputError("expected types of accelerators, each once: H100:2,A100:1", key="--on", value=text)
        if colon and not (count.isdigit() and int(count)):
            raise InputError("expected whole devices: a figure of a shared one says nothing", key="--on", value=text)
        wanted[name] = int(count) if colon else None
    return wanted


def places(wanted: Mapping[str, int | None] | None, there: Counter[str]) -> dict[str, int]:
    """Type -> devices to use, of those ``there`` (``wanted`` None: all). InputError says what there is."""
    if not there:
        raise InputError("expected a node with accelerators: the cluster has none", key="--ray")
    wanted = dict.fromkeys(there) if wanted is None else wanted
    for name, count in wanted.items():
        if not 0 < (count or 1) <= there[name]:
            asked = name if count is None else f"{name}:{count}"
            listed = ", ".join(f"{type_}:{here}" for type_, here in sorted(there.items()))
            raise InputError(f"expected what the cluster has: {listed}", key="--on", value=asked)
    return {name: count or there[name] for name, count in wanted.items()}
