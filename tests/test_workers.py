"""Devices that are lost: leases, deaths, silences, who is to blame. Most workers are fakes; some are real processes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure_fakes import ENVIRONMENT, FakeExecutor
from worker_fakes import FakeWorker, Faulty

from shapes.errors import InputError
from shapes.measure import Settings, workers
from shapes.measure.environment import Environment
from shapes.measure.executor import DeviceLostError, Event, Executor, Round
from shapes.measure.in_process import ALIVE
from shapes.measure.jobs import Job
from shapes.measure.runner import measure
from shapes.measure.store import Store
from shapes.measure.workers import Child, Workers, _Leases
from shapes.operators.types import Gemm
from shapes.program import install

#: Of the test with many faults; 9,717 are a suite's.
SHAPES = int(os.environ.get("SIZER_TEST_SHAPES", "200"))


def job(k: int, priority: int = 0) -> Job:
    return Job(Gemm("x", "forward", 16, 16, k, dtype="fp32"), priority=priority)


def steady(name: str | None, wall_s: float = 0.0) -> FakeExecutor:
    """Takes k milliseconds for depth k."""
    return FakeExecutor(lambda job: 1e-3 * job.work.k, wall_s)  # type: ignore[union-attr]


def fleet(*made: FakeWorker, silent_s: float = 60.0) -> tuple[Workers, list[str]]:
    said: list[str] = []
    return Workers(made, said.append, silent_s), said


def test_a_sweep_over_two_devices_gives_each_job_once_and_says_where_each_was_made() -> None:
    executor, said = fleet(*(FakeWorker(f"H100/{i}", lambda name: steady(name, 1e-3)) for i in range(2)))
    result = measure([job(k) for k in range(1, 101)], executor=executor)
    assert {one.description["k"]: one.seconds for one in result.results.values()} == {
        k: pytest.approx(1e-3 * k) for k in range(1, 101)
    }
    assert all(one.environment.host["node"] == "there" for one in result.results.values())
    assert said == []


@given(
    seed=st.integers(0, 10**6),
    deaths=st.floats(0, 0.3),
    culprits=st.sets(st.integers(1, 24), max_size=8),
    interleave=st.integers(1, 8),
    devices=st.integers(1, 3),
)
def test_whatever_dies_when_no_job_is_lost_or_done_twice_and_every_culprit_is_named(
    seed: int, deaths: float, culprits: set[int], interleave: int, devices: int
) -> None:
    chance, bad = random.Random(seed), {job(k).key for k in culprits}

    def fate(keys: list[str]) -> str:
        at_work = bad & set(keys[:interleave])
        return chance.choice(("dies", "hangs")) if at_work or chance.random() < deaths else ""

    executor, _ = fleet(*(FakeWorker(f"H100/{i}", steady, fate) for i in range(devices)))
    jobs = [job(k) for k in range(1, 25)]
    events = [one for one in executor.run(jobs, Settings(interleave=interleave)) if not isinstance(one, Round)]
    assert Counter(one.key for one in events) == Counter(one.key for one in jobs)
    failed = {one.key for one in events if not one.ok}
    assert bad <= failed
    assert deaths > 0 or failed == bad


@pytest.mark.slow
def test_many_faults_are_named_and_nothing_is_lost_or_doubled_however_often_it_is_resumed(tmp_path: Path) -> None:
    """Of SHAPES a twentieth lose the device, each twice, and the driver stops 50 times."""
    bad = {job(k).key for k in random.Random(0).sample(range(1, SHAPES + 1), SHAPES // 20)}
    jobs = [job(k) for k in range(1, SHAPES + 1)]
    stops, most = 0, max(3, SHAPES // 60)

    def fate(keys: list[str]) -> str:
        return "dies" if bad & set(keys[:8]) else ""

    seen: dict[str, str] = {}
    with Store.open(tmp_path / "s.db") as store:
        while True:
            executor, _ = fleet(FakeWorker("cuda", steady, fate))
            try:
                sweep = measure(
                    jobs,
                    executor=executor,
                    store=store,
                    progress=stopping(most if stops < 50 else 10**9),
                )
                break
            except KeyboardInterrupt:
                stops += 1
                now = {one.key: one.uid for one in store.measurements()}
                assert all(now[key] == uid for key, uid in seen.items())
                seen = now
        assert store.count() == SHAPES
    assert stops == 50
    assert {one.key for one in sweep.results.values() if not one.ok} == bad
    assert {one.status for one in sweep.results.values() if not one.ok} == {"error"}


def stopping(after: int) -> Any:
    """A driver that is stopped after so many events."""
    left = iter(range(after))

    def progress(_: object) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    return progress


def test_a_device_that_never_begins_convicts_no_job_and_is_given_up() -> None:
    class Dead(FakeExecutor):
        def run(self, jobs: Sequence[Job], settings: Settings, **rest: Any) -> Iterator[Event]:
            raise workers.LostError("no device")
            yield

    executor, said = fleet(FakeWorker("cuda", lambda name: Dead(lambda one: 1e-3)))
    with Store.in_memory() as store:
        with pytest.raises(DeviceLostError, match="no device is left"):
            measure([job(k) for k in range(1, 30)], executor=executor, store=store)
        assert store.count() == 0
    assert len(said) == 3


def test_another_driver_than_most_have_is_not_used() -> None:
    older = Environment("Fake 1", (("torch", "0.0"),), "fake-uuid", "0.9")

    def make(name: str | None) -> Executor:
        made = steady(name)
        made.environment = older if name == "H100/1" else ENVIRONMENT
        return made

    executor, said = fleet(*(FakeWorker(f"H100/{i}", make) for i in range(3)))
    measure([job(k) for k in range(1, 11)], executor=executor)
    assert said == ["H100/1: another driver, or libraries, than most have: not used"]
    other = Environment("Fake 2", (("torch", "0.0"),), driver="1.0")
    made = [FakeWorker("a", steady), FakeWorker("b", make)]
    older = other
    made[1].name = "H100/1"
    with pytest.raises(InputError, match="expected devices of one kind, found Fake 1, Fake 2"):
        fleet(*made)


def test_a_time_limit_leaves_the_least_wanted() -> None:
    executor, _ = fleet(*(FakeWorker(f"H100/{i}", lambda name: steady(name, wall_s=0.02)) for i in range(2)))
    result = measure([job(k, priority=k) for k in range(1, 200)], executor=executor, time_limit_s=0.3)
    done = sorted(one.description["k"] for one in result.results.values())
    assert 1 <= len(done) < 150
    assert len(done) + len(result.left) == 199
    assert done[len(done) // 2] < 60  # by priority, though two devices share them


def test_leases_shrink_towards_the_end_and_follow_the_order() -> None:
    leases = _Leases([job(k) for k in range(1, 41)], interleave=4, devices=2)
    given_ = []
    while leases.waiting:
        given_.append(leases.take())
    assert [one.work.k for lease in given_ for one in lease] == list(range(1, 41))  # type: ignore[union-attr]
    sizes = list(map(len, given_))
    assert sizes[0] == 10  # a quarter of what waits, for two devices
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.slow
def test_real_processes_that_die_hang_or_fail_are_replaced_and_their_culprits_named() -> None:
    """One by a signal, one silent, one that a library gave up on; what they were timed with is measured."""
    said: list[str] = []
    executor = Workers([Child(None, Faulty)], said.append, silent_s=1.0)
    result = measure([job(k) for k in (1, 1000, 2, 2000, 3, 3000, 4)], executor=executor)
    failed = {one.description["k"]: one.message for one in result.results.values() if not one.ok}
    assert failed == {
        1000: "the device was lost with it: its process died (SIGSEGV)",
        2000: "the device was lost with it: answered nothing for 1 s",
        3000: "the device was lost with it: CUDA error: an illegal memory access was encountered",
    }
    assert {one.description["k"] for one in result.results.values() if one.ok} == {1, 2, 3, 4}
    assert sum("skipped" in line for line in said) == 3


class Endless(FakeExecutor):
    """A device that answers nothing; whoever waits at its pipe hears when its process has ended."""

    def __init__(self, device: str | None) -> None:
        super().__init__(lambda job: 1e-3)

    def run(self, jobs: Any, settings: Any, **rest: Any) -> Iterator[Any]:
        yield ALIVE
        os.write(1, b"hangs\n")
        time.sleep(3600)


DRIVER = """
import sys
sys.path[:0] = {path!r}
from test_workers import Endless, job
from shapes.measure import Settings
from shapes.measure.workers import Child, Workers
if __name__ == "__main__":
    list(Workers([Child(None, Endless)], print).run([job(1)], Settings()))
"""


@pytest.mark.slow
def test_a_device_that_hangs_ends_when_its_driver_was_killed(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(DRIVER.format(path=sys.path))
    driver = subprocess.Popen([sys.executable, str(tmp_path / "driver.py")], stdout=subprocess.PIPE)
    assert driver.stdout is not None
    assert driver.stdout.readline() == b"hangs\n"
    driver.kill()
    driver.wait()
    assert driver.stdout.read() == b""  # comes when the last process that holds it is gone


def no_torch(device: str | None) -> Executor:
    raise InputError(f"expected torch to be installed: {install('torch')}", key="measuring")


@pytest.mark.slow
def test_what_a_user_must_mend_comes_out_of_the_process_as_it_is() -> None:
    with pytest.raises(InputError, match="measuring: expected torch to be installed"):
        Workers([Child(None, no_torch)], print)


def test_one_process_at_a_time_measures_into_a_store_and_others_read_it(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Store.open(path, measuring=True):
        with pytest.raises(InputError, match="another process measures into this store: wait for it, or name another"):
            Store.open(path, measuring=True)
        with Store.open(path, write=False) as reader:
            assert reader.count() == 0
    Store.open(path, measuring=True).close()
