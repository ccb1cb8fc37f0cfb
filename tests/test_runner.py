"""Sweeps: order, reuse, resuming, time limits, outcomes that are no times, kills."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from measure_fakes import ENVIRONMENT, FakeBackend, FakeExecutor, measurement

from shapes.frozen import replace
from shapes.measure import InProcess, Settings
from shapes.measure.executor import NotMeasured, Prepared, Round
from shapes.measure.jobs import Job
from shapes.measure.record import Measurement
from shapes.measure.runner import measure, ordered
from shapes.measure.store import Store
from shapes.measure.timer import Stopwatch, TimedKernel, WrongResultError
from shapes.operators.types import Collective, Gemm

pytest.importorskip("torch")


def job(k: int, priority: int = 0) -> Job:
    return Job(Gemm("x", "forward", 16, 16, k, dtype="fp32"), priority=priority)


def test_equal_jobs_are_measured_once_and_results_keep_the_given_order() -> None:
    executor = FakeExecutor(lambda one: 1e-3)
    sweep = measure([job(3), job(1), job(3), job(2)], executor=executor)
    assert [one.description["k"] for one in sweep.results.values()] == [3, 1, 2]
    assert Counter(one.work.k for one in executor.asked) == {1: 1, 2: 1, 3: 1}


def test_smaller_priorities_come_first_and_are_shuffled_within() -> None:
    jobs = [job(k, priority=k // 50) for k in range(1, 100)]
    order = ordered(jobs, seed=0)
    assert [one.priority for one in order] == sorted(one.priority for one in jobs)
    assert order != sorted(jobs, key=lambda one: one.priority)


def test_what_the_store_has_is_not_measured_again_unless_asked(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        first = measure([job(1), job(2)], executor=FakeExecutor(lambda one: 1e-3), store=store)
        again = FakeExecutor(lambda one: 2e-3)
        second = measure([job(1), job(2), job(3)], executor=again, store=store)
        assert (first.measured, second.measured, second.reused) == (2, 1, 2)
        assert [one.work.k for one in again.asked] == [3]
        fresh = measure([job(1)], executor=FakeExecutor(lambda one: 2e-3), store=store, fresh=True)
        assert fresh.results[job(1).key].seconds == 2e-3


def test_a_looser_result_than_now_asked_for_is_measured_again(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        store.add([measurement(job(1), np.linspace(1.0, 1.2, 12))])  # +-5% or so, stopped by a loose precision
        executor = FakeExecutor(lambda one: 1e-3)
        measure([job(1)], executor=executor, store=store, settings=Settings(precision=0.2))
        assert not executor.asked
        measure([job(1)], executor=executor, store=store, settings=Settings(precision=0.005))
        assert len(executor.asked) == 1


def test_the_time_limit_ends_the_sweep_and_names_what_is_left() -> None:
    executor = FakeExecutor(lambda one: 1e-3, wall_s=0.05)
    sweep = measure([job(k, priority=k) for k in range(1, 50)], executor=executor, time_limit_s=0.3)
    assert [one.work.k for one in executor.asked] == list(range(1, len(executor.asked) + 1))
    assert 1 <= sweep.measured < 20
    assert sweep.measured + len(sweep.left) == 49


def test_jobs_that_fail_at_once_are_not_begun_behind_the_time_limit_either(monkeypatch) -> None:
    # Nine thousand that a processor cannot run kept a suite opening them until one of them could.
    passed = iter(range(1000))
    clock = SimpleNamespace(monotonic=lambda: float(next(passed)))
    monkeypatch.setattr("shapes.measure.in_process.time", clock)
    session = session_of(monkeypatch, {512: fake_kernel(1e-3), **{k: RuntimeError("no") for k in range(1, 100)}})
    heard = list(session.run([job(k) for k in range(1, 100)], Settings(), deadline=20.0))
    assert 10 < sum(isinstance(one, Measurement) for one in heard) <= 20


def test_progress_counts_to_the_end() -> None:
    seen = []
    measure([job(1), job(2)], executor=FakeExecutor(lambda one: 1e-3), progress=seen.append)
    assert (seen[-1].done, seen[-1].total) == (2, 2)
    assert seen[-1].left_s == 0


def fake_kernel(seconds: float | list[float], *, sets: int = 3, error: float = 0.0, **changes: object) -> TimedKernel:
    """A kernel whose calls take (return) ``seconds``, or each of them in turn."""
    turns = iter(seconds) if isinstance(seconds, list) else None

    def call() -> float:
        return next(turns) if turns is not None else seconds  # type: ignore[return-value]

    return TimedKernel(calls=(call,) * sets, check=lambda: error, bound=0.01, set_bytes=10, name="fake", **changes)  # type: ignore[arg-type]


def session_of(monkeypatch, kernels: dict[int, object], **backend: object) -> InProcess:
    """An InProcess over a fake device, whose kernel for a product of depth k is ``kernels[k]``."""
    from shapes.measure import kernels as kernels_package

    def build(one: Job, device: object, seed: int = 0) -> TimedKernel:
        made = kernels[one.work.k]
        if isinstance(made, Exception):
            raise made
        return made() if callable(made) else made

    monkeypatch.setattr(kernels_package, "build", build)
    session = InProcess(FakeBackend(**backend))  # type: ignore[arg-type]
    session.environment = ENVIRONMENT
    return session


def test_memory_errors_and_wrong_results_are_outcomes_and_the_sweep_goes_on(monkeypatch) -> None:
    import torch

    kernels = {
        512: lambda: fake_kernel(1e-3),
        1: lambda: fake_kernel(1e-3),
        2: torch.OutOfMemoryError("out of memory"),
        3: RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED"),
        4: lambda: fake_kernel(1e-3, error=0.5),
        5: lambda: fake_kernel(1e-3, error=float("nan")),
        6: lambda: fake_kernel(2e-3),
    }
    sweep = measure([job(k) for k in range(1, 7)], executor=session_of(monkeypatch, kernels))
    status = {one.description["k"]: one.status for one in sweep.results.values()}
    assert status == {1: "ok", 2: "oom", 3: "error", 4: "wrong", 5: "wrong", 6: "ok"}
    assert "CUBLAS" in sweep.results[job(3).key].message


def test_a_kernel_prepared_anew_is_neither_checked_nor_warmed_up_for_long_again(monkeypatch) -> None:
    # A race prepares each finalist's kernels anew up to three hundred times: what that takes is no sample.
    checks, noise = [], np.random.default_rng(0)

    def made() -> TimedKernel:
        kernel = fake_kernel([float(x) for x in 0.01 * noise.lognormal(0, 0.05, 500)])
        return replace(kernel, check=lambda: checks.append(kernel) or 0.003)

    session = session_of(monkeypatch, {1: made})
    spent = []
    for _ in range(3):
        before = session.backend.clock
        prepared = session.prepare(job(1), Settings(warm_up_s=0.004, most_warm_up_s=0.05))
        spent.append(session.backend.clock - before)
        session.sample(prepared, 4)
        assert session.finish(prepared).check_error == 0.003  # that of its first preparation
    assert len(checks) == 1
    assert spent[0] > 0.05 > 0.03 > max(spent[1:]) > 0.015  # a run for the new buffers, and one


def test_what_has_no_kernel_is_unsupported() -> None:
    collective = Job(Collective("all_reduce", "forward", "all_reduce", 1024, 8))
    with pytest.raises(NotMeasured) as outcome:
        InProcess("cpu").prepare(collective)
    assert outcome.value.status == "unsupported"


def test_candidates_share_rounds_with_each_other_and_the_control(monkeypatch) -> None:
    noise = np.random.default_rng(0)
    kernels = {
        k: (lambda: fake_kernel([float(x) for x in 1e-3 * noise.lognormal(0, 0.05, 5000)]))
        for k in (512, *range(1, 10))
    }
    session = session_of(monkeypatch, kernels)
    rounds = [
        event
        for event in session.run([job(k) for k in range(1, 9)], Settings(precision=0.001, interleave=4, time_s=0.1))
        if isinstance(event, Round) and event.control.size  # else a sign of life
    ]
    assert all(len(one.samples) <= 4 for one in rounds)
    assert sum(len(one.samples) == 4 for one in rounds) > len(rounds) / 2
    own, control = next(iter(rounds[0].samples.values()))
    assert len(own) == len(control) == len(rounds[0].control)


def test_drift_that_meets_all_alike_cancels_in_the_ratio_to_the_control(monkeypatch) -> None:
    """A clock that falls by a third while eight equal candidates are timed, two at a time."""
    now = {"calls": 0}

    def drifting(base: float) -> TimedKernel:
        def call() -> float:
            now["calls"] += 1
            return base * (1 + now["calls"] / 3000)

        return TimedKernel(calls=(call,) * 3, check=lambda: 0.0, bound=1.0, set_bytes=10, name="drifting")

    kernels = {512: lambda: drifting(2e-3), **{k: (lambda: drifting(1e-3)) for k in range(1, 9)}}
    session = session_of(monkeypatch, kernels)
    sweep = measure(
        [job(k) for k in range(1, 9)], executor=session, settings=Settings(precision=1e-4, interleave=2, time_s=0.1)
    )
    seconds = np.array([one.seconds for one in sweep.results.values()])
    ratios = np.array([one.seconds / one.control_s for one in sweep.results.values()])
    assert seconds.max() / seconds.min() > 1.15
    assert ratios.max() / ratios.min() < 1.02
    assert not sweep.drift.steady


def test_parts_of_an_interrupted_run_are_taken_up(monkeypatch) -> None:
    kernels = {512: lambda: fake_kernel(1e-3), 1: lambda: fake_kernel(1e-3)}
    session = session_of(monkeypatch, kernels)
    before = np.full(30, 1e-3)
    events = list(session.run([job(1)], Settings(), unfinished={job(1).key: (before, before)}))
    results = [one for one in events if isinstance(one, Measurement)]
    assert len(results) == 1
    assert len(results[0].samples) > 30


def test_a_stopwatch_refuses_a_kernel_that_computes_something_else() -> None:
    with pytest.raises(WrongResultError, match=r"relative error 0\.5"):
        Stopwatch(fake_kernel(1e-3, error=0.5), FakeBackend())


def test_bursts_and_sustained_times_are_kept_apart_and_their_rows_say_which(tmp_path: Path) -> None:
    executor, job = FakeExecutor(lambda one: 1e-3), Job(Gemm("x", "forward", 8, 8, 8))
    with Store.open(tmp_path / "s.db") as store:
        for load, measured in (("burst", 1), ("sustained", 1), ("sustained", 0), ("burst", 0)):
            sweep = measure([job], executor=executor, store=store, settings=Settings(load=load))
            assert sweep.measured == measured
            assert [one.row()["load"] for one in sweep.results.values()] == [load]
        assert [one.environment.load for one in store.measurements()] == ["burst", "sustained"]


def test_whatever_can_be_captured_is_timed_by_graphs_however_long_it_takes() -> None:
    # One way of timing a sweep: short and long kernels side by side would differ by the gap between launches.
    # 2 ms of 10 us calls over 3 sets: 67 rounds of them; of 1 ms calls a graph of two sets, of 5 ms calls one of each.
    for seconds, calls in ((10e-6, 201), (1e-3, 2), (5e-3, 1)):
        watch = Stopwatch(fake_kernel(seconds), FakeBackend(graphs=True))
        assert (watch.per_sample, watch.timed_by) == (calls, f"graphs of {calls} calls")
        assert watch.take(4) == pytest.approx([seconds] * 4)
    assert Stopwatch(fake_kernel(1e-3), FakeBackend()).timed_by == "fake clock"


def test_every_call_is_preceded_by_a_flush_where_inputs_cannot_exceed_the_cache() -> None:
    backend = FakeBackend()
    watch = Stopwatch(fake_kernel(1e-3, needs_flush=True), backend)
    before = backend.flushes
    watch.take(7)
    assert backend.flushes - before == 7


def test_a_burst_synchronizes_once_and_not_once_a_call() -> None:
    backend = FakeBackend()
    watch = Stopwatch(fake_kernel(1e-3), backend)
    before = backend.synchronizations
    watch.take(50)
    assert backend.synchronizations - before == 1


def test_a_session_samples_what_a_search_asks_for() -> None:
    session = InProcess("cpu")
    candidate = session.prepare(job(64))
    assert isinstance(candidate, Prepared)
    assert len(session.sample(candidate, 5)) == 5
    session.sample(candidate, 3)
    assert len(candidate.samples) == 8
    assert (candidate.samples > 0).all()
    assert len(session.finish(candidate).samples) == 8


@pytest.mark.slow
@pytest.mark.parametrize("kills", [10, pytest.param(50, marks=pytest.mark.exhaustive)])
def test_kills_lose_nothing_and_double_nothing(kills: int, tmp_path: Path) -> None:
    """SIGKILL at random moments of a sweep until so many have struck; then it is let finish."""
    path = tmp_path / "s.db"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
    # 50 interpreters that import torch take minutes: the children are forked from one that has it.
    driver = subprocess.run(
        [sys.executable, "-c", FORKING, str(path), str(kills)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert driver.returncode == 0, driver.stderr
    struck, shapes = map(int, driver.stdout.split())
    assert struck == kills
    with Store.open(path) as store:
        done = Counter(one.description["k"] for one in store.measurements())
    assert done == Counter(range(1, shapes + 1))


FORKING = """
import os, random, signal, sys, time
from shapes.measure import InProcess, Settings
from shapes.measure.runner import measure
from shapes.measure.store import Store
from test_runner import job

