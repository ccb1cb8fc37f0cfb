"""Where jobs are run: one seam, so that a cluster fits behind it without touching search or store.

``Executor`` is the seam: ``run`` takes jobs in order of importance and yields what happens. ``InProcess`` runs them in
this process on one device, candidates interleaved: each round times every open candidate once, in random order, and a
control shape with them, so that clock drift meets all alike; a candidate that is known well enough leaves and the next
job takes its place.

For searches that choose what to time next (racing), ``InProcess`` is also a session with three calls:

>>> # session = InProcess("cuda")
>>> # candidate = session.prepare(job)        # NotMeasured with status and message where it cannot run
>>> # seconds = session.sample(candidate, 5)  # five more samples, one call each
>>> # session.release(candidate)
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shapes.measure.backend import Backend, open_backend
from shapes.measure.environment import Environment, clocks, read_environment
from shapes.measure.jobs import Job, Part
from shapes.measure.kernels import UnsupportedError, build
from shapes.measure.record import Measurement, Status, summary_fields
from shapes.measure.stats import CONFIDENCE, LEAST_PRECISE, Stopping, StopReason, summarise
from shapes.measure.timer import Stopwatch, WrongResultError
from shapes.operators import Gemm

Array = NDArray[np.float64]
Parts = Mapping[str, tuple[Array, Array]]

#: Fewest samples that are worth keeping of a candidate whose time is up.
LEAST_KEPT = 3


@dataclass(frozen=True, slots=True)
class Settings:
    """How long and how well to measure. ``precision``: half-width of the interval relative to the median.

    ``time_s``: most device time a candidate. ``burst_s``: device time of a candidate in a round. ``interleave``: how
    many candidates are open at once. ``warm_up_s``: least device time of a candidate before its first sample.
    ``least_samples`` before an interval is called precise.
    """

    precision: float = 0.005
    confidence: float = CONFIDENCE
    least_samples: int = LEAST_PRECISE
    time_s: float = 0.5
    burst_s: float = 0.004
    interleave: int = 8
    warm_up_s: float = 0.004
    most_warm_up_s: float = 0.05
    seed: int = 0

    @property
    def stopping(self) -> Stopping:
        return Stopping(self.precision, self.confidence, self.least_samples)


class NotMeasured(RuntimeError):  # noqa: N818  # an outcome, not an error of this program
    """A job that has no time: ``status`` is oom, error, unsupported or wrong."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status: Status = status


class DeviceLostError(RuntimeError):
    """The device answers nothing any more; a new process may go on where this one stopped."""


@dataclass(slots=True)
class Candidate:
    """A job that is prepared: its stopwatch, samples so far and the control's samples beside them."""

    job: Job
    stopwatch: Stopwatch
    burst: int
    samples: Array = field(default_factory=lambda: np.empty(0))
    controls: Array = field(default_factory=lambda: np.empty(0))
    busy_s: float = 0.0
    wall_s: float = 0.0
    next_look: int = 0

    @property
    def held_bytes(self) -> int:
        """Memory of its inputs, in all the sets that are rotated."""
        return self.stopwatch.kernel.set_bytes * len(self.stopwatch.kernel.calls)


@dataclass(frozen=True, slots=True)
class Round:
    """One round is over: the samples so far of every open candidate, and the control's of this round."""

    parts: Parts
    control: Array


Event = Round | Measurement


class Executor(Protocol):
    """Runs jobs somewhere. ``run`` yields a Round now and then and a Measurement for every job it finishes, in any

    order, and stops starting jobs when ``deadline`` (time.monotonic seconds) has passed. ``parts`` are samples that an
    interrupted run has left.
    """

    @property
    def environment(self) -> Environment: ...

    def run(
        self, jobs: Sequence[Job], settings: Settings, *, deadline: float | None = None, parts: Parts | None = None
    ) -> Iterator[Event]: ...


