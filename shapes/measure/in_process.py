"""The executor of this process and one device.

A sweep interleaves its jobs: each round times every open job once, in random order, and a control shape with them, so
that clock drift meets all alike; a job that is known well enough leaves and the next takes its place.
"""

import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np

from shapes.frozen import Values
from shapes.operators.types import Gemm

from .backend import Backend, open_backend
from .environment import Environment, clocks, read_environment, typical
from .executor import DeviceLostError, Event, NotMeasured, Prepared, Round, Samples, Settings
from .jobs import Job, Part
from .record import Measurement, Status, outcome, summary_fields
from .stats import Array, StopReason, summarise
from .timer import Stopwatch, WrongResultError

#: Fewest samples that are worth keeping of a job whose time is up.
LEAST_KEPT = 3
#: Samples of a throttled device are discarded and taken again, of a job so often at most, after so many seconds each.
MOST_THROTTLED, COOL_S = 20, 0.1
ALIVE = Round({}, np.empty(0))


def control_of(*, cpu: bool) -> Job:
    """The shape that is timed through every sweep of a device: large enough to fill it."""
    size, dtype = (512, "fp32") if cpu else (4096, "bf16")
    return Job(Gemm("control", "forward", size, size, size, dtype=dtype))


@dataclass(slots=True)
class _Kernel:
    """The timing of a prepared job: ``batch`` samples in a round; device seconds so far; ``throttled`` batches.

    ``clocks``: the device's clocks with each batch that was kept.
    """

    stopwatch: Stopwatch
    settings: Settings
    batch: int
    busy_s: float = 0.0
    next_look: int = 0
    throttled: int = 0
    clocks: list[Values] = field(default_factory=list)


