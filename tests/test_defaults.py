"""What a project says once for every check: sizer.toml and [tool.sizer]."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shapes.errors import InputError
from sizer.checking.project import load_defaults
from sizer.cli import main

GPT2 = '{"model_type": "gpt2"}'
TABLE = """
device = "a100-sxm-80gb"
fail-on = "never"
format = "json"

[workload]
tp = 4
microbatch = 2

[[per-file]]
path = "small/*.json"
device = "h100-sxm"
workload = {tp = 1}
"""


def project(tmp_path: Path, text: str = TABLE, name: str = "sizer.toml") -> Path:
    (tmp_path / name).write_text(text)
    for folder in ("small", "large"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "config.json").write_text(GPT2)
    return tmp_path


def check(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["check", *map(str, arguments)])


def test_a_projects_defaults_are_used_and_the_command_line_comes_first(tmp_path: Path) -> None:
    folder = project(tmp_path)
    answer = check(folder / "large" / "config.json", folder / "small" / "config.json")
    assert answer.exit_code == 0, answer.output
    large, small = json.loads(answer.stdout)["reports"]
    assert (large["device"], large["workload"]["t"], large["workload"]["b"]) == ("a100-sxm", 4, 2)
    assert (small["device"], small["workload"]["t"], small["workload"]["b"]) == ("h100-sxm", 1, 2)
    other = check(
        folder / "large" / "config.json", "--tp", 2, "--device", "h200", "--format", "text", "--fail-on", "info"
    )
    assert "h200" in other.output
    assert "tp 2" in other.output
    assert other.exit_code == 1


def test_pyproject_says_the_same_under_tool_sizer(tmp_path: Path) -> None:
    folder = project(tmp_path, '[tool.sizer]\ndevice = "b200"\n[tool.sizer.workload]\nep = 2\n', "pyproject.toml")
    found = load_defaults(str(folder / "large" / "config.json"))
    assert (found.device, found.workload) == ("b200", {"e": 2})
    assert load_defaults("-").device is None


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('devise = "h100"', "devise"),
        ("device = 3", "device"),
        ('fail-on = "often"', "fail-on"),
        ("workload = 3", "workload"),
        ("[workload]\ntpp = 4", "workload.tpp"),
        ("per-file = 3", "per-file"),
        ('[[per-file]]\npath = "*.json"\nignore = ["SZ1"]', "reason"),
        ('[[per-file]]\npath = "*.json"\ncolour = "red"', "colour"),
        ("device = ", "expected TOML"),
    ],
)
def test_a_mistake_in_the_table_is_one_line_with_file_and_key(tmp_path: Path, text: str, key: str) -> None:
    answer = check(project(tmp_path, text) / "large" / "config.json")
    assert answer.exit_code == 2
    line = answer.stderr.strip()
    assert "\n" not in line
    assert "sizer.toml" in line
    assert key in line


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    answer = check(project(tmp_path, 'format = "xml"') / "large" / "config.json")
    assert answer.exit_code == 2
    assert isinstance(answer.exception, (SystemExit, InputError))
    assert "xml" in answer.stderr
