"""`check --measure`: suggestions priced by timing operators here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from measure_fakes import FakeExecutor

import sizer
from shapes.cost import Cost, predict_many
from shapes.device import Device
from shapes.errors import InputError
from shapes.measure.environment import Environment
from shapes.measure.executor import Settings
from shapes.measure.jobs import Job
from shapes.measure.runner import measure
from shapes.operators.types import Gemm, Operator
from sizer.checking import measured as checking_measured
from sizer.cli import main
from sizer.rules import RULES, find_rule

pytestmark = pytest.mark.slow

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 171,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 129,
    "max_position_embeddings": 32,
}
GPT2 = Path(__file__).parent / "data" / "configs" / "gpt2.json"


def test_suggestions_of_dimensions_are_measured_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, store = tmp_path / "config.json", str(tmp_path / "store.db")
    path.write_text(json.dumps(TINY))
    arguments = [
        "check",
        str(path),
        "-b",
        "1",
        "-s",
        "32",
        "--dtype",
        "fp32",
        "--measure",
        "--store",
        store,
        "--phase",
        "infer",
        "--select",
        "SZ101",
        "--fail-on",
        "never",
        "--format",
        "json",
    ]
    hasty = partial(measure, settings=Settings(time_s=0.01))
    monkeypatch.setattr(checking_measured, "measure", hasty)
    first = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert first.exit_code == 0, first.stderr
    report = json.loads(first.stdout)["reports"][0]
    assert report["step"]["source"].startswith("measured:CPU")
    assert any("not measured" in note for note in report["model"]["notes"])
    monkeypatch.setattr("shapes.measure.InProcess.prepare", None)  # everything is in the store by now
    again = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert json.loads(again.stdout)["reports"][0]["step"] == report["step"]


class Level:
    """A device on which the width of the head makes no difference."""

    source, notes = "measured:a level device", ()

    def __call__(self, operators: Sequence[Operator], device: Device) -> Sequence[Cost]:
        costs = predict_many(operators, device)
        return [
            replace(cost, seconds=1e-3, low=0.99e-3, high=1.01e-3) if operator.name == "lm_head" else cost
            for operator, cost in zip(operators, costs, strict=True)
        ]


def test_a_finding_that_the_device_contradicts_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    predicted = next(finding for finding in sizer.check(GPT2).findings if finding.code == "SZ101")
    assert predicted.severity == "warning"
    monkeypatch.setattr(checking_measured, "measured_costs", lambda *_, **__: Level())
    measured = next(finding for finding in sizer.check(GPT2, measure=True).findings if finding.code == "SZ101")
    assert measured.severity == "info"
    assert "gains nothing statistically distinguishable" in measured.message


def test_another_device_than_the_one_at_hand_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from shapes.device import load_device

    monkeypatch.setattr(Environment, "accelerator", property(lambda _: load_device("h200")))
    with pytest.raises(InputError, match="measuring is on"):
        sizer.check(TINY, measure=True, device="b200")


def test_measuring_runs_each_rule_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sizer.checking import grading

    runs = []
    vocabulary = find_rule("SZ101")
    counted = replace(vocabulary, judge=lambda context: runs.append(context) or vocabulary.judge(context))
    monkeypatch.setattr(grading, "RULES", tuple(counted if rule is vocabulary else rule for rule in RULES))
    executor = FakeExecutor(lambda job: 1e-3)
    report = sizer.check(GPT2, measure=executor, store=str(tmp_path / "store.db"))
    # Once for what is there; what is suggested is looked at by the rules too.
    assert sum(context.dimensions["vocab"] == 50257 for context in runs) == 1
    assert "SZ101" in [finding.code for finding in report.findings]


def test_check_measures_on_any_executor_what_is_there_and_what_is_suggested(tmp_path: Path) -> None:
    # A head is a hundred times as slow where its width is not a multiple of 64, as on no device.
    def seconds_of(job: Job) -> float:
        awkward = getattr(job.work, "n", 0) == 50257
        return 1e-1 if awkward else 1e-3

    executor = FakeExecutor(seconds_of)
    report = sizer.check(GPT2, measure=executor, select=["SZ101"], store=str(tmp_path / "store.db"))
    finding = report.findings[0]
    assert report.step.source.startswith("measured:Fake 1")
    assert {50257, 50304} <= {job.work.n for job in executor.asked if isinstance(job.work, Gemm)}
    # Forward and dgrad have n = v or k = v: of three products of the head one has n = 50257.
    assert finding.severity == "warning"
    assert finding.step_seconds == pytest.approx(0.099, rel=0.01)
