"""Device and suite files, names and labels that anybody may have written: refused in one line, never shown raw."""

from __future__ import annotations

import json
import random
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from measure_fakes import measurement

import shapes
from shapes.calibrate import replaced
from shapes.device import load_device
from shapes.errors import InputError
from shapes.measure.jobs import Job
from shapes.measure.store import Store
from shapes.measure.suite import load_suite
from shapes.operators.types import Gemm
from shapes.toml_table import DATA
from sizer.cli import main

ROOT = Path(__file__).parent.parent
GPT2 = ROOT / "tests" / "data" / "configs" / "gpt2.json"
H200 = (DATA / "devices" / "h200.toml").read_text()
WRONG: tuple[Any, ...] = (None, "x", [], [1.0], {}, -1.0, 0, 1e308, 2**31, True, [[1.0], [1.0, 2.0]], float("inf"))


def clean(result: Any) -> bool:
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code in (0, 1) or (result.exit_code == 2 and len(result.stderr.splitlines()) == 1)


def places(table: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else ()
    return [path] * bool(path) + [found for key, item in inner for found in places(item, (*path, key))]


@pytest.mark.parametrize("seed", range(60))
def test_a_device_file_with_wrong_constants_is_priced_or_refused(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    tables = {name: tomllib.loads(H200)[name] for name in ("cost", "error")}
    *above, last = rng.choice(places(tables)[1:])
    parent: Any = tables
    for key in above:
        parent = parent[key]
    wrong = rng.choice(WRONG)
    if wrong is None and isinstance(parent, dict):
        del parent[last]
    else:
        parent[last] = "none" if wrong is None else wrong
    file = tmp_path / "own.toml"
    try:
        file.write_text(replaced(H200, tables))
    except (TypeError, AttributeError):  # a table in place of an array's item has no such text
        return
    for command in ("check", "ops"):
        result = CliRunner().invoke(main, [command, str(GPT2), "--device", str(file)])
        assert clean(result), result.stderr
        assert "nan" not in result.stdout


@pytest.mark.parametrize(("key", "wrong"), [("launch_s", "1e308"), ("flops_per_s", "-1.0"), ("overlap", "0.0")])
def test_constants_that_give_no_time_are_one_line(tmp_path: Path, key: str, wrong: str) -> None:
    file = tmp_path / "own.toml"
    file.write_text(re.sub(rf"(?m)^{key} = .*", f"{key} = {wrong}", H200))
    result = CliRunner().invoke(main, ["check", str(GPT2), "--device", str(file)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"sizer: {file}: cost and error")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("key", ["elementwise", "speed", "quantise", "high"])
@pytest.mark.parametrize("wrong", ["1e300", "1e-300", "inf"])
def test_a_stack_of_figures_beyond_all_bounds_is_refused(tmp_path: Path, key: str, wrong: str) -> None:
    text = (DATA / "stacks" / "megatron-core-te.toml").read_text()
    file = tmp_path / "own.toml"
    file.write_text(re.sub(rf"(?m)^{key} = .*$", f"{key} = {wrong}", text, count=1))
    result = CliRunner().invoke(main, ["check", str(GPT2), "--stack", str(file)])
    assert result.exit_code == 2
    assert clean(result)
    assert f"{key} = " in result.stderr


@pytest.mark.parametrize("text", ["own\x1b[31m", "own\nsizer: all fine", "own\u202e"])
def test_a_device_s_names_are_printable(tmp_path: Path, text: str) -> None:
    file = tmp_path / "own.toml"
    lines = [f"title = {json.dumps(text)}" if line.startswith("title") else line for line in H200.split("\n")]
    file.write_text("\n".join(lines))
    with pytest.raises(InputError, match="printable"):
        load_device(file)


@pytest.mark.parametrize("command", ["check", "ops", "memory"])
def test_a_file_name_cannot_colour_or_forge_lines(tmp_path: Path, command: str) -> None:
    file = tmp_path / "a\x1b[31m\nx.json"
    file.write_bytes(GPT2.read_bytes())
    result = CliRunner().invoke(main, [command, str(file)])
    assert "\x1b" not in result.stdout
    assert r"a\x1b[31m\nx.json" in result.stdout


def test_a_stored_label_cannot_colour_or_forge_lines(tmp_path: Path) -> None:
    job = Job(Gemm("a", "forward", 64, 64, 64, dtype="fp32"))
    with Store.open(tmp_path / "s.db") as store:
        store.add([measurement(job, np.full(12, 1e-6), label="a\x1b[31m\nforged \x9b")])
    shown = CliRunner().invoke(main, ["store", "--store", str(tmp_path / "s.db"), "list"]).stdout
    assert not {"\x1b", "\x9b"} & set(shown)
    assert r"a\x1b[31m\nforged \x9b" in shown


NO_SIZES = [
    ([1, 2], [1, 2, 3], 1),
    ([[1], [1, 2]], 1, 1),
    ("a", 1, 1),
    (1.5, 1, 1),
    (None, 1, 1),
    (0, 1, 1),
    (1, 1, {}),
]


@pytest.mark.parametrize("sizes", NO_SIZES)
def test_dimensions_that_are_no_arrays_of_integers_are_refused(sizes: tuple[Any, Any, Any]) -> None:
    with pytest.raises(InputError):
        shapes.predict_gemm("h100-sxm", *sizes)


def test_the_hook_passes_no_name_that_is_an_option() -> None:
    import re

    files = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())[0]["files"]
    assert re.search(files, "models/llama/config.json")
    assert re.search(files, "config.json")
    assert re.search(files, "scripts/pretrain.slurm")
    assert not re.search(files, "scripts/.cache/config.json")
    assert not re.search(files, "--output=evil/config.json")
    assert not re.search(files, "-o/config.json")


def test_a_store_to_calibrate_from_is_read_or_refused(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("junk")
    result = CliRunner().invoke(main, ["calibrate", "--device", "h200", "--store", str(tmp_path / "a.db")])
    assert result.exit_code == 2
    assert clean(result)


@pytest.mark.parametrize(
    "sweep",
    [
        'op = "gemm"\nm = "1:1000000"\nn = "1:1000000"\nk = 8',
        'op = "head"\ntokens = "1:100000"\nhidden = "1:100000"\nvocab = 8',
        'op = "mlp"\ntokens = "1:100000"\nhidden = "1:1000"\nwidth = 8',
    ],
)
def test_a_suite_of_too_many_jobs_is_refused(tmp_path: Path, sweep: str) -> None:
    (tmp_path / "s.toml").write_text(f'title = "x"\n[[sweep]]\nlabel = "x"\n{sweep}\n')
    with pytest.raises(InputError, match="at most 1000000"):
        load_suite(tmp_path / "s.toml")
