"""`sizer diff`: a change of a configuration priced; every figure is held against the command that gives it alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from schemas import load_schema

import sizer
from sizer.cli import main

GPT2 = Path(__file__).parent / "data" / "configs" / "gpt2.json"
LLAMA = Path(__file__).parent / "data" / "configs" / "llama-3.1-8b.json"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def diff_json(*arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run("diff", "--format", "json", *arguments).stdout)
    jsonschema.validate(document, load_schema("diff"))
    return document


def changed(path: Path, source: Path = GPT2, **changes: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(json.loads(source.read_text()) | changes, indent=2))
    return str(path)


@pytest.fixture
def padded(tmp_path: Path) -> str:
    return changed(tmp_path / "new.json", vocab_size=50304)


def test_padding_gpt2_s_vocabulary_has_the_figures_of_check_and_memory_on_both_sides(padded: str) -> None:
    one = diff_json(str(GPT2), padded)["files"][0]["devices"][0]
    for side, path in (("old", str(GPT2)), ("new", padded)):
        report = sizer.check(path)
        memory = json.loads(run("memory", path, "--format", "json").stdout)
        figures = one[side]
        assert figures["parameters"] == report.model.parameters
        assert (figures["step_s"], figures["mfu"]) == (report.step.seconds, report.step.mfu)
        assert figures["memory_bytes"] == memory["total_bytes"]
        # b 4 x s 1024 tokens a step on one device.
        assert figures["tokens_per_s"] == pytest.approx(4096 / report.step.seconds)
        assert figures["flops_per_token"] == report.step.flops / 4096
    assert one["new"]["parameters"] - one["old"]["parameters"] == 47 * 768
    assert one["ratio"] == pytest.approx(one["new"]["step_s"] / one["old"]["step_s"])
    assert one["exceeds_error"] is (max(one["ratio"], 1 / one["ratio"]) > 1 + one["ratio_error"])
    assert [finding["code"] for finding in one["findings_fixed"]] == ["SZ101"]
    assert one["findings_added"] == []


def test_tensor_parallelism_shares_the_tokens_and_not_the_flops_of_a_token() -> None:
    one, two = (diff_json(str(LLAMA), str(LLAMA), *tp)["files"][0]["devices"][0]["new"] for tp in ((), ("--tp", "2")))
    assert two["tokens_per_s"] == pytest.approx(4 * 4096 / two["step_s"] / 2)
    assert two["flops_per_token"] == pytest.approx(one["flops_per_token"], rel=0.01)


def test_equal_versions_change_nothing_at_all() -> None:
    answer = diff_json(str(GPT2), str(GPT2))
    one = answer["files"][0]["devices"][0]
    assert (one["ratio"], one["ratio_error"], one["exceeds_error"]) == (1, 0, False)
    assert one["findings_added"] == one["findings_fixed"] == []
    assert answer["files"][0]["changes"] == {}


def test_a_longer_sequence_is_compared_by_the_token_and_not_by_the_step(tmp_path: Path) -> None:
    short, long = (changed(tmp_path / f"{s}.json", LLAMA, max_position_embeddings=s) for s in (2048, 4096))
    file = diff_json(short, long)["files"][0]
    assert file["changes"]["sequence"] == {"old": 2048, "new": 4096}
    one = file["devices"][0]
    assert one["new"]["step_s"] / one["old"]["step_s"] > 1.8
    assert 0.9 < one["ratio"] < 1.2


def test_several_devices_are_rows_of_their_own(padded: str) -> None:
    devices = diff_json(str(GPT2), padded, "--device", "h100-sxm", "--device", "a100")["files"][0]["devices"]
    assert [one["device"] for one in devices] == ["h100-sxm", "a100-sxm"]
    assert devices[0]["ratio"] != devices[1]["ratio"]


def test_a_finding_that_comes_back_fails_and_one_that_goes_does_not(padded: str) -> None:
    assert run("diff", str(GPT2), padded).exit_code == 0
    result = run("diff", padded, str(GPT2))
    assert result.exit_code == 1
    assert "added warning SZ101 vocab_size = 50257" in result.output
    assert run("diff", padded, str(GPT2), "--fail-on", "never").exit_code == 0
    assert run("diff", padded, str(GPT2), "--ignore", "SZ101").exit_code == 0


def test_a_file_is_compared_with_itself_where_keys_are_set(padded: str) -> None:
    apart, changed = run("diff", str(GPT2), padded), run("diff", str(GPT2), "--set", "vocab_size=50304")
    assert changed.exit_code == 0
    assert changed.output.splitlines()[1:] == apart.output.splitlines()[1:]
    for words in ([str(GPT2), padded], ["--git", "HEAD"], [str(GPT2)]):
        refused = run("diff", *words, *(["--set", "vocab_size=50304"] * (len(words) > 1)))
        assert (refused.exit_code, "--set" in refused.output) == (2, True)


def test_a_step_budget_is_broken_by_a_slower_version_alone(padded: str) -> None:
    calm = ("--fail-on", "never", "--budget")
    assert run("diff", str(GPT2), padded, *calm, "max-step-regression=0%").exit_code == 0
    assert run("diff", padded, str(GPT2), *calm, "max-step-regression=50%").exit_code == 0
    result = run("diff", padded, str(GPT2), *calm, "max-step-regression=1%")
    assert result.exit_code == 1
    assert "budget max-step-regression" in result.output


@pytest.mark.parametrize(
    ("limit", "code"), [("72GiB", 0), ("1GiB", 1), ("5%", 1), ("90%", 0), ("8e9", 0), ("8e8", 1), ("8", 2), ("1 x", 2)]
)
def test_a_memory_budget_is_bytes_or_a_share_of_the_device(padded: str, limit: str, code: int) -> None:
    assert run("diff", str(GPT2), padded, "--budget", f"max-memory={limit}").exit_code == code


def test_budgets_stand_in_pyproject_and_options_go_over_them(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.sizer.budgets]\nmax-step-regression = "1%"\nmax-memory = "90%"\n')
    old, new = changed(tmp_path / "a.json", vocab_size=50304), changed(tmp_path / "b.json")
    broken = diff_json(old, new)["violations"]
    assert [(one["budget"], one["device"]) for one in broken] == [("max-step-regression", "h100-sxm")]
    assert diff_json(old, new, "--budget", "max-step-regression=50%")["violations"] == []
    (tmp_path / "pyproject.toml").write_text('[tool.sizer.budgets]\nmax-step = "1%"\n')
    result = run("diff", old, new)
    assert result.exit_code == 2
    assert "tool.sizer.budgets.max-step" in result.output


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository with GPT-2's configuration committed, and the working directory in it."""
    changed(tmp_path / "models" / "gpt2.json")
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "config.json").write_text('{"apiUrl": "a"}')
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_git_revision_is_compared_with_what_is_here(repository: Path) -> None:
    result = run("diff", "--git", "HEAD")
    assert (result.exit_code, result.output) == (0, "note: no model configuration differs from HEAD\n")
    changed(repository / "models" / "gpt2.json", vocab_size=50304)
    (repository / "web" / "config.json").write_text('{"apiUrl": "hidden_size"}')
    answer = diff_json("--git", "HEAD")
    assert [file["path"] for file in answer["files"]] == ["models/gpt2.json"]
    assert answer["files"][0]["changes"]["vocab_size"] == {"old": 50257, "new": 50304}
    assert answer["notes"] == ["web/config.json: no model configuration, passed over"]
    assert diff_json("--git", "HEAD", "models")["notes"] == []