class InProcess:
    """This process and one device (None: the accelerator at hand, else the CPU). InputError without torch or device."""

    def __init__(self, device: str | Backend | None = None) -> None:
        os.environ.pop("OPENBLAS_DEFAULT_NUM_THREADS", None)  # the program's own start set it
        self.backend: Backend = open_backend(device) if device is None or isinstance(device, str) else device
        #: Relative errors of kernels that were checked here, by job.
        self._errors = dict[str, float]()
        self._control: Prepared | None = None

    @cached_property
    def environment(self) -> Environment:
        return read_environment(self.backend)

    @property
    def room_bytes(self) -> int:
        return self.backend.free_bytes

    def prepare(self, job: Job, settings: Settings = Settings()) -> Prepared:  # noqa: B008  # nothing changes it
        """Build, check and warm up ``job``'s kernel; of one prepared anew no more than its new buffers.

        NotMeasured where it cannot run here.
        """
        from .kernels import build

        try:
            kernel = build(job, self.backend, settings.seed)
            error = self._errors.get(job.key)
            most_s = settings.most_warm_up_s if error is None else settings.warm_up_s
            watch = Stopwatch(kernel, self.backend, settings.warm_up_s, most_s, error)
        except Exception as error:
            raise self._outcome(error) from error
        self._errors[job.key] = watch.error
        batch = max(1, min(50, round(settings.batch_s / max(watch.estimate_s * watch.per_sample, 1e-9))))
        return Prepared(job, _Kernel(watch, settings, batch), held_bytes=kernel.set_bytes * len(kernel.calls))

    def sample(self, prepared: Prepared, count: int) -> Array:
        """``count`` more times of one call, seconds; kept in ``prepared.samples`` too. NotMeasured where it fails."""
        kernel: _Kernel = prepared.handle
        while True:
            try:
                taken = kernel.stopwatch.take(count)
            except Exception as error:
                raise self._outcome(error) from error
            kernel.busy_s += float(taken.sum()) * kernel.stopwatch.per_sample
            seen = clocks(self.environment)
            if not seen.get("throttle") or kernel.throttled >= MOST_THROTTLED:
                break
            kernel.throttled += 1
            time.sleep(COOL_S)
        kernel.clocks.append(seen)
        prepared.samples = np.concatenate((prepared.samples, taken))
        return taken

    def release(self, prepared: Prepared) -> None:
        """Free a prepared job without a measurement, as when there are no samples."""
        prepared.handle = None  # its buffers go with it

    def run(
        self, jobs: Sequence[Job], settings: Settings, *, deadline: float = inf, unfinished: Samples | None = None
    ) -> Iterator[Event]:
        """See ``Executor.run``."""
        control = self._ready_control(settings)
        waiting = list(reversed(jobs))
        open_ = list[Prepared]()
        order = random.Random(settings.seed)
        yield ALIVE
        while waiting or open_:
            late = time.monotonic() >= deadline
            if late:
                waiting.clear()
            yield from self._fill(waiting, open_, settings, unfinished or {}, deadline)
            if not open_:
                continue
            yield from self._round(open_, control, order)
            for prepared in list(open_):
                reason = self._reason(prepared, late=late)
                if reason is not None:
                    open_.remove(prepared)
                    yield self.finish(prepared, reason)
            if late:
                return

    def _fill(
        self, waiting: list[Job], open_: list[Prepared], settings: Settings, unfinished: Samples, deadline: float
    ) -> Iterator[Event]:
        """Open the last of ``waiting`` while there is room and time; what cannot be opened is an outcome."""
        while waiting and len(open_) < settings.interleave and time.monotonic() < deadline:
            opened = self._open(waiting[-1], settings, unfinished, alone=not open_)
            if not opened:  # no room with the others: try again when one has left
                return
            waiting.pop()
            if isinstance(opened, Measurement):
                yield opened
            else:
                open_.append(opened)
                yield ALIVE

    def _ready_control(self, settings: Settings) -> Prepared:
        """The control shape, prepared once for sweeps of the same settings: leases may be many short ones."""
        if not self._control or self._control.handle.settings != settings:
            try:
                self._control = self.prepare(control_of(cpu=self.backend.device == "cpu"), settings)
            except NotMeasured as failure:
                raise DeviceLostError(f"the device does not run the control shape: {failure}") from failure
        return self._control

    def _open(self, job: Job, settings: Settings, unfinished: Samples, *, alone: bool) -> Prepared | Measurement | None:
        """``job`` prepared, or why it has no time; None where there is no memory for it while others are open."""
        try:
            prepared = self.prepare(job, settings)
        except NotMeasured as failure:
            self.backend.release()
            if failure.status == "oom" and not alone:
                return None
            return outcome(job, self.environment, failure.status, message=str(failure))
        if job.key in unfinished:
            prepared.samples, prepared.controls = unfinished[job.key]
            kernel = prepared.handle
            kernel.busy_s = float(prepared.samples.sum()) * kernel.stopwatch.per_sample
        return prepared

    def _round(self, open_: list[Prepared], control: Prepared, order: random.Random) -> Iterator[Event]:
        members = [*open_, control]
        order.shuffle(members)
        for prepared in members:
            try:
                taken = self.sample(prepared, prepared.handle.batch)
            except NotMeasured as failure:
                if prepared is control:
                    raise DeviceLostError(str(failure)) from failure
                open_.remove(prepared)
                yield outcome(prepared.job, self.environment, failure.status, message=str(failure))
                continue
            if prepared is control:
                controls = taken
        for prepared in open_:
            prepared.controls = np.concatenate((prepared.controls, controls))
        control.samples, control.handle.clocks, control.handle.throttled = np.empty(0), [], 0
        yield Round({one.job.key: (one.samples, one.controls) for one in open_}, controls)

    def _reason(self, prepared: Prepared, *, late: bool) -> StopReason | None:
        """Why this job is done, or None."""
        kernel: _Kernel = prepared.handle
        taken, settings = len(prepared.samples), kernel.settings
        out_of_time = late or kernel.busy_s >= settings.time_s
        if taken < LEAST_KEPT or (taken < kernel.next_look and not out_of_time):
            return None
        kernel.next_look = settings.next_look(taken)
        return settings.reason(summarise(prepared.samples, settings.confidence), out_of_time=out_of_time)

    def finish(self, prepared: Prepared, reason: StopReason = "samples") -> Measurement:
        """The samples as a measurement to keep; what was prepared is let go of. ``reason``: why it ended."""
        job, work = prepared.job, prepared.job.work
        kernel = prepared.handle
        # The peak of a part of a model is asked for by people; a product's is its operands.
        watch = kernel.stopwatch
        peak = watch.peak_bytes() if isinstance(work, Part) else None
        result = outcome(
            job,
            self.environment,
            "ok",
            samples=prepared.samples,
            stop=reason,
            flops=work.flops,
            bytes=watch.kernel.set_bytes,
            per_sample=watch.per_sample,
            check_error=watch.error,
            method=f"{watch.timed_by}, normal inputs (int8: uniform)",
            kernel_s=watch.kernel_s() if kernel.settings.profiled else None,
            control_s=float(np.median(prepared.controls)) if len(prepared.controls) else None,
            peak_bytes=peak,
            clocks=typical([{**seen, "throttled": kernel.throttled} for seen in kernel.clocks if seen]),
            **summary_fields(prepared.samples, kernel.settings.confidence),
        )
        self.release(prepared)
        return result

    def _outcome(self, error: Exception) -> NotMeasured:
        """The outcome that a kernel's exception means; DeviceLostError if the device does not answer after it."""
        try:
            self.backend.synchronize()
        except RuntimeError as lost:
            raise DeviceLostError(str(lost)) from error
        text = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
        return NotMeasured(_status(error), text)


def _status(error: Exception) -> Status:
    import torch

    from .kernels.common import UnsupportedError

    refused = "No viable backend", "No available kernel"  # SDPA, when the one kernel asked for cannot do this
    if isinstance(error, UnsupportedError | NotImplementedError) or str(error).startswith(refused):
        return "unsupported"
    if isinstance(error, WrongResultError):
        return "wrong"
    # The CPU's allocator has no exception of its own.
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error):
        return "oom"
    return "error"
