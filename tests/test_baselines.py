"""`sizer check` over many files: baselines, totals, what is passed over and how it exits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sizer.cli import main

GPT2 = json.loads((Path(__file__).parent / "data" / "configs" / "gpt2.json").read_text())


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def write(path: Path, **changes: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(GPT2 | changes, indent=2))
    return str(path)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "odd" / "config.json")
    write(tmp_path / "even" / "config.json", vocab_size=50304)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def codes(result: Result) -> list[tuple[str, str]]:
    reports = json.loads(result.stdout)["reports"]
    return [(report["path"], finding["code"]) for report in reports for finding in report["findings"]]


def test_a_baseline_lets_old_findings_pass_and_new_ones_fail(models: Path) -> None:
    assert run("check", ".").exit_code == 1
    written = run("check", ".", "--write-baseline", "sizer-baseline.json")
    assert (written.exit_code, written.stdout) == (0, "")
    calm = run("check", ".", "--baseline", "sizer-baseline.json")
    assert calm.exit_code == 0
    assert "1 accepted in the baseline" in calm.output
    write(models / "even" / "config.json", vocab_size=50305)
    again = run("check", ".", "--baseline", "sizer-baseline.json", "--format", "json")
    assert again.exit_code == 1
    assert ("even/config.json", "SZ101") in codes(again)
    assert "odd/config.json" not in {path for path, _ in codes(again)}


def test_what_was_accepted_is_not_said_to_be_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = {"hidden_size": 3000, "intermediate_size": 8100, "num_attention_heads": 24, "num_hidden_layers": 4}
    Path("config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 50257, **sizes}))
    assert "if fixed" in run("check", "config.json").output
    run("check", "config.json", "--write-baseline", "base.json")
    assert "if fixed" not in run("check", "config.json", "--baseline", "base.json").output


def test_bad_input_writes_no_baseline(models: Path) -> None:
    (models / "odd" / "other.json").write_text("{")
    for bad in (("odd/other.json",), ("--stack", "0.5")):
        refused = run("check", "odd/config.json", *bad, "--write-baseline", "base.json")
        assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1)
        assert not Path("base.json").exists()


def test_a_baseline_holds_wherever_the_check_is_run_from(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("check", "odd", "--write-baseline", "base.json")
    monkeypatch.chdir(models / "odd")
    assert run("check", "config.json", "--baseline", "../base.json").exit_code == 0
    assert run("check", str(models / "odd"), "--baseline", str(models / "base.json")).exit_code == 0


def test_an_accepted_info_that_became_a_warning_is_new(models: Path) -> None:
    run("check", "odd", "--write-baseline", "base.json")
    document = json.loads(Path("base.json").read_text())
    for entry in document["findings"]:
        entry["severity"] = "info"
    Path("base.json").write_text(json.dumps(document))
    assert run("check", "odd", "--baseline", "base.json").exit_code == 1


#: A finding whose severity is no severity, and one whose severity is no text.
UNKNOWN = '{"version": 1, "findings": [{"path": "a", "device": "b", "code": "c", "field": "d", "severity": %s}]}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2}',
        '{"version": 1, "findings": [{"code": "SZ101"}]}',
        UNKNOWN % '"grave"',
        UNKNOWN % '["error"]',
        '{"version": 1, "findings": 3}',
    ],
)
def test_what_is_no_baseline_is_one_line(models: Path, text: str) -> None:
    Path("base.json").write_text(text)
    result = run("check", "odd", "--baseline", "base.json")
    assert result.exit_code == 2
    assert result.output.startswith("sizer: base.json: ")
    assert result.output.count("\n") == 1


def test_totals_are_told_of_several_files_alone(models: Path) -> None:
    assert "2 configurations: 1 warning, 1 without findings" in run("check", ".", "--select", "SZ101").output
    assert "configurations" not in run("check", "odd").output


def test_quiet_leaves_out_what_has_no_finding(models: Path) -> None:
    result = run("check", ".", "-q", "--select", "SZ101")
    assert "odd/config.json" in result.output
    assert "even/config.json" not in result.output
    assert run("check", "even", "-q", "--select", "SZ101").output == ""


def test_fail_on_never_hides_findings_and_not_bad_input(models: Path) -> None:
    assert run("check", ".", "--fail-on", "never").exit_code == 0
    assert run("check", ".", "nowhere.json", "--fail-on", "never").exit_code == 2


def test_slugs_go_wherever_codes_go(models: Path) -> None:
    by_code, by_slug = (
        run("check", "odd", "--select", name, "--format", "json") for name in ("SZ101", "vocab-multiple")
    )
    assert codes(by_code) == codes(by_slug) != []
    assert run("check", "odd", "--select", "SZ101", "--ignore", "vocab-multiple").exit_code == 0
    (models / "pyproject.toml").write_text('[tool.sizer]\nignore = ["vocab-multiple"]\n')
    assert "SZ101" not in run("check", "odd", "--format", "json").stdout.partition('"suppressed"')[0]
    assert "expected a rule's code, a prefix of one or a slug" in run("check", "odd", "--select", "vocab").output


def test_extend_select_adds_to_what_the_project_selects(models: Path) -> None:
    (models / "pyproject.toml").write_text('[tool.sizer]\nselect = ["SZ104"]\n')
    assert codes(run("check", "odd", "--format", "json")) == []
    assert codes(run("check", "odd", "--select", "+SZ101", "--format", "json")) == [("odd/config.json", "SZ101")]
    extended = ("check", "odd", "--format", "json", "--select")
    assert codes(run(*extended, "+SZ101", "--ignore", "SZ101")) == []
    assert codes(run(*extended, "+SZ1", "--ignore", "SZ1")) == []
    assert codes(run(*extended, "+SZ101", "--ignore", "SZ1")) == [("odd/config.json", "SZ101")]  # the longer decides
    (models / "pyproject.toml").write_text('[tool.sizer]\nextend-select = ["SZ101"]\n')
    refused = run("check", "odd")
    assert refused.exit_code == 2
    assert "tool.sizer.extend-select" in refused.output
    (models / "pyproject.toml").unlink()
    assert "SZ101" in run("diff", "even", "odd", "--ignore", "ALL", "--select", "+vocab-multiple").stdout
    assert "SZ101" not in run("diff", "even", "odd", "--ignore", "ALL").stdout


def test_a_web_app_s_settings_are_passed_over_where_models_are_asked_for(models: Path) -> None:
    (models / "web").mkdir()
    (models / "web" / "config.json").write_text('{"apiUrl": "https://example.org"}')
    assert run("check", "even", "web/config.json").exit_code == 2
    result = run("check", "even", "web/config.json", "--models-only", "--select", "SZ101")
    assert result.exit_code == 0
    assert "sizer: web/config.json: no model configuration, passed over" in result.stderr
    assert run("check", "web/config.json", "--models-only", "-q").output == ""
    write(models / "web" / "config.json", vocab_size=0)  # a model's, and wrong
    assert run("check", "web/config.json", "--models-only").exit_code == 2


def test_check_without_a_file_says_what_to_type(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("check")
    assert result.exit_code == 2
    assert "sizer check even/config.json (and 1 more; `sizer check .` takes them all)" in result.output
    (models / "empty").mkdir()
    monkeypatch.chdir(models / "empty")
    assert "expected a configuration: sizer check config.json, or a directory" in run("check").output


def test_a_workflow_of_github_s_gets_annotations_unless_a_format_is_named(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert run("check", "odd").stdout.startswith("::warning file=odd/config.json,line=")
    assert run("check", "odd", "--format", "text").stdout.startswith("odd/config.json: 1 warning")
    assert run("ops", "odd").stdout.startswith("odd/config.json: step")
    run("check", "odd", "-o", "report.txt")
    assert (models / "report.txt").read_text().startswith("odd/config.json: 1 warning")