def test_a_renamed_configuration_is_said_not_to_be_compared(repository: Path) -> None:
    subprocess.run(["git", "mv", "models/gpt2.json", "models/small.json"], check=True)
    changed(repository / "models" / "small.json", n_layer=24)
    result = run("diff", "--git", "HEAD", "--budget", "max-step-regression=1%")
    for name in ("models/gpt2.json", "models/small.json"):
        assert f"{name} has one version alone: no budget compares it" in result.output
    assert diff_json("--git", "HEAD")["notes"] == []


def test_launch_scripts_count_and_files_that_state_no_model_do_not(repository: Path) -> None:
    launch = "python pretrain_gpt.py --num-layers 2 --hidden-size {} --num-attention-heads 8 --seq-length 512 "
    files = {
        "train.sh": launch + "--vocab-size 32000 --max-position-embeddings 512\n",
        "serve.sh": "vllm serve meta-llama/Llama-3.1-8B --max-model-len {}\n",
        "ax.yaml": "base_model: meta-llama/Llama-3.1-8B\nmicro_batch_size: 1\nsequence_len: {}\n",
        "other.sh": "python train.py --model resnet50 --width {}\n",
        "model.py": "hidden_size = {}\n",
        ".ci/a.sh": launch,
    }
    for size, command in ((512, "add"), (1024, "diff")):
        for name, text in files.items():
            (repository / name).parent.mkdir(exist_ok=True)
            (repository / name).write_text(text.format(size))
        subprocess.run(["git", command, "."], check=True, capture_output=True)
        if command == "add":
            subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "b"], check=True)
    answer = diff_json("--git", "HEAD")
    assert [file["path"] for file in answer["files"]] == ["ax.yaml", "serve.sh", "train.sh"]
    assert answer["files"][2]["changes"]["hidden_size"] == {"old": 512, "new": 1024}
    assert answer["notes"] == ["other.sh: no model configuration, passed over"]


