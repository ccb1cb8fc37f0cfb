"""Answers in a Python session: printed as their command prints them, shown in notebooks, written as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import sizer
from sizer.cli import COMMANDS, GROUPS, main

GPT2 = str(Path(__file__).parent / "data" / "configs" / "gpt2.json")
ANSWERS = {"check": lambda: sizer.check(GPT2), "ops": lambda: sizer.ops(GPT2)}


def run(*arguments: str) -> str:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False).stdout


@pytest.mark.parametrize("command", ANSWERS)
def test_an_answer_prints_as_its_command_does_and_is_its_document(command: str) -> None:
    answer = ANSWERS[command]()
    assert str(answer).split() == run(command, GPT2).split()  # a terminal wraps at its own width
    assert json.loads(answer.to_json()) == json.loads(run(command, GPT2, "--format", "json"))


def test_a_diff_prints_as_its_command_does() -> None:
    assert str(sizer.diff(GPT2, GPT2)).split() == run("diff", GPT2, GPT2).split()


def test_a_notebook_shows_the_text_with_names_escaped() -> None:
    config = json.loads(Path(GPT2).read_text()) | {"vocab_size": 50304}
    report = sizer.check(config)
    assert report._repr_html_().startswith("<pre>&lt;")  # where: <dict>
    assert report.ok
    assert not sizer.check(GPT2, select=["SZ101"]).ok


def test_help_groups_commands_under_three_examples() -> None:
    text = run("--help")
    assert text.index("sizer check config.json") < text.index("Check and compare") < text.index("Look up")
    for name, _, _ in COMMANDS:
        assert f"\n  {name} " in text
    assert {name for _, names in GROUPS for name in names} <= {name for name, _, _ in COMMANDS}
