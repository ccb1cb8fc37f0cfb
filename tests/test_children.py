"""A device's process, as a thread: what crosses its pipe, how it dies, falls silent and is let go of."""

from __future__ import annotations

import multiprocessing
import platform
import sys
import threading
from collections.abc import Iterator
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from measure_fakes import ENVIRONMENT, FakeExecutor

from shapes.errors import InputError
from shapes.measure import InProcess, Settings, workers
from shapes.measure.executor import DeviceLostError, Event, Executor, NotMeasured, Prepared, Round
from shapes.measure.jobs import Job, swiglu
from shapes.measure.record import Measurement
from shapes.measure.runner import measure
from shapes.measure.workers import Child, LostError, Workers
from shapes.operators.types import Gemm

SPAWNED: list[Thread] = []
SILENT = threading.Event()


class Thread:
    """A process as ``multiprocessing`` has it, which is a thread; its end of the pipe is closed when it is over."""

    exitcode = 7

    def __init__(self, target: Any, args: Any, daemon: bool) -> None:
        self._theirs, self._rest = args[0], args[1:]
        self._ours = args[0].ours
        self._thread = threading.Thread(target=self._run, args=(target,), daemon=daemon)
        self.killed = threading.Event()
        SPAWNED.append(self)

    def _run(self, target: Any) -> None:
        pipe = SimpleNamespace(recv=self._theirs.kept.recv, send=self._theirs.kept.send)
        try:
            target(pipe, *self._rest)
        except SystemExit:
            pass  # what os._exit does in a process
        finally:
            self._theirs.kept.close()

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        """A process that was killed is not, once it is joined, whatever its thread still does."""
        return self._thread.is_alive() and not self.killed.is_set()

    def kill(self) -> None:
        self.killed.set()

    def end(self) -> None:
        self.killed.set()
        self._ours.close()
        self._thread.join()

    def join(self) -> None:
        if not self.killed.is_set():
            self._thread.join()


class Pipe:
    """The driver's end, which waits for no clock: until there is a message, or the device said that none will come."""

    def __init__(self, kept: Any) -> None:
        self.send, self.recv, self.close, self._kept = kept.send, kept.recv, kept.close, kept

    def poll(self, patience_s: float) -> bool:
        while not self._kept.poll(0.01):
            if SILENT.is_set():
                if self._kept.poll(0):  # what it said before it fell silent
                    return True
                SILENT.clear()
                return False
        return True


def pipe() -> tuple[Any, Any]:
    kept, theirs = multiprocessing.Pipe()
    ours = Pipe(kept)
    return ours, SimpleNamespace(kept=theirs, ours=ours, close=lambda: None)  # the driver closes its copy of the other


@pytest.fixture(autouse=True)
def in_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def leave(code: int) -> None:
        raise SystemExit(code)

    SPAWNED.clear()
    monkeypatch.setattr(workers.multiprocessing, "get_context", lambda kind: SimpleNamespace(Pipe=pipe, Process=Thread))
    monkeypatch.setattr(workers.multiprocessing, "parent_process", lambda: SimpleNamespace(join=threading.Event().wait))
    monkeypatch.setattr(workers.signal, "signal", lambda *_: None)  # which only a process's main thread may
    monkeypatch.setattr(workers.os, "_exit", leave)
    yield
    for one in SPAWNED:  # none may be left to end this process by the real os._exit
        one.end()


def job(k: int) -> Job:
    return Job(Gemm("x", "forward", 16, 16, k, dtype="fp32"))


class Device(FakeExecutor):
    """Depth 1000 ends the process, 2000 says nothing more, 3000 loses the device, 4000 leaves its work undone."""

    def __init__(self, device: str | None) -> None:
        super().__init__(lambda job: 1e-3)

    def run(self, jobs: Any, settings: Any, **rest: Any) -> Iterator[Event]:
        for event in super().run(jobs, settings, **rest):
            k = getattr(self.asked[-1].work, "k", 0) if self.asked else 0
            if isinstance(event, Round) and event.control.size:
                yield event
            if isinstance(event, Measurement) and k == 1000:
                raise SystemExit(7)
            if isinstance(event, Measurement) and k == 2000:
                SILENT.set()
                SPAWNED[-1].killed.wait()
                raise SystemExit(9)
            if isinstance(event, Measurement) and k == 3000:
                raise DeviceLostError("an illegal memory access")
            if isinstance(event, Measurement) and k == 4000:
                return
            yield event


def test_a_sweep_outlives_its_devices_processes_and_names_who_ended_them() -> None:
    said: list[str] = []
    executor = Workers([Child("cuda", Device)], said.append, silent_s=10.0)
    sweep = measure([job(k) for k in (1, 1000, 2, 2000, 3, 3000, 4, 4000)], executor=executor)
    assert {one.description["k"]: one.message.split(": ", 1)[1] for one in sweep.results.values() if not one.ok} == {
        1000: "its process died (exit code 7)",
        2000: "answered nothing for 10 s",
        3000: "an illegal memory access",
        4000: "left its work undone",
    }
    assert {one.description["k"] for one in sweep.results.values() if one.ok} == {1, 2, 3, 4}
    assert all(one.environment.host["node"] == "there" for one in sweep.results.values() if one.ok)
    assert len(SPAWNED) > 4


def test_a_process_serves_many_sweeps_and_a_signal_that_ends_it_is_named() -> None:
    child = Child(None, Device)
    assert child.name == "device"
    (found,) = child.ask(5.0, "begin")
    assert found.device == ENVIRONMENT.device
    for _ in range(2):
        events = list(child.ask(5.0, "run", [job(1)], Settings(), {}, 60.0))
        assert isinstance(events[-1], Measurement)
    assert len(SPAWNED) == 1
    SPAWNED[0].exitcode = -9
    with pytest.raises(LostError, match=r"its process died \(SIGKILL\)"):
        list(child.ask(5.0, "run", [job(1000)], Settings(), {}, inf))


