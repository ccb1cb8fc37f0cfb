"""Suites split over the tasks of a scheduler: Slurm's arrays, SkyPilot's nodes. Their examples are run here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from shapes.errors import InputError
from shapes.measure.runner import shard_of
from shapes.measure.store import Store
from shapes.measure.suite import load_suite
from sizer.cli import main

ROOT = Path(__file__).parents[1]
SUITES = ROOT / "reports" / "suites"
SUITE = """title = "t"
[[sweep]]
op = "gemm"
label = "wanted"
m = 32
n = 32
k = "16:37:1"
dtypes = ["fp32"]
[[sweep]]
op = "gemm"
label = "later"
m = 32
n = 32
k = "40:60:1"
dtypes = ["fp32"]
"""
FAST = "--device cpu --max-time 0.002 --precision 0.9"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(SUITE)
    return path


@pytest.mark.parametrize("of", [1, 3, 8, 50])
def test_shards_are_the_whole_suite_once_with_equal_shares_of_every_priority(suite: Path, of: int) -> None:
    jobs = load_suite(suite).jobs
    shards = [shard_of(jobs, f"{number}/{of}") for number in range(1, of + 1)]
    assert Counter(job.key for shard in shards for job in shard) == Counter(job.key for job in jobs)
    for priority in (1, 2):
        shares = [sum(job.priority == priority for job in shard) for shard in shards]
        assert max(shares) - min(shares) <= 1
    assert all([job.priority for job in shard] == sorted(job.priority for job in shard) for shard in shards)


@pytest.mark.slow
def test_a_shard_is_the_same_in_every_process(suite: Path) -> None:
    command = [sys.executable, "-m", "sizer", "bench", "--suite", str(suite), "--shard", "2/3", "--dry-run"]
    command += ["--format", "csv"]
    seeds = [{**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed} for seed in ("1", "2")]
    first, second = (subprocess.run(command, env=env, capture_output=True, text=True, check=True) for env in seeds)
    assert first.stdout == second.stdout
    assert len(first.stdout.splitlines()) == 1 + 14


@pytest.mark.parametrize("text", ["0/8", "9/8", "3", "3/0", "a/b", "-1/8", "1/8/2", "1/999999999", "²/3"])
def test_parts_that_do_not_exist_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected a part of how many"):
        shard_of([], text)


@pytest.mark.parametrize("option", [("--shard", "1/2"), ("--dry-run",)])
def test_what_needs_a_suite_says_so(option: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, ["bench", "-m", "8", "-n", "8", "-k", "8", *option])
    assert (result.exit_code, result.output) == (2, f"sizer: {option[0]}: expected --suite with it\n")


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """`sizer` and `srun` on the path: this checkout's, and one that runs its step here."""
    bin_ = tmp_path / "bin"
    bin_.mkdir(exist_ok=True)
    for name, line in (("sizer", f'exec {sys.executable} -m sizer "$@"'), ("srun", 'exec "$@"')):
        (bin_ / name).write_text(f"#!/bin/sh\n{line}\n")
        (bin_ / name).chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SKYPILOT", "SIZER"))}
    folders = {"PATH": f"{bin_}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    return {**kept, **folders, "OMP_NUM_THREADS": "1", "OUT": str(tmp_path / "out"), **more}


def slurm(tmp_path: Path, task: int, **more: str) -> str:
    place = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_COUNT": "2"}
    command = ["bash", str(SUITES / "slurm-array.sh")]
    return subprocess.run(
        command, env=environment(tmp_path, **place, **more), cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def skypilot(tmp_path: Path, rank: int, **more: str) -> str:
    task = yaml.safe_load((SUITES / "skypilot.yaml").read_text())
    place = {"SKYPILOT_NODE_RANK": str(rank), "SKYPILOT_NUM_NODES": "2"}
    variables = environment(tmp_path, **{**task["envs"], "OUT": str(tmp_path / "out"), **place, **more})
    return subprocess.run(
        ["bash", "-c", task["run"]], env=variables, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def jobs_of(listing: str) -> list[str]:
    return [line.partition(",")[2] for line in listing.splitlines() if line.startswith("tiny")]


@pytest.mark.slow
def test_the_dry_runs_of_both_examples_are_the_whole_suite_once(suite: Path, tmp_path: Path) -> None:
    asked = {"SUITE": str(suite), "SIZER_ARGS": "--dry-run --format csv"}
    for listings in (
        [slurm(tmp_path, 1, **asked), slurm(tmp_path, 2, **asked)],
        [skypilot(tmp_path, 0, **asked), skypilot(tmp_path, 1, **asked)],
    ):
        jobs = [job for listing in listings for job in jobs_of(listing)]
        assert len(jobs) == len(set(jobs)) == 43
    assert not list(tmp_path.glob("*.db"))


@pytest.mark.exhaustive
def test_an_array_s_tasks_write_rows_that_join_in_one_store_and_go_on(suite: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    asked = {"SUITE": str(suite), "SIZER_ARGS": FAST}
    slurm(tmp_path, 1, **asked), slurm(tmp_path, 2, **asked)
    files = sorted((tmp_path / "out").glob("*.jsonl.gz"))
    assert [path.name for path in files] == ["tiny.1-of-2.jsonl.gz", "tiny.2-of-2.jsonl.gz"]
    joined = tmp_path / "joined.db"
    result = CliRunner().invoke(main, ["store", "--store", str(joined), "import", *map(str, files)])
    assert result.exit_code == 0, result.output
    with Store.open(joined) as store:
        assert sorted(one.description["k"] for one in store.measurements()) == [*range(16, 38), *range(40, 61)]
    for path in tmp_path.glob("*.db*"):
        path.unlink()  # the node's disk is gone, and the task is started again
    assert "0 measured, 22 from the store" in slurm(tmp_path, 1, **asked)


def test_the_skypilot_task_asks_for_one_device_a_node() -> None:
    task = yaml.safe_load((SUITES / "skypilot.yaml").read_text())
    assert task["num_nodes"] == 8
    assert task["resources"]["accelerators"].endswith(":1")
    assert set(task) == {"name", "resources", "num_nodes", "workdir", "envs", "setup", "run"}
