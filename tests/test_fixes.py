"""`check --fix`: suggestions as edits that keep a file's text, run what was priced, and end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types
from pygls.workspace import TextDocument
from tiers import draws

from shapes.errors import InputError
from sizer.checking.checks import CheckRequest, report_of
from sizer.checking.fixes import ConfigText, applied, fix, fix_of, load_text, write_text
from sizer.cli import main
from sizer.readers import Source
from sizer.servers.lsp import actions, check_text

GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 2, "n_positions": 1024, "vocab_size": 50211}
MEGATRON = """#!/bin/bash
HIDDEN=${HIDDEN:-4096}  # é
VOCAB='50211'
torchrun pretrain_gpt.py \\
  --num-layers 32 --hidden-size $HIDDEN --num-attention-heads 32 --ffn-hidden-size=11000 --swiglu \\
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 \\
  --tensor-model-parallel-size 2 --vocab-size $VOCAB --make-vocab-size-divisible-by 1
"""
#: File -> (text, words to replace: before -> after).
TEXTS: dict[str, tuple[str, dict[str, str]]] = {
    "config.json": (json.dumps(GPT2, indent=3) + "\r\n", {"50211": "50240"}),
    "minified.json": (json.dumps(GPT2, separators=(",", ":")), {"50211": "50240"}),
    "config.yaml": (
        "# é comment\nmodel_type: gpt2\nn_embd:   768 # keep\nn_head: 12\nn_layer: 2\nvocab_size: &v 50211   # odd\n",
        {"50211": "50240"},
    ),
    "flow.yml": ('# c\n{"model_type": "gpt2", "n_layer": 2,\n  "vocab_size": 50211, # odd\n}\n', {"50211": "50240"}),
    "train.py": ("# nano\nn_layer = 2\nn_head=12\nn_embd =   768\nvocab_size=50211  # 50211\n", {"=50211": "=50240"}),
    "run.sh": (MEGATRON, {"50211": "50304", "11000": "11008"}),
    "params.toml": (
        '# c\nmodel_type = "gpt2" # é\nn_layer = 2\n\tn_embd = 768\nvocab_size   =   50211 # odd\n',
        {"50211": "50240"},
    ),
}


def text_of(path: str, text: str) -> ConfigText:
    return ConfigText(path, text, CheckRequest())


@pytest.mark.parametrize("name", TEXTS)
def test_every_format_keeps_its_text_outside_of_the_values(name: str, tmp_path: Path) -> None:
    text, replaced = TEXTS[name]
    path = tmp_path / name
    path.write_bytes(b"\xef\xbb\xbf" * (name == "config.json") + text.encode())
    expected = path.read_bytes()
    for before, after in replaced.items():
        expected = expected.replace(before.encode(), after.encode(), 1)
    answer = CliRunner().invoke(main, ["check", "--fix", str(path)])
    assert answer.exit_code == 0, answer.output
    assert path.read_bytes() == expected
    assert "fixed" in answer.stderr
    again = CliRunner().invoke(main, ["check", "--fix", str(path)])
    assert (again.exit_code, path.read_bytes()) == (0, expected)
    assert "fixed" not in again.stderr


def suggested(config: ConfigText) -> list[tuple[Any, Any]]:
    settled = config.settle()
    report = report_of(settled.propose())
    return [(one, fix_of(one, config, settled.subject)) for finding in report.findings for one in finding.suggestions]


@pytest.mark.parametrize("sizes", [{"n_head": 11, "n_embd": 770, "n_inner": 3080}, {"n_head": 20, "n_embd": 2000}])
def test_the_fixed_text_read_again_has_the_suggestion_s_price(sizes: dict[str, int]) -> None:
    config = text_of("config.json", json.dumps(GPT2 | sizes))
    step = config.settle().propose().step.seconds
    found = suggested(config)
    found = [one for one in found if "n_inner" in sizes or "n_embd" in one[0].change][:2]  # which n_inner follows
    assert len(found) == 2
    for suggestion, edits in found:
        assert edits is not None
        after = config.edited(edits).settle()
        assert after.subject.parameters - config.settle().subject.parameters == suggestion.parameters_change
        assert after.propose().step.seconds - step == pytest.approx(suggestion.step_seconds_change)


def test_a_key_that_the_file_lacks_is_said_as_an_option() -> None:
    lines = {"a.json": json.dumps({"model_type": "gpt2", "n_embd": 768}), "a.yaml": "model_type: gpt2\nn_embd: 768\n"}
    for path, text in lines.items():
        fixed = fix(text_of(path, text), "warning", unsafe=True)
        assert fixed.after.text == text
        assert any("no edit of this file says it; say --set vocab_size=50304" in one for one in fixed.left)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"vocab_size": 50257, "n_layer": 12}, "released checkpoint"),
        ({"n_head": 11, "n_embd": 770, "n_inner": 3080, "vocab_size": 50304}, "more than pad"),
        ({"vocab_size": 65, "n_embd": 64, "n_head": 1, "n_positions": 64}, "parameters by"),
    ],
)
def test_what_changes_the_model_has_to_be_asked_for(changed: dict[str, int], reason: str) -> None:
    config = text_of("config.json", json.dumps(GPT2 | changed))
    reasons = [edits.unsafe for _, edits in suggested(config) if edits is not None]
    assert reasons
    assert all(reasons)
    assert any(reason in one for one in reasons)
    fixed = fix(config, "info")
    assert (fixed.applied, fixed.after.text) == ((), config.text)


def test_weights_next_to_a_file_make_it_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT2))
    answer = CliRunner().invoke(main, ["check", "--fix", str(path)])
    assert (answer.exit_code, json.loads(path.read_text())) == (1, GPT2)
    assert "with --unsafe-fixes (a released checkpoint" in answer.stderr
    assert CliRunner().invoke(main, ["check", "--fix", "--unsafe-fixes", str(path)]).exit_code == 0
    assert json.loads(path.read_text()) == {**GPT2, "vocab_size": 50240}


def test_fields_of_the_workload_are_edited_where_the_file_has_them_else_said_as_options(tmp_path: Path) -> None:
    script = MEGATRON.replace("size 2", "size 3").replace("50211", "50304").replace("11000", "11008")
    assert "--tensor-model-parallel-size 2 " in fix(text_of("run.sh", script), "error").after.text
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**GPT2, "vocab_size": 320, "n_embd": 64, "n_head": 1, "n_layer": 1}))
    answer = CliRunner().invoke(main, ["check", "--fix", str(path), "--fail-on", "info"])
    assert answer.exit_code == 1
    assert "no edit of this file says it; say --microbatch" in answer.stderr


def test_a_scripts_degree_is_edited_over_the_same_devices(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    script = MEGATRON.replace("pretrain_gpt.py", "--nproc_per_node 8 --nnodes 4 pretrain_gpt.py")
    further = "--sequence-parallel --use-distributed-optimizer --pipeline-model-parallel-size 2"
    script = script.replace("tensor-model-parallel-size 2", "tensor-model-parallel-size 4").replace("11000", "11008")
    path.write_text(script.replace("--bf16", f"--bf16 {further}").replace("50211", "50304"))
    answer = CliRunner().invoke(main, ["check", "--diff", "--fix-only", "SZ106", "--fail-on", "info", str(path)])
    # Data parallelism takes the devices that t leaves; at t 1 it would cost more over four nodes.
    assert "would fix SZ106 tp 2, dp 8" in answer.stderr
    edited = [line for line in answer.stdout.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert [re.findall(r"tensor-model-parallel-size \d", line) for line in edited] == [
        ["tensor-model-parallel-size 4"],
        ["tensor-model-parallel-size 2"],
    ]


def test_a_file_that_changed_underneath_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT2))
    fixed = fix(load_text(str(path), CheckRequest(), str(path)), "warning")
    path.write_text("mine")
    with pytest.raises(InputError, match="was changed while it was checked"):
        write_text(fixed)
    assert path.read_text() == "mine"


def test_a_patch_applies_and_standard_input_is_printed_fixed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(TEXTS["config.json"][0].encode().rstrip())
    before = path.read_bytes()
    call = [sys.executable, "-m", "sizer", "check"]
    patch = subprocess.run([*call, "--diff", str(path)], capture_output=True, check=True)
    assert path.read_bytes() == before
    printed = subprocess.run([*call, "--fix", "-"], input=before, capture_output=True, check=True)
    assert b"fixed SZ101 vocab_size 50240; together" in printed.stderr
    assert subprocess.run([*call, "--diff", "-"], input=printed.stdout, capture_output=True, check=True).stdout == b""
    changed = [line for line in patch.stdout.splitlines() if line[:1] in (b"-", b"+")]
    assert changed[2:] == [b'-   "vocab_size": 50211', b'+   "vocab_size": 50240']
    assert printed.stdout == before.replace(b"50211", b"50240")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("Qwen/Qwen3-8B", "--fix"), "expected a file"),
        (("--fix", "--measure"), "expected --predict"),
        (("--fix-only", "SZ999"), "--fix-only"),
    ],
)
def test_what_cannot_be_fixed_is_refused_in_one_line(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT2))
    answer = CliRunner().invoke(main, ["check", *arguments, *([] if "Qwen" in arguments[0] else [str(path)])])
    assert answer.exit_code == 2
    assert said in answer.output
    assert json.loads(path.read_text()) == GPT2


def test_fix_only_leaves_what_other_rules_say_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(MEGATRON)
    answer = CliRunner().invoke(main, ["check", "--fix-only", "vocab-multiple", str(path)])
    assert path.read_text() == MEGATRON.replace("50211", "50304")
    assert answer.exit_code == 1  # the width is said all the same
    assert "11000" in answer.stdout


def test_sarif_and_the_editor_offer_the_same_edits(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    text = json.dumps(GPT2, indent=2)
    path.write_text(text)
    answer = CliRunner().invoke(main, ["check", str(path), "--format", "sarif"])
    (result,) = json.loads(answer.stdout)["runs"][0]["results"]
    (change,) = result["fixes"][0]["artifactChanges"]
    (replacement,) = change["replacements"]
    region = replacement["deletedRegion"]
    document = TextDocument(path.as_uri(), text)
    everywhere = types.Range(types.Position(0, 0), types.Position(99, 0))
    first = actions(check_text(text, str(path)), document, everywhere)[0]
    assert first.is_preferred
    assert first.title.startswith("SZ101 vocab_size 50240: saves")
    (edit,) = first.edit.changes[path.as_uri()]
    assert (edit.range.start.line + 1, edit.range.start.character + 1) == (region["startLine"], region["startColumn"])
    assert edit.new_text == replacement["insertedContent"]["text"] == "50240"
    nowhere = types.Range(types.Position(0, 0), types.Position(0, 1))
    assert actions(check_text(text, str(path)), document, nowhere) == []


SIZES = st.fixed_dictionaries(
    {
        "n_embd": st.sampled_from([512, 768, 770, 1000]),
        "n_head": st.sampled_from([5, 8, 10, 12]),
        "n_layer": st.just(2),
        "vocab_size": st.integers(1000, 60_000),
        "n_inner": st.one_of(st.none(), st.integers(1000, 5000)),
    }
)


@draws(30)
@given(SIZES, st.booleans(), st.sampled_from([1, 2, 3]))
def test_fixes_of_any_configuration_agree_and_end(sizes: dict[str, Any], unsafe: bool, tp: int) -> None:
    config = ConfigText("config.json", json.dumps({"model_type": "gpt2", **sizes}), CheckRequest(workload={"tp": tp}))
    try:
        before = report_of(config.settle().propose())
    except InputError:
        return
    fixed = fix(config, "warning", unsafe=unsafe)
    after = report_of(fixed.after.settle().propose())
    levels = ("error", "warning")
    counts = [[sum(one.severity == level for one in report.findings) for level in levels] for report in (after, before)]
    assert (counts[0] < counts[1]) == bool(fixed.applied)
    assert fix(fixed.after, "warning", unsafe=unsafe).applied == ()
    changed = json.loads(fixed.after.text)
    assert changed.keys() == {"model_type", *sizes} | ({"n_inner"} & changed.keys())
    if not unsafe:
        assert all(changed[key] >= (sizes[key] or 0) for key in ("vocab_size", "n_embd", "n_head", "n_layer"))


def test_edits_of_one_line_do_not_move_each_other() -> None:
    config = text_of("run.sh", MEGATRON)
    found = [edits.edits for _, edits in suggested(config) if edits is not None]
    together = applied(MEGATRON, [edit for edits in (found[0], found[-1]) for edit in edits])
    assert together.count("\n") == MEGATRON.count("\n")
    assert Source("x").text is None


def test_a_patch_of_nothing_says_so(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "llama", "vocab_size": 32000}', encoding="utf-8")
    result = CliRunner().invoke(main, ["check", str(file), "--diff"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"sizer: {file}: nothing to fix\n")
    assert CliRunner().invoke(main, ["check", str(file), "--diff", "-q"]).stderr == ""
