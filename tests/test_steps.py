"""Whole steps: software stacks as data, what overlaps, pipelines, launch-bound regions, published runs."""

from __future__ import annotations

import csv
import importlib
import json
import math
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.bench.step_rows import price_step, read_rows
from shapes.cost import predict_many
from shapes.device import load_device
from shapes.errors import InputError
from shapes.memory import memory
from shapes.model import ModelShape
from shapes.operators import operators
from shapes.operators.cores import chunks
from shapes.operators.types import Attention, Collective, Gemm
from shapes.step import Pricer, StepCost, over_stages
from shapes.step.seconds import Schedule, Work, microbatch, slowest_stage, step_parts, work
from shapes.step.stack import (
    CLASSES,
    STEP_TIERS,
    TIERS,
    SoftwareStack,
    default_stack,
    list_stacks,
    load_stack,
    stack_from_mapping,
)
from shapes.workload import Workload
from sizer.answers.memory_breakdown import memory as memory_of
from sizer.answers.operator_table import ops
from sizer.answers.plan import plan
from sizer.checking import check
from sizer.checking.findings import PricedFinding
from sizer.cli import main
from sizer.readers import READERS, read_config
from sizer.subject import read_subject, run_on

CONFIGS = Path(__file__).parent / "data" / "configs"
BENCH = Path(__file__).parents[1] / "reports" / "bench"
H100 = load_device("h100-sxm")
LLAMA = read_config(CONFIGS / "llama-3.1-8b.json").model
QWEN_MOE = read_config(CONFIGS / "qwen3-30b-a3b.json").model
CORE = load_stack("megatron-core-te")


#: Stack -> what its sources must name: the publication that it rests on.
PUBLISHED = {
    "ddp-compile": "DistributedDataParallel: buckets of 25 MB",
    "megatron-2021": "arXiv 2104.04473",
    "megatron-bridge-2026": "NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary.md",
    "megatron-core-te": "NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary.md",
    "megatron-deepspeed-gaudi": "arXiv 2205.05198",
    "native-llmc": "karpathy/llm.c, train_gpt2.cu",
    "pytorch-ddp": "DistributedDataParallel: buckets of 25 MB",
    "pytorch-fsdp-2023": "arXiv 2307.08691",
    "pytorch-fsdp-2025": "arXiv 2410.06511",
    "pytorch-fsdp2-eager": "arXiv 2410.06511",
    "transformers-amp": "operators that autocast to float32",
    "transformers-compile": "torch.compile: inductor fuses",
    "transformers-eager": "models/llama/modeling_llama.py",
}


#: transformers' guide on one GPU (perf_train_gpu_one, 2022), bert-large on a V100: options -> samples a second, MB that
#: nvidia-smi says are in use.
FP32 = {"dtype": "fp32"}
ACCUMULATED = {"b": 1, "global_batch": 4}
AUTOCAST = {"dtype": "fp16", "precision": "amp"}
SMALLEST = ACCUMULATED | AUTOCAST | {"checkpointing": "full"}
GUIDE: list[tuple[dict[str, Any], float, int]] = [
    (FP32, 8.86, 14949),
    (FP32 | ACCUMULATED, 7.75, 8681),
    (FP32 | ACCUMULATED | {"checkpointing": "full"}, 5.99, 6775),
    (FP32 | {"optimizer": "adafactor"}, 7.96, 12295),
    (FP32 | {"optimizer": "adamw-8bit"}, 9.15, 13085),
    (AUTOCAST, 18.64, 13939),
    (SMALLEST, 10.09, 7275),
    (SMALLEST | {"optimizer": "adafactor"}, 9.06, 4847),
    (SMALLEST | {"optimizer": "adamw-8bit"}, 10.35, 5363),
]


@pytest.mark.parametrize(("options", "rate", "megabytes"), GUIDE)
def test_nine_rows_of_the_single_gpu_guide_are_within_a_fifth_in_time_and_6_percent_in_memory(
    options: dict[str, Any], rate: float, megabytes: int
) -> None:
    sizes = {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 24, "intermediate_size": 4096}
    model = read_config({"model_type": "bert", "architectures": ["BertForSequenceClassification"]} | sizes).model
    workload = Workload(**({"b": 4, "s": 512, "attention": "eager"} | options))
    stack = load_stack("transformers-amp" if workload.precision else "transformers-eager")
    cost = price_step(model, workload, load_device("v100-sxm-16"), stack)
    assert 4 / cost.seconds == pytest.approx(rate, rel=0.2)
    before_2 = replace(workload, implementation="torch-1")
    held = memory(model, before_2, device="v100-sxm-16", simulate=True)
    assert held.reserved_bytes is not None
    assert (held.reserved_bytes + held.components["framework"]) / 2**20 == pytest.approx(megabytes, rel=0.06)


#: llm.c's scripts/run_gpt2_*.sh, 8 devices: layers, hidden, heads, device, microbatch, global batch, seconds a step.
LLMC = [
    (12, 768, 12, "a100-sxm", 64, 512, 0.300),
    (24, 1024, 16, "a100-sxm", 64, 512, 0.820),
    (36, 1280, 20, "a100-sxm", 32, 512, 1.7),
    (48, 1600, 25, "h100-sxm", 16, 1024, 2.80),
]


@pytest.mark.parametrize(("layers", "hidden", "heads", "device", "b", "global_batch", "seconds"), LLMC)
def test_steps_of_llm_c_are_within_15_percent_though_none_was_fitted(
    layers: int, hidden: int, heads: int, device: str, b: int, global_batch: int, seconds: float
) -> None:
    dropouts = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    sizes = {"n_layer": layers, "n_embd": hidden, "n_head": heads, "vocab_size": 50304}
    model = read_config({"model_type": "gpt2", **sizes, **dropouts}).model
    workload = Workload(b=b, s=1024, d=8, zero=1, global_batch=global_batch, attention="cudnn")
    cost = price_step(model, workload, load_device(device), load_stack("llm.c"))
    assert cost.seconds == pytest.approx(seconds, rel=0.15)
    assert cost.low < seconds < cost.high


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("ddp", "pytorch-ddp"),
        ("ddp-2024-compile", "ddp-compile"),
        ("jax", "pytorch-fsdp-2025"),
        ("maxtext-2025", "pytorch-fsdp-2025"),
        ("torchtitan", "pytorch-fsdp2-eager"),
    ],
)
def test_a_frameworks_name_is_that_of_the_stack_it_runs(said: str, named: str) -> None:
    assert load_stack(said).name == named


def test_a_name_of_no_overlap_is_its_stack_with_nothing_overlapped(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, alone = load_stack("fsdp2-2025-compile"), load_stack("fsdp2-2025-no-overlap-compile")
    assert alone.name == "fsdp2-2025-no-overlap-compile"
    assert (alone.kernels, alone.host) == (usual.kernels, usual.host)
    assert {one.hidden for one in alone.overlap.values()} == {0.0} != {usual.overlap["data"].hidden}
    monkeypatch.syspath_prepend(str(BENCH))
    stack_of = importlib.import_module("step_rows").stack_of
    assert stack_of("fsdp2-2025-no-overlap-compile", 2025) == (replace(alone, name=usual.name), True)
    assert stack_of("fsdp-unheard-of-no-overlap", 2025)[0].overlap["data"].hidden == 0


#: fms-fsdp's README at 0d31998, 128 A100 and Llama 2 of 4,096 tokens: hidden, layers, heads, key heads, width,
#: microbatch, replicas (HSDP), policy, tokens a second and device. Its network is not stated.
FMS = [
    (4096, 32, 32, 32, 11008, 2, 16, "none", 3760),
    (5120, 40, 40, 40, 13824, 1, 16, "none", 1700),
    (8192, 48, 64, 8, 22016, 8, 1, "full", 772),
    (8192, 80, 64, 8, 28672, 6, 1, "full", 380),
]


@pytest.mark.parametrize(("hidden", "layers", "heads", "kv", "width", "b", "replicas", "saved", "rate"), FMS)
def test_fsdp_and_hsdp_over_128_devices_are_within_10_percent_though_none_was_fitted(
    hidden: int, layers: int, heads: int, kv: int, width: int, b: int, replicas: int, saved: str, rate: float
) -> None:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "vocab_size": 32000}
    others = {"num_key_value_heads": kv, "intermediate_size": width, "max_position_embeddings": 4096}
    model = read_config({"model_type": "llama", **sizes, **others}).model
    workload = Workload(b=b, d=128, zero=3, replicas=replicas, checkpointing=saved, attention="fa2")
    cost = price_step(model, workload, load_device("a100-sxm"), load_stack("fsdp-2023"))
    assert b * 4096 / cost.seconds == pytest.approx(rate, rel=0.1)
    assert cost.low < b * 4096 / rate < cost.high


