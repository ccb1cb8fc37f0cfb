"""Splits that do not divide are findings with neighbours, the batch's arithmetic is checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from hypothesis import example, given, settings
from hypothesis import strategies as st
from schemas import load_schema

import sizer
from shapes.errors import InputError
from shapes.operators.parallel import runnable_split, split_problems
from shapes.workload import Workload
from sizer.checking.findings import PricedFinding, Report
from sizer.cli import main
from sizer.readers import read_config

CONFIGS = Path(__file__).parent / "data" / "configs"
LLAMA, MOE = CONFIGS / "llama-3.1-8b.json", CONFIGS / "qwen3-30b-a3b.json"
QWEN, FALCON = CONFIGS / "qwen2.5-7b.json", CONFIGS / "falcon-7b.json"


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments], catch_exceptions=False)


def named(report: Report, code: str) -> PricedFinding:
    (found,) = [finding for finding in report.findings if finding.code == code]
    return found


def changes(finding: PricedFinding) -> list[dict[str, int | str]]:
    return [dict(suggestion.change) for suggestion in finding.suggestions]


@pytest.mark.parametrize(
    ("config", "t", "nearest"),
    # 28 heads, 4 of keys and values, at t 8: 7 divides the first and not the second; 71 is prime; 32 = 2^5 at t 3.
    [(QWEN, 8, 4), (FALCON, 2, 1), (LLAMA, 3, 2)],
)
def test_heads_that_do_not_divide_over_t_are_sz105_with_the_nearest_t(config: Path, t: int, nearest: int) -> None:
    report = sizer.check(str(config), t=t)
    finding = named(report, "SZ105")
    assert finding.severity == "error"
    assert {"tp": nearest} in changes(finding)
    assert report.workload.t == t
    assert any("times are those of tp 1" in note for note in report.model.notes)
    assert report.step.seconds == pytest.approx(sizer.check(str(config)).step.seconds)
    shapes_of_the_split = {one.code for one in report.findings} - {
        one.code for one in sizer.check(str(config)).findings
    }
    assert shapes_of_the_split <= {"SZ105", "SZ115"}  # nothing is said of a split that nobody asked for


def test_experts_that_do_not_divide_over_e_are_sz117_with_neighbours() -> None:
    report = sizer.check(str(MOE), e=6, d=12)  # 128 experts: 4 divides them and d, and 6 divides 126 and 132
    finding = next(one for one in report.findings if one.field == "ep")
    assert finding.severity == "error"
    assert {"ep": 4} in changes(finding)
    assert {change.get("num_experts") for change in changes(finding)} & {126, 132}
    # Another split is no other model: it comes first.
    assert "ep" in changes(finding)[0]


def test_more_stages_than_layers_are_sz110() -> None:
    finding = named(sizer.check(str(LLAMA), p=40), "SZ110")
    assert finding.severity == "error"
    assert {"pp": 32} in changes(finding)


@pytest.mark.parametrize("arguments", [("--tp", 3), ("--pp", 40), ("--tp", 3, "--pp", 40)])
def test_the_command_line_exits_1_and_its_json_keeps_to_the_schema(arguments: tuple[Any, ...]) -> None:
    result = run("check", LLAMA, *arguments, "--format", "json")
    assert result.exit_code == 1, result.output
    document = json.loads(result.output)
    jsonschema.validate(document, load_schema("check"))
    assert document["reports"][0]["workload"]["t"] == (3 if "--tp" in arguments else 1)


@pytest.mark.parametrize("command", ["ops", "memory"])
def test_where_there_are_no_findings_to_say_it_a_split_that_cannot_run_is_refused(command: str) -> None:
    result = run(command, LLAMA, "--tp", 3)
    assert result.exit_code == 2
    assert "--tp = 3: expected a divisor of the 32 attention heads" in result.output


@pytest.mark.parametrize(
    ("workload", "keys"),
    [
        ({"d": 8, "zero": 3, "replicas": 4}, []),
        ({"d": 8, "zero": 3, "replicas": 3}, ["replicas"]),
        ({"t": 2, "attention": "eager"}, []),
        ({"t": 2, "cp": 2, "attention": "eager"}, ["cp"]),
        ({"t": 2, "cp": 2}, []),
        ({"p": 4, "vpp": 8}, []),
        ({"vpp": 99, "t": 2}, []),
        ({"p": 4, "vpp": 9}, ["vpp"]),
        ({"p": 32}, []),
        ({"p": 33}, ["p"]),
    ],
)
def test_what_a_split_cannot_run_is_named(workload: dict[str, Any], keys: list[str]) -> None:
    model = read_config(LLAMA).model
    assert model is not None
    assert [problem.key for problem in split_problems(model, Workload(**workload))] == keys


def test_a_split_without_its_stages_has_no_chunks_of_them() -> None:
    model = read_config(LLAMA).model
    assert model is not None
    run = runnable_split(model, Workload(p=33, vpp=2, t=2))
    assert (run.p, run.vpp, run.t) == (1, 1, 2)
    kept = runnable_split(model, Workload(p=4, vpp=2, t=3))
    assert (kept.p, kept.vpp, kept.t) == (4, 2, 1)


def test_experts_asked_of_a_dense_model_are_a_mistake() -> None:
    result = run("check", LLAMA, "--ep", 2)
    assert result.exit_code == 2
    assert "--ep = 2: expected 1: the model has no experts" in result.output


@given(
    config=st.sampled_from([LLAMA, QWEN, FALCON, MOE]),
    t=st.integers(1, 80),
    p=st.integers(1, 80),
    e=st.integers(1, 140),
)
def test_the_runnable_split_divides_and_is_no_larger(config: Path, t: int, p: int, e: int) -> None:
    model = read_config(str(config)).model
    asked = Workload(t=t, p=p, e=e if model.moe else 1)
    found = runnable_split(model, asked)
    assert split_problems(model, found) == ()
    assert (found.t in (1, t), found.p in (1, p), found.e in (1, asked.e)) == (True, True, True)
    if not split_problems(model, asked):
        assert found == asked


@pytest.mark.slow
@settings(max_examples=12)
@given(
    config=st.sampled_from([LLAMA, QWEN, FALCON, MOE]),
    t=st.integers(1, 80),
    p=st.integers(1, 80),
    e=st.integers(1, 140),
    d=st.integers(1, 12),
)
@example(config=QWEN, t=28, p=1, e=1, d=1)  # its heads divide, its width does not
def test_whatever_does_not_divide_some_rule_calls_an_error(config: Path, t: int, p: int, e: int, d: int) -> None:
    model = read_config(str(config)).model
    asked = {"t": t, "p": p, "d": d, "e": e if model.moe else 1}
    errors = {one.code for one in sizer.check(str(config), **asked).findings if one.severity == "error"}
    problems = split_problems(model, Workload(**asked))
    assert bool(errors & {"SZ105", "SZ109", "SZ110", "SZ115", "SZ117"}) == bool(problems)


def test_devices_give_dp_and_a_batch_that_does_not_divide_is_sz120() -> None:
    report = sizer.check(str(LLAMA), gpus=64, t=4, p=2, b=4, global_batch=1000)
    assert report.workload.d == 8  # 64 / (4 x 2)
    finding = named(report, "SZ120")
    assert finding.severity == "error"
    assert "1000 is not a multiple of MBS x DP = 4 x 8 = 32" in finding.message
    assert changes(finding) == [{"microbatch": 1}]  # 1000 / 8 = 125 is odd


def test_a_batch_no_microbatch_divides_gets_the_batches_next_to_it() -> None:
    finding = named(sizer.check(str(LLAMA), d=8, b=3, global_batch=100), "SZ120")
    assert sorted(change["global_batch"] for change in changes(finding)) == [96, 120]  # 4 x 24, 5 x 24


def test_devices_that_the_shards_do_not_divide_are_sz120_with_a_split_that_does() -> None:
    finding = named(sizer.check(str(LLAMA), gpus=64, t=8, p=3), "SZ120")
    assert changes(finding) == [{"pp": 2, "dp": 4}]  # 8 x 2 x 4


def test_devices_and_batch_that_agree_are_no_finding() -> None:
    report = sizer.check(str(LLAMA), gpus=64, t=4, p=2, b=4, global_batch=1024)
    assert "SZ120" not in {finding.code for finding in report.findings} | set(report.not_applicable)


def test_sz120_fires_from_the_command_line() -> None:
    result = run("check", LLAMA, "--gpus", 64, "--tp", 4, "--global-batch", 1000, "-b", 7)
    assert result.exit_code == 1
    assert "SZ120" in result.output


@pytest.mark.parametrize(
    ("long", "short"),
    [({"tp": 8}, {"t": 8}), ({"pp": 2}, {"p": 2}), ({"dp": 4}, {"d": 4}), ({"microbatch": 2}, {"b": 2})],
)
def test_the_library_takes_both_spellings(long: dict[str, int], short: dict[str, int]) -> None:
    assert sizer.check(str(LLAMA), **long) == sizer.check(str(LLAMA), **short)


@pytest.mark.slow
def test_the_readme_s_helpers_take_tp() -> None:
    assert sizer.pad_vocab(50257, tp=8) == 50688  # 99 x 512
    width = sizer.swiglu_width(4096, tp=8)
    assert width == sizer.swiglu_width(4096, t=8)
    assert width % (8 * 8) == 0  # whole 16 bytes of bf16 on every shard
    assert sizer.search(h=1024, tp=2).best == sizer.search(h=1024, t=2).best
    assert sizer.ops(str(LLAMA), ep=1, tp=2).workload.t == 2


def test_the_parts_of_a_pipeline_are_said_to_be_of_its_slowest_stage() -> None:
    """Of 33 layers over 4 stages the last, which has an odd vocabulary's head, holds none: no attention is in it."""
    model = {"model_type": "llama", "num_hidden_layers": 33, "vocab_size": 1_000_001}
    staged, whole = sizer.ops(model, p=4, d=2, s=2048), sizer.ops(model, s=2048)
    assert "parts of the step, of its slowest stage, as the stack runs" in str(staged)
    assert "parts of the step, as the stack runs" in str(whole)
    assert staged.step is not None
    assert whole.step is not None
    assert ("attention" in staged.step.parts, "attention" in whole.step.parts) == (False, True)


