"""Measured times of a space's candidates: sampled as a strategy asks, kept in the store, gone on with after a kill."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from shapes.errors import InputError
from shapes.measure.executor import Candidate, InProcess, NotMeasured
from shapes.measure.jobs import Job
from shapes.measure.stats import summarise
from shapes.measure.store import Store
from shapes.timing import Timing
from sizer.searching.predicting import Priced
from sizer.searching.space import Space
from sizer.searching.strategies import STRATEGIES
from sizer.searching.strategies.contest import Outcome
from sizer.searching.work import left_out, work_of

Array = NDArray[np.float64]
#: Kernels are kept ready in so much of the memory that is free at the start: each costs a check and a warm-up.
ROOM = 0.5
#: Samples are written down so often: writing takes as long as a small kernel, and a GPU that waits for it cools down.
SAVE_S = 0.2


@dataclass(frozen=True, slots=True)
class Asked:
    """How a search measures: which strategy, how good is good enough, for how long, and where samples are kept."""

    strategy: str = "racing"
    regret: float = 0.01
    confidence: float = 0.95
    time_limit_s: float | None = None
    store: str | None = None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise InputError(f"expected one of {', '.join(STRATEGIES)}", key="--strategy", value=self.strategy)
        if not 0 < self.regret < 1:
            raise InputError("expected more than 0 and less than 100%", key="--regret", value=self.regret)


@dataclass(frozen=True, slots=True)
class Measured:
    """Candidates that were looked at, the baseline first, with measured times; ``notes`` say how sure the best is.

    A candidate's interval is that of its ratio to the baseline timed beside it.
    """

    priced: tuple[Priced, ...]
    samples: int
    notes: tuple[str, ...]


def measured(
    space: Space, predicted: Sequence[Priced], weights: Sequence[float], asked: Asked, session: InProcess,
    progress: Callable[[int, int], None] | None = None,
) -> Measured:  # fmt: skip
    """Time ``predicted`` (the baseline first) here; ``weights`` are what the objective makes of a second of each.

    InputError where the baseline cannot run.
    """
    started = time.perf_counter()

    def out_of_time() -> bool:
        return asked.time_limit_s is not None and time.perf_counter() - started >= asked.time_limit_s

    error = max((one.timing.high - one.timing.low) / 2 / one.timing.seconds for one in predicted[1:])
    seconds = [one.timing.seconds for one in predicted]
    with Store.open(asked.store) as store:
        source = Source(space, [one.change for one in predicted], session, store)
        try:
            outcome = STRATEGIES[asked.strategy](
                seconds, error, source.sample, regret=asked.regret, confidence=asked.confidence,
                weights=weights, out_of_time=out_of_time, progress=progress,
            )  # fmt: skip
        except ValueError:
            reason = source.failed.get(0, "no reason given")
            raise InputError(f"the baseline cannot be measured here ({reason})", key="--measure") from None
        finally:
            source.close()
    name = session.environment.source
    timings = {index: _timing(outcome, index, asked.confidence, name) for index in sorted(outcome.ratios)}
    seen = tuple(replace(predicted[index], timing=timing) for index, timing in timings.items())
    others = len(predicted) - 1
    ended = "" if outcome.finished else "; --time-limit was up first, the same command goes on"
    kept = f" ({source.reused} kernels timed before)" if source.reused else ""
    notes = [
        f"{len(seen) - 1} of {others} candidates looked at{kept}, {outcome.sure:.0%} sure that none of them is more "
        f"than {asked.regret:.1%} faster than the best{ended}"
    ]
    notes.extend(left_out(space))
    for index in outcome.failed:
        change = ", ".join(f"{key} {value}" for key, value in predicted[index].change.items())
        notes.append(f"{change} was not measured ({source.failed[index]})")
    return Measured(seen, outcome.samples, tuple(notes))


def _timing(outcome: Outcome, index: int, confidence: float, source: str) -> Timing:
    if index == 0:
        alone = summarise(outcome.baseline_s, confidence)
        return Timing(alone.seconds, alone.low, alone.high, source)
    level, ratio = float(np.median(outcome.baseline_s)), summarise(np.exp(outcome.ratios[index]), confidence)
    # Three samples may agree by luck: the interval is no narrower than what the others' spread makes of so few.
    reach = exp(NormalDist().inv_cdf((1 + confidence) / 2) * outcome.errors[index])
    low, high = min(ratio.low, ratio.seconds / reach), max(ratio.high, ratio.seconds * reach)
    return Timing(level * ratio.seconds, level * low, level * high, source)


class Source:
    """Samples of candidates by index, from the store first; ``failed`` says why a candidate has none."""

    def __init__(self, space: Space, changes: Sequence[Mapping[str, int]], session: InProcess, store: Store) -> None:
        self._work = [work_of(space, change) for change in changes]
        self._session, self._store = session, store
        self._ready: dict[str, Candidate] = {}
        self._room_bytes = ROOM * session.backend.free_bytes
        #: Candidates with samples that are not written down yet.
        self._unsaved: dict[str, Candidate] = {}
        self._saved_at_s = time.perf_counter()
        #: Samples of the store that were not handed out yet, by job.
        self._kept: dict[str, Array] = {}
        self.failed: dict[int, str] = {}
        self.reused = 0

    def sample(self, index: int, count: int) -> Array | None:
        """``count`` times of candidate ``index``, seconds; None (and ``failed``) where it cannot run."""
        try:
            columns = [weight * self._take(job, count) for job, weight in self._work[index]]
        except NotMeasured as outcome:
            self.failed[index] = f"{outcome.status}: {outcome}"
            return None
        return np.asarray(sum(columns))

    def _take(self, job: Job, count: int) -> Array:
        if job.key not in self._kept:
            self._kept[job.key] = self._stored(job)
            self.reused += bool(len(self._kept[job.key]))
        kept = self._kept[job.key]
        if len(kept) >= count:
            self._kept[job.key] = kept[count:]
            return kept[:count]
        candidate = self._ready.pop(job.key, None) or self._prepare(job)
        self._ready[job.key] = candidate  # the most recently used is last
        taken = self._session.sample(candidate, count)
        self._unsaved[job.key] = candidate
        if time.perf_counter() - self._saved_at_s >= SAVE_S:
            parts = {key: (one.samples, one.controls) for key, one in self._unsaved.items()}
            self._store.save_parts(parts, self._session.environment)
            self._unsaved.clear()
            self._saved_at_s = time.perf_counter()
        return taken

    def _stored(self, job: Job) -> Array:
        environment = self._session.environment
        part = self._store.part(job.key, environment)
        if part is not None:
            return part[0]
        found = self._store.find(job.key, environment)
        return found.samples if found is not None and found.ok else np.empty(0)

    def _prepare(self, job: Job) -> Candidate:
        while sum(one.held_bytes for one in self._ready.values()) > self._room_bytes:
            self._close(next(iter(self._ready)))
        try:
            candidate = self._session.prepare(job)
        except NotMeasured as outcome:
            if outcome.status != "oom" or not self._ready:
                raise
            self.close()  # no room beside the others: once more alone
            candidate = self._session.prepare(job)
        candidate.samples = self._stored(job)
        return candidate

    def _close(self, key: str) -> None:
        self._unsaved.pop(key, None)
        self._store.add([self._session.finish(self._ready.pop(key))])

    def close(self) -> None:
        """Write what was measured as finished measurements and let go of the kernels."""
        for key in list(self._ready):
            self._close(key)