@pytest.mark.parametrize(("said", "replicas"), [({"replicas": "4"}, 4), ({"notes": "HSDP; bf16"}, 2), ({}, 1)])
def test_a_row_of_hybrid_shards_is_priced_so(
    said: dict[str, str], replicas: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    row = dict.fromkeys(("t", "p", "micro_batch", "accumulation", "step_s"), "1") | {"id": "one", "dtype": "bf16"}
    row |= {"stack": "fsdp-2023", "gpu": "a100-sxm", "config": "openai-community/gpt2", "s": "1024", "d": "16"} | said
    file = tmp_path / "rows.csv"
    file.write_text(f"{','.join((*row, 'zero'))}\n{','.join((*row.values(), '3'))}\n", encoding="utf-8")
    (found,) = importlib.import_module("step_rows").read_rows(file)
    assert found.workload.replicas == replicas


@pytest.mark.parametrize("name", list_stacks())
def test_every_stack_names_the_publication_that_it_rests_on(name: str) -> None:
    assert any(PUBLISHED[name] in document for document in load_stack(name).sources.values())


@pytest.mark.parametrize("name", list_stacks())
def test_every_stack_says_where_its_constants_are_from_and_how_they_are_known(name: str) -> None:
    stack = load_stack(name)
    assert stack.name == name
    assert stack.sources
    assert stack.rows
    assert set(stack.tiers.values()) <= set(TIERS)
    assert {"kernels", "host", "communication", "optimizer", "interval"} <= set(stack.tiers)
    assert set(stack.kernels) == set(CLASSES) == set(stack.host.kernels)
    assert set(stack.intervals) <= {*STEP_TIERS, *stack.architectures}
    for interval in stack.intervals.values():
        assert interval.low < 1 < interval.high


def test_a_stack_is_fitted_borrowed_or_extrapolated_by_the_device_it_runs_on() -> None:
    assert CORE.tier("hopper") == "fitted"
    assert CORE.tier("ampere") == "borrowed"
    assert load_stack("transformers-eager").tier("hopper") == "extrapolated"


def test_the_default_stack_follows_the_configurations_format() -> None:
    assert default_stack("huggingface").name == "transformers-eager"
    assert default_stack("megatron").name == "megatron-core-te"
    assert default_stack("gpt_neox").name == "megatron-core-te"
    assert default_stack(None).name == "transformers-eager"


def test_torchtitan_runs_compiled_where_its_file_says_so(tmp_path: Path) -> None:
    names = {}
    for compiled in ("false", "true"):
        file = tmp_path / f"{compiled}.toml"
        file.write_text(f'[model]\nname = "llama3"\nflavor = "8B"\n[compile]\nenable = {compiled}\n', encoding="utf-8")
        names[compiled] = check(file, b=1, s=8192).stack
    assert names == {"false": "pytorch-fsdp2-eager", "true": "pytorch-fsdp-2025"}
    assert load_stack("torchtitan-2025-fsdp2").name == "pytorch-fsdp2-eager"
    assert load_stack("torchtitan-2025-fsdp2-compile-fp8").name == "pytorch-fsdp-2025"


def test_formats_of_stacks_are_formats_of_configurations() -> None:
    for name in list_stacks():
        assert set(load_stack(name).formats) <= set(READERS), name


def test_an_unknown_stack_or_key_names_what_is_known() -> None:
    with pytest.raises(InputError, match=r"stack = 'torchx': expected one of ddp-compile, megatron-2021"):
        load_stack("torchx")
    with pytest.raises(InputError, match=r"mine: framwork.*did you mean framework"):
        stack_from_mapping({**_content(), "framwork": "x"}, "mine")
    with pytest.raises(InputError, match=r"mine: host.launch_s = -1: expected a number, 0 or more"):
        stack_from_mapping({**_content(), "host": {**_content()["host"], "launch_s": -1}}, "mine")


@pytest.mark.parametrize("value", [1e15, 1e4, 1e-15, float("inf"), float("nan"), 10**30])
@pytest.mark.parametrize(("table", "key"), [("kernels", "gemm"), ("optimizer", "update"), ("by_dtype", "fp8")])
def test_a_factor_that_no_stack_has_is_refused_at_load(table: str, key: str, value: float) -> None:
    content = {**_content(), table: {**_content().get(table, {}), key: value}}
    with pytest.raises(InputError, match=rf"mine: {table}.{key} = .*: expected a positive number"):
        stack_from_mapping(content, "mine")


def test_an_earlier_release_of_a_stack_is_known_by_its_name() -> None:
    newest, earlier = load_stack("megatron-core-te"), load_stack("megatron-bridge-25.09-fp8")
    own = next(release for release in newest.releases if release.match == "megatron-bridge-25.*")
    assert earlier.kernels["gemm"] == pytest.approx(own.kernels * newest.kernels["gemm"])
    assert earlier.kernels["moe"] == pytest.approx(own.kernels * own.experts * newest.kernels["moe"])
    assert load_stack("megatron-bridge-26.04-mxfp8").kernels == newest.kernels


def test_a_stack_of_ones_own_is_given_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    text = Path(load_stack("pytorch-ddp").origin).read_text(encoding="utf-8")
    file.write_text(text.replace('name = "pytorch-ddp"', 'name = "mine"').replace("fixed_s = 0.01", "fixed_s = 1.5"))
    report = check(CONFIGS / "gpt2.json", stack=str(file))
    assert (report.stack, report.step.parts["once a step"]) == ("mine", 1.5)
    written = file.stat()
    file.write_text(file.read_text().replace("fixed_s = 1.5", "fixed_s = 2.5"))
    os.utime(file, ns=(written.st_atime_ns, written.st_mtime_ns))  # as late and as long: its content tells
    assert check(CONFIGS / "gpt2.json", stack=str(file)).step.parts["once a step"] == 2.5
    file.write_text("name = ")
    with pytest.raises(InputError, match=r"mine2.toml: expected TOML"):
        load_stack(file.rename(tmp_path / "mine2.toml"))
    with pytest.raises(InputError, match=r"absent.toml: cannot be read"):
        load_stack(tmp_path / "absent.toml")


def _content() -> dict[str, dict[str, object]]:
    import tomllib

    return tomllib.loads(Path(load_stack("pytorch-ddp").origin).read_text(encoding="utf-8"))


def price(workload: Workload, stack: SoftwareStack = CORE, accumulation: int = 1) -> StepCost:
    return price_step(LLAMA, workload, H100, stack, accumulation)


@pytest.mark.slow
@given(
    b=st.integers(1, 8),
    t=st.sampled_from([1, 2, 8]),
    p=st.sampled_from([1, 4, 5]),
    d=st.sampled_from([1, 8]),
    zero=st.integers(0, 3),
    accumulation=st.integers(1, 64),
    name=st.sampled_from(list_stacks()),
)
@settings(max_examples=30)
def test_a_steps_parts_add_up_and_lie_in_its_interval(
    b: int, t: int, p: int, d: int, zero: int, accumulation: int, name: str
) -> None:
    workload = Workload(b=b, t=t, p=p, d=d, zero=zero, sequence_parallel=t > 1)
    cost = price(workload, load_stack(name), accumulation)
    assert cost.seconds == pytest.approx(sum(cost.parts.values()))
    assert all(seconds > 0 for seconds in cost.parts.values())
    assert cost.low < cost.seconds < cost.high


def test_zero_2_keeps_no_gradient_whole_and_so_reduces_every_microbatchs() -> None:
    exposed = replace(Workload(b=1, s=4096, d=16, gpus=16), no_overlap="data")

    def seconds(zero: int, times: int) -> float:
        workload = replace(exposed, zero=zero, global_batch=16 * times)
        return price_step(LLAMA, workload, H100, CORE).parts["data parallelism"]

    once, eight = ({zero: seconds(zero, times) for zero in (1, 2)} for times in (1, 8))
    assert once[2] == pytest.approx(once[1])
    assert eight[1] == pytest.approx(once[1])
    # A reduce-scatter of seven microbatches more: it and the gather of the weights send as much.
    assert eight[2] == pytest.approx((1 + 7 / 2) * once[1], rel=0.02)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"vpp": 2}, "vpp = 2: expected a pipeline"),
        ({"p": 4, "vpp": 16}, "vpp = 16: expected at most 8 chunks of the 32 layers over p = 4"),
        ({"zero": 3, "gpus": 16, "replicas": 3}, "replicas = 3: expected a divisor of the 16 data-parallel ranks"),
    ],
)
def test_a_schedule_or_a_sharding_that_cannot_be_is_refused(asked: dict[str, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ops(str(CONFIGS / "llama-3.1-8b.json"), **asked)  # type: ignore[arg-type]  # degrees


def test_a_stack_that_is_named_says_whose_kernels_save_activations() -> None:
    config = str(CONFIGS / "gpt2.json")
    subject = run_on(read_subject(config, s=1024, b=1, stack=CORE), H100)
    listed = plan(
        read_config(config).model,
        H100,
        gpus=2,
        global_batch=2,
        base=subject.workload,
        stack=CORE,
        loss=CORE.loss,
        implementation=subject.implementation,
    )
    one = next(one for one in listed.candidates if (one.workload.p, one.workload.vpp) == (2, 1))
    run = {key: value for key, value in one.workload.to_dict().items() if value != getattr(Workload(), key)}
    found = memory_of(config, stack="megatron-core-te", **run)
    assert found.memory.implementation == check(config, stack="megatron-core-te").implementation == "megatron"
    assert found.memory.total_bytes == one.memory_bytes


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("coverage", 9, "coverage = 9: expected a share"),
        ("attention_kernel", {"other": "none"}, "attention_kernel.other = 'none': expected one of auto"),
        ("by_dtype", {"fp9": 1.0}, "by_dtype.fp9 = 1.0: expected keys out of"),
        ("interval", {"fitted": {"low": 1.4, "high": 1.8, "ratio": 0.1}}, "expected low <= 1 <= high"),
    ],
)
def test_a_users_stack_with_a_figure_that_cannot_be_is_refused(key: str, value: object, said: str) -> None:
    data = tomllib.loads(Path(CORE.origin).read_text(encoding="utf-8"))
    with pytest.raises(InputError, match=said):
        stack_from_mapping(data | {key: value}, "mine.toml")


