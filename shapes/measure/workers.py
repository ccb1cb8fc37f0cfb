"""An executor over devices that may be lost: each runs in a process that is restarted; jobs that kill one are found.

A ``Worker`` is one device's process: ``Child`` on this machine, or an actor of Ray's (``ray_workers``). ``Workers``
gives jobs out in leases and takes them back when a process dies or falls silent. The jobs of a lost lease that may have
been running are suspects. A suspect is leased alone, and if it loses its device again it is recorded as an error and
skipped. Only the driver stores measurements: no device's process opens a store.
"""

import heapq
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from math import inf
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Condition, Lock, Thread
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from shapes.errors import InputError, refuse
from shapes.frozen import frozen

from .backend import driver_here
from .environment import Environment
from .executor import DeviceLostError, Event, NotMeasured, Prepared, Round, Samples, Settings
from .in_process import InProcess
from .jobs import Job, Part
from .record import Measurement, outcome
from .stats import Array

#: Makes the executor of a process: of torch's ``device``, None being the accelerator that the process was given.
Make = Callable[[str | None], "Session"]

#: A process may take so long to be ready, and a device at work say nothing; torch.compile may take ``COMPILING`` times
#: as long before the first sample.
START_S, SILENT_S, COMPILING = 180.0, 60.0, 5
#: A lease is at most so many times the jobs that are timed in turn, with several devices and with one.
ROUNDS_OF_JOBS, ROUNDS_ALONE = 4, 32
#: Losses, the last one alone, after which a job is skipped; starts without a word after which a device is given up.
MOST_LOSSES, MOST_STARTS = 2, 3
LOST, GONE = "the device was lost with it", "no device is left to measure on: what was measured is stored"
LOG = logging.getLogger(__name__)


class LostError(RuntimeError):
    """A device's process ended, or did not answer in time, before it had done what was asked.

    ``at_work``: it had said that it began.
    """

    at_work = False


class Worker(Protocol):
    """One device's process, which starts when it is first asked, and again after it was lost."""

    name: str

    def ask(self, patience_s: float, request: str, *arguments: Any) -> Iterator[Any]:
        """Events of ``DeviceServer.request(*arguments)``, as they come.

        LostError where the process dies, or says nothing for ``patience_s`` seconds.
        """

    def stop(self) -> None:
        """End the process at once, whatever it does."""


class DeviceServer:
    """The server in a device's process."""

    def __init__(self, make: Make, device: str | None) -> None:
        self._make, self._device = make, device
        self._ready = dict[str, Prepared]()

    @cached_property
    def _executor(self) -> "Session":
        """The executor, opened at the first request: Ray says little of errors while an actor is made."""
        return self._make(self._device)

    def begin(self) -> Iterator[Environment]:
        yield self._executor.environment

    def run(self, jobs: Sequence[Job], settings: Settings, unfinished: Samples, left_s: float) -> Iterator[Event]:
        """The executor's events on the jobs as they come; the first one says that the device is well."""
        yield from self._executor.run(jobs, settings, deadline=time.monotonic() + left_s, unfinished=unfinished)

    def of_session(self, request: str, job: Job, *arguments: Any) -> Iterator[Any]:
        """The answer of the session's method ``request`` for ``job``, or the arguments of NotMeasured if it cannot run.

        The job is prepared anew if another process had prepared it.
        """
        try:
            prepared = self._ready.get(job.key) or self._executor.prepare(job)
            self._ready[job.key] = prepared
            if request == "prepare":
                yield prepared.held_bytes
            elif request == "sample":
                yield self._executor.sample(prepared, *arguments)
            else:
                (prepared.samples,) = arguments
                yield self._executor.finish(self._ready.pop(job.key))
        except NotMeasured as outcome:
            yield outcome.args

    def release(self, job: Job) -> Iterator[Any]:
        """Free the prepared ``job``."""
        if prepared := self._ready.pop(job.key, None):
            self._executor.release(prepared)
        yield None


_STARTING = Lock()


class Child:
    """A device of this machine, in a process that is spawned: nothing of torch is shared with this one."""

    def __init__(self, device: str | None, make: Make = InProcess) -> None:
        self.name = device or "device"
        self._arguments = make, device
        self.process: Any = None
        self._pipe: Connection

    def ask(self, patience_s: float, request: str, *arguments: Any) -> Iterator[Any]:
        """See ``Worker.ask``."""
        fresh = self.process is None or not self.process.is_alive()
        if fresh:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self.process = context.Process(target=_serve, args=(theirs, *self._arguments), daemon=True)
            with _STARTING:  # a new process runs the main module again, which may be a script without a guard
                main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
                try:
                    self.process.start()
                finally:
                    sys.modules["__main__"] = main
            theirs.close()
        over = False
        try:
            self._pipe.send((request, arguments))
            while self._pipe.poll(START_S if fresh else patience_s):
                fresh, message = False, self._pipe.recv()
                over = message is None
                if over:
                    return
                if isinstance(message, Exception):
                    raise message
                yield message
            raise LostError(f"answered nothing for {START_S if fresh else patience_s:.0f} s")
        except (EOFError, OSError):
            self.stop()  # one that is ending keeps its exit code; one that lives on would never be joined
            raise LostError(f"its process died{_signal(self.process.exitcode)}") from None
        finally:
            if not over:
                self.stop()

    def stop(self) -> None:
        """See ``Worker.stop``."""
        if self.process is not None:
            self.process.kill()
            self.process.join()


