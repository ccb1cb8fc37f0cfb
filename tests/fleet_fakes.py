"""A pool of device processes without processes: each is driven a message at a time, and dies or hangs when told to."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from measure_fakes import ENVIRONMENT, FakeExecutor, _sent

from shapes.measure.environment import Environment
from shapes.measure.executor import Executor, Samples, Settings
from shapes.measure.fleet.device import DeviceProcess, LostError, Message, Over
from shapes.measure.fleet.fleet import Fleet, Member
from shapes.measure.jobs import Job


class FakePool:
    """Processes over ``make(name)``. ``fate(name, job keys under way)`` is asked before every message: "dies" ends the

    process, "hangs" keeps it silent for good. Messages are pickled, as over a wire.
    """

    def __init__(
        self, make: Callable[[str], Executor], fate: Callable[[str, list[str]], str] = lambda *_: "", seed: int = 0
    ) -> None:
        self._make, self._fate, self._order = make, fate, random.Random(seed)
        self.processes: dict[str, DeviceProcess] = {}
        self.runs: dict[str, list[tuple[Iterator[Any], list[str]]]] = {}
        self.greet: list[str] = []
        self.hung: set[str] = set()
        self.starts: list[str] = []

    def start(self, name: str, type_: str) -> None:
        self.processes[name] = DeviceProcess(None, lambda _: self._make(name), node=f"node of {name}")
        self.runs[name] = []
        self.greet.append(name)
        self.starts.append(name)

    def stop(self, name: str) -> None:
        self.processes.pop(name, None)
        self.runs.pop(name, None)
        self.hung.discard(name)
        self.greet = [one for one in self.greet if one != name]

    def lease(
        self, name: str, jobs: Sequence[Job], settings: Settings, unfinished: Samples, left_s: float | None
    ) -> None:
        sent = _sent((list(jobs), settings, dict(unfinished), left_s))
        self.runs[name].append((self.processes[name].run(*sent), [job.key for job in jobs]))

    def wait(self, timeout_s: float) -> Iterable[tuple[str, Message]]:
        if self.greet:
            name = self.greet.pop(0)
            return [(name, _sent(next(self.processes[name].greet())))]
        busy = [name for name in self.runs if self.runs[name] and name not in self.hung]
        if not busy:
            return []
        name = self._order.choice(busy)
        run, keys = self.runs[name][0]
        fate = self._fate(name, keys)
        if fate == "dies":
            self.runs[name] = []
            return [(name, LostError("its process died"))]
        if fate == "hangs":
            self.hung.add(name)
            return []
        try:
            return [(name, _sent(next(run)))]
        except StopIteration:
            self.runs[name].pop(0)
            return [(name, Over())]


def fleet(
    pool: FakePool,
    names: Sequence[str] = ("H100/0", "H100/1"),
    environment: Environment = ENVIRONMENT,
    silent_s: float = 1e9,
) -> tuple[Fleet, list[str]]:
    """A fleet over ``pool`` and the lines that it says."""
    said: list[str] = []
    members = [Member(name, name.partition("/")[0]) for name in names]
    made = Fleet(pool, members, environment, say=said.append, silent_s=silent_s, start_s=1e9)
    return made, said


def steady(name: str, wall_s: float = 0.0) -> FakeExecutor:
    """Takes k milliseconds for depth k."""
    return FakeExecutor(lambda job: 1e-3 * job.work.k, wall_s)  # type: ignore[union-attr]
