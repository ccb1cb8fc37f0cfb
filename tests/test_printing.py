"""Answers in a Python session: printed as their command prints them, shown in notebooks, written as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import sizer
from shapes.device import load_device
from sizer.answers.bench import Bench
from sizer.answers.devices import devices
from sizer.answers.memory_breakdown import MemoryBreakdown, memory_breakdown
from sizer.answers.plan import Plan, plan
from sizer.cli import COMMANDS, GROUPS, main
from sizer.report.formats import render
from sizer.subject import read_subject

GPT2 = str(Path(__file__).parent / "data" / "configs" / "gpt2.json")
ANSWERS = {"check": lambda: sizer.check(GPT2), "ops": lambda: sizer.ops(GPT2)}


def memory_of_gpt2(**options: Any) -> MemoryBreakdown:
    subject = read_subject(GPT2, **options)
    assert subject.model is not None
    return memory_breakdown(subject.model, subject.workload, load_device("h100-sxm"), GPT2)


def plan_of_gpt2() -> Plan:
    subject = read_subject(GPT2)
    assert subject.model is not None
    return plan(subject.model, load_device("h100-sxm"), gpus=2, global_batch=8, base=subject.workload)


#: Every answer of a command that needs nothing measured.
ALL = {
    **ANSWERS, "diff": lambda: sizer.diff(GPT2, GPT2), "search": lambda: sizer.search(h=1024),
    "memory": memory_of_gpt2, "plan": plan_of_gpt2, "devices": lambda: devices(["h200"]),
    "bench": lambda: Bench(()),
}  # fmt: skip


def run(*arguments: str) -> str:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False).stdout


@pytest.mark.parametrize("command", ANSWERS)
def test_an_answer_prints_as_its_command_does_and_is_its_document(command: str) -> None:
    answer = ANSWERS[command]()
    assert str(answer).split() == run(command, GPT2).split()  # a terminal wraps at its own width
    assert json.loads(answer.to_json()) == json.loads(run(command, GPT2, "--format", "json"))


def test_a_diff_prints_as_its_command_does() -> None:
    assert str(sizer.diff(GPT2, GPT2)).split() == run("diff", GPT2, GPT2).split()


@pytest.mark.parametrize("command", ALL)
def test_every_answer_prints_shows_itself_and_is_a_document(command: str) -> None:
    answer = ALL[command]()
    assert str(answer) == render(command, "text", answer if command != "check" else answer._answer()).rstrip("\n")
    document = json.loads(answer.to_json())
    assert document["schema_version"] == 1
    assert set(answer.to_dict()) <= set(document["reports"][0] if command == "check" else document)
    shown = answer._repr_html_()
    assert shown.startswith(("<div>", "<pre>"))
    assert "<script" not in shown
    assert isinstance(answer.ok, bool)


def test_a_notebook_shows_tables_with_names_escaped() -> None:
    config = json.loads(Path(GPT2).read_text()) | {"vocab_size": 50304}
    report = sizer.check(config)
    assert report._repr_html_().startswith("<div><h3>&lt;")  # where: <dict>
    assert "<dt>parameters</dt><dd>124.5 M</dd>" in report._repr_html_()
    assert "<td>vocab_size = 50257</td>" in sizer.check(GPT2)._repr_html_()


def test_ok_is_what_the_exit_code_says() -> None:
    config = json.loads(Path(GPT2).read_text()) | {"vocab_size": 50304}
    assert sizer.check(config).ok
    assert not sizer.check(GPT2, select=["SZ101"]).ok
    assert sizer.diff(GPT2, config).ok
    assert not sizer.diff(config, GPT2).ok  # a finding is added
    assert memory_of_gpt2().ok
    assert not memory_of_gpt2(b=512).ok


def test_help_groups_commands_under_three_examples() -> None:
    text = run("--help")
    assert text.index("sizer check config.json") < text.index("Check and compare") < text.index("Look up")
    for name, _, _ in COMMANDS:
        assert f"\n  {name} " in text
    assert {name for _, names in GROUPS for name in names} <= {name for name, _, _ in COMMANDS}