def test_an_interval_may_end_at_the_prediction_itself() -> None:
    data = tomllib.loads(Path(CORE.origin).read_text(encoding="utf-8"))
    for low, high in ((1.0, 1.8), (0.9, 1.0)):
        mine = stack_from_mapping(
            data | {"interval": {"fitted": {"low": low, "high": high, "ratio": 0.1}}}, "mine.toml"
        )
        assert (mine.intervals["fitted"].low, mine.intervals["fitted"].high) == (low, high)


def test_gradients_are_reduced_once_a_step_and_with_fsdp_in_every_microbatch() -> None:
    one, four = (price(Workload(b=1, d=64), accumulation=number).parts["data parallelism"] for number in (1, 4))
    assert one == pytest.approx(four)
    one, four = (price(Workload(b=1, d=64, zero=3), accumulation=number).parts["data parallelism"] for number in (1, 4))
    assert four == pytest.approx(4 * one)


def test_under_a_pipeline_fsdp_gathers_and_reduces_once_a_step_and_keeps_its_stage_whole() -> None:
    piped = Workload(b=1, d=64, p=4, zero=3)
    one, four = (price(piped, accumulation=number).parts["data parallelism"] for number in (1, 4))
    assert four == pytest.approx(one)
    found = collectives(piped, "data_parallel")
    assert {one.what: one.count for one in found} == {"reduce_scatter": 8, "all_gather": 8}
    shared, whole = (memory(LLAMA, replace(piped, p=p)).components for p in (1, 4))
    assert shared["gradients"] < LLAMA.parameters / 4 < whole["gradients"]
    assert whole["communication"] > 2 * LLAMA.parameters / 4 > shared["communication"]


def test_a_1f1b_bubble_is_the_other_stages_microbatch_and_interleaving_divides_it() -> None:
    # 32 layers over 4 stages and no head to unbalance them: three stages' microbatch, whatever the accumulation.
    workload = Workload(b=1, p=4)
    costs = [price(replace(workload, vpp=vpp), accumulation=number) for vpp, number in ((1, 8), (1, 16), (4, 16))]
    bubbles = [cost.parts["pipeline bubble"] for cost in costs]
    assert bubbles[0] == pytest.approx(bubbles[1])
    assert bubbles[2] == pytest.approx(bubbles[1] / 4)
    stage, whole = work(*_priced(workload)), Pricer(H100).summed(LLAMA, over_stages(workload))
    assert whole.layers.runs[next(iter(whole.layers.runs))] == 4 * stage.layers.runs[next(iter(stage.layers.runs))]


def test_a_token_passes_every_stage_of_a_pipeline_that_decodes() -> None:
    seconds = []
    for p in (1, 2, 4):
        workload = Workload(phase="decode", b=8, s=1, context=4096, p=p)
        seconds.append(Pricer(H100).step(operators(LLAMA, workload), workload, LLAMA).seconds)
    assert seconds == sorted(seconds)
    assert seconds[-1] < 1.5 * seconds[0]


def test_a_step_without_a_stack_or_a_workload_is_its_operators_added_up() -> None:
    workload = Workload(b=1)
    listed, stack = operators(LLAMA, workload), load_stack("megatron-core-te")
    bare = Pricer(H100).step(listed, workload, LLAMA), Pricer(H100, stack=stack).step(listed)
    assert [step.cost for step in bare] == [None, None]
    assert bare[0].seconds == bare[1].seconds < Pricer(H100, stack=stack).step(listed, workload, LLAMA).seconds


def test_layers_need_not_divide_over_stages_and_the_slowest_is_the_one_with_more_work() -> None:
    # 32 layers over 5 stages: 7 on each of four, and on the last as many as stay below them with its head.
    last, stack = work(*_priced(Workload(b=1, p=5))), load_stack("megatron-core-te")
    slowest = slowest_stage(last, LLAMA, 5, stack, H100)
    layer, head = sum(last.layers.seconds.values()) / 7, sum(last.ends.seconds.values())
    total = sum(slowest.layers.seconds.values()) + sum(slowest.ends.seconds.values())
    assert head < 3 * layer
    assert total == pytest.approx(7 * layer)
    even = work(*_priced(Workload(b=1, p=4)))
    assert slowest_stage(even, LLAMA, 4, stack, H100) is even


def test_a_context_parallel_rank_keeps_its_share_of_activations_and_of_zeros_states() -> None:
    shared = memory(LLAMA, Workload(b=1, s=8192, cp=4, d=2, zero=1), implementation="megatron").components
    alone = memory(LLAMA, Workload(b=1, s=2048, d=8, zero=1), implementation="megatron").components
    assert shared == alone
    hybrid = memory(LLAMA, Workload(b=1, d=64, zero=3, replicas=8)).components
    assert hybrid["weights"] == memory(LLAMA, Workload(b=1, d=8, zero=3)).components["weights"]


def test_inference_pays_nothing_that_surrounds_an_update() -> None:
    parts = price(Workload(b=1, phase="infer"), load_stack("transformers-eager")).parts
    assert "once a step" not in parts
    assert "optimizer" not in parts


def test_eager_attention_does_not_share_a_sequence_and_check_gives_the_times_of_one_rank() -> None:
    report = check(CONFIGS / "llama-3.1-8b.json", cp=2, attention="eager")
    assert any(
        "no split of this model over these ranks: cp 2; times are those of cp 1" in note for note in report.model.notes
    )
    with pytest.raises(InputError, match=r"cp = 2: expected 1"):
        operators(LLAMA, Workload(cp=2, attention="eager"))


