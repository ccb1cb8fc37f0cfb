"""Measured searches on this CPU: what the store keeps, what a kill loses, what cannot be measured."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from measure_fakes import FakeExecutor, RemoteExecutor

import sizer
from reports.suites.everything import exhaustive
from shapes.device import load_device
from shapes.errors import InputError
from shapes.measure import InProcess, Settings
from shapes.measure.backend import Backend, OneThread
from shapes.measure.executor import NotMeasured, Prepared
from shapes.measure.jobs import Job
from shapes.measure.store import Store
from shapes.step import Pricer
from sizer.cli import main
from sizer.searching import measuring
from sizer.searching.measuring import _timing, weighted_jobs
from sizer.searching.pricing import price
from sizer.searching.space import Baseline, Limits, on_a_cpu
from sizer.searching.spaces import make_space
from sizer.searching.strategies import Outcome, Race

pytestmark = pytest.mark.slow

TINY = [
    "--h",
    "64",
    "-b",
    "1",
    "-s",
    "64",
    "--dtype",
    "fp32",
    "--tolerance",
    "5%",
    "--limit",
    "step=4",
    "--measure",
    "--limit",
    "regret=20%",
]

CONFIGS = Path(__file__).parent / "data" / "configs"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["search", *arguments], catch_exceptions=False)


def test_a_second_search_measures_nothing_and_says_the_same_and_how_sure_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, noise = str(tmp_path / "store.db"), np.random.default_rng(0)
    # A quiet device, however loaded the machine is: the first search is as sure as was asked before its time is up.
    monkeypatch.setattr(Backend, "time_batch", lambda self, calls, flush=None: noise.normal(1e-4, 1e-6, len(calls)))
    first = run(*TINY, "--store", store, "--format", "json")
    assert first.exit_code == 0, first.stderr

    def refuse(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(InProcess, "sample", refuse)
    again = run(*TINY, "--store", store, "--format", "json")
    one, two = json.loads(first.stdout), json.loads(again.stdout)
    assert one["measurements"] == two["measurements"] > 0
    assert one["best"] == two["best"]
    assert one["baseline"] == two["baseline"]
    assert one["baseline"]["source"].startswith("measured:CPU")
    text = run(*TINY, "--store", store).stdout
    assert "\nmeasured here (CPU" in text
    assert "% sure that none of them is more than 20.0% faster" in text


@pytest.mark.parametrize("objective", ["step-time", "time-per-parameter"])
def test_the_strategy_minimises_the_objective_of_measured_times(objective: str, tmp_path: Path) -> None:
    # What a second is worth must not depend on what was predicted: of a step's time it is one.
    given: list[float] = []

    def strategy(race: Race) -> Outcome:
        given.extend(race.weights)
        count = len(race.predicted_s)
        ratios, errors = {index: np.zeros(9) for index in range(count)}, dict.fromkeys(range(count), 0.01)
        return Outcome(0, ratios, errors, np.full(9, 1e-3), 9, 1.0, True, {})

    found = sizer.search(
        h=64,
        tokens=64,
        dtype="fp32",
        limits=Limits(0.3, step=16),
        measure=True,
        objective=objective,
        strategy=strategy,
        store=str(tmp_path / "store.db"),
        top=100,
    )
    worth = [1.0 if objective == "step-time" else 1 / one.parameters for one in found.ranked]
    assert given == worth
    assert len(given) > 3


@pytest.mark.parametrize(("attention", "t"), [("flash", 1), ("eager", 1), ("flash", 2), ("eager", 4)])
@pytest.mark.parametrize(
    ("name", "whats"),
    [
        ("gpt2", ("swiglu", "heads", "vocab")),
        ("phi-3-mini", ("swiglu", "heads", "vocab")),
        ("gemma-2-9b", ("swiglu", "heads", "model")),
        ("qwen3-30b-a3b", ("heads", "vocab", "model")),
    ],
)
def test_what_is_timed_are_the_products_that_are_priced(
    name: str, whats: tuple[str, ...], attention: str, t: int
) -> None:
    # TFLOPS divide the priced products by the measured time: both must be of the same ones.
    device = load_device("h100-sxm")
    words = {"b": 1, "s": 512, "attention": attention, "t": t, "fused_gate_up": t > 1, "fused_qkv": t > 1}
    path = f"{CONFIGS}/{name}.json"
    baseline = Baseline.from_config(path, **words)
    for what in whats:
        if what == "model" and t > 2:
            continue  # no neighbour splits its heads into four
        space = make_space(what, baseline, device, Limits(0.15))
        if what == "model" and t > 1 and baseline.model.moe is not None:
            with pytest.raises(InputError, match="expected whole experts"):
                weighted_jobs(space, space.baseline)
            continue
        for change in (space.baseline, space.candidates[0]):
            timed = sum(count * job.work.flops for job, count in weighted_jobs(space, change))
            assert timed == pytest.approx(price(space, [change], Pricer(device))[0].flops, rel=1e-12)


def test_the_interval_of_a_few_noisy_ratios_holds_their_median() -> None:
    # As time runs out some candidates have three samples: of ratios far apart, and on both sides of 1.
    ratios = {0: np.zeros(4), 1: np.log([0.2, 0.7, 0.9]), 2: np.log([0.5, 2.0, 30.0])}
    outcome = Outcome(1, ratios, {0: 0.0, 1: 0.01, 2: 5.0}, np.full(4, 2.0), 10, 0.5, False, {})
    for index in ratios:
        timing = _timing(outcome, index, 0.95, "measured")
        assert 0 < timing.low <= timing.seconds <= timing.high
    assert _timing(outcome, 1, 0.95, "measured").seconds == pytest.approx(1.4)
    assert _timing(outcome, 2, 0.95, "measured").high > 30 * 60


def test_a_strategy_of_ones_own_looks_at_every_candidate(tmp_path: Path) -> None:
    result = sizer.search(
        h=64,
        d_ff=170,
        tokens=64,
        dtype="fp32",
        limits=Limits(0.05, step=4),
        measure=True,
        strategy=exhaustive,
        regret=0.3,
        store=str(tmp_path / "store.db"),
        top=100,
    )
    # 170 within 5%: 162 to 178.
    assert {one.change["d_ff"] for one in result.candidates} == {164, 168, 172, 176}
    assert any("4 of 4 candidates looked at" in note for note in result.notes)
    assert all(one.timing.low <= one.timing.seconds <= one.timing.high for one in result.candidates)


def test_a_killed_search_goes_on_from_what_it_had(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    wide = ["--h", "512", "-b", "1", "-s", "512", "--tolerance", "2%", "--limit", "step=4", "--limit", "regret=1%"]
    command = [sys.executable, "-m", "sizer", "search", *TINY, *wide]
    environment = {**os.environ, "SIZER_STORE": str(path)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while _samples(path) < 20 and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = _samples(path)
    assert kept >= 20
    result = sizer.search(
        h=512, tokens=512, dtype="fp32", limits=Limits(0.02, step=4), measure=True, store=str(path), time_limit_s=0.01
    )
    assert "timed before" in " ".join(result.notes)
    assert _samples(path) >= kept


def _samples(path: Path) -> int:
    """Samples in the store, finished or not."""
    if not path.exists():
        return 0
    try:
        with Store.open(path, create=False) as store:
            parts = store._connection.execute("SELECT sum(length(samples)) FROM part").fetchone()[0] or 0
            done = store._connection.execute("SELECT sum(length(samples)) FROM measurement").fetchone()[0] or 0
            return (int(parts) + int(done)) // 8
    except InputError:
        return 0


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--h", "256", "--what", "heads", "--measure", "--pp", "2"], "--predict"),
        (["--h", "256", "--measure", "--checkpointing", "full"], "--predict"),
        (["--h", "256", "--measure", "--dtype", "fp8"], "--measure"),
    ],
)
def test_what_cannot_be_measured_is_one_line(arguments: list[str], part: str, tmp_path: Path) -> None:
    result = run(*arguments, "--store", str(tmp_path / "store.db"))
    assert result.exit_code == 2
    assert part in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def time_of_a_width(job: Job) -> float:
    """Of an MLP as of its width, but for 168, which is the fastest by a fifth."""
    width = job.work.block.mlp.width
    return 1e-3 * width / 170 * (0.8 if width == 168 else 1.0)


SMALL = {"h": 64, "d_ff": 170, "tokens": 64, "dtype": "fp32", "limits": Limits(0.05, step=4), "top": 100}


def test_a_processor_is_measured_for_a_time_that_the_answer_names(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(measuring, "ON_A_CPU_S", 1e-9)
    on_a_cpu = FakeExecutor(time_of_a_width)
    on_a_cpu.environment = replace(on_a_cpu.environment, threads=2)
    found = sizer.search(**SMALL, measure=on_a_cpu, store=str(tmp_path / "cpu.db"))
    said = "; --time-limit 1e-09s was up where one run differs from another by 0%. The same command goes on from there"
    assert any(said in note for note in found.notes), found.notes
    assert re.match(r"d_ff 170 is within \d+\.\d% of the best, 95% sure \(1\.0% asked\): keep 170", found.verdict)
    # An accelerator is measured until the answer is as sure as was asked.
    found = sizer.search(**SMALL, measure=FakeExecutor(time_of_a_width), store=str(tmp_path / "s.db"))
    assert not any("--time-limit" in note for note in found.notes)
    assert "undecided" not in found.verdict


def test_a_processor_is_one_thread_by_its_own_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    before = torch.get_num_threads()
    found = {InProcess(OneThread()).environment.threads, InProcess("cpu").environment.threads}
    assert found == {1, before}
    clock = iter(range(0, 100, 3))
    monkeypatch.setattr(time, "thread_time", lambda: float(next(clock)))
    threads: list[int] = []
    taken = OneThread().time_batch([lambda: threads.append(torch.get_num_threads())] * 2)
    assert (taken.tolist(), threads, torch.get_num_threads()) == ([3.0, 3.0], [1, 1], before)


@pytest.mark.parametrize(("h", "tokens"), [(64, 1024), (256, 256), (512, 64), (768, 16), (8192, 16), (None, 64)])
def test_wide_layers_are_measured_on_few_tokens_on_a_processor(h: int | None, tokens: int) -> None:
    assert on_a_cpu(h)["s"] == tokens


@pytest.mark.parametrize("kind", [FakeExecutor, RemoteExecutor])
def test_a_search_measures_on_any_executor_and_the_driver_keeps_what_it_measured(kind: type, tmp_path: Path) -> None:
    executor, store = kind(time_of_a_width), str(tmp_path / "store.db")
    found = sizer.search(**SMALL, measure=executor, store=store)
    assert found.best.change == {"d_ff": 168}
    assert found.best.speedup == pytest.approx(170 / 168 / 0.8, rel=0.01)
    assert found.source == "measured:Fake 1 torch 0.0"
    assert not executor.open
    again = kind(time_of_a_width)
    assert sizer.search(**SMALL, measure=again, store=store).best.change == {"d_ff": 168}
    assert not again.asked


def test_kernels_are_closed_where_the_executor_has_no_room_for_more(tmp_path: Path) -> None:
    opened = []

    class Small(FakeExecutor):
        def sample(self, prepared: Prepared, count: int) -> np.ndarray:
            opened.append(len(self.open))
            return super().sample(prepared, count)

    executor = Small(time_of_a_width, room_bytes=4000, held_bytes=1000)
    sizer.search(**SMALL, measure=executor, strategy=exhaustive, store=str(tmp_path / "store.db"))
    # Half of the room may be held when the next is opened: two thousand bytes and that one.
    assert max(opened) == 3


class Refusing(FakeExecutor):
    """Cannot run one width."""

    width = 170

    def prepare(self, job: Job, settings: Settings | None = None) -> Prepared:
        if job.work.block.mlp.width == self.width:
            raise NotMeasured("oom", "out of memory")
        return super().prepare(job, settings)


def test_a_baseline_that_cannot_run_says_why_and_a_candidate_is_a_note(tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    with pytest.raises(InputError, match=r"the baseline cannot be measured here \(oom: out of memory\)"):
        sizer.search(**SMALL, measure=Refusing(time_of_a_width), store=store)
    executor = Refusing(time_of_a_width)
    executor.width = 168
    found = sizer.search(**SMALL, measure=executor, store=store, strategy=exhaustive)
    assert "d_ff 168 was not measured (oom: out of memory)" in found.notes
    assert {one.change["d_ff"] for one in found.candidates} == {164, 172, 176}


def test_a_candidate_that_kills_its_device_is_named_and_not_tried_again(tmp_path: Path) -> None:
    # A script without `if __name__ == "__main__"`: the device's process must not run it.
    script = """
