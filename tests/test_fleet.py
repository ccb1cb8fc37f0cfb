"""Fleets of devices: leases, bursts, deaths, silences, drift. Processes are fakes here; test_ray.py has real ones."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleet_fakes import FakePool, fleet, steady
from hypothesis import given
from hypothesis import strategies as st
from measure_fakes import ENVIRONMENT, FakeExecutor, measurement

from shapes.errors import InputError
from shapes.measure import DeviceLostError, Job, Settings, measure
from shapes.measure.environment import Environment
from shapes.measure.executor import Event, Round
from shapes.measure.fleet import device
from shapes.measure.fleet import fleet as fleet_module
from shapes.measure.fleet.device import bursts
from shapes.measure.fleet.leases import Leases, parse_on, places
from shapes.measure.store import Store, network_file_system
from shapes.operators import Gemm


def job(k: int, priority: int = 0) -> Job:
    return Job(Gemm("x", "forward", 16, 16, k, dtype="fp32"), priority=priority)


@pytest.fixture(autouse=True)
def every_event_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "MESSAGE_S", 0.0)
    monkeypatch.setattr(fleet_module, "WAIT_S", 0.0)


def test_a_sweep_over_two_devices_gives_each_job_once_and_uses_both() -> None:
    pool = FakePool(steady)
    executor, said = fleet(pool)
    jobs = [job(k) for k in range(1, 101)]
    result = measure(jobs, executor=executor)
    assert {one.description["k"]: one.seconds for one in result.results.values()} == {
        k: pytest.approx(1e-3 * k) for k in range(1, 101)
    }
    assert sum(member.done for member in executor.members) == 100
    assert min(member.done for member in executor.members) > 20
    assert said == []


def test_rows_say_on_which_node_they_were_made() -> None:
    executor, _ = fleet(FakePool(steady))
    result = measure([job(k) for k in range(1, 50)], executor=executor)
    nodes = {one.environment.host["node"] for one in result.results.values()}
    assert nodes == {"node of H100/0", "node of H100/1"}


@pytest.mark.slow
@given(
    seed=st.integers(0, 10**6),
    deaths=st.floats(0, 0.3),
    number=st.integers(1, 80),
    interleave=st.integers(1, 8),
    devices=st.integers(1, 4),
)
def test_whatever_dies_when_no_job_is_lost_or_done_twice(
    seed: int, deaths: float, number: int, interleave: int, devices: int
) -> None:
    chance = random.Random(seed)
    pool = FakePool(steady, lambda name, keys: "dies" if chance.random() < deaths else "", seed)
    executor, _ = fleet(pool, [f"H100/{i}" for i in range(devices)])
    jobs = [job(k) for k in range(1, number + 1)]
    seen: Counter[str] = Counter()
    try:
        for event in executor.run(jobs, Settings(interleave=interleave)):
            if not isinstance(event, Round):
                seen[event.key] += 1
    except DeviceLostError:  # every device died five times over without a result: possible, and said
        assert all(member.state == "aside" for member in executor.members)
        assert set(seen.values()) <= {1}
        return
    assert seen == Counter({one.key: 1 for one in jobs})


def test_a_job_that_kills_every_device_is_convicted_and_the_others_are_measured() -> None:
    bad = job(7)
    # It is under way wherever it is leased; its process dies of it.
    pool = FakePool(steady, lambda name, keys: "dies" if bad.key in keys else "")
    executor, said = fleet(pool)
    result = measure([job(k) for k in range(1, 41)], executor=executor, settings=Settings(interleave=4))
    failed = {one.description["k"]: one.message for one in result.results.values() if not one.ok}
    assert failed == {7: "the device was lost with it: its process died"}
    assert len(result.results) == 40
    assert any("not tried again" in line for line in said)


def test_a_device_that_falls_silent_is_replaced_and_its_jobs_are_done_by_others() -> None:
    hanging = ["H100/0"]

    def fate(name: str, keys: list[str]) -> str:
        if name in hanging:
            hanging.remove(name)
            return "hangs"
        return ""

    pool = FakePool(steady, fate)
    executor, said = fleet(pool, silent_s=0.05)
    result = measure([job(k) for k in range(1, 31)], executor=executor)
    assert len(result.results) == 30
    assert all(one.ok for one in result.results.values())
    assert pool.starts.count("H100/0") == 2
    assert any("answered nothing for 0 s" in line and "started again" in line for line in said)


def test_processes_that_leave_their_work_undone_are_given_up_and_the_sweep_ends() -> None:
    class Idle(FakeExecutor):
        def run(self, jobs: Sequence[Job], settings: Settings, **rest: Any) -> Iterator[Event]:
            return iter(())

    executor, said = fleet(FakePool(lambda name: Idle(lambda one: 1e-3)))
    with pytest.raises(DeviceLostError, match="no device is left"):
        measure([job(k) for k in range(1, 30)], executor=executor)
    assert all(member.state == "aside" for member in executor.members)
    assert "left a lease unfinished" in said[0]


def test_another_driver_than_the_fleet_s_is_set_aside_by_name() -> None:
    older = Environment("Fake 1", "fake-uuid", "0.9", None, (("torch", "0.0"),))

    def make(name: str) -> FakeExecutor:
        made = steady(name)
        made.environment = older if name == "H100/1" else ENVIRONMENT
        return made

    executor, said = fleet(FakePool(make))
    measure([job(k) for k in range(1, 11)], executor=executor)
    assert said == ["H100/1 at node of H100/1: driver 0.9, not 1.0: set aside"]


def test_a_time_limit_leaves_the_least_wanted() -> None:
    executor, _ = fleet(FakePool(lambda name: steady(name, wall_s=0.02)))
    result = measure([job(k, priority=k) for k in range(1, 200)], executor=executor, time_limit_s=0.3)
    done = sorted(one.description["k"] for one in result.results.values())
    assert 1 <= len(done) < 150
    assert len(done) + len(result.left) == 199
    assert done[len(done) // 2] < 60  # by priority, though two devices share them


def test_a_driver_that_stopped_goes_on_with_the_store(tmp_path: Path) -> None:
    jobs = [job(k) for k in range(1, 60)]
    with Store.open(tmp_path / "s.db") as store:
        executor, _ = fleet(FakePool(steady))
        for number, event in enumerate(executor.run(jobs, Settings())):
            if not isinstance(event, Round):
                store.add([event])
            if number == 40:
                break
        before = store.count()
        again, _ = fleet(FakePool(steady))
        result = measure(jobs, executor=again, store=store)
        assert 0 < before < 59
        assert (result.reused, result.measured) == (before, 59 - before)
        assert store.count() == 59


def test_a_fleet_left_in_the_middle_serves_the_next_sweep() -> None:
    pool = FakePool(steady)
    executor, _ = fleet(pool)
    for event in executor.run([job(k) for k in range(1, 40)], Settings()):
        if not isinstance(event, Round):
            break
    result = measure([job(k) for k in range(100, 120)], executor=executor)
    assert sorted(one.description["k"] for one in result.results.values()) == list(range(100, 120))


def test_leases_shrink_towards_the_end_and_follow_the_order() -> None:
    leases = Leases([job(k) for k in range(1, 41)], interleave=4)
    sizes, order = [], []
    while (lease := leases.take(devices=2)) is not None:
        sizes.append(len(lease.jobs))
        order += [one.work.k for one in lease.jobs]  # type: ignore[union-attr]
    assert order == list(range(1, 41))
    assert sizes[0] == 10  # a quarter of what waits, for two devices
    assert sizes == sorted(sizes, reverse=True)


def test_what_another_process_has_begun_is_in_no_lease() -> None:
    leases = Leases([job(k) for k in range(1, 41)], 4, lambda one: one.work.k % 2 == 0)  # type: ignore[union-attr]
    given = [lease.jobs for lease in iter(lambda: leases.take(2), None)]
    assert sorted(one.work.k for jobs in given for one in jobs) == list(range(2, 41, 2))  # type: ignore[union-attr]
    alone = Leases([job(1)], 4, lambda one: False)
    assert alone.take(1) is None
    assert alone.over


def test_a_result_from_a_lease_that_was_taken_back_does_not_count() -> None:
    leases = Leases([job(1)], interleave=4)
    first = leases.take(1)
    assert first is not None
    leases.end(first)
    second = leases.take(1)
    assert second is not None
    assert not leases.done(first, job(1).key)
    assert leases.done(second, job(1).key)
    leases.end(second)
    assert leases.over


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.integers(0, 3))
def test_the_last_burst_has_every_sample_that_was_taken(counts: list[int], before: int) -> None:
    taken, made = np.arange(before, dtype=float), []
    for count in counts:
        taken = np.concatenate((taken, np.arange(count) + len(taken)))
        made.append(Round({job(1).key: (taken, taken)}, np.ones(2)))
    *_, (last,) = bursts(made)
    assert isinstance(last, Round)
    assert last.samples[job(1).key][0].tolist() == list(range(before + sum(counts)))


def test_the_samples_of_a_burst_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "MESSAGE_S", 0.25)
    clock = iter(np.arange(0.0, 100.0, 0.036))  # a round takes 36 ms
    row = np.ones(10)
    rounds = [Round({job(k).key: (row * n, row * n) for k in range(8)}, row) for n in range(1, 15)]
    sent = list(bursts(rounds, now=lambda: float(next(clock))))
    assert len(sent) == 2
    assert all(isinstance(one, Round) and len(one.control) == 7 for (one,) in sent)


def test_a_job_that_is_done_leaves_no_samples_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "MESSAGE_S", 0.25)
    row = np.ones(6)
    (first,), (second, done) = bursts(
        [Round({job(1).key: (row, row)}, row), Round({job(1).key: (row, row)}, row), measurement(job(1), row)],
        now=iter([0.0, 1.0, 1.0, 1.0, 2.0, 2.0]).__next__,
    )
    assert isinstance(first, Round)
    assert list(first.samples) == [job(1).key]
    assert isinstance(second, Round)
    assert (second.samples, done) == ({}, measurement(job(1), row, uid=done.uid, created=done.created))


@pytest.mark.parametrize("text", ["H100:0.5", "H100:0", "H100:-1", "H100,H100", "", "H100:2:1", "a b"])
def test_shared_devices_and_senseless_types_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--on"):
        parse_on(text)


def test_places_are_what_the_cluster_has_or_a_line_says_what_it_has() -> None:
    there = Counter({"H100": 16, "A100": 1})
    assert places(None, there) == {"H100": 16, "A100": 1}
    assert places(parse_on("H100:3,A100"), there) == {"H100": 3, "A100": 1}
    with pytest.raises(InputError, match=r"--on = 'H100:17': expected what the cluster has: A100:1, H100:16"):
        places(parse_on("H100:17"), there)
    with pytest.raises(InputError, match=r"--on = 'L40S': expected what the cluster has"):
        places(parse_on("L40S"), there)
    with pytest.raises(InputError, match="the cluster has none"):
        places(None, Counter())


def test_a_path_is_on_the_longest_mount_that_holds_it(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/a / ext4 rw 0 0\nserver:/h /home nfs4 rw 0 0\n/dev/b /home/local xfs rw 0 0\n")
    assert network_file_system(Path("/home/me/m.db"), mounts) == "nfs4"
    assert network_file_system(Path("/home/local/m.db"), mounts) is None
    assert network_file_system(Path("/tmp/m.db"), mounts) is None
    assert network_file_system(Path("/tmp/m.db"), tmp_path / "none") is None
