"""A Ray cluster of two nodes on this machine, whose accelerators are simulated: what only real processes show.

What devices do when they are lost is in test_workers.py, without Ray.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure_fakes
import pytest
from click.testing import CliRunner

from shapes.measure.in_process import InProcess
from shapes.measure.jobs import Job
from shapes.measure.runner import measure
from shapes.measure.store import Store
from shapes.measure.workers import Workers
from shapes.operators.types import Gemm
from shapes.program import install
from sizer.cli import main, measuring

FAST = ("--max-time", "0.002", "--precision", "0.9")
PRODUCTS = ("-m", "32", "-n", "32", "-k", "16:23:1")


def job(k: int) -> Job:
    return Job(Gemm("x", "forward", 16, 16, k, dtype="fp32"))


def test_without_ray_one_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "find_spec", lambda name: None)
    result = CliRunner().invoke(main, ["bench", *PRODUCTS, "--ray", "auto"])
    assert (result.exit_code, result.output) == (
        2,
        f"sizer: --ray = 'auto': expected Ray to be installed: {install('ray')}\n",
    )


def test_on_and_another_device_are_refused_in_a_line() -> None:
    alone = CliRunner().invoke(main, ["bench", *PRODUCTS, "--on", "H100"])
    assert (alone.exit_code, alone.output) == (2, "sizer: --on: expected --ray with it\n")
    placed = CliRunner().invoke(main, ["bench", *PRODUCTS, "--ray", "auto", "--device", "cuda:1"])
    assert "expected no --device with --ray, which places jobs itself" in placed.output
    config = str(Path(__file__).parent / "data" / "configs" / "gpt2.json")
    predicted = CliRunner().invoke(main, ["check", config, "--ray", "auto"])
    assert (predicted.exit_code, predicted.output) == (2, "sizer: --ray: expected --measure with it\n")


@pytest.mark.parametrize(
    ("address", "says"),
    [("127.0.0.1:1", "Connection refused"), ("nonsense", "invalid literal"), ("a:99999999", "port")],
)
def test_without_a_cluster_one_line_says_what_was_expected(address: str, says: str) -> None:
    pytest.importorskip("ray")
    result = CliRunner().invoke(main, ["bench", *PRODUCTS, "--ray", address])
    assert result.exit_code == 2
    assert "expected local, auto or HOST:PORT of a head node that `ray start --head` started" in result.output
    assert len(result.output.splitlines()) == 1


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


@pytest.mark.slow
def test_bench_measures_on_the_cluster_and_the_driver_alone_stores(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shapes.measure import ray_workers

    there = ray_workers.accelerator_or_cpu

    def with_a_small_cache(device: str | None) -> InProcess:
        """As conftest.py has it here, in an actor's own process."""
        from shapes.measure import backend

        backend.cpu_cache_bytes = lambda *_: 2**14
        return there(device)

    monkeypatch.setattr(ray_workers, "accelerator_or_cpu", with_a_small_cache)
    path = tmp_path / "s.db"
    arguments = ["bench", *PRODUCTS, *FAST, "--store", str(path), "--device", "cpu", "--ray", cluster]
    first = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert first.exit_code == 0, first.output
    assert "8 measured, 0 from the store" in first.output
    with Store.open(path) as store:
        assert sorted(one.description["k"] for one in store.measurements()) == list(range(16, 24))
        assert {one.environment.host["node"] for one in store.measurements()}
    more = CliRunner().invoke(main, [*arguments, "--on", "H200"])
    assert (more.exit_code, more.output) == (
        2,
        "sizer: --on = 'H200': expected a type of what the cluster has: A100:1, H100:1\n",
    )


@pytest.mark.exhaustive
def test_actors_that_die_or_hang_are_replaced_and_their_culprits_named(cluster: str) -> None:
    """As test_workers.py's of child processes, through Ray."""
    import ray
    import worker_fakes

    from shapes.measure.ray_workers import ray_workers

    for module in (sys.modules[__name__], worker_fakes, measure_fakes):  # workers do not have these files
        ray.cloudpickle.register_pickle_by_value(module)
    said: list[str] = []
    made = ray_workers(cluster, None, "cpu", worker_fakes.Faulty)
    jobs = [job(k) for k in (*range(1, 41), 1313, 2313, 3313)]
    sweep = measure(jobs, executor=Workers(made, said.append, silent_s=3.0))
    assert Counter(one.description["k"] for one in sweep.results.values()) == Counter([*range(1, 41), 1313, 2313, 3313])
    failed = {one.description["k"]: one.message for one in sweep.results.values() if not one.ok}
    assert failed.keys() == {1313, 2313, 3313}, said
    assert "its process died" in failed[1313]
    assert "answered nothing for 3 s" in failed[2313]
    assert "illegal memory access" in failed[3313]
