"""Two sweeps with one store at the same time: each job is measured by one of them, unless its owner is gone."""

from __future__ import annotations

import multiprocessing
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from measure_fakes import ENVIRONMENT, FakeExecutor, measurement

from shapes.measure import InProcess, Job, Measurement, Progress, Settings, measure, runner
from shapes.measure.runner import Claims
from shapes.measure.store import Store
from shapes.operators import Gemm


def job(k: int) -> Job:
    return Job(Gemm("x", "forward", 16, 16, k, dtype="fp32"))


def test_two_sweeps_at_once_share_their_jobs_and_measure_none_twice(tmp_path: Path) -> None:
    jobs = [job(k) for k in range(1, 41)]
    executors = [FakeExecutor(lambda one: 1e-3, wall_s=0.01) for _ in range(2)]
    sweeps = []

    def sweep(executor: FakeExecutor) -> None:
        with Store.open(tmp_path / "s.db") as store:
            sweeps.append(measure(jobs, executor=executor, store=store))

    threads = [threading.Thread(target=sweep, args=(one,)) for one in executors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(one.work.k for each in executors for one in each.asked) == Counter(range(1, 41))
    assert all(each.asked for each in executors)
    assert [len(one.results) for one in sweeps] == [40, 40]
    assert sum(one.measured for one in sweeps) == 40
    assert sum(one.reused for one in sweeps) == 40
    with Store.open(tmp_path / "s.db") as store:
        assert store.count() == 40


def _sweep(path: str) -> None:
    with Store.open(path) as store:
        measure([job(k) for k in range(1, 101)], executor=FakeExecutor(lambda one: 1e-3, wall_s=0.004), store=store)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_processes_that_are_killed_and_started_again_share_without_losing_or_doubling(
    tmp_path: Path, seed: int
) -> None:
    chance, path = random.Random(seed), str(tmp_path / "s.db")
    start = multiprocessing.get_context("fork").Process
    processes = [start(target=_sweep, args=(path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for _ in range(6):
        time.sleep(chance.uniform(0, 0.12))
        struck = chance.randrange(3)
        processes[struck].kill()
        processes[struck].join()
        processes[struck] = start(target=_sweep, args=(path,))
        processes[struck].start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with Store.open(path) as store:
        assert Counter(one.description["k"] for one in store.measurements()) == Counter(range(1, 101))


def _begun(store: Store, one: Job, *, process: int | None = None) -> Claims:
    """``one`` claimed by another sweep, of this process or one with that number."""
    other = Claims(store, ENVIRONMENT, lambda _: False)
    assert other.take(one)
    if process is not None:
        store.change("UPDATE claim SET process = ?", process)
    return other


def test_what_a_killed_process_had_begun_is_measured_at_once(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with Store.open(tmp_path / "s.db") as store:
        _begun(store, job(1), process=child.pid)
        executor = FakeExecutor(lambda one: 1e-3)
        measure([job(1), job(2)], executor=executor, store=store)
    assert len(executor.asked) == 2


def test_a_claim_that_is_not_renewed_ends_and_one_that_is_does_not(tmp_path: Path, monkeypatch) -> None:
    with Store.open(tmp_path / "s.db") as store:
        other = _begun(store, job(1))
        store.change("UPDATE claim SET until = ?", time.time() - 1)
        monkeypatch.setattr(runner, "_RENEW_S", 0)
        other.renew()
        waiting = measure([job(1)], executor=FakeExecutor(lambda one: 1e-3), store=store, time_limit_s=0.4)
        assert (len(waiting.left), waiting.measured) == (1, 0)
        store.change("UPDATE claim SET until = ?", time.time() - 1)
        assert measure([job(1)], executor=FakeExecutor(lambda one: 1e-3), store=store).measured == 1


def test_a_sweep_that_waits_for_another_says_so_and_takes_its_result(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        _begun(store, job(1))
        seen: list[Progress] = []

        def progress(now: Progress) -> None:
            seen.append(now)
            if now.elsewhere:
                store.add([measurement(job(1), np.full(12, 7.0))])

        executor = FakeExecutor(lambda one: 1e-3)
        sweep = measure([job(1), job(2)], executor=executor, store=store, progress=progress)
        assert [one.work.k for one in executor.asked] == [2]
        assert (sweep.results[job(1).key].seconds, sweep.measured, sweep.reused) == (7.0, 1, 1)
        assert [now.elsewhere for now in seen if now.elsewhere] == [1]


def test_a_sweep_that_ends_early_leaves_its_jobs_to_others_and_fresh_asks_nobody(tmp_path: Path) -> None:
    def stop(now: Progress) -> None:
        raise KeyboardInterrupt

    with Store.open(tmp_path / "s.db") as store:
        with pytest.raises(KeyboardInterrupt):
            measure([job(1)], executor=FakeExecutor(lambda one: 1e-3), store=store, progress=stop)
        assert measure([job(1)], executor=FakeExecutor(lambda one: 1e-3), store=store).measured == 1
        _begun(store, job(1))
        assert measure([job(1)], executor=FakeExecutor(lambda one: 1e-3), store=store, fresh=True).measured == 1


@pytest.mark.slow
def test_a_device_leaves_out_what_is_claimed_elsewhere() -> None:
    pytest.importorskip("torch")
    settings = Settings(precision=0.9, time_s=0.001)
    events = InProcess("cpu").run([job(8), job(16), job(24)], settings, claim=lambda one: one != job(16))
    assert {one.key for one in events if isinstance(one, Measurement)} == {job(8).key, job(24).key}