def test_one_spelling_at_a_time_and_unknown_names_are_said() -> None:
    with pytest.raises(InputError, match="expected t or tp, not both"):
        sizer.check(str(LLAMA), t=2, tp=2)
    with pytest.raises(InputError, match=r"tensor_paralel = 2: no argument .*; did you mean tp\?"):
        sizer.check(str(LLAMA), tensor_paralel=2)
    assert sizer.check(str(LLAMA), tensor_parallel=2).workload.t == 2


def test_experts_over_more_than_the_data_parallel_ranks_are_not_called_the_models_fault() -> None:
    report = sizer.check("Qwen3-235B-A22B", gpus=64, tp=4, pp=4, ep=32, b=1, s=4096)
    assert "no split of this model over these ranks: ep 32; times are those of ep 1 (devices: 64)" in report.model.notes
    folded = sizer.check("Qwen3-235B-A22B", gpus=64, tp=4, pp=4, ep=8, b=1, s=4096)
    assert not any("no split" in note for note in folded.model.notes)
    assert named(folded, "SZ117").severity == "info"


@pytest.mark.parametrize("asked", [{"d": 1}, {"gpus": 1}, {"t": 8, "gpus": 8}, {"t": 2, "gpus": 8}, {"d": 4}])
def test_experts_over_more_ranks_than_there_are_is_always_said(asked: dict[str, int]) -> None:
    report = sizer.check(str(CONFIGS / "mixtral-8x7b.json"), e=8, **asked)
    found = named(report, "SZ117")
    folds = report.workload.t * report.workload.d == 8  # Megatron-Core's parallel folding runs it
    assert found.severity == ("info" if folds else "error")
    said = [one["ep"] for one in changes(found) if set(one) == {"ep"}]
    assert said == ([] if folds else [report.workload.d])
    assert ("parallel folding" in found.message) == folds


