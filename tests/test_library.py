"""The library says what the commands say: plan, mfu and deploy too."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from click.testing import CliRunner

import sizer
from sizer import doors
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


def test_a_frame_without_pandas_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(sizer.InputError, match=r"to_frame\(\) needs pandas"):
        sizer.ops("tests/data/configs/gpt2.json").to_frame()


def test_an_answer_is_a_frame_of_its_rows() -> None:
    pandas = pytest.importorskip("pandas")
    table = sizer.ops("tests/data/configs/gpt2.json")
    frame = table.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["name"]) == [row["name"] for row in table.rows]
    assert frame["seconds"].sum() == pytest.approx(sum(row["seconds"] for row in table.rows))


#: A call with a mistake in it -> what its one line says.
MISTAKEN: list[tuple[str, dict[str, Any], str]] = [
    ("search", {"h": "4096"}, "h = '4096': expected int | None"),
    ("search", {"h": 4096.0}, "h = 4096.0: expected int | None"),
    ("search", {"params": "7B"}, "params = '7B': expected float | None"),
    ("search", {"h": 4096, "limits": 5}, "limits = 5: expected sizer.searching.space.Limits | None"),
    ("search", {"h": 4096, "limits": {"step": 64}}, "limits = {'step': 64}: expected sizer.searching.space.Limits"),
    ("search", {"h": 4096, "measure": "cpu"}, "measure = 'cpu': expected bool | shapes.measure.Session"),
    ("search", {"h": 4096, "layouts": "plan"}, "layouts = 'plan': expected sizer.searching.pricing.Layouts |"),
    ("search", {"h": 4096, "serving": "b=64"}, "serving = 'b=64': expected collections.abc.Mapping"),
    ("search", {"h": 4096, "tp": "2"}, "tp = '2': expected int"),
    ("search", {"h": 4096, "tp": None}, "tp: expected int"),
    ("search", {"h": 4096, "objective": []}, "objective = []: expected str"),
    ("search", {"h": 4096, "strategies": "racing"}, "did you mean strategy?"),
    ("search", {"h": 4096, "strategy": "racing"}, "strategy = 'racing': expected collections.abc.Callable"),
    ("check", {"config": LLAMA, "measure": "cpu"}, "measure = 'cpu': expected bool | shapes.measure.Executor"),
    ("check", {"config": LLAMA, "select": "SZ101"}, "select = 'SZ101': expected a list, ['SZ101']"),
    ("check", {"config": LLAMA, "ignore": ["SZ999"]}, "ignore = 'SZ999': expected a rule's code"),
    ("search", {"h": 4096, "what": "width"}, "what = 'width': expected one of swiglu"),
    ("check", {"config": LLAMA, "device": ["h100", "b200"]}, "expected str | shapes.device.Device | None"),
    ("check", {"config": LLAMA, "devices": "h100"}, "no argument that help(sizer.check) lists; did you mean device?"),
    ("check", {"config": LLAMA, "workload": {"tp": 2}}, "no argument that help(sizer.check) lists"),
    ("check", {"config": LLAMA, "zero": True}, "zero = True: expected int"),
    ("check", {"config": LLAMA, "sequence_parallel": "yes"}, "sequence_parallel = 'yes': expected bool"),
    ("check", {"config": LLAMA, "phase": 5}, "phase = 5: expected Literal['train', 'infer', 'prefill', 'decode']"),
    ("check", {"config": LLAMA, "batch_size": 1, "b": 2}, "expected b or microbatch, not both"),
    ("check", {"config": LLAMA, "batch_size": 1, "microbatch": 2}, "microbatch = 2: expected microbatch once"),
    ("mfu", {"config": LLAMA, "step_time": "12s"}, "step_time = '12s': expected float | sizer.answers.mfu.StepTimes"),
    ("mfu", {"params": "8B", "step_time": 9.8}, "params = '8B': expected float | None"),
    ("plan", {"config": LLAMA, "gpus": "8"}, "gpus = '8': expected int | None"),
    ("plan", {"config": LLAMA, "ttft": "500ms"}, "ttft = '500ms': expected float | None"),
    ("plan", {"config": LLAMA, "progress": 3}, "progress = 3: expected collections.abc.Callable"),
    ("deploy", {"config": LLAMA, "engines": "vllm"}, "engines = 'vllm': expected a list, ['vllm']"),
    ("deploy", {"config": LLAMA, "engine": "vllm"}, "no argument that help(sizer.deploy) lists; did you mean engines?"),
    ("memory", {"config": LLAMA, "weights": "int4"}, "did you mean weight_dtype?"),
    ("memory", {"config": LLAMA, "memory_utilization": "90%"}, "memory_utilization = '90%': expected float | None"),
    ("ops", {"config": LLAMA, "color": 1}, "no argument that help(sizer.ops) lists"),
    ("diff", {"old": LLAMA, "new": LLAMA, "budgets": {"max": 1}}, "expected sizer.answers.diff.DiffBudgets | None"),
    ("diff", {"old": LLAMA, "new": LLAMA, "device": 5}, "device = 5: expected str | shapes.device.Device"),
    ("pad_vocab", {"vocab": "50257"}, "vocab = '50257': expected int"),
    ("round_to_alignment", {"value": 3, "mult": 4}, "did you mean multiple?"),
    ("swiglu_width", {"hidden": 4096, "tolerance": "1%"}, "tolerance = '1%': expected float"),
    ("read_config", {"source": LLAMA, "config_format": 5}, "config_format = 5: expected str | None"),
]


def test_torch_s_own_names_of_types_are_understood() -> None:
    torch = pytest.importorskip("torch")
    for given, taken in ((torch.bfloat16, "bf16"), (torch.float16, "fp16"), ("torch.float32", "fp32")):
        assert sizer.memory(LLAMA, dtype=given).workload.dtype == taken
    with pytest.raises(sizer.InputError, match=r"dtype = torch\.complex64: expected one of fp64"):
        sizer.memory(LLAMA, dtype=torch.complex64)


@pytest.mark.parametrize(("name", "said", "expected"), MISTAKEN)
def test_a_mistaken_argument_is_named_with_its_value_and_what_is_taken(
    name: str, said: dict[str, Any], expected: str
) -> None:
    with pytest.raises(sizer.InputError) as error:
        getattr(sizer, name)(**said)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


DOORS = [name for name in sizer.__all__ if not isinstance(getattr(sizer, name), type)]


@pytest.mark.parametrize("name", DOORS)
def test_every_argument_of_a_front_door_refuses_what_no_type_is(name: str) -> None:
    call = getattr(sizer, name)
    declared = doors._declared(call.__wrapped__)
    checked = [key for key, kind in declared.items() if kind not in (object, Any) and key != "return"]
    for key in checked:
        with pytest.raises(sizer.InputError) as error:
            call(**{key: 1j})
        assert error.value.key == key
    assert checked
    if name in ("check", "memory", "ops", "plan", "mfu", "search", "diff", "swiglu_width"):
        assert {"tp", "t", "expert_load", "no_overlap"} <= set(checked)


def test_arguments_are_taken_by_place_and_in_other_programs_words() -> None:
    pytest.importorskip("pandas")
    with pytest.raises(sizer.InputError, match="tp = '2': expected int"):
        sizer.pad_vocab(50257, "2")  # type: ignore[arg-type]
    ours = sizer.search(h=1024, device="b200", top=1)
    same = sizer.search(hidden_size=1024, gpu="b200", top=1)  # type: ignore[call-arg]
    assert same.to_frame().equals(ours.to_frame())
    assert sizer.check is sizer.check