def test_what_is_left_in_the_middle_is_stopped_and_a_new_process_is_started() -> None:
    child = Child(None, Device)
    child.stop()  # nothing runs yet
    for asked in range(1, 3):
        events = child.ask(5.0, "run", [job(1), job(2)], Settings(), {}, inf)
        next(events)
        events.close()  # type: ignore[attr-defined]
        assert SPAWNED[-1].killed.is_set()
        assert len(SPAWNED) <= asked


class Deadly(Device):
    """Depth 1000 ends the process that samples it, and 2000 runs out of memory there."""

    def sample(self, prepared: Prepared, count: int) -> Any:
        k = prepared.job.work.k  # type: ignore[union-attr]
        if k == 1000:
            raise SystemExit(7)
        if k == 2000:
            raise NotMeasured("oom", "out of memory")
        return super().sample(prepared, count)


def test_a_session_outlives_who_loses_its_device_twice_and_names_it() -> None:
    said: list[str] = []
    executor = Workers([Child(None, Deadly)], said.append)
    assert executor.room_bytes == 0  # it is not known of this one
    good, bad, large = (executor.prepare(job(k)) for k in (1, 1000, 2000))
    assert (good.held_bytes, len(executor.sample(good, 3))) == (10**3, 3)
    with pytest.raises(NotMeasured, match=r"^the device was lost with it: its process died \(exit code 7\)$"):
        executor.sample(bad, 2)
    assert said == ["device: its process died (exit code 7), with gemm 16 x 16 x 1000 tn fp32"] * 2
    assert len(executor.sample(good, 2)) == 2  # prepared anew, in the third process
    with pytest.raises(NotMeasured, match="out of memory") as failure:
        executor.sample(large, 1)
    assert failure.value.status == "oom"
    found = executor.finish(good)
    assert (len(found.samples), len(SPAWNED)) == (5, 3)
    assert found.environment.host["node"] == "there"
    executor.release(large)


def test_a_session_whose_device_does_not_come_back_ends() -> None:
    class Once(Deadly):
        def __init__(self, device: str | None) -> None:
            if len(SPAWNED) > 1:
                raise RuntimeError("CUDA unknown error")
            super().__init__(device)

    said: list[str] = []
    executor = Workers([Child(None, Once)], said.append)
    bad = executor.prepare(job(1000))
    with pytest.raises(DeviceLostError, match="no device is left to measure on: what was measured is stored"):
        executor.sample(bad, 2)
    assert said[-1] == "device: CUDA unknown error"
    executor.release(bad)


def test_a_users_mistake_comes_out_of_the_process_as_it_is() -> None:
    def refuse(device: str | None) -> Executor:
        raise InputError("expected torch to be installed", key="measuring")

    with pytest.raises(InputError, match="measuring: expected torch to be installed"):
        Workers([Child(None, refuse)], print)


def test_a_device_that_does_not_begin_is_said_and_left_out_and_without_any_it_is_an_error() -> None:
    def broken(device: str | None) -> Executor:
        raise RuntimeError("CUDA driver version is insufficient")

    said: list[str] = []
    executor = Workers([Child("cuda:0", Device), Child("cuda:1", broken)], said.append)
    assert executor.environment.device == ENVIRONMENT.device
    assert said == ["cuda:1: CUDA driver version is insufficient", "cuda:1: not ready: not used"]
    with pytest.raises(InputError, match="found none that answers"):
        Workers([Child(None, broken)], said.append)


def test_a_sweep_that_is_left_stops_its_devices_and_an_error_of_the_driver_comes_out() -> None:
    executor = Workers([Child(None, Device)], lambda _: None)
    events = executor.run([job(k) for k in range(1, 50)], Settings())
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert SPAWNED[-1].killed.is_set()

    class Unruly(Child):
        def ask(self, *arguments: Any) -> Iterator[Any]:
            if arguments[1] == "run":
                raise ZeroDivisionError("a mistake of ours")
            return super().ask(*arguments)

    with pytest.raises(ZeroDivisionError, match="a mistake of ours"):
        list(Workers([Unruly(None, Device)], lambda _: None).run([job(1)], Settings()))


def test_what_is_compiled_may_be_silent_for_longer() -> None:
    asked: list[float] = []

    class Patient(Child):
        def ask(self, patience_s: float, request: str, *arguments: Any) -> Iterator[Any]:
            asked.append(patience_s)
            return super().ask(patience_s, request, *arguments)

    executor = Workers([Patient(None, Device)], lambda _: None, silent_s=10.0)
    list(executor.run([Job(swiglu(8, 8, 8, compiled=True))], Settings()))
    list(executor.run([job(1)], Settings()))
    assert asked[1:] == [50.0, 10.0]


def test_a_process_that_does_not_start_leaves_the_main_module_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise OSError("no more processes")

    main = sys.modules["__main__"]
    monkeypatch.setattr(Thread, "start", fails)
    with pytest.raises(OSError, match="no more processes"):
        list(Child("cpu").ask(1.0, "begin"))
    assert sys.modules["__main__"] is main
    SPAWNED.clear()  # it never ran


def test_a_process_whose_driver_is_gone_ends() -> None:
    with pytest.raises(SystemExit, match="1"):
        workers._end_with(SimpleNamespace(join=lambda: None))


def test_an_environment_says_the_node_it_is_on() -> None:
    assert next(iter(workers.DeviceServer(Device, None).begin())) == ENVIRONMENT
    assert InProcess("cpu").environment.host["node"] == platform.node()
