"""Experts of serving engines: the form against its published tables, physics, routing and what prices it."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fit.experts import ALPHA, spread
from fit.experts_amd import down_of, layer_of, usable
from fit.judging import judge

from shapes.cost import predict
from shapes.cost.experts import form_of
from shapes.cost.explain import explain
from shapes.cost.moving import moved_parts
from shapes.device import load_device
from shapes.model import ModelShape
from shapes.operators import operators
from shapes.operators.types import GroupedGemm, RoutedGemm
from shapes.toml_table import DATA
from shapes.workload import Workload
from sizer import read_config

TABLES = tomllib.loads((DATA / "experts.toml").read_text(encoding="utf-8"))
LAYER = RoutedGemm("experts", "forward", 128, 1024, 1536, 2048)
KINDS = {
    "experts_bf16": LAYER,
    "experts_fp8": replace(LAYER, dtype="fp8"),
    "experts_fp8_blockwise": replace(LAYER, dtype="fp8", recipe="blockwise"),
    "experts_fp8_blockwise_spread": replace(LAYER, dtype="fp8", recipe="blockwise", held=128, choices=256),
    "experts_nvfp4": replace(LAYER, dtype="nvfp4", weight_bytes=0.5625),
    "experts_mxfp4": replace(LAYER, dtype="mxfp4", weight_bytes=0.53125),
    "experts_bf16_4bit": replace(LAYER, weight_bytes=0.53125),
    "experts_bf16_mxfp4": replace(LAYER, weight_bytes=0.53125, recipe="mxfp4"),
    "experts_fp8_4bit": replace(LAYER, dtype="fp8", weight_bytes=0.53125),
}


@pytest.mark.parametrize("form", TABLES)
def test_a_table_prices_what_it_is_of_and_states_what_it_was_judged_by(form: str) -> None:
    one = KINDS[form]
    assert form_of(one) == (form, True)
    for name, table in TABLES[form].items():
        cost, device = predict(one, name), load_device(name)
        assert (cost.tier, cost.error, cost.p95, cost.regime) == (
            "fitted",
            table["error"],
            table["error_p95"],
            "experts",
        )
        assert table["bandwidth_bytes_per_s"] <= 1.001 * device.memory.bandwidth_bytes_per_s
        assert table["flops_per_s"] <= 1.001 * device.peak(one.dtype)
        assert sum(term.seconds for term in explain(one, cost, name)) == pytest.approx(cost.seconds)


@pytest.mark.parametrize("form", TABLES)
def test_growth_saves_nothing_and_nothing_beats_the_data_sheet(form: str) -> None:
    draw, many = np.random.default_rng(3), 3000
    groups = 2 ** draw.integers(0, 10, many)
    sizes: dict[str, Any] = {
        "m": groups * 2 ** draw.integers(0, 11, many) + draw.integers(0, 100, many),
        "n": 64 * draw.integers(1, 200, many),
        "k": 64 * draw.integers(1, 120, many),
    }
    one = replace(KINDS[form], groups=groups, load=draw.uniform(1, 20, many), **sizes)  # type: ignore[arg-type] # columns
    for name in TABLES[form]:
        device = load_device(name)
        seconds = sum(moved_parts(one, device))
        assert (seconds * device.peak(one.dtype) > one.flops * (1 - 1e-9)).all()
        for key in sizes:
            for grown in (sizes[key] + 1, 2 * sizes[key]):
                assert (sum(moved_parts(replace(one, **{key: grown}), device)) >= seconds * (1 - 1e-9)).all()


def test_uneven_routing_reads_fewer_weights_at_few_rows_and_takes_more_tiles_at_many() -> None:
    few, many = replace(LAYER, m=128), replace(LAYER, m=128 * 1024)
    assert predict(replace(few, load=10.0), "h200").seconds < predict(few, "h200").seconds
    assert predict(replace(many, load=10.0), "h200").seconds > predict(many, "h200").seconds


@pytest.mark.parametrize(("device", "width"), [("b200", 512), ("h200", 384)])
def test_gpt_oss_over_8_devices_is_priced_at_the_width_that_engines_pad_to(device: str, width: int) -> None:
    gate_up = RoutedGemm("", "forward", 32, 64, 2 * 360, 3072, weight_bytes=0.53125, recipe="mxfp4")
    down = replace(gate_up, n=3072, k=360)
    for own, padded in ((gate_up, replace(gate_up, n=2 * width)), (down, replace(down, k=width))):
        assert predict(own, device).seconds == pytest.approx(predict(padded, device).seconds, rel=1e-3)
        assert predict(own, device).seconds > predict(replace(own, n=own.n // 2, k=own.k // 2), device).seconds


def test_columns_of_rows_and_loads_give_what_each_gives() -> None:
    rows, loads = np.array([128, 1024, 65536]), np.array([1.0, 4.0, 12.5])
    together = sum(moved_parts(replace(LAYER, m=rows, load=loads), load_device("b200")))  # type: ignore[arg-type]
    alone = [
        predict(replace(LAYER, m=int(m), load=float(load)), "b200").seconds for m, load in zip(rows, loads, strict=True)
    ]
    assert together == pytest.approx(alone)


#: Published layers of aiconfigurator-core 0.12 (ms): tokens, hidden, width, top_k, experts, routing, of even ranks.
MEASURED = (
    ("h200", 128, 2048, 768, 8, 128, "balanced", 0.3161),
    ("h200", 1024, 2048, 768, 8, 128, "power_law_1.01", 0.4373),
    ("h200", 8192, 2048, 768, 8, 128, "power_law_1.2", 1.4433),
)


@pytest.mark.parametrize(("device", "tokens", "hidden", "width", "top_k", "experts", "routing", "ms"), MEASURED)
def test_a_published_layer_is_priced_within_a_fifth(
    device: str, tokens: int, hidden: int, width: int, top_k: int, experts: int, routing: str, ms: float
) -> None:
    rows, fullest = spread(tokens, experts, top_k, 1, ALPHA[routing])
    assert rows == tokens * top_k
    load = max(1.0, fullest * experts / rows)
    gate_up = RoutedGemm("", "forward", experts, int(rows), 2 * width, hidden, load=load)
    seconds = sum(predict(one, device).seconds for one in (gate_up, replace(gate_up, n=hidden, k=width)))
    assert seconds * 1e3 == pytest.approx(ms, rel=0.2)


#: vLLM 0.25's gpt-oss-20b on H200, OpenAI's Triton kernels (aisimulate-core 0.13; nothing was fitted on it): tokens and
#: ms a layer, its experts whole and over 8 ranks (of which the fit has none: 360 columns).
GPT_OSS = ((1, 0.0600, 0.0397), (64, 0.1903, 0.0521), (1024, 0.4052, 0.0955), (8192, 2.9159, 0.5699))


@pytest.mark.parametrize(("tokens", "whole", "over_8"), GPT_OSS)
def test_gpt_oss_on_hopper_is_priced_as_engines_run_it(tokens: int, whole: float, over_8: float) -> None:
    model = read_config("openai/gpt-oss-20b").model
    for t, ms, rel in ((1, whole, 0.12), (8, over_8, 0.35)):
        work = Workload(b=tokens, s=1, t=t, phase="decode", context=1024)
        listed = [one for one in operators(model, work) if "moe" in one.name and "router" not in one.name]
        routed = [one for one in listed if isinstance(one, RoutedGemm)]
        assert {form_of(one)[0] for one in routed} == {"experts_bf16_mxfp4"}
        seconds = sum(predict(one, "h200").seconds * one.count for one in listed if one.kind != "collective")
        assert seconds * 1e3 / model.layers == pytest.approx(ms, rel=rel)


def test_weights_in_four_bits_of_other_blocks_are_not_mxfp4() -> None:
    # int4 in groups of 64 with a 16-bit scale takes as many bytes. Nor do devices before Hopper take its kernels.
    config = json.loads((Path(__file__).parent / "data" / "configs" / "mixtral-8x7b.json").read_text(encoding="utf-8"))
    weights = {"num_bits": 4, "type": "int", "group_size": 64, "strategy": "group"}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    config["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": groups}
    listed = operators(read_config(config).model, Workload(b=8, s=1, phase="decode", context=128))
    routed = [one for one in listed if isinstance(one, RoutedGemm)]
    assert {(form_of(one)[0], one.weight_bytes) for one in routed} == {("experts_bf16_4bit", 0.53125)}
    of_mxfp4 = predict(KINDS["experts_bf16_mxfp4"], "a100-sxm")
    assert of_mxfp4.source == "predicted:a100-sxm (constants of l40s, scaled)"


#: Ranks -> us of one token's layer, 8 of 256 experts of 512 over a width of 2048, fp8 in blocks (aiconfigurator-core
#: 0.12, H200, balanced): vLLM 0.24's Triton where one rank has all, TensorRT-LLM's CUTLASS, whose experts without a row
#: take time (98.5 on one rank).
ONE_TOKEN = {1: 33.3, 8: 26.8, 256: 20.6}


@pytest.mark.parametrize("ep", ONE_TOKEN)
def test_experts_that_no_token_is_routed_to_take_time(ep: int) -> None:
    path = Path(__file__).parent / "data" / "configs" / "qwen3-30b-a3b.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"num_experts": 256, "moe_intermediate_size": 512}
    config |= {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    listed = operators(read_config(config).model, Workload(b=1, s=1, context=8, phase="decode", d=ep, e=ep))
    own = [one for one in listed if ".moe." in one.name and "router" not in one.name and one.kind != "collective"]
    products = [one for one in own if isinstance(one, RoutedGemm)]
    # Of eight ranks each has a token: 8 rows of 7 experts a rank, where the table's one rank has one.
    reached = round(256 // ep * (1 - (1 - 8 / 256) ** ep))
    assert {(one.held, one.choices, one.groups, one.m) for one in products} == {(256 // ep, 256, reached, 8)}
    seconds = sum(predict(one, "h200").seconds for one in own)
    assert seconds * 1e6 == pytest.approx(ONE_TOKEN[ep], rel=0.35 if ep == 1 else 0.3)


#: Ranks, tokens -> us of a layer of DeepSeek-V3's experts (8 of 256, power law of 1.2) over t 8 or e 8: vLLM 0.24 on
#: H200 (aiconfigurator-core 0.12), Triton's kernel and FlashInfer's CUTLASS (all ranks' tokens). TensorRT-LLM's CUTLASS
#: takes 294 and 492 over t 8.
DEEPSEEK = {(8, 1, 32): 216.7, (8, 1, 128): 334.0, (1, 8, 16): 392.6}


@pytest.mark.parametrize(("t", "e", "tokens"), DEEPSEEK)
def test_hopper_runs_blocks_of_fp8_by_triton_where_each_rank_has_all_experts(t: int, e: int, tokens: int) -> None:
    model = read_config("deepseek-ai/DeepSeek-V3").model
    work = Workload(b=tokens, s=1, t=t, e=e, d=e, phase="decode", context=1024)
    listed = [one for one in operators(model, work) if ".moe." in one.name and one.kind != "collective"]
    forms = {form_of(one)[0] for one in listed if isinstance(one, RoutedGemm)}
    assert forms == {"experts_fp8_blockwise" + "_spread" * (e > 1)}
    seconds = sum(predict(one, "h200").seconds for one in listed if "router" not in one.name)
    assert seconds * 1e6 == pytest.approx(DEEPSEEK[t, e, tokens], rel=0.3)


def test_even_logits_of_few_tokens_meet_an_expert_each() -> None:
    assert spread(4, 128, 8, 1, 0.0) == (32, 1)
    rows, fullest = spread(4, 128, 8, 4, 1.2)
    assert 8 <= rows <= 32
    assert 1 <= fullest <= 4


@pytest.mark.parametrize(("phase", "cls"), [("train", GroupedGemm), ("infer", RoutedGemm), ("decode", RoutedGemm)])
def test_serving_runs_engines_experts_and_training_grouped_products(phase: str, cls: type) -> None:
    path = Path(__file__).parent / "data" / "configs" / "mixtral-8x7b.json"
    model: ModelShape = read_config(json.loads(path.read_text(encoding="utf-8"))).model
    found = [one for one in operators(model, Workload(b=1, s=128, phase=phase)) if isinstance(one, GroupedGemm)]  # type: ignore[arg-type]
    assert {type(one) for one in found} == {cls}


AITER = {
    "device": "/256",
    "tokens": "64",
    "hidden": "7168",
    "width": "256",
    "experts": "256",
    "top_k": "8",
    "q_dtype_a": "torch.float8_e4m3fn",
    "q_dtype_w": "torch.float8_e4m3fn",
    "q_type": "QuantType.per_1x128",
    "us": "250.0",
    "file": "a.csv",
}


def test_rows_of_aiter_that_repeat_a_time_or_beat_the_peak_are_left_out() -> None:
    other = AITER | {"tokens": "128", "us": "260.0"}
    assert usable([AITER, other]) == [AITER, other]
    assert usable([AITER, other | {"us": "250.0"}]) == []
    assert usable([AITER, other | {"us": "250.0", "file": "b.csv"}]) == []
    assert usable([AITER, AITER | {"file": "b.csv"}]) == [AITER, AITER | {"file": "b.csv"}]
    assert usable([AITER | {"tokens": "1000000"}]) == []
    assert usable([AITER | {"q_type": "QuantType.per_1x7"}]) == []


def test_experts_of_aiter_meet_tokens_as_a_poisson_number_does() -> None:
    gate_up = layer_of(AITER)
    assert (form_of(gate_up)[0], gate_up.m, gate_up.n, gate_up.k) == ("experts_fp8_blockwise", 512, 512, 7168)
    assert gate_up.groups == pytest.approx(256 * (1 - np.exp(-2)))
    down = down_of(gate_up)
    assert (down.n, down.k) == (7168, 256)


def test_aiter_rows_are_judged_by_device_and_what_they_multiply(tmp_path: Path) -> None:
    path = tmp_path / "moe_aiter.csv"
    rows = (AITER, AITER | {"device": "mi999x", "us": "9.0"})
    path.write_text("\n".join([",".join(AITER), *(",".join(row.values()) for row in rows)]) + "\n", encoding="utf-8")
    figures, lines = judge(tmp_path)
    assert {(one.device, one.rows) for one in figures} == {("mi355x", 1)}
    assert any("mi999x" in line and "1 rows not priced" in line for line in lines)
