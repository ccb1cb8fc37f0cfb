"""Answers in a Python session: printed as their command prints them, shown in notebooks, written as JSON."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import sizer
from shapes.device import load_device
from sizer.answers.bench import Bench
from sizer.answers.memory_breakdown import MemoryBreakdown, memory
from sizer.answers.plan import Plan, plan
from sizer.cli import COMMANDS, GROUPS, main
from sizer.documents.lookup import devices
from sizer.render import render
from sizer.subject import read_subject

ROOT = Path(__file__).parents[1]
GPT2 = str(Path(__file__).parent / "data" / "configs" / "gpt2.json")
ANSWERS = {"check": lambda: sizer.check(GPT2), "ops": lambda: sizer.ops(GPT2)}


def memory_of_gpt2(**options: Any) -> MemoryBreakdown:
    return memory(GPT2, **options)


def plan_of_gpt2() -> Plan:
    subject = read_subject(GPT2)
    assert subject.model is not None
    return plan(subject.model, load_device("h100-sxm"), gpus=2, global_batch=8, base=subject.workload)


#: Every answer of a command that needs nothing measured.
ALL = {
    **ANSWERS,
    "diff": lambda: sizer.diff(GPT2, GPT2),
    "search": lambda: sizer.search(h=1024),
    "memory": memory_of_gpt2,
    "plan": plan_of_gpt2,
    "devices": lambda: devices(["h200"]),
    "bench": lambda: Bench(()),
}


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
    assert "124.5 M parameters" in report._repr_html_()
    assert "<td>vocab_size = 50257</td>" in sizer.check(GPT2)._repr_html_()


def test_a_notebook_has_the_charts_of_the_page_as_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = sizer.search(h=1024, device="h100-sxm")
    page = render("search", "html", answer)
    shown = answer._repr_html_()
    captions = re.findall(r"<figcaption>.*?</figcaption>", page)
    assert captions
    assert re.findall(r"<figcaption>.*?</figcaption>", shown) == captions
    assert shown.count("<svg") == len(captions)
    assert "currentColor" in shown  # on a dark notebook too
    monkeypatch.setitem(sys.modules, "vl_convert", None)  # as where the extra is not installed
    assert "<svg" not in answer._repr_html_()
    assert "<table>" in answer._repr_html_()


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
    for name in COMMANDS:
        assert f"\n  {name} " in text
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """What `sizer` writes to a terminal that is 90 columns wide, and its exit code's place is the last line."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 90, 0, 0))
    known = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **environment}
    command = [sys.executable, "-P", "-m", "sizer", *arguments]
    with subprocess.Popen(command, cwd=ROOT, env=known, stdout=follower, stderr=follower) as running:
        os.close(follower)
        read = bytearray()
        while True:
            try:
                more = os.read(leader, 4096)
            except OSError:  # how Linux says that the other side is closed
                break
            if not more:
                break
            read += more
        running.wait()
    os.close(leader)
    return read.decode().replace("\r\n", "\n")


@pytest.mark.slow
def test_a_terminal_shows_the_key_s_line_coloured() -> None:
    config = "tests/data/configs/gpt2.json"
    seen = on_a_terminal("check", config)
    line = next(n for n, text in enumerate(Path(GPT2).read_text().split("\n"), 1) if '"vocab_size"' in text)
    assert f"\n  {config}:{line}:3\n" in seen
    assert f'\n  {line:>5} |   \x1b[33m"vocab_size": 50257\x1b[0m\n' in seen
    assert not re.search(r"\x1b\[[\d;]*m", on_a_terminal("check", config, NO_COLOR="1"))
    assert "\x1b" not in on_a_terminal("check", config, TERM="dumb")
    assert f"{config}:{line}:3" not in run("check", config)  # a pipe gets what it got before


def test_what_is_nearly_a_command_or_a_rule_is_named() -> None:
    for call, near in (
        (("chek", "x"), "No such command 'chek'. Did you mean check?"),
        (("check", GPT2, "--select", "vocab"), "(nearest: vocab-multiple"),
        (("check", GPT2, "--device", "h10"), "nearest: h100-sxm"),
        (("explain", "vocab-multiples"), "(nearest: vocab-multiple"),
    ):
        result = CliRunner().invoke(main, list(call))
        assert result.exit_code == 2
        assert near in result.output


def test_the_version_has_a_short_option() -> None:
    assert run("-V") == run("--version")


def test_a_check_says_the_zero_stage_and_the_recomputation_that_it_priced() -> None:
    said = str(sizer.check(GPT2, d=8, zero=3, checkpointing="full"))
    assert "dp 8, ZeRO 3, checkpointing full, stack" in said
    plain = str(sizer.check(GPT2))
    assert "ZeRO" not in plain.splitlines()[1]
    assert "checkpointing" not in plain.splitlines()[1]