def test_a_global_batch_says_how_many_microbatches_a_step_accumulates() -> None:
    assert Workload(b=2, d=4, global_batch=64).accumulation == 8
    assert Workload(b=2, d=4).accumulation == 1
    assert Workload(p=8).accumulation == 8  # as many as fill the pipeline


def test_small_work_is_bound_by_the_hosts_launches_and_large_work_is_not() -> None:
    eager, compiled = load_stack("transformers-eager"), load_stack("transformers-compile")
    gpt2 = read_config(CONFIGS / "gpt2.json").model
    small, large = (price_step(gpt2, Workload(b=b, s=s), H100, eager) for b, s in ((1, 128), (64, 1024)))
    assert small.parts["waiting for the host"] > 0.2 * small.seconds
    assert large.parts["waiting for the host"] < 0.01 * large.seconds
    assert price_step(gpt2, Workload(b=1, s=128), H100, compiled).seconds < 0.9 * small.seconds


def test_hidden_communication_costs_contention_only() -> None:
    found = work(*_priced(Workload(b=4, d=64, zero=1)))
    overlap, own = CORE.overlap["data"], microbatch(found, CORE, H100)
    hidden, shown = (
        step_parts(
            found,
            Schedule(),
            replace(CORE, overlap={**CORE.overlap, "data": replace(overlap, hidden=share)}),
            own,
            own,
        )
        for share in (1.0, 0.0)
    )
    assert hidden["data parallelism"] == pytest.approx(overlap.contention * shown["data parallelism"])


def test_what_a_trainer_does_not_overlap_shows_whole_part_by_part() -> None:
    usual = Workload(b=1, t=2, d=64, zero=1, sequence_parallel=True)
    found = work(*_priced(usual))
    for group in ("data", "tensor"):
        alone = price(replace(usual, no_overlap=group)).parts[f"{group} parallelism"]
        assert alone == pytest.approx(found.communication[group] / CORE.overlap[group].speed)
        part = {"data": "gather", "tensor": "tensor-forward"}[group]
        seconds = [price(replace(usual, no_overlap=no)).parts.get(f"{group} parallelism", 0.0) for no in (None, part)]
        assert seconds[0] < seconds[1] < alone
        assert seconds[1] >= found.communication[part] / CORE.overlap[group].speed
    assert price(replace(usual, d=1, t=1, no_overlap="data,tensor")) == price(replace(usual, d=1, t=1))
    with pytest.raises(InputError, match=r"expected none, or some of data, gather"):
        Workload(no_overlap="dta")


def _priced(workload: Workload) -> tuple[tuple[object, ...], list[float]]:
    listed = operators(LLAMA, workload)
    return listed, [one.seconds for one in predict_many(listed, H100)]  # as work() takes them


def collectives(workload: Workload, word: str, model: object = LLAMA) -> list[Collective]:
    return [one for one in operators(model, workload) if isinstance(one, Collective) and word in one.name]  # type: ignore[arg-type]


def test_sequence_parallelism_gathers_the_input_again_for_wgrad() -> None:
    found = collectives(Workload(b=1, t=4, sequence_parallel=True), "layers.*.tensor_parallel")
    by_phase = {phase: sum(one.count for one in found if one.phase == phase) for phase in ("forward", "dgrad", "wgrad")}
    # Two parts a layer, each with a gather and a scatter either way, and one gather more (2205.05198, section 4.2.2).
    assert by_phase == {"forward": 4 * 32, "dgrad": 4 * 32, "wgrad": 2 * 32}


def test_context_parallel_ranks_see_equal_shares_of_the_causal_triangle() -> None:
    for cp in (2, 4, 8):
        pairs = [keys * queries - queries * (queries - 1) / 2 for queries, keys in chunks(4096, 4096, cp, True)]
        assert sum(pairs) == pytest.approx(4096 * 4097 / 2 / cp, rel=1e-3)
    tokens = {
        one.m for one in operators(LLAMA, Workload(b=2, s=4096, cp=4)) if one.kind == "gemm" and one.phase == "forward"
    }
    assert tokens == {2 * 1024}


@pytest.mark.parametrize("way", ["p2p", "a2a"])
@pytest.mark.parametrize("cp", [2, 4, 8])
def test_however_ranks_share_a_sequence_they_share_its_pairs_and_a_ring_runs_a_kernel_for_each(
    way: Any, cp: int
) -> None:
    def cores(workload: Workload) -> list[Attention]:
        return [one for one in operators(LLAMA, workload) if isinstance(one, Attention) and one.phase == "forward"]

    whole, shared = (cores(Workload(b=1, s=4096, cp=degree, cp_comm=way)) for degree in (1, cp))
    pairs = [sum(one.visible_flops * one.count for one in each) for each in (whole, shared)]
    assert pairs[1] == pytest.approx(pairs[0] / cp, rel=2e-3)
    # 32 layers: a kernel for each rank's keys, or one of a share of the heads.
    assert sum(one.count for one in shared) == 32 * {"p2p": cp, "a2a": 1}[way]
    merges = [one for one in operators(LLAMA, Workload(b=1, s=4096, cp=cp, cp_comm=way)) if ".merge" in one.name]
    assert bool(merges) == (way == "p2p")


def test_a_ring_hands_round_keys_and_values_and_an_exchange_of_heads_queries_and_outputs_too() -> None:
    ring, heads = (
        collectives(Workload(b=1, s=4096, cp=4, cp_comm=way), "context_parallel")  # type: ignore[arg-type]
        for way in ("p2p", "a2a")
    )
    # A ring hands round all 4,096 tokens' keys and values; of its own 1,024 a rank exchanges Q, K, V and O.
    assert {one.bytes for one in ring} == {4096 * 2 * 8 * 128 * 2}
    assert {one.bytes for one in heads} == {1024 * 2 * (32 + 8) * 128 * 2}
    assert {one.what for one in heads} == {"all_to_all"}


def test_replicas_shard_over_fewer_ranks_and_add_up_between_them() -> None:
    found = collectives(Workload(b=1, d=64, zero=3, replicas=8), "data_parallel")
    assert {(one.what, one.ranks, one.stride) for one in found} == {
        ("reduce_scatter", 8, 1),
        ("all_gather", 8, 1),
        ("all_reduce", 8, 8),
    }


def test_fsdp_sends_each_layer_by_itself_and_zero_1_all_at_once() -> None:
    for zero, pieces, gathers in ((1, 1, 1), (3, 32, 2)):
        found = collectives(Workload(b=1, d=64, zero=zero), "data_parallel")
        assert {one.what: one.count for one in found} == {"reduce_scatter": pieces, "all_gather": pieces * gathers}
        for one in found:
            assert one.bytes * pieces == pytest.approx(2 * LLAMA.parameters, rel=1e-6)


def test_a_ring_over_nodes_takes_a_step_a_rank_and_a_longer_one_a_node() -> None:
    def seconds(what: str, ranks: int) -> float:
        return predict_many([Collective("data_parallel.x", "forward", what, 2, ranks)], H100)[0].seconds  # type: ignore[arg-type]

    # From 1 to 64 nodes of 8: 63 steps to another node, and of the 504 other ranks 441 within one (NCCL's hwLat).
    for what in ("all_gather", "reduce_scatter"):
        assert seconds(what, 512) - seconds(what, 8) == pytest.approx(63 * 14e-6 + 441 * 3.4e-6, rel=0.01)
    assert seconds("all_reduce", 512) - seconds("all_reduce", 8) < 0.1e-3


def test_tensor_parallelism_does_not_fill_a_wait_for_the_host() -> None:
    slow = replace(CORE, host=replace(CORE.host, launch_s=1e-3))
    workload = Workload(b=1, t=8)
    with_sends, without = (
        price_step(LLAMA, workload, H100, replace(slow, overlap=overlap)).seconds
        for overlap in (
            CORE.overlap,
            {**CORE.overlap, "tensor": replace(CORE.overlap["tensor"], hidden=1e6, contention=0)},
        )
    )
    shows = price_step(LLAMA, workload, H100, slow).parts["tensor parallelism"]
    assert shows > 0
    assert with_sends - without == pytest.approx(shows)