def _signal(code: int) -> str:
    with suppress(ValueError):
        return f" ({signal.Signals(-code).name})"
    return f" (exit code {code})"


def _serve(pipe: Connection, make: Make, device: str | None) -> None:
    """Answer what comes through ``pipe`` until its other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the driver's to hear
    Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    here = DeviceServer(make, device)
    with suppress(EOFError, OSError):
        while True:
            request, arguments = pipe.recv()
            try:
                for message in getattr(here, request)(*arguments):
                    pipe.send(message)
                pipe.send(None)
            except Exception as error:
                lost = isinstance(error, DeviceLostError) or not isinstance(error, InputError)
                pipe.send(LostError(f"{error or type(error).__name__}"[:300]) if lost else error)
                break
    os._exit(0)  # a device that is lost may keep an orderly end waiting for ever


def _end_with(parent: Any) -> None:
    """End this process when ``parent`` has ended, though a device hangs: nothing else would ever end it."""
    parent.join()
    os._exit(1)


class _Leases:
    """Jobs in order of importance, given out to threads; ``interleave``: how many a device times in turn."""

    def __init__(self, jobs: Sequence[Job], interleave: int, devices: int) -> None:
        self._jobs = list(jobs)
        self._place = {job.key: place for place, job in enumerate(jobs)}
        self.waiting = list(range(len(jobs)))
        self._interleave, self._devices = interleave, devices
        self._losses = Counter[str]()
        self._out = 0
        self._changed = Condition()
        self.closed = False

    def take(self) -> list[Job]:
        """The next jobs for a device, fewer towards the end, so that all end together; none where all is done."""
        with self._changed:
            while self._out and not self.waiting and not self.closed:
                self._changed.wait()
            share = 0 if self.closed else min(ROUNDS_ALONE * self._interleave, len(self.waiting))
            if self._devices > 1:
                share = min(ROUNDS_OF_JOBS * self._interleave, -(-len(self.waiting) // (2 * self._devices)))
            taken = list[Job]()
            while len(taken) < share:
                job = self._jobs[self.waiting[0]]
                suspect = job.key in self._losses
                if suspect and taken:
                    break
                heapq.heappop(self.waiting)
                taken.append(job)
                share = 1 if suspect else share
            self._out += bool(taken)
            return taken

    def end(self, left: Iterable[Job]) -> None:
        """A lease is over; what it did not reach waits again."""
        with self._changed:
            self._out -= 1
            for job in left:
                heapq.heappush(self.waiting, self._place[job.key])
            self._changed.notify_all()

    def lost(self, left: Sequence[Job], *, alone: bool, at_work: bool) -> tuple[Job, ...]:
        """A device was lost with ``left`` under way, all that it was leased (``alone``); returns who is to blame.

        Nobody is, where it was not ``at_work`` yet.
        """
        if at_work and not self.closed:
            self._losses.update(job.key for job in left[: self._interleave])
        found = tuple(job for job in left if alone and self._losses[job.key] >= MOST_LOSSES)
        self.end(job for job in left if job not in found)
        return found

    def close(self) -> None:
        """Nothing more is wanted."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()


@frozen
class _Sweep:
    """One call of ``Workers.run``: ``kept``, samples so far by job key; ``tell`` takes what happens."""

    leases: _Leases
    settings: Settings
    kept: dict[str, tuple[Array, Array]]
    deadline: float
    tell: Callable[[Event | BaseException | None], None]


def here(
    device: str | None = None, say: Callable[[str], None] = lambda line: LOG.warning("sizer: %s", line)
) -> "Session":
    """The accelerator here in a process of its own, or the processor in this one; ``device``: torch's name of it."""
    return InProcess(device) if device == "cpu" or not driver_here() else Workers([Child(device)], say)