def test_no_command_of_the_repository_s_settings_runs(repository: Path) -> None:
    (repository / "spy.sh").write_text("#!/bin/sh\ntouch ran\ncat\n")
    (repository / "spy.sh").chmod(0o755)
    (repository / ".git" / "info").mkdir(exist_ok=True)
    (repository / ".git" / "info" / "attributes").write_text("*.json filter=spy diff=spy\n")
    spy = str(repository / "spy.sh")
    for key in ("core.fsmonitor", "filter.spy.clean", "filter.spy.smudge", "diff.spy.textconv", "diff.external"):
        subprocess.run(["git", "config", key, spy], check=True)
    changed(repository / "models" / "gpt2.json", vocab_size=50304)
    assert len(diff_json("--git", "HEAD")["files"]) == 1
    assert not (repository / "ran").exists()


def test_a_file_named_next_to_a_revision_must_be_a_configuration(repository: Path) -> None:
    (repository / "web" / "config.json").write_text('{"apiUrl": "b"}')
    result = run("diff", "--git", "HEAD", "web/config.json")
    assert result.exit_code == 2
    assert "no model_type found" in result.output


def test_lines_that_end_as_on_windows_are_no_change(repository: Path) -> None:
    """Git for Windows checks out with CRLF what it keeps with LF."""
    file = repository / "models" / "gpt2.json"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert b"\r\n" in file.read_bytes()
    assert "no model configuration differs from HEAD" in run("diff", "--git", "HEAD").output


@pytest.mark.parametrize("revision", ["nowhere", "--output=x", "HEAD:x"])
def test_a_revision_that_is_none_is_one_line(repository: Path, revision: str) -> None:
    result = run("diff", f"--git={revision}")
    assert result.exit_code == 2
    assert result.output.count("\n") == 1
    assert "expected a revision that git knows" in result.output


def test_one_path_alone_says_what_is_expected() -> None:
    result = run("diff", str(GPT2))
    assert result.exit_code == 2
    assert "expected OLD NEW (two files), CONFIG --set KEY=VALUE, or --git REV" in result.output


def test_the_library_answers_what_the_command_line_does(padded: str) -> None:
    answer = sizer.diff(str(GPT2), padded, device=["h100-sxm"])
    assert {"schema_version": 1, **answer.to_dict()} == diff_json(str(GPT2), padded)


def test_the_comment_folds_all_but_a_row_a_configuration(padded: str) -> None:
    text = run("diff", str(GPT2), padded, "--format", "markdown").output
    unfolded = text.partition("<details>")[0]
    assert text.startswith("<!-- sizer diff -->\n### sizer: 1 configuration changed, 1 fixed\n")
    assert unfolded.count("\n") < 12
    assert text.count("<details>") == text.count("</details>") == 1
    ratio = sizer.diff(str(GPT2), padded).files[0].devices[0].ratio
    assert ratio is not None
    assert f"| h100-sxm | {ratio - 1:+.1%} |" in unfolded


def test_names_from_files_are_no_markup_in_a_comment_and_no_formula_in_a_sheet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "=cmd|`<img src=x>`@team.json"
    old, new = changed(tmp_path / "a.json"), changed(tmp_path / name, vocab_size=50304)
    text = run("diff", old, new, "--format", "markdown").output
    row, _, folded = text.partition("<details>")
    assert "=cmd\\|`<img src=x>`@team.json``" in row  # inside a longer fence of code
    assert "<img" not in folded
    assert "@team" not in folded
    changed(tmp_path / "=1+1.json")
    monkeypatch.chdir(tmp_path)
    assert "\n'=1+1.json," in run("diff", old, "=1+1.json", "--format", "csv").output