def test_experts_talk_across_nodes_through_their_own_network_cards() -> None:
    seconds = [
        predict_many([one], H100)[0].seconds
        for e in (8, 64)
        for one in collectives(Workload(b=1, d=64, e=e), "all_to_all", QWEN_MOE)
        if one.phase == "forward"
    ]
    # 56 of 63 peers are on other nodes, at 50 GB/s a card where NVLink has 450: about eight times as long.
    assert 5 < seconds[1] / seconds[0] < 10


def test_a_launch_bound_step_is_a_finding_that_a_larger_microbatch_mends() -> None:
    def launch_bound(**workload: int) -> list[PricedFinding]:
        return [one for one in check(CONFIGS / "gpt2.json", **workload).findings if "SZ123" in one.codes]

    (finding,) = launch_bound(b=1, s=128)
    assert finding.severity == "warning"
    assert [dict(suggestion.change) for suggestion in finding.suggestions] == [{"microbatch": 32}]
    assert launch_bound(b=16, s=128)
    assert not launch_bound(b=32, s=128)


def test_check_ops_and_the_library_speak_of_the_same_global_step() -> None:
    config = CONFIGS / "llama-3.1-8b.json"
    asked = {"b": 1, "tp": 2, "pp": 4, "gpus": 64, "global_batch": 128, "stack": "megatron-core-te"}
    report, table = check(config, **asked), ops(config, **asked)  # type: ignore[arg-type]  # options of both
    assert report.step == table.step
    assert (report.stack, report.workload.d, report.step.accumulation) == ("megatron-core-te", 8, 16)
    direct = price_step(LLAMA, table.workload, H100, CORE)
    assert report.step.seconds == pytest.approx(direct.seconds)
    assert report.step.parts == pytest.approx(direct.parts)
    # 6 N D and the attention square, over 64 devices: within a few percent of what the exact count says.
    assert report.step.flops == pytest.approx(6 * 8.03e9 * 128 * 4096 / 64, rel=0.15)


def mfu(*options: str) -> Result:
    return CliRunner().invoke(
        main, ["mfu", str(CONFIGS / "llama-3.1-8b.json"), "--gpus", "8", "--global-batch", "64", *options]
    )


def test_mfu_explains_a_measured_step_by_parts_and_by_what_would_account_for_the_rest() -> None:
    layout = ("-s", "4096", "-b", "2", "--zero", "3", "--stack", "pytorch-fsdp-2023", "--explain", "--format", "json")
    slow, fast = (json.loads(mfu("--step-time", seconds, *layout).output)["explanation"] for seconds in ("9", "2.5"))
    assert slow["accumulation"] == 4
    assert sum(slow["parts"].values()) == pytest.approx(slow["predicted_seconds"])
    assert slow["unexplained_seconds"] == pytest.approx(9 - slow["predicted_seconds"])
    assert not slow["expected"]
    worth = {cause["what"]: cause["seconds"] for cause in slow["causes"]}
    assert all(seconds > 0 for seconds in worth.values())
    assert worth["checkpointing full instead of none"] > 0.2 * slow["parts"]["products"]
    assert any("half their rate" in what for what in worth)
    assert all(cause["seconds"] < 0 for cause in fast["causes"])
    assert "needs explaining" in mfu("--step-time", str(slow["predicted_seconds"]), *layout[:-2]).output


def test_a_utilization_above_100_percent_is_an_error_that_says_what_is_impossible() -> None:
    result = mfu("--step-time", "0.5", "-s", "4096")
    assert result.exit_code == 2
    for said in ("--step-time = 0.5: expected at least 1.", "HFU would be 3", "989 TFLOPS", "--global-batch"):
        assert said in result.stderr


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (("-b", "3"), "--global-batch = 64: expected a multiple of MBS x DP = 3 x 8 = 24"),
        (("-b", "1", "--tp", "3"), "--tp = 3: expected a divisor"),
        (("-b", "1", "--dp", "4"), "--dp = 4: expected GPUs / (TP x PP x CP) = 8"),
    ],
)
def test_mfu_explains_no_step_other_than_the_one_that_was_measured(layout: tuple[str, ...], said: str) -> None:
    assert said in mfu("--step-time", "4", "--explain", *layout).stderr


@pytest.mark.parametrize("finetune", [None, "lora"])
def test_check_and_mfu_count_the_same_utilization(finetune: str | None) -> None:
    tuned = {} if finetune is None else {"finetune": finetune}
    config = str(CONFIGS / "llama-3.1-8b.json")
    step = check(config, gpus=8, global_batch=64, s=8192, b=1, zero=3, **tuned).step  # type: ignore[arg-type]  # of check
    options = () if finetune is None else ("--finetune", finetune)
    data = json.loads(mfu("--step-time", repr(step.seconds), "-s", "8192", *options, "--format", "json").output)
    assert data["counts"][0]["mfu"] == pytest.approx(step.mfu)
    # Equations that take every parameter to have a gradient say nothing of a frozen base.
    assert len(data["counts"]) == (3 if finetune is None else 2)


@pytest.mark.parametrize("finetune", [None, "lora"])
def test_check_gives_the_seconds_and_the_utilization_that_plan_lists(finetune: str | None) -> None:
    config, tuned = CONFIGS / "gpt2.json", {} if finetune is None else {"finetune": finetune}
    base = read_subject(str(config), s=1024, b=1, **tuned).workload
    found = plan(read_config(config).model, H100, gpus=2, global_batch=2, base=base)
    one = next(one for one in found.candidates if one.workload.p == 2)
    run = {key: value for key, value in one.workload.to_dict().items() if value != getattr(Workload(), key)}
    report = check(str(config), **run)
    step = report.step
    assert report.stack == found.stack  # named it would pad the vocabulary, in both
    assert (step.seconds, step.mfu) == pytest.approx((one.seconds, one.mfu))


def test_a_count_above_100_percent_next_to_a_possible_one_says_why() -> None:
    text = mfu("--step-time", "200", "-s", "131072").stdout
    assert "above 100%: the masked half" in text


STEP = {
    "id": "x-1",
    "source": "x",
    "stack": "torchtitan-2025-fsdp2",
    "year": "2025",
    "gpu": "h100-sxm",
    "gpus": "8",
    "model_type_hint": "llama",
    "config": json.dumps(json.loads((CONFIGS / "llama-3.1-8b.json").read_text())),
    "s": "8192",
    "micro_batch": "1",
    "global_batch": "8",
    "accumulation": "1",
    "dtype": "bf16",
    "t": "1",
    "p": "1",
    "d": "8",
    "cp": "1",
    "ep": "1",
    "vpp": "",
    "zero": "3",
    "sequence_parallel": "false",
    "checkpointing": "selective",
    "attention": "flash2",
    "step_s": "1.4",
    "notes": "",
}


