"""A sweep: jobs in, measurements out, each written down as soon as it is known.

``measure(jobs)`` is the one way anything is measured. It looks each job up in the store first, gives the rest to an
executor in order of priority (shuffled within one), saves every round and every result, and reports progress. Killed at
any moment it has lost at most the round in flight; called again it goes on. Called in two processes at once with one
store, each job is measured by one of them (``claims``).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial

import numpy as np

from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.measure.claims import Claims
from shapes.measure.executor import Event, Executor, Round, Samples, Settings, unclaimed
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
    found = _stored(wanted, store, executor, settings) if store is not None and not fresh else {}
    reused = len(found)
    waiting = ordered([job for key, job in wanted.items() if key not in found], settings.seed)
    deadline = start + time_limit_s if time_limit_s is not None else None
    control: list[float] = []
    last: Measurement | None = None
    with ExitStack() as held:
        claims = None
        if store is not None and not fresh:
            known = partial(_is_stored, store, executor, settings)
            claims = held.enter_context(Claims(store, executor.environment, known))
        for event in _events(executor, waiting, settings, deadline, store, claims):
            elsewhere = 0
            if isinstance(event, Round):
                if event.control.size:  # none: samples that are taken back
                    control.append(float(np.median(event.control)))
                if store is not None:
                    store.save_unfinished(event.samples, executor.environment)
            elif isinstance(event, Measurement):
                found[event.key] = last = event
                if store is not None:
                    store.add([event])
            elif store is not None and claims is not None:
                others = _stored([key for key in wanted if key not in found], store, executor, settings)
                found |= others
                reused += len(others)
                elsewhere = len(claims.elsewhere)
            if progress is not None:
                progress(_progress(len(found), len(wanted), reused, start, time_limit_s, last, elsewhere))
    return Sweep(
        results={key: found[key] for key in wanted if key in found},
        left=tuple(job for job in waiting if job.key not in found),
        drift=control_drift(control),
        measured=len(found) - reused,
        reused=reused,
        elapsed_s=time.monotonic() - start,
    )


def _events(
    executor: Executor,
    waiting: list[Job],
    settings: Settings,
    deadline: float | None,
    store: Store | None,
    claims: Claims | None,
) -> Iterator[Event | None]:
    """What the executor does; then, while other processes are at work on what is left, now and then None.

    What one of them has begun and left, as when it is killed, is measured here.
    """
    may_start = claims.take if claims is not None else unclaimed
    while waiting:
        samples = _unfinished(waiting, store, executor) if claims is not None else {}
        for event in executor.run(waiting, settings, deadline=deadline, unfinished=samples, claim=may_start):
            yield event
            if claims is not None:
                claims.renew()
        waiting = []
        while claims is not None and claims.refused and not waiting:
            yield None
            if not claims.elsewhere or (deadline is not None and time.monotonic() >= deadline):
                return
            time.sleep(_LOOK_S)
            waiting = [job for job in list(claims.elsewhere.values()) if claims.take(job)]


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


def _stored(wanted: Iterable[str], store: Store, executor: Executor, settings: Settings) -> dict[str, Measurement]:
    """What the store knows well enough: a looser measurement than the precision now asked for is made again."""
    found = {}
    for key in wanted:
        one = store.find(key, executor.environment)
        if one is None:
            continue
        width = one.half_width
        if one.stop == "precision" and width is not None and width > settings.precision:
            continue
        found[key] = one
    return found


def _is_stored(store: Store, executor: Executor, settings: Settings, job: Job) -> bool:
    return bool(_stored([job.key], store, executor, settings))


def _unfinished(jobs: list[Job], store: Store | None, executor: Executor) -> Samples:
    if store is None:
        return {}
    found = {job.key: store.unfinished(job.key, executor.environment) for job in jobs}
    return {key: samples for key, samples in found.items() if samples is not None}


def _progress(
    done: int,
    total: int,
    reused: int,
    start: float,
    time_limit_s: float | None,
    last: Measurement | None,
    elsewhere: int,
) -> Progress:
    elapsed = time.monotonic() - start
    new = done - reused
    left = elapsed / new * (total - done) if new else None
    if time_limit_s is not None:
        left = min(left, time_limit_s - elapsed) if left is not None else time_limit_s - elapsed
    return Progress(done, total, reused, elapsed, max(0.0, left) if left is not None else None, last, elsewhere)
