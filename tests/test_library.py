"""The library says what the commands say: plan, mfu and deploy too."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

import sizer
from sizer.cli import main

LLAMA = "tests/data/configs/llama-3.1-8b.json"


def command(*words: str) -> object:
    return json.loads(CliRunner().invoke(main, [*words, "--format", "json"]).stdout)


def test_plan_mfu_and_deploy_answer_as_their_commands_do() -> None:
    plan = sizer.plan("tests/data/configs/gpt2.json", gpus=2, global_batch=8, sequence=512, top=2)
    asked = ("--gpus", "2", "--global-batch", "8", "-s", "512", "--top", "2")
    assert json.loads(plan.to_json()) == command("plan", "tests/data/configs/gpt2.json", *asked)
    mfu = sizer.mfu(LLAMA, step_time=9.8, gpus=8, global_batch=64)
    assert json.loads(mfu.to_json()) == command(
        "mfu", LLAMA, "--step-time", "9.8", "--gpus", "8", "--global-batch", "64"
    )
    assert json.loads(sizer.deploy(LLAMA, tp=8).to_json()) == command("deploy", LLAMA, "--tp", "8")
    assert plan.to_dict()["gpus"] == 2
    assert str(mfu).startswith("MFU ")


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ({"recipe": "fp8-block"}, {"recipe": "blockwise"}),
        ({"dtype": "torch.bfloat16"}, {"dtype": "bf16"}),
        ({"dtype": "FP8", "phase": "INFER"}, {"dtype": "fp8", "phase": "infer"}),
        ({"tensor_parallel_size": 2, "batch_size": 1, "max_seq_len": 512}, {"tp": 2, "b": 1, "s": 512}),
    ],
)
def test_keywords_are_taken_in_the_words_that_options_are(words: dict[str, Any], ours: dict[str, Any]) -> None:
    assert sizer.check(LLAMA, **words).to_json() == sizer.check(LLAMA, **ours).to_json()


def test_an_engine_and_its_format_are_taken_in_those_words_too() -> None:
    ours = sizer.deploy(LLAMA, recipe="fp8-block", engines=["tensorrt-llm"])
    assert sizer.deploy(LLAMA, recipe="deepseek", engines=["TRTLLM"]) == ours


def test_what_is_missing_names_the_keyword() -> None:
    with pytest.raises(sizer.InputError, match="global_batch"):
        sizer.plan(LLAMA, gpus=8)
    with pytest.raises(sizer.InputError, match="gpus"):
        sizer.mfu(LLAMA, step_time=9.8)
    with pytest.raises(sizer.InputError, match="expected a configuration or --params"):
        sizer.mfu(step_time=1.0, gpus=8, global_batch=64)


def test_an_answer_is_a_frame_of_its_rows() -> None:
    pandas = pytest.importorskip("pandas")
    table = sizer.ops("tests/data/configs/gpt2.json")
    frame = table.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["name"]) == [row["name"] for row in table.rows]
    assert frame["seconds"].sum() == pytest.approx(sum(row["seconds"] for row in table.rows))
