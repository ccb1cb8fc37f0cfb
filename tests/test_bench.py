"""`sizer bench`: the command line from options, configurations and suites to tables and files."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from measure_fakes import SMALL_CACHE_PROGRAM, measurement

from shapes.measure.environment import Environment
from shapes.measure.jobs import Job
from shapes.measure.kernels import products
from shapes.measure.store import Store
from shapes.operators.types import Gemm
from sizer.answers.bench import Rows
from sizer.checking.measured import elementwise_shape, jobs_of_subject
from sizer.cli import main
from sizer.subject import read_subject

pytest.importorskip("torch")

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "tests" / "data" / "configs"
FAST = ("--max-time", "0.002", "--precision", "0.9")


@pytest.fixture
def bench(tmp_path: Path):
    def run(*arguments: str):
        here = () if "--device" in arguments else ("--device", "cpu")
        return CliRunner().invoke(main, ["bench", "--store", str(tmp_path / "s.db"), *here, *arguments])

    return run


def test_a_range_of_products_is_measured_and_the_second_call_comes_from_the_store(bench, tmp_path: Path) -> None:
    arguments = ("-m", "64", "-n", "64", "-k", "60:70:1", *FAST)
    first, second = bench(*arguments), bench(*arguments)
    assert first.exit_code == 0, first.output
    assert "11 measured, 0 from the store" in first.output
    assert "0 measured, 11 from the store" in second.output
    with Store.open(tmp_path / "s.db") as store:
        assert sorted(one.description["k"] for one in store.measurements()) == list(range(60, 71))


@pytest.mark.slow
def test_the_device_of_a_table_is_looked_up_once(bench, monkeypatch) -> None:
    # An unknown name is compared with every device's: 15 ms a row made a suite of 9,717 overrun by two minutes.
    asked = []
    monkeypatch.setattr(Environment, "accelerator", property(asked.append))
    assert bench("-m", "8", "-n", "8", "-k", "1:40:1", *FAST).exit_code == 0
    assert len(asked) < 5


@pytest.mark.parametrize(
    "arguments",
    [
        ("--op", "swiglu", "--tokens", "64", "--h", "32", "--d-ff", "96", "--phase", "backward"),
        ("--op", "attention", "-s", "32", "--head-dim", "16,32", "--heads", "2", "--dtype", "bf16", "--kernel", "math"),
        ("--op", "layer", "-s", "32", "--h", "64", "--heads", "2", "--d-ff", "96"),
        ("--op", "head", "--tokens", "64", "--h", "32", "--vocab", "100,128"),
        ("--op", "norm", "--tokens", "64", "--h", "128", "--phase", "backward"),
        ("--op", "bmm", "-b", "3", "-m", "16", "-n", "16", "-k", "16", "--phase", "all"),
    ],
)
def test_every_op_prints_a_table(bench, arguments) -> None:
    result = bench(*arguments, *FAST)
    assert result.exit_code == 0, result.output
    assert "samples" in result.output


def test_json_csv_and_jsonl_hold_the_same_rows(bench) -> None:
    arguments = ("-m", "32", "-n", "32", "-k", "32,48", *FAST)
    rows = json.loads(bench(*arguments, "--format", "json").output)["measurements"]
    lines = [json.loads(line) for line in bench(*arguments, "--format", "jsonl").output.splitlines()]
    table = list(csv.DictReader(io.StringIO(bench(*arguments, "--format", "csv").output)))
    assert [row["k"] for row in rows] == [line["k"] for line in lines] == [int(row["k"]) for row in table] == [32, 48]
    assert [float(row["seconds"]) for row in table] == [row["seconds"] for row in rows]


@pytest.mark.slow
def test_a_configuration_is_measured_operator_by_operator_next_to_its_step(bench, tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 128,
        "torch_dtype": "float32",
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    result = bench(str(path), "-s", "32", *FAST)
    assert result.exit_code == 0, result.output
    for name in ("attention.q_proj wgrad", "mlp.down_proj dgrad", "attention.core", "lm_head forward", "a step:"):
        assert name in result.output
    assert "rotary (forward): no kernel of its own here: not measured" in result.output


def test_memory_bound_operators_get_the_rows_and_columns_that_move_their_bytes() -> None:
    subject = read_subject(str(CONFIGS / "llama-3.1-8b.json"), b=1, s=1024)
    jobs, _ = jobs_of_subject(subject)
    checked = 0
    for operator, job in jobs.items():
        if operator.kind == "elementwise" and operator.what in ("norm", "activation", "residual"):
            bound = elementwise_shape(operator, subject)
            assert job.work == bound
            assert bound.bytes == operator.bytes
            checked += 1
    assert checked >= 6


def test_a_suite_writes_rows_and_a_summary(bench, tmp_path: Path) -> None:
    suite = tmp_path / "tiny.toml"
    suite.write_text(
        'title = "t"\n[[sweep]]\nop = "gemm"\nlabel = "x"\nm = 32\nn = 32\nk = [31, 32]\ndtypes = ["fp32"]\n'
    )
    out = tmp_path / "out"
    result = bench("--suite", str(suite), "--out", str(out), *FAST)
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir(out)) == ["tiny.jsonl.gz", "tiny.summary.json"]
    rows = [json.loads(line) for line in gzip.decompress((out / "tiny.jsonl.gz").read_bytes()).splitlines()]
    assert sorted(row["k"] for row in rows) == [31, 32]  # in the order in which they were measured
    assert rows[0]["environment"]["versions"]["torch"]
    assert len(rows[0]["samples"]) == rows[0]["samples_taken"]
    summary = json.loads((out / "tiny.summary.json").read_text())["tiny"]
    assert (summary["jobs"], summary["left"]) == (2, 0)


def test_the_highest_rate_of_several_products_is_named(bench) -> None:
    result = bench("-m", "32", "-n", "32", "-k", "32,64", *FAST)
    assert re.search(r"highest rate: \S+ TFLOPS, gemm 32 x 32 x \d\d tn fp32\n", result.output)


def test_rows_are_on_the_disk_as_they_come_and_go_on_in_another_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sizer.answers.bench.ROLL_BYTES", 700)
    made = [measurement(Job(Gemm("x", "forward", 16, 16, k)), np.full(12, 1e-5)) for k in range(1, 9)]
    with Rows(tmp_path, "t") as rows:
        for one in made[:-1]:
            rows.add(one)
        cut = max(tmp_path.glob("t*.jsonl.gz"), key=lambda path: path.stat().st_mtime_ns).read_bytes()
        rows.add(made[-1])
    files = sorted(map(str, tmp_path.glob("t*.jsonl.gz")))
    assert 1 < len(files) < 8
    imported = run_store(tmp_path, "import", *files)
    assert imported.exit_code == 0, imported.output
    with Store.open(tmp_path / "s.db") as store:
        assert {one.uid for one in store.measurements()} == {one.uid for one in made}
    (tmp_path / "cut.jsonl.gz").write_bytes(cut[:-20])  # a driver that was killed in the middle of a row
    assert run_store(tmp_path, "import", str(tmp_path / "cut.jsonl.gz")).exit_code == 0
    (tmp_path / "no.jsonl.gz").write_bytes(b"junk")
    assert "expected gzip" in run_store(tmp_path, "import", str(tmp_path / "no.jsonl.gz")).output


@pytest.mark.slow
def test_the_self_test_passes_here_and_says_what_does_not(bench, monkeypatch) -> None:
    result = bench("--self-test")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == "measuring works here"
    for line in ("bf16 product", "batched product", "attention math", "norm, past the caches"):
        assert re.search(rf"{line} +pass", result.output)
    right = products._check
    monkeypatch.setattr(products, "_check", lambda one, *rest: 0.5 if one.m == 256 else right(one, *rest))
    broken = bench("--self-test")
    assert broken.exit_code == 1
    assert re.search(r"bf16 product +FAIL +wrong: .*relative error 0.5", broken.output)


@pytest.mark.slow
def test_everything_is_measured_in_its_time_and_every_suite_has_its_file(bench, tmp_path: Path) -> None:
    result = bench("all", "--time-limit", "0.02min", "--out", str(tmp_path / "out"), *FAST)
    assert len(os.listdir(tmp_path / "out")) <= 8  # as many files as come back from a lent device
    assert len(json.loads((tmp_path / "out" / "all.summary.json").read_text())) == 6
    assert "misalignment: " in result.output
    assert re.findall(r"^sizer: (exhaustive|racing): .*% sure that none", result.output, re.MULTILINE) == [
        "exhaustive",
        "racing",
    ]
    plan = bench("all", "--dry-run")
    assert plan.exit_code == 0
    assert plan.output.startswith("swiglu-4096: 202 jobs, ")


@pytest.mark.slow
def test_without_click_the_program_measures_everything_and_knows_no_other_command(tmp_path: Path, monkeypatch) -> None:
    """In a process in which nothing but torch, numpy and the standard library can be imported."""
    bare = tmp_path / "sitecustomize.py"
    named = ("click", "yaml", "scipy", "tabulate", "rich", "platformdirs", "pytest", "hypothesis")
    bare.write_text(f"import sys\nsys.modules.update(dict.fromkeys({named!r}))\n")
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    made = [sys.executable, "-c", SMALL_CACHE_PROGRAM]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        named = {**os.environ, "PYTHONPATH": path, "SIZER_STORE": str(tmp_path / "s.db")}
        return subprocess.run([*made, *arguments], env=named, cwd=ROOT, capture_output=True, text=True, check=False)

    result = run("bench", "all", "--time-limit", "0.02min", "--out", str(tmp_path / "out"), "--device", "cpu")
    assert re.fullmatch(r"(sizer: .*\n)+", result.stderr), result.stderr
    assert [f"sizer: {how}: " in result.stderr for how in ("exhaustive", "racing")] == [True, True]
    assert result.returncode in (0, 1)  # so short a time does not end the self-test everywhere
    assert len(os.listdir(tmp_path / "out")) <= 8
    assert run("check", "config.json").returncode == 2
    assert run("bench").returncode == run("store").returncode == 2
    with Store.open(tmp_path / "s.db") as store:
        store.add([measurement(Job(Gemm("x", "forward", 8, 8, 8)), np.full(12, 1.0))])
    exported = run("store", "export", "--dataset", str(tmp_path / "dataset"))
    assert exported.stdout.endswith(": 1 rows of Fake 1\n"), exported.stderr
    assert run("bench", "all", "--dry-run").stdout.startswith("swiglu-4096: 202 jobs, 101 s of device time at most\n")
    tested = run("bench", "--self-test", "--device", "cpu")
    assert re.search(r"^pass  bf16 product: .* TFLOPS$", tested.stdout, re.MULTILINE), tested.stderr
    (tmp_path / "s.db").write_text("no store")
    refused = run("bench", "all")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def run_store(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["store", "--store", str(folder / "s.db"), *arguments])


def test_what_was_not_measured_is_counted_and_the_exit_code_is_1(bench) -> None:
    attention = ("--op", "attention", "-s", "32", "--head-dim", "16", "--heads", "2", "--dtype", "bf16")
    alone = bench(*attention, "--kernel", "cudnn", *FAST)
    assert (alone.exit_code, alone.output.splitlines()[-1]) == (1, "sizer: not measured: 1 unsupported")
    some = bench(*attention, "--kernel", "cudnn", "--kernel", "math", *FAST)
    assert some.exit_code == 0, some.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-m", "0", "-n", "1", "-k", "1"), "-m = '0': expected sizes"),
        (("-m", "8"), "-n, -k: expected a size"),
        (("-m", "x", "-n", "1", "-k", "1"), "expected integers"),
        (("--op", "dance"), "expected one of gemm"),
        (("--suite", "none.toml"), "none.toml: cannot be read"),
        (("none.json",), "none.json"),
        (("--suite", "x.toml", "x.json"), "expected one of CONFIG"),
        (("--op", "layer", "-s", "8", "--h", "64", "--heads", "3", "--d-ff", "8"), "expected a divisor"),
        (("-m", "8", "-n", "8", "-k", "8", "--device", "cuda:77"), "cuda:77"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(bench, arguments, says: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2
    assert says in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_the_help_names_every_operator_there_is() -> None:
    from sizer.answers.bench import OPS

    shown = " ".join(CliRunner().invoke(main, ["bench", "--help"]).output.split())
    assert ", ".join(OPS) in shown