path, kills = sys.argv[1], int(sys.argv[2])
random.seed(0)

def sweep(shapes):
    with Store.open(path) as store:
        jobs = [job(k) for k in range(1, shapes + 1)]
        session = InProcess("cpu")
        session.backend.cache_bytes = 2**16  # few input sets: a child is at work within its short life
        measure(jobs, executor=session, store=store, settings=Settings(time_s=0.01, interleave=3))

seen, struck, shapes, longest = {}, 0, 60, 0.5
while struck < kills:
    child = os.fork()
    if child == 0:
        sweep(shapes)
        os._exit(0)
    time.sleep(random.uniform(0.02, longest))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        struck += 1
    else:
        shapes += 20  # it was through: more work, so that every kill strikes a sweep at work
    if os.path.exists(path):
        with Store.open(path) as store:
            now = {one.key: one.uid for one in store.measurements()}
            assert store.count() == len(now), "doubled"
        assert all(now.get(key) == uid for key, uid in seen.items()), "lost"
        seen = now
    if not seen:
        longest = min(10.0, 1.5 * longest)  # a busy machine: give the sweep time to come to something
assert seen, "no sweep came far enough to write anything"
sweep(shapes)
print(struck, shapes)
"""


def test_a_peak_is_one_set_of_inputs_and_what_the_call_adds(monkeypatch) -> None:
    backend = FakeBackend()
    monkeypatch.setattr(backend, "peak_bytes", lambda call: 500)
    assert Stopwatch(fake_kernel(1e-3), backend).peak_bytes() == 510  # fake_kernel's set is 10 bytes
    monkeypatch.setattr(backend, "peak_bytes", lambda call: None)
    assert Stopwatch(fake_kernel(1e-3), backend).peak_bytes() is None


def test_the_driver_is_read_from_the_kernel_module(tmp_path: Path) -> None:
    from shapes.measure.environment import kernel_module_driver

    path = tmp_path / "version"
    path.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 2025\nGCC version: 12.3.0\n")
    assert kernel_module_driver(str(path)) == "570.86.15"
    assert kernel_module_driver(str(tmp_path / "none")) is None