def test_tensor_parallel_ranks_send_a_share_over_the_pipeline_and_gather_it_where_activations_are_whole() -> None:
    whole = 4096 * LLAMA.hidden * 2
    for sequence_parallel in (False, True):
        workload = Workload(b=1, s=4096, t=8, p=4, sequence_parallel=sequence_parallel)
        found = [one for one in operators(LLAMA, workload) if isinstance(one, Collective) and "pipeline" in one.name]
        sent = [one.bytes for one in found if one.what == "send_recv"]
        gathered = [one.bytes for one in found if one.what == "all_gather"]
        assert sent == [whole // 8] * 2
        assert gathered == ([] if sequence_parallel else [whole] * 2)


def test_a_published_recipe_says_what_a_runs_table_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    rows = importlib.import_module("step_rows")
    gpt = {"model_type": "gpt2", "n_embd": 20480, "n_layer": 105, "n_head": 128, "vocab_size": 51200}
    run = STEP | {"config": json.dumps(gpt), "stack": "megatron-2021-eager-fp16", "p": "35", "gpus": "35", "vpp": ""}
    qwen = json.loads((CONFIGS / "qwen3-30b-a3b.json").read_text(encoding="utf-8"))
    large = STEP | {"config": json.dumps(qwen | {"num_hidden_layers": 94}), "stack": "megatron-bridge-26.02-fp8"}
    # vTrain's runs on one node recompute nothing; of those on several nothing is said beyond the table.
    vtrain = run | {"stack": "megatron-deepspeed-eager-fp16", "p": "1", "checkpointing": "full"}
    deepspeed = [vtrain | {"gpus": str(d), "d": str(d)} for d in (8, 16)]
    # MLPerf's fp8 runs scale by earlier steps' maxima up to v5.0, then by current ones; AMD's do not say.
    scaled = [
        STEP | {"dtype": "fp8", "stack": f"nemo-mlperf-{of}"} for of in ("5.0-te-fp8", "5.1-te-fp8", "5.1-te-fp8-rocm")
    ]
    file = tmp_path / "steps.csv"
    with open(file, "w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, list(STEP))
        writer.writeheader()
        writer.writerows([run, run | {"vpp": "1"}, large, large | {"gpu": "gb200"}, *deepspeed, *scaled])
    read = list(rows.read_rows(file))
    found = [row.workload for row in read]
    # Constants were fitted without dropout's kernels, of which the tables say nothing; a class's default has them.
    assert read_config(gpt).model.main.blocks[0].dropout > 0
    assert {(block.dropout, block.attention.dropout) for block in read[0].model.main.blocks} == {(0.0, 0.0)}
    assert [one.vpp for one in found[:2]] == [3, 1]
    assert [(one.dispatcher, one.ep_overlap) for one in found[2:4]] == [("alltoall", True), ("flex", False)]
    assert [one.checkpointing for one in found[4:6]] == ["none", "full"]
    assert [one.recipe for one in found[6:]] == [None, "tensorwise", None]
    # 32 experts' ranks of 16 x t 2 are folded over tensor parallelism's (DeepSeek-V3 on H100); 64 of 32 are too many.
    assert (rows._experts(32, 16, 2), rows._experts(64, 32, 1)) == (32, 32)


def test_a_runs_adapters_network_and_graphs_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    rows = importlib.import_module("step_rows")
    lora = {"finetune": "lora", "lora_rank": "16", "lora_targets": "q_proj,o_proj", "optimizer": "paged_adamw_8bit"}
    network = {
        "interconnect": "domain=72 (NVL72); nics=4 x 800 Gb/s a node",
        "notes": "x; on: LORA_A2A MCORE_CUDA_GRAPH; y",
    }
    none = dict.fromkeys((*lora, *network), "")
    file = tmp_path / "steps.csv"
    lines = [lora | network, none | {"notes": "4x100 Gb RoCE a node"}, none | {"optimizer": "sophia"}]
    with open(file, "w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, list(STEP | none))
        writer.writeheader()
        writer.writerows([STEP | {"stack": "megatron-core-te"} | line for line in lines])
    refused: list[tuple[str, str]] = []
    first, second = rows.read_rows(file, refused)
    assert (first.workload.finetune, first.workload.lora_rank, first.workload.lora_targets) == (
        "lora",
        16,
        "q_proj,o_proj",
    )
    assert (first.workload.optimizer, second.workload.optimizer, second.workload.finetune) == ("adamw-8bit", None, None)
    assert (first.device.link.domain_devices, first.device.link.inter_node_bytes_per_s) == (72, 100e9)
    assert (second.device.link.domain_devices, second.device.link.inter_node_bytes_per_s) == (8, 6.25e9)
    assert (first.stack.name, second.stack.name) == ("megatron-core-te+graphs", "megatron-core-te")
    # A run that lists what overlaps and not its tensor parallelism; one that lists nothing.
    assert (first.workload.no_overlap, second.workload.no_overlap) == ("tensor-forward", None)
    assert [reason.split(":")[0] for _, reason in refused] == ["optimizer = 'sophia'"]


@pytest.mark.parametrize(
    ("notes", "dtype"),
    [
        ("attention in fp8; on: LORA_A2A", "fp8"),
        ("attention in fp8; as the log says; fp8 attention false", None),
        ("layout read in the log; fp8 attention 1", "fp8"),
        ("attention in 16 bits (FP8_DPA None)", None),
    ],
)
def test_the_type_that_a_run_logs_for_its_attention_is_read(
    notes: str, dtype: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    assert importlib.import_module("step_rows")._attention_dtype(notes) == dtype


def test_gaudis_megatron_is_a_stack_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    stack_of = importlib.import_module("step_rows").stack_of
    names = ("megatron-deepspeed-gaudi-mlperf-4.0-fp8", "megatron-deepspeed-2022-bf16", "megatron-deepspeed-eager-fp16")
    assert [stack_of(name, 2023)[0].name for name in names] == ["megatron-deepspeed-gaudi", *["megatron-2021"] * 2]


def test_batched_products_off_16_bytes_take_longer_where_a_stack_says_so() -> None:
    stack = load_stack("megatron-2021")
    aligned, off = (
        read_config({"model_type": "gpt2", "n_embd": 64 * size, "n_head": 64, "n_layer": 2, "vocab_size": 1024}).model
        for size in (128, 126)
    )
    workload = Workload(b=1, s=512, attention="eager")

    def attention(model: ModelShape, own: SoftwareStack) -> float:
        return price_step(model, workload, load_device("a100-sxm"), own).parts["attention"]

    plain = replace(stack, misaligned_bmm=1.0)
    assert stack.misaligned_bmm > 4
    assert attention(aligned, stack) == attention(aligned, plain)
    assert attention(off, stack) > 2 * attention(off, plain)
    assert load_stack("megatron-core-te").misaligned_bmm == 1.0


def test_an_unknown_stack_with_pipelines_is_never_fsdp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    stack_of = importlib.import_module("step_rows").stack_of
    assert stack_of("meta-internal", 2024)[0].framework == "fsdp"
    assert stack_of("meta-internal", 2024, pipelined=True)[0].framework == "megatron"


def test_graphs_leave_the_host_nothing_to_launch() -> None:
    small, graphs = Workload(b=1, s=128, t=8), load_stack("megatron-core-te+graphs")
    assert graphs == CORE.with_graphs()
    assert price(small, graphs).parts.get("waiting for the host") is None
    assert price(small, graphs).seconds < price(small).seconds
    with pytest.raises(InputError, match="stack = 'none'"):
        load_stack("none+graphs")


def test_a_fitted_share_is_a_whole_at_most_as_a_stacks_file_must_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    steps_fit = importlib.import_module("steps_fit")
    fit = object.__new__(steps_fit.Fit)
    fit.spec = (("communication.data.contention", 0.5, 0.5), ("communication.data.speed", 0.8, 0.3))
    assert fit.values(np.log([1.03, 1.03])) == pytest.approx([1.0, 1.03])


def test_nccls_all_to_all_sends_every_copy_and_a_flexible_dispatcher_a_token_once_a_node() -> None:
    # 8 copies over 4 nodes of 8: every copy, or on average 4 (1 - (3/4)^8) = 3.6 nodes' worth.
    workload = Workload(b=1, d=32, e=32)
    plain, once = (
        next(one for one in operators(QWEN_MOE, replace(workload, dispatcher=kind)) if isinstance(one, Collective))
        for kind in ("alltoall", "flex")
    )
    assert (plain.copies, once.copies, plain.bytes) == (1, 8, once.bytes)
    seconds = [cost.seconds for cost in predict_many([plain, once], H100)]
    assert seconds[0] / seconds[1] == pytest.approx(8 / (4 * (1 - 0.75**8)), rel=0.05)


def test_a_router_limited_to_groups_meets_no_more_nodes_and_no_fewer_ranks() -> None:
    # 8 of 256 experts, spread over 8 nodes of 8: 8 (1 - (7/8)^8) = 5.25 nodes, or 4 where 4 of 8 groups may be chosen;
    # over 16 nodes a group lies on two.
    routed = Collective("moe.all_to_all", "forward", "all_to_all", 2**28, 64, copies=8)
    limited = replace(routed, groups=(8, 4))
    seconds = [cost.seconds for cost in predict_many([routed, limited], H100)]
    assert seconds[0] / seconds[1] == pytest.approx(8 * (1 - (7 / 8) ** 8) / 4, rel=0.02)
    wide = [replace(one, ranks=128) for one in (routed, limited)]
    assert predict_many(wide, H100)[0].seconds == predict_many(wide, H100)[1].seconds
    assert read_config(CONFIGS / "deepseek-v3.json").model.moe.groups == (8, 4)


def test_dispatch_next_to_another_microbatchs_computing_is_hidden_further() -> None:
    workload = Workload(b=1, d=32, e=32, zero=1)
    alone, overlapped = (
        price_step(QWEN_MOE, replace(workload, ep_overlap=flag), H100, CORE, 8).parts.get("expert parallelism", 0.0)
        for flag in (False, True)
    )
    assert overlapped < 0.5 * alone
    # A stack that does not know it runs it as without.
    other = load_stack("pytorch-ddp")
    assert other.overlap["overlapped_expert"] == other.overlap["expert"]


def test_steps_with_and_without_that_overlap_are_fitted_side_by_side() -> None:
    # As arrays both groups are there, one of them of no seconds: they are one part.
    plain, overlapped = _moe_work("moe"), _moe_work("overlapped_moe")
    overlapped.communication["expert"] = 0.0
    found, both = (
        step_parts(one, Schedule(), CORE, own := microbatch(one, CORE, H100), own) for one in (plain, overlapped)
    )
    assert found["expert parallelism"] > 0
    assert both["expert parallelism"] == pytest.approx(found["expert parallelism"])


def _moe_work(name: str) -> Work:
    sent = Collective(f"layers.0.{name}.all_to_all", "forward", "all_to_all", 10**9, 32)
    return work([sent], [one.seconds for one in predict_many([sent], H100)])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "missing: id, stack"),
        ("a,b\n1,2\n", "missing: id, stack"),
        ("id,stack,gpu,config,s,micro_batch,accumulation,dtype,t,p,d,step_s\n", "expected at least one row"),
        (None, "cannot be read"),
    ],
)
def test_steps_py_says_in_one_line_what_a_file_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, said: str
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    file = tmp_path / "steps.csv"
    if content is not None:
        file.write_text(content)
    rows = importlib.import_module("step_rows")
    with pytest.raises(InputError, match=said):
        list(rows.read_rows(file))


@pytest.mark.slow
def test_steps_py_judges_any_file_and_says_which_stack_stands_for_an_unknown_one(tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    with open(file, "w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, list(STEP))
        writer.writeheader()
        writer.writerows(
            [
                STEP,
                {**STEP, "id": "x-2", "stack": "fsdp-of-mine-2024", "micro_batch": "2", "step_s": "2.7"},
                {**STEP, "id": "x-3", "gpu": "tpu-v9"},
                {**STEP, "id": "x-4", "step_s": ""},
            ]
        )
    done = subprocess.run(
        [sys.executable, str(BENCH / "steps.py"), "--data", str(file), "--format", "json", "--rows"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert [row["id"] for row in found["rows"]] == ["x-1", "x-2"]
    assert [row["id"] for row in found["refused"]] == ["x-3", "x-4"]
    assert found["nearest"] == {"fsdp-of-mine-2024": "pytorch-fsdp-2025"}
    for row in found["rows"]:
        assert row["low_s"] < row["predicted_s"] < row["high_s"]
    assert found["by_stack"]["torchtitan-2025-fsdp2"]["rows"] == 1
    assert abs(found["all"]["bias"]) < 0.5


def test_peaks_that_runs_logged_are_judged_as_their_recipes_keep_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    peaks = importlib.import_module("memory_peaks")
    mlperf = STEP | {"stack": "nemo-mlperf-5.1-te-fp8", "dtype": "fp8", "d": "64", "gpus": "64", "zero": "1"}
    runs = [
        mlperf | {"checkpointing": "none", "peak_memory_gib": "71.23"},  # mlperf-8b-0005, a published run
        STEP
        | {"stack": "torchtitan-2025-fsdp2-compile-bf16", "gpu": "b200", "peak_reserved_gib": "33.71"},  # torchao-0007
        STEP,
    ]
    file = tmp_path / "steps.csv"
    with open(file, "w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, [*STEP, "peak_memory_gib", "peak_reserved_gib"])
        writer.writeheader()
        writer.writerows(runs)
    found = [(row[3], float(row[4])) for row in peaks.judged(file)]
    assert [peak for peak, _ in found] == [71.23, 33.71]
    assert all(abs(ours / peak - 1) < 0.08 for peak, ours in found)


def test_published_degrees_are_found_among_what_a_plan_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    layouts = importlib.import_module("published_layouts")
    config = json.loads((CONFIGS / "gpt2.json").read_text(encoding="utf-8"))
    said = {"model": "GPT-2", "device": "h100-sxm", "gpus": 4, "global_batch": 8, "s": 1024, "config": config}
    found = [layouts.judged(said | {"degrees": degrees})[4] for degrees in ({}, {"t": 2, "p": 2}, {"t": 3})]
    assert found[0] == "1.00" <= found[1]
    assert found[2] == "does not fit"


@pytest.mark.parametrize(("t", "d", "zero"), [(1, 1, 0), (4, 1, 0), (1, 8, 1)])
def test_muon_multiplies_each_matrix_as_a_rank_holds_it_and_adamw_none(t: int, d: int, zero: int) -> None:
    workload = Workload(b=1, s=512, t=t, d=d, zero=zero, optimizer="muon")
    products = [one for one in operators(LLAMA, workload) if one.phase == "optimizer" and isinstance(one, Gemm)]
    # Jordan's 4 r r c + 2 r r r FLOPs an iteration, of five; a column's shard is of rows, a row's of columns.
    attention = ((4096 // t, 4096), (1024 // t, 4096), (1024 // t, 4096), (4096, 4096 // t))
    mlp = ((14336 // t, 4096), (14336 // t, 4096), (4096, 14336 // t))
    sides = [(min(one), max(one)) for one in (*attention, *mlp)]
    flops = 32 * 5 * sum(4 * r * r * c + 2 * r**3 for r, c in sides)
    assert sum(one.flops * one.count for one in products) == flops // (d if zero else 1)
    assert not [one for one in operators(LLAMA, Workload(b=1, s=512)) if one.phase == "optimizer" and one.flops]
    pricer = Pricer(H100, stack=load_stack("megatron-core-te"))
    ways = (workload, replace(workload, optimizer=None))
    step, plain = (pricer.step(operators(LLAMA, one), one, LLAMA) for one in ways)
    assert step.flops == plain.flops
    assert step.cost is not None
    assert plain.cost is not None
    assert step.cost.parts["optimizer"] > plain.cost.parts["optimizer"]


def test_a_step_names_the_network_that_was_not_stated() -> None:
    asked = ["check", str(CONFIGS / "llama-3.1-8b.json"), "--zero", "3", "--gpus", "64", "--fail-on", "never"]
    said = [CliRunner().invoke(main, [*asked, *more]).output for more in ([], ["--nics", "8", "--nic-gbps", "400"])]
    assert ["network not stated (--nics)" in one for one in said] == [True, False]
    steps = [
        json.loads(CliRunner().invoke(main, [*asked, *more, "--format", "json"]).output)["reports"][0]["step"]
        for more in ([], ["--nics", "8", "--nic-gbps", "400"])
    ]
    assert steps[0]["seconds"] == pytest.approx(steps[1]["seconds"])
    assert steps[0]["high"] > steps[1]["high"]


def test_a_step_whose_recomputation_nobody_states_may_take_as_long_as_with_all_of_it() -> None:
    pricer = Pricer(load_device("h100-sxm"), stack=load_stack("megatron-core-te"))
    ways = [Workload(b=1, s=4096, t=2, p=2, d=2, checkpointing=one) for one in ("none", "unknown", "full")]
    none, unknown, full = (pricer.step(operators(LLAMA, one), one, LLAMA).cost for one in ways)
    assert none is not None
    assert unknown is not None
    assert full is not None
    assert (unknown.seconds, unknown.low, unknown.parts) == (none.seconds, none.low, none.parts)
    assert full.seconds < unknown.high < full.high
    more, usual = math.log(full.seconds / none.seconds), math.log(none.high / none.seconds)
    assert unknown.high == pytest.approx(none.seconds * math.exp(math.hypot(usual, more)))
    assert (none.unknown, unknown.unknown) == ((), ("recomputation not stated (--checkpointing)",))
    held = [memory(LLAMA, one) for one in ways]
    assert held[0].components == held[1].components != held[2].components


def test_a_row_without_a_configuration_is_of_the_released_model_that_its_notes_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    rows = importlib.import_module("step_rows")
    notes = "moonlight-16b-a3b sft.H100; model {} (sizer has no reader or no stored config); functional run"
    file = tmp_path / "cards.csv"
    with open(file, "w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, [*STEP])
        writer.writeheader()
        for name in ("moonshotai/Moonlight-16B-A3B", "nobody/no-model"):
            writer.writerow(STEP | {"config": "", "notes": notes.format(name)})
    refused: list[tuple[str, str]] = []
    (row,) = rows.read_rows(file, refused)
    assert row.model == read_config("moonshotai/Moonlight-16B-A3B").model
    assert "nobody/no-model" in refused[0][1]


def test_a_row_without_a_policy_is_of_an_unknown_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    rows = importlib.import_module("step_rows")
    line = {"stack": "megatron-core-te", "notes": ""}
    said = ("", "unknown", "none", "full", "selective")
    found = [rows._policy(line | {"checkpointing": one}) for one in said]
    assert found == ["unknown", "unknown", "none", "full", "selective"]


def test_a_power_limit_without_a_figure_widens_a_rows_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    rows, judging = importlib.import_module("step_rows"), importlib.import_module("steps")
    line = dict.fromkeys(rows.NEEDED, "") | {
        "id": "a", "stack": "torchtitan-2025-fsdp2-compile-bf16", "gpu": "b200", "s": "8192", "micro_batch": "1",
        "accumulation": "1", "dtype": "bf16", "t": "1", "p": "1", "d": "8", "gpus": "8", "zero": "3", "step_s": "1",
        "checkpointing": "none",
        "config": (CONFIGS / "llama-3.1-8b.json").read_text(encoding="utf-8"),
    }  # fmt: skip
    plain, limited = (judging.predicted(rows._row(line | {"notes": notes})) for notes in ("", "power limited B200"))
    assert plain.seconds == limited.seconds
    assert plain.unknown == ()
    assert limited.high > 1.1 * plain.high
    assert limited.unknown == ("power limit not stated",)


def test_a_measured_run_becomes_a_row_that_the_scoreboard_prices_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    rows, judging = importlib.import_module("step_rows"), importlib.import_module("steps")
    asked = ["mfu", str(CONFIGS / "llama-3.1-8b.json"), "--step-time", "6.1", "--gpus", "64", "--global-batch", "256"]
    asked += ["-b", "1", "-s", "4096", "--tp", "4", "--pp", "2", "--checkpointing", "core_attn,layernorm"]
    asked += ["--nics", "8", "--nic-gbps", "400", "--stack", "megatron-core-te", "--zero", "1", "--optimizer", "adamw"]
    said = CliRunner().invoke(main, [*asked, "--row"])
    (tmp_path / "row.csv").write_text(said.output, encoding="utf-8")
    (row,) = rows.read_rows(tmp_path / "row.csv")
    assert (row.step_s, row.gpus, row.device.name, row.stack_name) == (6.1, 64, "h100-sxm:8x400Gb", "megatron-core-te")
    explained = json.loads(CliRunner().invoke(main, [*asked, "--explain", "--format", "json"]).output)["explanation"]
    # But for Megatron's padding of the vocabulary to 128 t, which a row's configuration has where its run had it.
    assert judging.predicted(row).seconds == pytest.approx(explained["predicted_seconds"], rel=2e-4)
    assert explained["row"]["micro_batch"] == 1
    refused = CliRunner().invoke(main, ["mfu", "--params", "8B", *asked[2:8], "--row"])
    assert (refused.exit_code, refused.output) == (2, "sizer: CONFIG: expected a configuration\n")


def test_sends_that_products_hide_slow_them_down() -> None:
    """Transformer Engine's take multiprocessors: contention of the seconds that are hidden, on top of what shows."""
    alone = replace(CORE, overlap={**CORE.overlap, "tensor": replace(CORE.overlap["tensor"], contention=0.0)})
    workload = Workload(b=1, s=8192, t=4, sequence_parallel=True)
    parts = [price_step(LLAMA, workload, H100, stack).parts.get("tensor parallelism", 0.0) for stack in (alone, CORE)]
    sent = sum(
        cost.seconds * one.count
        for one in operators(LLAMA, workload)
        if isinstance(one, Collective) and "data" not in one.name
        for cost in predict_many([one], H100)
    )
    own = CORE.overlap["tensor"]
    assert 0 < own.contention < 1
    assert parts[0] < sent / own.speed
    assert parts[1] - parts[0] == pytest.approx(own.contention * (sent / own.speed - parts[0]), rel=0.01)


def test_intervals_are_scaled_until_they_hold_a_source_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    board, judging = importlib.import_module("scoreboard"), importlib.import_module("steps")
    interval = CORE.intervals["fitted"]

    def run(source: str, off: float, further: float = 0.0) -> Any:
        """A run of 1 s predicted, measured ``off`` (log); ``further`` widens its interval next to the stack's."""
        edges = [float(np.exp(side * np.hypot(np.log(edge), further))) for side, edge in
                 ((-1, interval.low), (1, interval.high))]  # fmt: skip
        cost = StepCost(1.0, *edges, 0.9, 0.0, "fitted", {})
        row = SimpleNamespace(step_s=float(np.exp(off)), stack=CORE, source=source, device=H100)
        return board.Run(judging.Judged(row, cost), "2025", True, "")

    high, low = np.log(interval.high), np.log(interval.low)
    assert board.position(run("a", high / 2)) == pytest.approx(0.5)
    assert board.position(run("a", 2 * low)) == pytest.approx(2)
    # What widens further is there whatever the stack's interval is.
    assert board.position(run("a", 0.3, further=0.3)) == pytest.approx(0, abs=1e-6)
    assert board.position(run("a", np.hypot(high, 0.3), further=0.3)) == pytest.approx(1)
    # A source of a hundred runs counts as much as one of ten; half of the latter's are a quarter of all.
    runs = [run("many", 0.0) for _ in range(100)] + [run("few", high * far) for far in range(10)]
    assert board.scale(runs, 0.75) == pytest.approx(4.5, rel=0.05)
    assert board.left_out(runs, 0.75) == pytest.approx((1 + 0.1) / 2)


def test_ratios_of_runs_of_one_model_are_judged_by_what_the_stack_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    board, judging = importlib.import_module("scoreboard"), importlib.import_module("steps")

    def run(config: str, measured: float) -> Any:
        row = SimpleNamespace(step_s=measured, source="a", device=H100, config=config, stack_name="s", dtype="bf16")
        row.gpus = 8
        return board.Run(judging.Judged(row, StepCost(1.0, 0.8, 1.2, 0.9, 0.1, "fitted", {})), "2025", True, "")

    # Of four runs 5% apart six pairs, three of them neighbours; another model's is in no pair.
    table = board.ratios([run("x", 1.05**power) for power in range(4)] + [run("y", 9.0)])
    assert [cell.strip() for cell in table.splitlines()[-1].strip("|").split("|")] == [
        *("a", "6", "7.3%", "12.2%", "10.0%", "50%")
    ]


def test_llm_qs_runs_on_h100_and_l40s_are_within_8_percent() -> None:
    # IST-DASLab/llmq's logs: llm.c's kernels, of whose cross-entropy 16-bit logits alone move.
    errors: dict[str, list[float]] = {"h100-sxm": [], "l40s": []}
    for row in read_rows(Path(__file__).parents[1] / "reports" / "data" / "steps-llmq.csv"):
        if row.device.name in errors:
            cost = price_step(row.model, row.workload, row.device, row.stack, row.accumulation)
            errors[row.device.name].append(abs(cost.seconds / row.step_s - 1))
            assert cost.low <= row.step_s <= cost.high, row.id
    assert {name: len(own) for name, own in errors.items()} == {"h100-sxm": 14, "l40s": 12}
    assert all(sum(own) / len(own) <= 0.08 for own in errors.values()), errors