class InProcess:
    """This process and one device (None: the accelerator at hand, else the CPU). InputError without torch or device."""

    def __init__(self, device: str | Backend | None = None, settings: Settings | None = None) -> None:
        self.backend: Backend = open_backend(device) if device is None or isinstance(device, str) else device
        self.settings = settings or Settings()
        self._environment: Environment | None = None
        self._checked: set[str] = set()

    @property
    def environment(self) -> Environment:
        if self._environment is None:
            self._environment = read_environment(self.backend)
        return self._environment

    def prepare(self, job: Job) -> Candidate:
        """Build, check and warm up ``job``'s kernel. NotMeasured where it cannot run here."""
        start = self.backend.now()
        settings = self.settings
        try:
            kernel = build(job, self.backend, settings.seed)
            check = kernel.check_each or kernel.name not in self._checked
            watch = Stopwatch(
                kernel, self.backend, warm_up_s=settings.warm_up_s, most_warm_up_s=settings.most_warm_up_s, check=check
            )
        except Exception as error:
            raise self._outcome(error) from error
        self._checked.add(kernel.name)
        per_sample_s = max(watch.estimate_s * watch.per_sample, 1e-9)
        burst = max(1, min(50, round(settings.burst_s / per_sample_s)))
        return Candidate(job, watch, burst, wall_s=self.backend.now() - start)

    def sample(self, candidate: Candidate, samples: int) -> Array:
        """``samples`` more times of one call, seconds; kept in ``candidate.samples`` too."""
        start = self.backend.now()
        try:
            taken = candidate.stopwatch.take(samples)
        except Exception as error:
            raise self._outcome(error) from error
        candidate.samples = np.concatenate((candidate.samples, taken))
        candidate.busy_s += float(taken.sum()) * candidate.stopwatch.per_sample
        candidate.wall_s += self.backend.now() - start
        return taken

    def release(self, candidate: Candidate) -> None:
        """Let go of the candidate's buffers."""
        del candidate.stopwatch

    def finish(self, candidate: Candidate) -> Measurement:
        """The candidate's samples as a measurement to keep; it is released."""
        return self._finish(candidate, "samples")

    def control(self) -> Job:
        """The shape that is timed again through every sweep: large enough to fill the device."""
        if self.backend.device == "cpu":
            return Job(Gemm("control", "forward", 512, 512, 512, dtype="fp32"))
        return Job(Gemm("control", "forward", 4096, 4096, 4096))

    def run(
        self, jobs: Sequence[Job], settings: Settings, *, deadline: float | None = None, parts: Parts | None = None
    ) -> Iterator[Event]:
        """See ``Executor.run``."""
        self.settings = settings
        control = self.prepare(self.control())
        waiting = list(reversed(jobs))
        open_: list[Candidate] = []
        order = random.Random(settings.seed)
        while waiting or open_:
            late = deadline is not None and time.monotonic() >= deadline
            if late:
                waiting.clear()
            while waiting and len(open_) < settings.interleave:
                opened = self._open(waiting.pop(), parts or {}, alone=not open_)
                if opened is None:  # no room beside the others: try again when one has left
                    waiting.append(self._postponed)
                    break
                if isinstance(opened, Measurement):
                    yield opened
                else:
                    open_.append(opened)
            if not open_:
                continue
            yield from self._round(open_, control, order)
            for candidate in list(open_):
                reason = self._reason(candidate, settings, late=late)
                if reason is not None:
                    open_.remove(candidate)
                    yield self._finish(candidate, reason)
            if late:
                return

    def _open(self, job: Job, parts: Parts, *, alone: bool) -> Candidate | Measurement | None:
        try:
            candidate = self.prepare(job)
        except NotMeasured as outcome:
            self.backend.release()
            if outcome.status == "oom" and not alone:
                self._postponed = job
                return None
            return self._failed(job, outcome)
        if job.key in parts:
            candidate.samples, candidate.controls = parts[job.key]
            candidate.busy_s = float(candidate.samples.sum()) * candidate.stopwatch.per_sample
        return candidate

    def _round(self, open_: list[Candidate], control: Candidate, order: random.Random) -> Iterator[Event]:
        turns: list[Candidate] = [*open_, control]
        order.shuffle(turns)
        for candidate in turns:
            try:
                taken = self.sample(candidate, candidate.burst)
            except NotMeasured as outcome:
                if candidate is control:
                    raise DeviceLostError(str(outcome)) from outcome
                open_.remove(candidate)
                yield self._failed(candidate.job, outcome)
                continue
            if candidate is control:
                beside = taken
        for candidate in open_:
            candidate.controls = np.concatenate((candidate.controls, beside))
        control.samples = np.empty(0)
        yield Round({one.job.key: (one.samples, one.controls) for one in open_}, beside)

    def _reason(self, candidate: Candidate, settings: Settings, *, late: bool) -> StopReason | None:
        """Why this candidate is done, or None."""
        taken = len(candidate.samples)
        out_of_time = late or candidate.busy_s >= settings.time_s
        if taken < LEAST_KEPT or (taken < candidate.next_look and not out_of_time):
            return None
        stopping = settings.stopping
        candidate.next_look = stopping.next_look(taken)
        return stopping.reason(summarise(candidate.samples, settings.confidence), out_of_time=out_of_time)

    def _finish(self, candidate: Candidate, reason: StopReason) -> Measurement:
        job, subject = candidate.job, candidate.job.subject
        # The peak of a part of a model is asked for by people; a product's is its operands.
        peak = candidate.stopwatch.peak_bytes() if isinstance(subject, Part) else None
        result = Measurement(
            key=job.key, description=job.describe(), environment=self.environment, status="ok",
            samples=candidate.samples, stop=reason, flops=subject.flops, bytes=candidate.stopwatch.kernel.set_bytes,
            per_sample=candidate.stopwatch.per_sample, check_error=candidate.stopwatch.error,
            control_s=float(np.median(candidate.controls)) if len(candidate.controls) else None,
            peak_bytes=peak, clocks=clocks(self.environment),
            wall_s=candidate.wall_s, label=job.label, created=time.time(),
            **summary_fields(candidate.samples, self.settings.confidence),
        )  # fmt: skip
        self.release(candidate)
        return result

    def _failed(self, job: Job, outcome: NotMeasured) -> Measurement:
        return Measurement(
            key=job.key, description=job.describe(), environment=self.environment, status=outcome.status,
            label=job.label, message=str(outcome), created=time.time(),
        )  # fmt: skip

    def _outcome(self, error: Exception) -> NotMeasured:
        """What an exception of a kernel means; DeviceLostError if the device does not answer after it."""
        try:
            self.backend.synchronize()
        except RuntimeError as lost:
            raise DeviceLostError(str(lost)) from error
        text = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
        return NotMeasured(_status(error), text)


def _status(error: Exception) -> Status:
    import torch

    refused = ("No viable backend", "No available kernel")  # SDPA, when the one kernel asked for cannot do this
    if isinstance(error, UnsupportedError | NotImplementedError) or str(error).startswith(refused):
        return "unsupported"
    if isinstance(error, WrongResultError):
        return "wrong"
    # The CPU's allocator has no exception of its own.
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error):
        return "oom"
    return "error"


def settings_from(values: Mapping[str, Any]) -> Settings:
    """Settings from those of ``values`` that are given (not None)."""
    return Settings(**{key: value for key, value in values.items() if value is not None})
