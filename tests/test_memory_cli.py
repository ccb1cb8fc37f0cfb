"""`sizer memory`, `sizer mfu` and `sizer plan` as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import sizer
from shapes.memory import ROOM
from sizer.cli import main

CONFIGS = Path(__file__).parent / "data" / "configs"
LLAMA, GPT2 = str(CONFIGS / "llama-3.1-8b.json"), str(CONFIGS / "gpt2.json")


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=stdin)


def answer(*arguments: str, code: int = 0) -> dict[str, Any]:
    result = run(*arguments, "--format", "json")
    assert result.exit_code == code, result.output
    data = json.loads(result.stdout)
    assert isinstance(data, dict)
    return data


def test_the_components_add_up_and_what_fits_is_said() -> None:
    data = answer("memory", GPT2, "-b", "4")
    assert sum(data["components"].values()) == data["total_bytes"]
    assert data["fits"] is True
    assert data["total_bytes"] <= ROOM * data["device_bytes"]
    assert data["smallest_tp"] == 1
    assert answer("memory", GPT2, "-b", str(data["largest_microbatch"]))["fits"] is True
    assert answer("memory", GPT2, "-b", str(data["largest_microbatch"] + 1), code=1)["fits"] is False


def test_gradients_stay_where_a_recipe_accumulates_and_names_no_devices(tmp_path: Path) -> None:
    """`check` and `memory` count four microbatches alike; a plan finds their number."""
    recipe = tmp_path / "axolotl.yaml"
    keys = "datasets: []\nmicro_batch_size: 1\nsequence_len: 512\nbf16: true\nadapter: lora\nlora_r: 8"
    recipe.write_text(f"base_model: Qwen/Qwen2.5-7B\n{keys}\ngradient_accumulation_steps: 4\n")
    data = answer("memory", str(recipe))
    assert data["components"]["gradients"] == 4 * data["model"]["trained_parameters"]
    assert "4 microbatches" in data["formulas"]["gradients"]
    assert run("plan", str(recipe), "--gpus", "8", "--global-batch", "64").exit_code == 0
    recipe.write_text(f"base_model: Qwen/Qwen2.5-7B\n{keys}\n")
    assert answer("memory", str(recipe))["components"]["gradients"] == 0


def test_a_stack_says_how_its_loss_runs() -> None:
    plain = answer("memory", LLAMA, "-b", "1", "--zero", "3", "--dp", "64")["total_bytes"]
    fused, said = (
        answer("memory", LLAMA, "-b", "1", "--zero", "3", "--dp", "64", *more)["total_bytes"]
        for more in (("--stack", "llm-foundry-2023-fsdp"), ("--loss", "fused"))
    )
    assert fused == said < plain


def test_the_table_names_every_component_with_its_formula() -> None:
    result = run("memory", LLAMA, "-b", "1", "--gpus", "16", "--tp", "2", "--zero", "1")
    assert result.exit_code == 0
    for text in ("8,030,261,248 parameters", "optimizer_states", "/ 8", "largest microbatch", "ZeRO 3 / FSDP"):
        assert text in result.stdout


def test_each_saving_is_listed_with_the_microbatch_it_allows() -> None:
    data = answer("memory", LLAMA, "-b", "1", "--gpus", "64", "--zero", "1")
    by_name = {saving["name"]: saving for saving in data["savings"]}
    assert by_name["ZeRO 3 / FSDP"]["largest_microbatch"] > 0
    assert by_name["full checkpointing"]["total_bytes"] < data["total_bytes"]


@pytest.mark.parametrize(("weights", "each"), [("fp32", 4.0), ("bf16", 2.0)])
def test_inference_is_weights_cache_and_one_layers_activations(weights: str, each: float) -> None:
    data = answer("memory", LLAMA, "-b", "1", "-s", "8192", "--phase", "infer", "--weights", weights)
    assert data["components"]["weights"] == each * data["model"]["parameters"]
    assert data["components"]["kv_cache"] == 32 * 8192 * 2 * 8 * 128 * 2
    assert "optimizer_states" not in data["components"]


def test_mfu_gives_every_count_with_its_convention() -> None:
    data = answer("mfu", GPT2, "--step-time", "0.5", "--gpus", "8", "--global-batch", "512", "-s", "1024")
    assert [count["method"] for count in data["counts"]] == [
        "operators",
        "operators, causal",
        "6ND",
    ]
    for count in data["counts"]:
        assert count["mfu"] == pytest.approx(count["model_flops"] / 0.5 / 8 / data["peak_flops"])
        assert count["mfu_achievable"] > count["mfu"]
        assert count["convention"]


def test_mfu_reads_a_log_from_standard_input() -> None:
    result = run(
        "mfu",
        "--params",
        "52e9",
        "-s",
        "2048",
        "--step-time",
        "-",
        "--gpus",
        "64",
        "--global-batch",
        "1024",
        "--checkpointing",
        "full",
        "--device",
        "a100-sxm",
        stdin="loading\n126\n127\n128\n",
    )
    assert result.exit_code == 0
    # 52 x 8 x 2048 x 1024 / (127 x 64 x 1e3) = 107.3 TFLOPS, of 311.9: 34.4%.
    assert "3 steps, median 127 s" in result.stdout
    assert "1 lines without a time" in result.stdout
    assert "34.4%" in result.stdout


@pytest.mark.slow
def test_a_plan_lists_the_fastest_splits_and_its_assumptions() -> None:
    data = answer("plan", GPT2, "--gpus", "4", "--global-batch", "64")
    seconds = [candidate["step_seconds"] for candidate in data["candidates"]]
    assert seconds == sorted(seconds)
    assert data["assumptions"]
    text = run("plan", GPT2, "--gpus", "4", "--global-batch", "64").stdout
    assert "splits that fit: " in text
    assert "assumed:" in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("memory", LLAMA, "--gpus", "9", "--tp", "2"), "gpus = 9: expected a multiple of TP x PP = 2 x 1 = 2"),
        (("memory", LLAMA, "--gpus", "8", "--dp", "3"), "--dp = 3: expected GPUs / (TP x PP x CP) = 8"),
        (("memory", LLAMA, "--tp", "3"), "--tp = 3: expected a divisor of the 32 attention heads"),
        (("memory", LLAMA, "--pp", "64"), "--pp = 64: expected at most the 32 layers there are"),
        (("memory", LLAMA, "--ep", "2"), "--ep = 2: expected 1: the model has no experts"),
        (("memory", LLAMA, "--gpus", "8", "-b", "3", "--global-batch", "64"), "expected a multiple of MBS x DP"),
        (("memory", LLAMA, "--optimizer", "adam"), "optimizer = 'adam': expected one of adamw"),
        (("memory", LLAMA, "--precision", "int2"), "expected one of fp32, mixed"),
        (("memory", LLAMA, "--device", "h1000"), "h1000"),
        (("memory", "no-such.json"), "no-such.json"),
        (
            ("mfu", GPT2, "--step-time", "0", "--gpus", "8", "--global-batch", "8"),
            "expected a positive number",
        ),
        (("mfu", GPT2, "--step-time", "1", "--gpus", "0", "--global-batch", "8"), "--gpus = 0"),
        (("mfu", GPT2, "--gpus", "8", "--global-batch", "8"), "needs --step-time"),
        (("mfu", "--step-time", "1", "--gpus", "8", "--global-batch", "8"), "needs CONFIG (or --params"),
        (("plan", LLAMA, "--gpus", "0", "--global-batch", "8"), "gpus = 0"),
        (("plan", LLAMA, "--gpus", "1", "--global-batch", "8", "--device", "t4"), "states alone take"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: tuple[str, ...], expected: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


MEGATRON = """
num_layers: 8
hidden_size: 1024
num_attention_heads: 16
ffn_hidden_size: 4096
vocab_size: 32000
seq_length: 2048
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expected"), [("config.json", "huggingface"), ("megatron.yaml", "megatron")])
def test_memory_and_plan_take_the_kernels_of_the_file_s_framework(tmp_path, name: str, expected: str) -> None:
    path = tmp_path / name
    path.write_text(MEGATRON if name.endswith("yaml") else Path(LLAMA).read_text())
    calls = (["memory", "-b", "1"], ["plan", "--gpus", "8", "--global-batch", "8"])
    for command, *options in calls:
        text = run(command, str(path), *options)
        assert f"{expected} kernels" in text.output, text.output
        document = json.loads(run(command, str(path), *options, "--format", "json").output)
        # A plan has splits of both kinds, where the file says neither.
        assert document["implementation"] == (None if (command, expected) == ("plan", "huggingface") else expected)
    other = "megatron" if expected == "huggingface" else "huggingface"
    totals = [
        json.loads(run("memory", str(path), "-b", "4", *given, "--format", "json").output)["components"]["activations"]
        for given in ((), ("--implementation", expected), ("--implementation", other))
    ]
    assert totals[0] == totals[1] != totals[2]


