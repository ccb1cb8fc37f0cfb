"""A Ray cluster of two nodes on this machine, whose accelerators are simulated: what only real processes show.

What fleets do with deaths, silences and drift is in test_fleet.py, without processes.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shapes.errors import InputError
from shapes.measure import Executor, InProcess, Job, Progress, Settings, measure
from shapes.measure.store import Store
from shapes.operators import Gemm
from sizer.cli import executors, main

FAST = ("--max-time", "0.002", "--precision", "0.9")
PRODUCTS = ("-m", "32", "-n", "32", "-k", "16:23:1")


def job(k: int) -> Job:
    return Job(Gemm("x", "forward", 16, 16, k, dtype="fp32"))


def test_without_ray_one_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "find_spec", lambda name: None)
    result = CliRunner().invoke(main, ["bench", *PRODUCTS, "--ray", "auto"])
    assert (result.exit_code, result.output) == (
        2,
        "sizer: --ray = 'auto': expected Ray to be installed: pip install sizer[ray]\n",
    )


def test_on_and_another_device_are_refused_in_a_line() -> None:
    alone = CliRunner().invoke(main, ["bench", *PRODUCTS, "--on", "H100"])
    assert (alone.exit_code, alone.output) == (2, "sizer: --on = 'H100': expected --ray ADDRESS with it\n")
    placed = CliRunner().invoke(main, ["bench", *PRODUCTS, "--ray", "auto", "--device", "cuda:1"])
    assert "Ray, which places them" in placed.output.replace("--ray", "Ray")
    config = str(Path(__file__).parent / "data" / "configs" / "gpt2.json")
    predicted = CliRunner().invoke(main, ["check", config, "--ray", "auto"])
    assert (predicted.exit_code, predicted.output) == (2, "sizer: --ray = 'auto': expected --measure with it\n")


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("127.0.0.1:1", "no Ray cluster: tried 127.0.0.1:1 for 5 s: Connection refused; start one with `ray start"),
        ("nonsense", "expected auto or HOST:PORT"),
        ("ray://a:10001", "run sizer on a node of the cluster"),
    ],
)
def test_without_a_cluster_one_line_says_what_was_tried(address: str, says: str) -> None:
    pytest.importorskip("ray")
    result = CliRunner().invoke(main, ["bench", *PRODUCTS, "--ray", address])
    assert result.exit_code == 2
    assert says in result.output
    assert len(result.output.splitlines()) == 1


def test_auto_names_what_it_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray_cluster = pytest.importorskip("shapes.measure.fleet.ray_cluster")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InputError, match=r"tried RAY_ADDRESS=127\.0\.0\.1:1 \(127\.0\.0\.1:1\) for 5 s"):
        ray_cluster.connect("auto")
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert ray_cluster._current() == (
        None,
        f"RAY_ADDRESS (not set), {tmp_path}/ray/ray_current_cluster (not there) and this machine's processes",
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of two nodes with one simulated accelerator each, of types H100 and A100."""
    pytest.importorskip("torch")
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    def node(type_: str) -> dict[str, Any]:
        return {
            "num_cpus": 1,
            "num_gpus": 1,
            "resources": {f"accelerator_type:{type_}": 1},
            "object_store_memory": 80 * 2**20,
        }

    made = Cluster(initialize_head=True, head_node_args={**node("H100"), "include_dashboard": False})
    made.add_node(**node("A100"))
    yield made.address
    ray.shutdown()
    made.shutdown()


class Slow(InProcess):
    """A device of this CPU that is not over in a blink, and hangs on a product of depth 1313, once."""

    def __init__(self, device: str | None) -> None:
        super().__init__(device)
        self.backend._cache_bytes = 2**14  # type: ignore[attr-defined]  # few input sets

    def prepare(self, job: Job, settings: Settings | None = None) -> Any:
        time.sleep(0.02)
        flag = Path(os.environ.get("TMPDIR", "/tmp")) / f"hung-{os.getppid()}"
        if getattr(job.work, "k", 0) == 1313 and not flag.exists():
            flag.touch()
            time.sleep(3600)
        return super().prepare(job, settings)


def slow(device: str | None) -> Executor:
    return Slow(device)


@pytest.mark.slow
def test_bench_measures_on_the_cluster_and_the_driver_alone_stores(cluster: str, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    arguments = ["bench", *PRODUCTS, *FAST, "--store", str(path), "--device", "cpu", "--ray", cluster]
    first = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert first.exit_code == 0, first.output
    assert "8 measured, 0 from the store" in first.output
    line = first.output.splitlines()[-1]  # both may have had a turn, or one of them all
    assert line.startswith("by device: ")
    assert sum(map(int, re.findall(r"(?:A100|H100)/0 at \S+ (\d+)", line))) == 8
    with Store.open(path) as store:
        assert sorted(one.description["k"] for one in store.measurements()) == list(range(16, 24))
        assert {one.environment.host["node"] for one in store.measurements()}
    more = CliRunner().invoke(main, [*arguments, "--on", "H100:2"])
    assert (more.exit_code, more.output) == (
        2,
        "sizer: --on = 'H100:2': expected what the cluster has: A100:1, H100:1\n",
    )


@pytest.mark.slow
def test_a_killed_worker_and_a_hanging_one_are_replaced_and_nothing_is_lost_or_doubled(
    cluster: str, tmp_path: Path
) -> None:
    import ray

    from shapes.measure.fleet.ray_cluster import ray_fleet

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not have this file
    said: list[str] = []
    fleet = ray_fleet(cluster, make=slow, device="cpu", say=said.append, silent_s=3.0)
    jobs = [job(k) for k in (*range(1, 81), 1313)]
    struck: list[int] = []

    def kill_one_at_work(now: Progress) -> None:
        if now.done and not struck:
            struck.append(next(member.pid for member in fleet.members if member.lease is not None))
            os.kill(struck[0], signal.SIGKILL)

    with Store.open(tmp_path / "s.db") as store:
        settings = Settings(time_s=0.005, precision=0.5)
        sweep = measure(jobs, executor=fleet, store=store, settings=settings, progress=kill_one_at_work)
        stored = Counter(one.description["k"] for one in store.measurements())
    assert stored == Counter([*range(1, 81), 1313])
    assert all(one.ok for one in sweep.results.values())
    assert any("its process died" in line for line in said), said
    assert any("answered nothing for 3 s" in line for line in said), said
