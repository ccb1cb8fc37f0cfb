"""A sweep: jobs in, measurements out, each written down as soon as it is known.

``measure(jobs)`` is the one way anything is measured. It looks each job up in the store first, gives the rest to an
executor in order of priority (shuffled within one), saves every round and every result, and reports progress. Killed at
any moment it has lost at most the round in flight; called again it goes on. Called in two processes at once with one
store, each job is measured by one of them (``Claims``).
"""

from __future__ import annotations

import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType

import numpy as np

from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.measure.environment import Environment
from shapes.measure.executor import Event, Executor, Settings
from shapes.measure.jobs import Job, by_key
from shapes.measure.record import Measurement
from shapes.measure.stats import Drift, control_drift
from shapes.measure.store import Store

#: More parts than any scheduler's array has tasks are a typing error.
MOST_SHARDS = 100_000
#: How often to look whether another process is through with what is left.
_LOOK_S = 0.3


@frozen
class Progress:
    """How far a sweep is: ``done`` of ``total`` jobs (``reused`` of them from the store), the seconds gone and left.

    ``elsewhere``: jobs that only other processes' results are waited for.
    """

    done: int
    total: int
    reused: int
    elapsed_s: float
    left_s: float | None
    last: Measurement | None
    elsewhere: int = 0


@frozen
class Sweep:
    """What a sweep gave. ``results`` by job key, in the order the jobs were given; ``left``: jobs not reached in time.

    ``drift``: the control shape through the sweep; ``measured`` counts new measurements, ``reused`` stored ones.
    """

    results: dict[str, Measurement]
    left: tuple[Job, ...]
    drift: Drift
    measured: int
    reused: int
    elapsed_s: float

    @property
    def failed(self) -> tuple[Measurement, ...]:
        return tuple(one for one in self.results.values() if not one.ok)


