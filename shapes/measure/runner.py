"""A sweep: jobs in, measurements out, each written down as soon as it is known.

``measure(jobs)`` is the one way anything is measured. It looks each job up in the store first, gives the rest to an
executor in order of priority (shuffled within one), saves every round and every result, and reports progress. Killed at
any moment it has lost at most the round in flight; called again it goes on.
"""

import random
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from math import inf

import numpy as np

from shapes.errors import refuse
from shapes.frozen import frozen, replace
from shapes.program import REQUESTS

from .environment import Environment
from .executor import Event, Executor, Settings
from .jobs import Job, by_key
from .record import Measurement
from .stats import Drift, control_drift
from .store import Store

#: More parts than any scheduler's array has tasks are a typing error.
MOST_SHARDS = 100_000


@frozen
class Progress:
    """How far a sweep is: ``done`` of ``total`` jobs, those of the store too, and the seconds left.

    ``best``: of the highest rate.
    """

    done: int
    total: int
    left_s: float | None
    best: Measurement | None


@frozen
class Sweep:
    """A sweep's result. ``results`` by job key, in the order the jobs were given; ``left``: jobs not reached in time.

    ``drift``: the control shape through the sweep; ``measured`` counts new measurements, ``reused`` stored ones.
    """

    results: dict[str, Measurement]
    left: tuple[Job, ...]
    drift: Drift
    measured: int
    reused: int
    elapsed_s: float


def measure(
    jobs: Iterable[Job],
    *,
    executor: Executor,
    store: Store | None = None,
    settings: Settings | None = None,
    time_limit_s: float | None = None,
    fresh: bool = False,
    progress: Callable[[Progress], None] | None = None,
    keep: Callable[[Measurement], None] = lambda _: None,
) -> Sweep:
    """Measure ``jobs`` (equal ones once) and return what is known of them.

    ``store`` None: nothing is kept.
    ``time_limit_s``: no job is started after it, nor after a request to stop; jobs of small ``priority`` come first.
    ``fresh``: measure again the jobs that the store has. ``keep`` is called with each result, the store's first.
    """
    start = time.monotonic()
    settings = settings or Settings()
    wanted = by_key(jobs)
    deadline = inf if time_limit_s is None else start + time_limit_s
    with ExitStack() as held:
        kept = store or held.enter_context(Store.in_memory())
        environment = replace(executor.environment, load=settings.load)
        book = _Book(kept, environment, {} if fresh else _stored(kept, environment, settings, wanted))
        for one in book.found.values():
            keep(one)
        waiting = ordered([job for key, job in wanted.items() if key not in book.found], settings.seed)
        taken = {} if fresh else kept.unfinished([job.key for job in waiting], environment)
        begun = executor.run(waiting, settings, deadline=deadline, unfinished=taken) if waiting and not REQUESTS else ()
        for heard in begun:
            if isinstance(heard, Measurement):
                one = replace(heard, environment=replace(heard.environment, load=settings.load))
                book.hear(one)
                keep(one)
            else:
                book.hear(heard)
            if progress:
                progress(book.progress(len(wanted), time.monotonic() - start, time_limit_s))
            if REQUESTS:
                break
    return Sweep(
        results={key: book.found[key] for key in wanted if key in book.found},
        left=tuple(job for job in waiting if job.key not in book.found),
        drift=control_drift(book.control),
        measured=len(book.found) - book.reused,
        reused=book.reused,
        elapsed_s=time.monotonic() - start,
    )


class _Book:
    """Results so far: ``found`` by job key; ``reused``: those from the store; the ``control`` by rounds."""

    def __init__(self, store: Store, environment: Environment, found: dict[str, Measurement]) -> None:
        self._store, self._environment = store, environment
        self.found, self.reused = found, len(found)
        self.control = list[float]()
        self.best: Measurement | None = None

    def hear(self, event: Event) -> None:
        """Write down what happened."""
        if isinstance(event, Measurement):
            self.found[event.key] = event
            self.best = max(self.best or event, event, key=lambda one: one.tflops or 0.0)
            self._store.add([event])
        elif event.control.size:
            self.control.append(float(np.median(event.control)))
            self._store.save_unfinished(event.samples, self._environment)

    def progress(self, total: int, elapsed_s: float, limit_s: float | None) -> Progress:
        """The seconds left: as long a job as the new ones took, and no longer than the limit; None: nobody can tell."""
        done = len(self.found)
        new = done - self.reused
        ends = [elapsed_s / new * (total - done)] if new else []
        if limit_s is not None:
            ends.append(limit_s - elapsed_s)
        return Progress(done, total, max(0.0, min(ends)) if ends else None, self.best)


def ordered(jobs: Iterable[Job], seed: int) -> list[Job]:
    """By priority, in random order within one: what drifts with time then does not look like an effect of shape."""
    shuffled = list(jobs)
    random.Random(seed).shuffle(shuffled)
    return sorted(shuffled, key=lambda job: job.priority)


def shard_of(jobs: Iterable[Job], text: str) -> list[Job]:
    """The part of ``jobs`` that ``text`` says, as 3/8.

    It is an equal share of every priority, the same in every process that is given the same list. InputError for any
    other text.
    """
    number, slash, of = text.partition("/")
    refuse(
        not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of) <= MOST_SHARDS),
        "expected a part of how many, as 3/8",
        "--shard",
        text,
    )
    return ordered(by_key(jobs).values(), 0)[int(number) - 1 :: int(of)]


def _stored(
    store: Store, environment: Environment, settings: Settings, wanted: Iterable[str]
) -> dict[str, Measurement]:
    """Those that the store knows well enough: a looser measurement than the precision now asked for is made again."""
    return {
        key: one
        for key in wanted
        if (one := store.find(key, environment))
        and not (one.stop == "precision" and (one.half_width or 0.0) > settings.precision)
    }