def test_each_saving_says_what_it_costs_in_time() -> None:
    found = sizer.memory(str(CONFIGS / "llama-3.1-8b.json"), gpus=8, b=1)
    assert len(found.times) == len(found.savings) + 1
    now, by = found.times[0], {one.name: one.step_seconds for one in found.savings}
    assert by["full checkpointing"] > 1.1 * now  # a forward run again
    assert by["adamw-8bit"] < now  # fewer bytes of states
    served = sizer.memory(str(CONFIGS / "llama-3.1-8b.json"), phase="decode", b=1)
    assert served.times == ()


def test_a_step_s_multiply_accumulates_are_said_with_its_flops() -> None:
    table = sizer.ops(str(CONFIGS / "gpt2.json"), b=4)
    assert table.step is not None
    assert f"{table.step.flops:.3g} FLOPs ({table.step.flops / 2:.3g} MACs)" in str(table)


@pytest.mark.parametrize(
    "stack", ["transformers-eager", "pytorch-fsdp2-eager", "transformers-compile", "megatron-core-te"]
)
def test_the_step_with_each_saving_is_the_one_that_check_prices(stack: str) -> None:
    layout: dict[str, Any] = {"b": 1, "s": 4096, "tp": 2, "dp": 8, "zero": 2, "stack": stack}
    found = sizer.memory(LLAMA, **layout)
    step = sizer.check(LLAMA, **layout).step
    assert step is not None
    assert found.times[0] == pytest.approx(step.seconds)
    for saving in found.savings:
        changed = sizer.check(LLAMA, **layout | saving.change).step
        assert changed is not None
        assert saving.step_seconds == pytest.approx(changed.seconds), saving.name


def test_a_plan_says_all_that_check_needs_to_price_its_layout_the_same() -> None:
    first = run("plan", "Llama-3.3-70B", "--gpus", "64", "--global-batch", "128", "-s", "8192").stdout.splitlines()[0]
    assert " tp 8, " in first
    assert "sequence parallel, " in first
    layout = ("check", LLAMA, "--tp", "4", "--dp", "2", "-b", "1", "-s", "8192")
    assert "sequence parallel, " in run(*layout, "--sequence-parallel").stdout
    assert "sequence parallel, " not in run(*layout).stdout


def test_a_shard_that_exchanges_is_not_called_one_device() -> None:
    formulas = answer("memory", LLAMA, "--phase", "decode", "--tp", "8", "-b", "8", "--context", "8192")["formulas"]
    assert formulas["communication"] == "no buffers for exchanges"