MEGATRON = """torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --tensor-model-parallel-size 4 --bf16 --swiglu \\
  --pipeline-model-parallel-size 2 --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --vocab-size 128256 \\
  --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 128
"""


@pytest.mark.parametrize(
    ("asked", "ranks"),
    [({}, 4), ({"t": 1}, 16), ({"p": 1}, 8), ({"cp": 2}, 2), ({"gpus": 16}, 2), ({"t": 1, "d": 4}, 4), ({"b": 2}, 4)],
)
def test_an_override_of_a_degree_keeps_the_devices_of_the_file(
    tmp_path: Path, asked: dict[str, int], ranks: int
) -> None:
    path = tmp_path / "train.sh"
    path.write_text(MEGATRON)
    report = sizer.check(str(path), **asked)
    assert report.workload.d == ranks
    assert not [one for one in report.findings if one.code == "SZ120"]
    assert any("what the devices leave" in note for note in report.model.notes) is (ranks != 4)
    assert sizer.memory(str(path), **asked).workload.d == ranks


def test_degrees_that_the_files_devices_do_not_divide_by_are_named(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(MEGATRON)
    assert "32 devices" in named(sizer.check(str(path), t=8, p=8), "SZ120").message
    with pytest.raises(InputError, match="gpus = 32: expected a multiple of TP x PP"):
        sizer.memory(str(path), t=8, p=8)


def test_a_comparison_of_what_neither_version_can_run_is_refused() -> None:
    mixtral = str(CONFIGS / "mixtral-8x7b.json")
    with pytest.raises(InputError, match="e = 16: expected a divisor of the 8 experts"):
        sizer.diff(mixtral, mixtral, e=16)
    assert sizer.diff(mixtral, mixtral, e=8).ok


@pytest.mark.parametrize(("model", "t", "d"), [("microsoft/phi-4", 4, 2), ("Qwen/Qwen2.5-7B", 8, 1)])
def test_ranks_that_cannot_run_are_one_error_and_what_is_offered_fills_the_devices(model: str, t: int, d: int) -> None:
    said = {"device": "h100-sxm", "gpus": 8, "b": 1, "s": 4096}
    (error,) = [found for found in sizer.check(model, t=t, d=d, **said).findings if found.severity == "error"]
    (change, *_) = changes(error)
    assert list(change.values()) == [t // 2, 2 * d]
    offered = sizer.check(model, t=t // 2, d=2 * d, **said)
    assert not {"SZ105", "SZ115", "SZ120"} & {found.code for found in offered.findings}