def measure(
    jobs: Iterable[Job],
    *,
    executor: Executor,
    store: Store | None = None,
    settings: Settings | None = None,
    time_limit_s: float | None = None,
    fresh: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Sweep:
    """Measure ``jobs`` (equal ones once) and return what is known of them.

    ``store`` None: nothing is kept.
    ``time_limit_s``: no job is started after it, those of small ``priority`` come first. ``fresh``: measure again what
    the store has.
    """
    start = time.monotonic()
    settings = settings or Settings()
    wanted = by_key(jobs)
    deadline = start + time_limit_s if time_limit_s is not None else None
    with ExitStack() as held:
        kept = store if store is not None else held.enter_context(Store.in_memory())
        known = partial(_stored, kept, executor.environment, settings)
        claims = None if fresh else held.enter_context(Claims(kept, executor.environment, known))
        book = _Book(kept, executor.environment, {} if fresh else known(wanted))
        waiting = ordered([job for key, job in wanted.items() if key not in book.found], settings.seed)
        for event in _events(executor, waiting, settings, deadline, kept, claims):
            book.hear(event)
            elsewhere = 0
            if event is None and claims is not None:
                book.reuse(known(key for key in wanted if key not in book.found))
                elsewhere = len(claims.elsewhere)
            if progress is not None:
                progress(book.progress(len(wanted), time.monotonic() - start, time_limit_s, elsewhere))
    return Sweep(
        results={key: book.found[key] for key in wanted if key in book.found},
        left=tuple(job for job in waiting if job.key not in book.found),
        drift=control_drift(book.control),
        measured=len(book.found) - book.reused,
        reused=book.reused,
        elapsed_s=time.monotonic() - start,
    )


class _Book:
    """What is known so far: ``found`` by job key, of which ``reused`` others measured; the ``control`` by rounds."""

    def __init__(self, store: Store, environment: Environment, found: dict[str, Measurement]) -> None:
        self._store, self._environment = store, environment
        self.found, self.reused = found, len(found)
        self.control: list[float] = []
        self.last: Measurement | None = None

    def hear(self, event: Event | None) -> None:
        """Write down what happened."""
        if isinstance(event, Measurement):
            self.found[event.key] = self.last = event
            self._store.add([event])
        elif event is not None:
            if event.control.size:  # none: samples that are taken back
                self.control.append(float(np.median(event.control)))
            self._store.save_unfinished(event.samples, self._environment)

    def reuse(self, others: dict[str, Measurement]) -> None:
        self.found |= others
        self.reused += len(others)

    def progress(self, total: int, elapsed_s: float, limit_s: float | None, elsewhere: int) -> Progress:
        done = len(self.found)
        left_s = _left_s(done - self.reused, total - done, elapsed_s, limit_s)
        return Progress(done, total, self.reused, elapsed_s, left_s, self.last, elsewhere)


def _left_s(new: int, left: int, elapsed_s: float, time_limit_s: float | None) -> float | None:
    """Seconds to go: as long a job as the ``new`` ones took, and no longer than the limit; None: nobody can tell."""
    ends = [elapsed_s / new * left] if new else []
    if time_limit_s is not None:
        ends.append(time_limit_s - elapsed_s)
    return max(0.0, min(ends)) if ends else None


def _events(
    executor: Executor,
    waiting: list[Job],
    settings: Settings,
    deadline: float | None,
    store: Store,
    claims: Claims | None,
) -> Iterator[Event | None]:
    """What the executor does; then, while other processes are at work on what is left, now and then None.

    What one of them has begun and left, as when it is killed, is measured here.
    """
    if claims is None:
        yield from executor.run(waiting, settings, deadline=deadline)
        return
    while waiting:
        samples = store.all_unfinished([job.key for job in waiting], executor.environment)
        for event in executor.run(waiting, settings, deadline=deadline, unfinished=samples, claim=claims.take):
            yield event
            claims.renew()
        waiting = []
        while claims.refused and not waiting:
            yield None
            if not claims.elsewhere or (deadline is not None and time.monotonic() >= deadline):
                return
            time.sleep(_LOOK_S)
            waiting = [job for job in list(claims.elsewhere.values()) if claims.take(job)]


#: Longer than a sweep at work ever says nothing; a process that died on this host does not keep anyone so long.
LASTS_S = 300.0
_RENEW_S = 30.0


class Claims:
    """Which process measures what at this moment: two that are given the same jobs share them.

    A claim is a row of the store: a job that has begun, in one environment, and whose it is. It ends with the job, with
    its owner's sweep, with its owner (a process of this host that is no more), or when it was not renewed for
    ``LASTS_S``. These are of one sweep on devices of ``environment``. ``known(keys)``: what the store has of them.

    ``elsewhere``: jobs that others had when they were asked for. ``refused``: whether any was ever left to another.
    """

    def __init__(self, store: Store, environment: Environment, known: Callable[[list[str]], object]) -> None:
        self._store, self._identity, self._known = store, environment.identity, known
        self._owner, self._host, self._process = uuid.uuid4().hex, socket.gethostname(), os.getpid()
        self._renewed_s = time.monotonic()
        self.elsewhere: dict[str, Job] = {}
        self.refused = False

    def __enter__(self) -> Claims:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(InputError):  # a full disk has been told; claims end of themselves
            self._store.change("DELETE FROM claim WHERE owner = ?", self._owner)

    def take(self, job: Job) -> bool:
        """Whether this sweep may measure ``job`` now: no other has begun it, and none has done it since."""
        place = (job.key, self._identity)
        with self._store.transaction() as connection:
            row = connection.execute(
                "SELECT owner, host, process, until FROM claim WHERE key = ? AND identity = ?", place
            ).fetchone()
            if row is not None and self._is_held(*row):
                self.elsewhere[job.key], self.refused = job, True
                return False
            connection.execute(
                "INSERT OR REPLACE INTO claim VALUES (?, ?, ?, ?, ?, ?)",
                (*place, self._owner, self._host, self._process, time.time() + LASTS_S),
            )
        self.elsewhere.pop(job.key, None)
        # Asked after it was claimed: who did it has stored it before its claim went.
        if not self._known([job.key]):
            return True
        self._store.change("DELETE FROM claim WHERE key = ? AND identity = ?", *place)
        self.refused = True
        return False

    def renew(self) -> None:
        """Say that this sweep is at work; to be called with everything that happens."""
        if time.monotonic() - self._renewed_s > _RENEW_S:
            self._renewed_s = time.monotonic()
            self._store.change("UPDATE claim SET until = ? WHERE owner = ?", time.time() + LASTS_S, self._owner)

    def _is_held(self, owner: str, host: str, process: int, until: float) -> bool:
        mine, over = owner == self._owner, until < time.time()
        return not (mine or over or (host == self._host and not _alive(process)))


def _alive(process: int) -> bool:
    """Whether a process of this host has that number."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True


def ordered(jobs: list[Job], seed: int) -> list[Job]:
    """By priority, in random order within one: what drifts with time then does not look like an effect of shape."""
    shuffled = list(jobs)
    random.Random(seed).shuffle(shuffled)
    return sorted(shuffled, key=lambda job: job.priority)


@frozen
class Shard:
    """The ``number``-th of ``of`` parts of a list of jobs, counted from 1."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """ "3/8"; InputError for anything else."""
        number, slash, of = text.partition("/")
        if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of) <= MOST_SHARDS):
            raise InputError("expected a part of how many, as 3/8", key="--shard", value=text)
        return cls(int(number), int(of))

    @property
    def name(self) -> str:
        """For a file's: "3-of-8"."""
        return f"{self.number}-of-{self.of}"

    def jobs(self, jobs: Iterable[Job], seed: int = 0) -> list[Job]:
        """This part: an equal share of every priority, the same in every process that is given the same list."""
        return ordered(list(by_key(jobs).values()), seed)[self.number - 1 :: self.of]


def _stored(
    store: Store, environment: Environment, settings: Settings, wanted: Iterable[str]
) -> dict[str, Measurement]:
    """What the store knows well enough: a looser measurement than the precision now asked for is made again."""
    found = {}
    for key in wanted:
        one = store.find(key, environment)
        if one is not None and not (one.stop == "precision" and (one.half_width or 0.0) > settings.precision):
            found[key] = one
    return found