import json, sys
sys.path.insert(0, sys.argv[1])
import sizer
from reports.suites.everything import exhaustive
from sizer.searching.space import Limits
from shapes.measure.workers import Child, Workers
from worker_fakes import Fatal

said = []
found = sizer.search(
    h=64, d_ff=170, tokens=64, dtype="fp32", limits=Limits(0.05, step=4), top=100, strategy=exhaustive,
    measure=Workers([Child(None, Fatal)], said.append), store=sys.argv[2],
)
print(json.dumps([len(said), found.notes, sorted(one.change["d_ff"] for one in found.candidates)]))
"""
    for losses in (2, 0):
        command = [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path / "s.db")]
        lost, notes, seen = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert (lost, seen) == (losses, [164, 172, 176])
        said = "error: the device was lost with it: its process died (SIGSEGV)"
        assert f"d_ff 168 was not measured ({said})" in notes


def test_a_processor_is_measured_in_fp32_where_no_type_is_named(tmp_path: Path) -> None:
    executor = FakeExecutor(time_of_a_width)
    executor.environment = replace(executor.environment, threads=2)
    asked = {key: value for key, value in SMALL.items() if key != "dtype"}
    sizer.search(**asked, measure=executor, store=str(tmp_path / "s.db"))
    assert {job.work.workload.dtype for job in executor.asked} == {"fp32"}


def test_a_baseline_whose_first_sample_fails_says_why_and_is_closed(tmp_path: Path) -> None:
    class Failing(FakeExecutor):
        def sample(self, prepared: Prepared, count: int) -> np.ndarray:
            raise NotMeasured("error", "an illegal instruction")

    executor = Failing(time_of_a_width)
    with pytest.raises(InputError, match="error: an illegal instruction"):
        sizer.search(**SMALL, measure=executor, store=str(tmp_path / "store.db"))
    assert not executor.open


@pytest.mark.parametrize("error", [InputError("the store is damaged"), ValueError("could not be broadcast together")])
def test_no_other_error_is_taken_for_a_baseline_that_cannot_run(error: ValueError, tmp_path: Path) -> None:
    class Broken(FakeExecutor):
        def sample(self, prepared: Prepared, count: int) -> np.ndarray:
            raise error

    with pytest.raises(type(error)) as caught:
        sizer.search(**SMALL, measure=Broken(time_of_a_width), store=str(tmp_path / "store.db"))
    assert caught.value is error


def test_several_devices_are_never_measured() -> None:
    with pytest.raises(InputError, match="expected bool"):
        sizer.search(h=1024, measure=[FakeExecutor(lambda job: 1e-3)] * 2)
