"""What is not known is null in every format: never a zero, never a figure that somebody could add up."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from schemas import load_schema

import sizer
from shapes.device import load_device
from shapes.model import Unproven
from sizer.answers.operator_table import ops_of_subject
from sizer.checking.checks import check_subject, step_time
from sizer.checking.findings import Checked
from sizer.cli import main
from sizer.render import render
from sizer.subject import Subject, read_subject, run_on

GPT2 = "tests/data/configs/gpt2.json"
#: Keys of figures that a step without a price cannot have.
PRICED = re.compile(r"step$|seconds|mfu|mbu|tokens_per_s|within_error_s|step_share|saves|step_parts")


def unproven() -> Subject:
    """GPT-2 as a class of which attention was not understood."""
    return replace(read_subject(GPT2), model=None, unproven=(Unproven("layers.*.attention", 0.3, "a mask"),))


def figures(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of everything in a document that is no mapping and no list."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from figures(inner, f"{path}.{key}".strip("."))
    else:
        yield path, value


def test_a_model_that_is_not_understood_has_no_time_in_any_format_of_a_check() -> None:
    checked = Checked((check_subject(unproven(), load_device("h100-sxm")),))
    document = json.loads(render("check", "json", checked))
    jsonschema.validate(document, load_schema("check"))
    priced = {path: value for path, value in figures(document) if PRICED.search(path.rpartition(".")[2])}
    assert document["reports"][0]["findings"]
    assert "reports.0.step" in priced
    assert set(priced.values()) == {None}
    (row, *_) = csv.DictReader(io.StringIO(render("check", "csv", checked)))
    assert [row[name] for name in ("step_seconds", "step_share", "saves_seconds")] == ["", "", ""]
    for format_ in ("text", "markdown", "html"):
        shown = render("check", format_, checked)
        assert "not known" in shown
        assert not re.search(r"(?<![\d.])0(\.0+)? ?(s|ms|us|%)", shown), format_


def test_the_operators_that_are_not_understood_have_no_time() -> None:
    table = ops_of_subject(unproven(), load_device("h100-sxm"))
    document = json.loads(render("ops", "json", table))
    jsonschema.validate(document, load_schema("ops"))
    assert [document[key] for key in ("step_seconds", "mbu", "tokens_per_s", "step_parts")] == [None] * 4
    attention = [row for row in document["operators"] if ".attention." in row["name"]]
    assert {row["seconds"] for row in attention} == {row["tflops"] for row in attention} == {None}
    rows = list(csv.DictReader(io.StringIO(render("ops", "csv", table))))
    assert {row["seconds"] for row in rows if ".attention." in row["name"]} == {""}
    folded = [row for row in table.folded if ".attention." in row["name"]]
    assert {(row["step_seconds"], row["share"]) for row in folded} == {(None, None)}


def test_what_needs_the_whole_model_names_the_module_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sizer.answers.memory_breakdown.read_subject", lambda *_, **__: unproven())
    with pytest.raises(sizer.InputError, match=r"layers\.\*\.attention"):
        sizer.memory(GPT2)


def test_a_type_without_a_peak_has_no_mfu() -> None:
    device = load_device("h100-sxm")
    subject = run_on(read_subject(GPT2), device)
    from shapes.step import Pricer

    step = Pricer(device, stack=subject.stack).step(subject.operators, subject.workload, subject.model)
    found = step_time(subject, step, replace(device, peak_flops={}))
    assert (found.mfu, found.tokens_per_s) == (None, None)
    assert found.mbu is not None


def test_a_finding_that_nothing_mends_costs_null_not_zero() -> None:
    config = json.loads(Path(GPT2).read_text()) | {"walrus": 1}
    report = sizer.check(config)
    assert [one.step_seconds for one in report.findings if one.code == "SZ131"] == [None]


def test_a_device_hour_without_a_price_costs_null() -> None:
    # No list price of an MI300X is in its file.
    call = ["plan", GPT2, "--device", "mi300x", "--gpus", "2", "--global-batch", "8", "--tokens", "1e9"]
    unknown, known = (
        json.loads(CliRunner().invoke(main, [*call, *more, "--format", "json"]).stdout)["training"]
        for more in ((), ("--price", "2"))
    )
    assert unknown["cost"] is None
    assert known["cost"] == pytest.approx(2 * known["device_hours"])


def test_a_version_that_is_not_there_has_no_ratio() -> None:
    from sizer.answers.diff import compare

    (one,) = compare(None, read_subject(GPT2), [load_device("h100-sxm")]).devices
    assert (one.old, one.ratio, one.ratio_error) == (None, None, None)
