"""The campaigns of reports/campaigns, run small: each finds nothing, and finds what it is made to find."""

from __future__ import annotations

import json
import random
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import Result

from reports.campaigns import run
from reports.campaigns.configurations import mutated, sources, text_of
from reports.campaigns.outcome import Outcome, judge
from reports.campaigns.run import NAMES

ROOT = Path(__file__).parent.parent
SMALL = {
    "configurations": 40,
    "options": 40,
    "predictor": 100_000,
    "stores": 5,
    "outputs": 9,
    "signals": 3,
    "faults": 6,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_small_campaign_finds_nothing(tmp_path: Path, name: str) -> None:
    outcome = import_module(f"reports.campaigns.{name}").run(SMALL[name], random.Random(2), tmp_path)
    assert outcome.violations == {}
    assert outcome.tried >= SMALL[name]


def test_the_same_seed_makes_the_same_configurations() -> None:
    def some(seed: int) -> list[str]:
        rng = random.Random(seed)
        return [text_of(kind, mutated(config, rng), rng) for kind, config in sources()]

    assert some(1) == some(1)
    assert some(1) != some(2)


def result(stdout: str = "", stderr: str = "", code: int = 0, error: BaseException | None = None) -> Result:
    made = Result.__new__(Result)
    made.stdout_bytes, made.stderr_bytes, made.exit_code, made.exception = stdout.encode(), stderr.encode(), code, error
    made.runner = type("Runner", (), {"charset": "utf-8"})()
    return made


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (result(stdout="step nan s"), "the figure nan"),
        (result(stdout='{"seconds": [Infinity]}'), "a figure that is none"),
        (result(stderr="a\nb\n", code=2), "not one line"),
        (result(code=3), "exit code 3"),
    ],
)
def test_a_violation_is_seen(wrong: Result, what: str) -> None:
    outcome = Outcome()
    judge(outcome, wrong, "example")
    assert list(outcome.violations) == [what]


def test_a_right_answer_is_no_violation() -> None:
    outcome = Outcome()
    judge(outcome, result(stdout="1 info; swiglus = nan is not a key\n", stderr=""), "example")
    judge(outcome, result(stdout="warning: tensor_model_parall!!int = 'l-size- inf' is not a key\n"), "example")
    judge(outcome, result(stderr="sizer: one line\n", code=2), "example")
    judge(outcome, result(stdout='{"unread": [{"key": "swiglus", "value": "nan"}]}'), "example")
    assert (outcome.tried, outcome.broken) == (4, 0)


def test_the_lowest_versions_are_those_that_pyproject_allows() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    lowest = (ROOT / ".ci" / "lowest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lowest if "==" in line)
    allowed = dict(one.split(">=") for one in wanted)
    assert pinned.keys() == allowed.keys()
    assert all((pinned[name] + ".").startswith(allowed[name] + ".") for name in allowed)


def test_the_report_says_what_was_recorded() -> None:
    kept = json.loads(run.RECORD.read_text())
    report = run.REPORT.read_text(encoding="utf-8")
    assert run.written(report, kept) == report
    one = {**next(iter(kept.values())), "violations": 3, "examples": {"traceback": "x"}}
    said = run.written(report, {"options": one})
    assert "| 3 traceback " in said
    assert "The last run of each of 1 campaigns made" in said
    assert said.partition(run.END)[2] == report.partition(run.END)[2]