class Workers:
    """See ``Executor``: a sweep uses every device, a ``Session``'s requests the first.

    ``say`` prints a line about events of the devices. They have to be of one kind; a device with another driver or
    library than most is not used. InputError if none is left, or if they have several names.
    """

    def __init__(self, workers: Sequence[Worker], say: Callable[[str], None], silent_s: float = SILENT_S) -> None:
        self._say, self._silent_s = say, silent_s
        with ThreadPoolExecutor(len(workers)) as pool:
            begun = list(pool.map(self._begin, workers))
        found = list(filter(None, begun))
        names = sorted({one.device for one in found})
        refuse(
            len(names) != 1, f"expected devices of one kind, found {', '.join(names) or 'none that answers'}", "device"
        )
        usual = Counter(one.identity for one in found).most_common(1)[0][0]
        self.environment = next(one for one in found if one.identity == usual)
        self._workers = []
        for worker, one in zip(workers, begun, strict=True):
            if one and one.identity == usual:
                self._workers.append(worker)
            else:
                worker.stop()
                why = "another driver, or libraries, than most have" if one else "not ready"
                say(f"{worker.name}: {why}: not used")

    def _begin(self, worker: Worker) -> Environment | None:
        try:
            (found,) = worker.ask(START_S, "begin")
            return found  # type: ignore[no-any-return]
        except LostError as error:
            self._say(f"{worker.name}: {error}")
            return None

    @property
    def room_bytes(self) -> int:
        return int(self.environment.host.get("memory_bytes", 0))

    def prepare(self, job: Job) -> Prepared:
        return Prepared(job, None, self._asked(job, "prepare"))

    def sample(self, prepared: Prepared, count: int) -> Array:
        taken: Array = self._asked(prepared.job, "sample", count)
        prepared.samples = np.concatenate((prepared.samples, taken))
        return taken

    def finish(self, prepared: Prepared) -> Measurement:
        found: Measurement = self._asked(prepared.job, "finish", prepared.samples)
        return found

    def release(self, prepared: Prepared) -> None:
        with suppress(LostError):
            list(self._workers[0].ask(self._silent_s, "release", prepared.job))

    def _asked(self, job: Job, request: str, *arguments: Any) -> Any:
        """The answer of `DeviceServer.of_session`; NotMeasured also after MOST_LOSSES lost devices."""
        worker = self._workers[0]
        losses = list[LostError]()
        while len(losses) < MOST_LOSSES:
            try:
                (found,) = worker.ask(self._silent_s, "of_session", request, job, *arguments)
            except LostError as lost:
                self._say(f"{worker.name}: {lost}, with {job.title}")
                losses.append(lost)
                if not self._begin(worker):
                    raise DeviceLostError(GONE) from None
                continue
            if isinstance(found, tuple):
                raise NotMeasured(*found)
            return found
        raise NotMeasured("error", f"{LOST}: {losses[-1]}")

    def run(
        self, jobs: Sequence[Job], settings: Settings, *, deadline: float = inf, unfinished: Samples | None = None
    ) -> Iterator[Event]:
        """See ``Executor.run``."""
        leases = _Leases(jobs, settings.interleave, len(self._workers))
        events: SimpleQueue[Event | BaseException | None] = SimpleQueue()
        sweep = _Sweep(leases, settings, dict(unfinished or {}), deadline, events.put)
        working = len(self._workers)
        for worker in self._workers:
            Thread(target=self._work, args=(worker, sweep), daemon=True).start()
        try:
            while working:
                event = events.get()
                if event is None:
                    working -= 1
                elif isinstance(event, BaseException):
                    raise event
                else:
                    yield event
        finally:
            if working:  # left in the middle
                leases.close()
                for worker in self._workers:
                    worker.stop()
        if leases.waiting:
            raise DeviceLostError(GONE)

    def _work(self, worker: Worker, sweep: _Sweep) -> None:
        """The loop that drives one worker: leases, until there are none or its device is given up."""
        starts, leases = 0, sweep.leases
        try:
            while starts < MOST_STARTS and (lease := leases.take()):
                left = {job.key: job for job in lease}
                try:
                    self._measure(worker, left, sweep)
                    leases.end(())
                except LostError as lost:
                    starts = 0 if lost.at_work else starts + 1
                    if not leases.closed:
                        self._say(f"{worker.name}: {lost}: {len(left)} jobs go back")
                    for job in leases.lost(list(left.values()), alone=len(lease) == 1, at_work=lost.at_work):
                        self._say(f"{job.title}: skipped, a device was lost with it {MOST_LOSSES} times")
                        sweep.tell(outcome(job, self.environment, "error", message=f"{LOST}: {lost}"))
        except BaseException as error:
            sweep.tell(error)
        finally:
            sweep.tell(None)

    def _measure(self, worker: Worker, left: dict[str, Job], sweep: _Sweep) -> None:
        """Measure ``left`` on ``worker`` and take from it what is done; LostError where any is left in time."""
        left_s = max(0.0, sweep.deadline - time.monotonic())
        begun = {key: sweep.kept[key] for key in left.keys() & sweep.kept.keys()}
        compiled = any(isinstance(job.work, Part) and job.work.compiled for job in left.values())
        patience_s = self._silent_s * (COMPILING if compiled else 1)
        at_work = False
        try:
            for event in worker.ask(patience_s, "run", list(left.values()), sweep.settings, begun, left_s):
                at_work = True
                if isinstance(event, Round):
                    sweep.kept.update(event.samples)
                else:
                    del left[event.key]
                    sweep.kept.pop(event.key, None)
                sweep.tell(event)
            if left and time.monotonic() < sweep.deadline:
                raise LostError("left its work undone")
        except LostError as lost:
            lost.at_work = at_work
            raise


#: One device, for those who choose what to time next: NotMeasured of a job that cannot run there.
Session = InProcess | Workers
