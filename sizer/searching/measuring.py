"""Measured times of a space's candidates: sampled as a race asks, kept in the store, gone on with after a kill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.errors import InputError
from shapes.measure.executor import Candidate, InProcess, NotMeasured
from shapes.measure.jobs import Job, Part
from shapes.operators import Gemm
from shapes.store import Store
from sizer.searching.predicting import rebuilt, timed_operators
from sizer.searching.space import Space

Array = NDArray[np.float64]
#: Kernels kept ready at once; more would hold too much memory.
MOST_READY = 8
#: (job, how many times it counts in the candidate's time)
Work = Sequence[tuple[Job, float]]


def work_of(space: Space, change: Mapping[str, int]) -> Work:
    """What is measured of a candidate, each job with its weight at the baseline's tokens."""
    model, workload = rebuilt(space, change)
    if space.operators_of is not None:
        return [
            (Job(operator), operator.count) for operator in timed_operators(space, change) if isinstance(operator, Gemm)
        ]
    if len(model.stacks) > 1 or model.moe is not None:
        raise InputError("expected a dense decoder: only its parts can be measured", key="--measure")
    one = replace(model, stacks=(replace(model.main, blocks=(replace(model.main.blocks[0], count=1),)),))
    direction = "forward+backward" if workload.train else "forward"

    def part(name: Any) -> Job:
        return Job(Part(name, one, workload, direction))  # type: ignore[arg-type]

    scale = space.workload.tokens / workload.tokens
    if space.what == "swiglu":
        return [(part("mlp"), model.layers)]
    if space.what == "vocab":
        return [(part("head"), 1.0)]
    if space.what == "heads":
        return [(part("layer"), model.layers)]
    ends = [(part("head"), scale)] if model.head else []
    return [(part("layer"), model.layers * scale), *ends]


class Source:
    """Samples of candidates by index, from the store first; ``failed`` says why a candidate has none."""

    def __init__(self, space: Space, changes: Sequence[Mapping[str, int]], session: InProcess, store: Store) -> None:
        self._work = [work_of(space, change) for change in changes]
        self._session, self._store = session, store
        self._ready: dict[str, Candidate] = {}
        self._returned: set[str] = set()
        self.failed: dict[int, str] = {}
        self.measured = self.reused = 0

    def sample(self, index: int, count: int) -> Array | None:
        """``count`` or more times of candidate ``index``, seconds; None (and ``failed``) where it cannot run."""
        try:
            columns = [weight * self._take(job, count) for job, weight in self._work[index]]
        except NotMeasured as outcome:
            self.failed[index] = f"{outcome.status}: {outcome}"
            return None
        shortest = min(len(column) for column in columns)
        return np.asarray(sum(column[:shortest] for column in columns))

    def _take(self, job: Job, count: int) -> Array:
        candidate = self._ready.get(job.key)
        if candidate is None:
            kept = self._kept(job)
            if kept is not None and len(kept) >= count and job.key not in self._returned:
                self._returned.add(job.key)
                self.reused += 1
                return kept
            candidate = self._prepare(job, kept)
        else:
            self._ready[job.key] = self._ready.pop(job.key)  # the most recently used is last
        taken = self._session.sample(candidate, count)
        self.measured += len(taken)
        self._store.save_parts({job.key: (candidate.samples, candidate.controls)}, self._session.environment)
        return taken

    def _kept(self, job: Job) -> Array | None:
        environment = self._session.environment
        found = self._store.find(job.key, environment)
        if found is not None and found.ok:
            return found.samples
        part = self._store.part(job.key, environment)
        return part[0] if part is not None else None

    def _prepare(self, job: Job, kept: Array | None) -> Candidate:
        while len(self._ready) >= MOST_READY:
            self._close(next(iter(self._ready)))
        candidate = self._session.prepare(job)
        if kept is not None:
            candidate.samples = kept
        self._ready[job.key] = candidate
        return candidate

    def _close(self, key: str) -> None:
        self._store.add([self._session.finish(self._ready.pop(key))])

    def close(self) -> None:
        """Write what was measured as finished measurements and let go of the kernels."""
        for key in list(self._ready):
            self._close(key)
