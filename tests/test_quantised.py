"""Quantised releases: bytes against published sizes, what runs in which type, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sizer
from shapes.cost.explain import explain
from shapes.errors import InputError
from shapes.memory import memory
from shapes.operators.types import Gemm, GroupedGemm
from sizer.answers.deploy import deploy
from sizer.answers.operator_table import ops
from sizer.readers import read_config
from sizer.subject import read_subject

GPT_OSS = {"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "vocab_size": 201088}
GPT_OSS |= {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_experts_per_tok": 4}
GPT_OSS_120B: dict[str, Any] = {**GPT_OSS, "num_hidden_layers": 36, "num_local_experts": 128}
MXFP4 = {"quant_method": "mxfp4"}
MXFP4["modules_to_not_convert"] = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]  # type: ignore[assignment]
DEEPSEEK: dict[str, Any] = {"model_type": "deepseek_v3", "num_nextn_predict_layers": 0}
BLOCKS_OF_64 = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [64, 64]}
FP8_BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
KIMI: dict[str, Any] = {"model_type": "kimi_k2", "hidden_size": 7168, "num_attention_heads": 64, "vocab_size": 163840}
KIMI |= {"n_routed_experts": 384, "first_k_dense_replace": 1, "intermediate_size": 18432, "num_hidden_layers": 61}
INT4_32 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
KEPT_BY_KIMI = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
COMPRESSED = {"quant_method": "compressed-tensors", "ignore": KEPT_BY_KIMI}
COMPRESSED["config_groups"] = {"group_0": {"targets": ["Linear"], "weights": INT4_32, "input_activations": None}}  # type: ignore[assignment]
LLAMA_70B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
SMALL = {**LLAMA_70B, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
SMALL |= {"num_key_value_heads": 4, "vocab_size": 512}

QUARK_FP4 = {"dtype": "fp4", "group_size": 32, "qscheme": "per_group", "scale_format": "e8m0"}
QUARK_FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}


def quark(weight: object, inputs: object, **layers: object) -> dict[str, Any]:
    usual = {"weight": weight, "input_tensors": inputs}
    named = {"layer_quant_config": layers} if layers else {}
    return {"quant_method": "quark", "exclude": ["lm_head"], "global_quant_config": usual, **named}


def stored(config: dict[str, Any]) -> int:
    return sum(tensor.stored_bytes(2) for tensor in read_config(config).model.tensors())


@pytest.mark.parametrize(
    ("config", "quantised", "published_bytes"),
    [
        # Sizes of the files that huggingface.co lists.
        (GPT_OSS_120B, MXFP4, 65.25e9),
        ({**GPT_OSS, "num_hidden_layers": 24, "num_local_experts": 32}, MXFP4, 13.76e9),
        # 688.6 GB with the layer of multi-token prediction, 11.6 B in fp8, and its own embedding and head, 3.7 GB.
        (DEEPSEEK, FP8_BLOCK, 688.6e9 - 11.6e9 - 3.7e9),
        (KIMI, COMPRESSED, 594e9),
        (LLAMA_70B, {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}, 72.7e9),
        (LLAMA_70B, {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 39.77e9),
        # 68.5 B parameters in 4.25 bits, the embedding and the head in 16.
        (LLAMA_70B, quark(QUARK_FP4, QUARK_FP4), 68.45e9 * 4.25 / 8 + 2 * 2 * 128256 * 8192),
        (LLAMA_70B, quark(QUARK_FP8, QUARK_FP8), 72.7e9),
        (LLAMA_70B, {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}, 39.77e9),
    ],
)
def test_a_release_takes_its_published_bytes(config: dict[str, Any], quantised: Any, published_bytes: float) -> None:
    assert stored({**config, "quantization_config": quantised}) == pytest.approx(published_bytes, rel=0.005)


def test_quarks_layers_may_differ_and_two_of_four_bits_multiply_as_such() -> None:
    said = quark(QUARK_FP4, QUARK_FP4, **{"*self_attn*": {"weight": QUARK_FP8, "input_tensors": QUARK_FP8}})
    (block,) = read_config({**SMALL, "quantization_config": said}).model.main.blocks
    runs = {name: one.recipe for name, one in block.formats}
    assert {recipe for name, recipe in runs.items() if "attention" in name} == {"delayed"}
    assert {recipe for name, recipe in runs.items() if "mlp" in name} == {"mxfp4"}


def test_exclusions_speak_of_single_layers_and_modules() -> None:
    kept = ["lm_head", "model.layers.1*", "model.layers.2.self_attn*", "*.layers.3.mlp.down_proj"]
    config = {**SMALL, "quantization_config": {"quant_algo": "NVFP4", "exclude_modules": kept, "group_size": 16}}
    blocks = [block for block in read_config(config).model.main.blocks for _ in range(block.count)]
    names = [{name.split(".")[1] for name, _ in block.formats} for block in blocks]
    attention, mlp = {"q_proj", "k_proj", "v_proj", "o_proj"}, {"gate_proj", "up_proj", "down_proj"}
    assert names == [attention | mlp, set(), mlp, attention | {"gate_proj", "up_proj"}]
    mixed: dict[str, Any] = {"quant_algo": "MIXED_PRECISION", "quant_method": "modelopt", "quantized_layers": {}}
    mixed["quantized_layers"] = {"model.layers.0.mlp.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16}}
    mixed["quantized_layers"] |= {"lm_head": {"quant_algo": "FP8"}, "model.layers.1.mlp": {"quant_algo": "FP8"}}
    model = read_config({**SMALL, "quantization_config": mixed}).model
    assert model.head_weights is not None
    assert {one.title: count for one, count in model.formats.items()} == {
        "NVFP4 weights": 256 * 512,
        "fp8 per tensor": 3 * 256 * 512 + 256 * 512,
    }


def test_fp8_releases_may_name_layers_in_other_formats() -> None:
    named = {**FP8_BLOCK, "quantized_layers": {"layers.0.mlp": {"quant_algo": "NVFP4", "group_size": 16}}}
    formats = read_config({**SMALL, "quantization_config": named}).model.formats
    assert {one.title: number for one, number in formats.items()} == {
        "NVFP4": 3 * 256 * 512,
        "fp8 in blocks of 128": 4 * 4 * 256 * 256 + 3 * 3 * 256 * 512,
    }
    experts = {**GPT_OSS_120B, "expert_dtype": "fp4", "quantization_config": FP8_BLOCK}
    assert [one.title for one in read_config(experts).model.formats] == [
        "fp8 in blocks of 128",
        "MXFP4 with fp8 activations",
    ]


def test_the_file_next_to_a_configuration_is_read_and_alone_is_told_what_it_is(tmp_path: Path) -> None:
    algorithm = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    quantised = tmp_path / "hf_quant_config.json"
    quantised.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": algorithm}))
    decoding = read_subject(str(tmp_path), phase="decode", b=1)
    assert decoding.workload.kv_dtype == "fp8"
    assert {one.title for one in decoding.model.formats} == {"NVFP4"}  # type: ignore[union-attr]
    assert read_subject(str(tmp_path)).workload.kv_dtype is None  # training has no cache
    with pytest.raises(InputError, match=r"hf_quant_config\.json\): give the config\.json next to it"):
        read_config(str(quantised))


def test_each_matrix_runs_as_it_is_released_unless_the_caller_says_a_type() -> None:
    config = {**GPT_OSS_120B, "num_hidden_layers": 2, "quantization_config": MXFP4}
    table = ops(config, phase="decode", b=1, device="b200")
    found = {one.name.split(".")[-1]: one for one in table.operators if isinstance(one, Gemm | GroupedGemm)}
    costs = {one.name.split(".")[-1]: cost for one, cost in zip(table.operators, table.costs, strict=True)}
    assert (found["gate_up_proj"].dtype, found["gate_up_proj"].weight_bytes) == ("bf16", 0.5 + 1 / 32)
    assert found["qkv_proj"].weight_bytes is None
    assert costs["gate_up_proj"].tier == "fitted"
    asked = read_subject(config, phase="decode", b=1, dtype="bf16")
    assert not asked.model.formats  # type: ignore[union-attr]
    assert any(note == "not run as released: --dtype bf16" for note in asked.notes)
    slow = ops(config, phase="decode", b=1, device="b200", dtype="bf16")
    assert table.step.seconds < slow.step.seconds


def test_fp8_products_run_in_their_recipe_where_the_device_has_them() -> None:
    config = {**SMALL, "quantization_config": FP8_BLOCK}
    on_h100 = {one.name: one for one in ops(config, phase="infer", b=1, device="h100-sxm").operators}
    product = on_h100["layers.*.mlp.up_proj"]
    assert (product.dtype, product.recipe) == ("fp8", "blockwise")  # type: ignore[union-attr]
    assert "layers.*.mlp.up_proj.quantise" in on_h100
    assert on_h100["lm_head"].dtype == "bf16"
    a100 = ops(config, phase="infer", b=1, device="a100-sxm")
    alone = next(one for one in a100.operators if one.name == "layers.*.mlp.up_proj")
    assert (alone.dtype, alone.weight_bytes) == ("bf16", 1 + 4 / 128**2)  # type: ignore[union-attr]


def test_memory_deploy_and_a_frozen_base_take_the_releases_weights() -> None:
    config = {**LLAMA_70B, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    served = read_subject(config, phase="infer", b=1, s=128)
    assert served.model is not None
    weights = memory(served.model, served.workload).components["weights"]
    assert weights == stored(config)
    wanted = memory(served.model, served.workload, weight_dtype="bf16").components["weights"]
    assert wanted == 2 * served.model.parameters
    tuned = read_subject(config, finetune="qlora", b=1, s=128)
    assert tuned.workload.base == "release"
    assert memory(tuned.model, tuned.workload).components["weights"] == stored(config)  # type: ignore[arg-type]
    assert deploy(config).recipe == "int4"
    assert deploy({**SMALL, "quantization_config": FP8_BLOCK}).recipe == "blockwise"
    released = deploy({**GPT_OSS_120B, "quantization_config": MXFP4}, tp=8, engines=("vllm",))
    assert released.recipe == "mxfp4"
    padded = {one.topic: one.message for one in released.engines[0].outcomes if one.verdict == "pads"}
    assert "2880/8 = 360" in padded["experts in MXFP4"]
    assert "padded to 384" in padded["experts in MXFP4"]
    assert "padded to 3072" in padded["hidden size of experts in MXFP4"]


@pytest.mark.parametrize(
    ("quantised", "said"),
    [
        ({"quant_method": "magic"}, "quant_method = 'magic': expected one of auto-round, awq, bitsandbytes"),
        ({"quant_method": "gptq", "bits": 17}, "quantization_config.bits = 17: expected 2 to 8 bits"),
        ({"quant_method": "awq", "w_bit": 1}, "quantization_config.w_bit = 1: expected 2 to 8 bits"),
        ({"quant_method": "awq", "group_size": 96}, "group_size = 96: expected groups that divide the 256 inputs"),
        ({"quant_method": "compressed-tensors", "ignore": ["re:(a+)+$"]}, "expected a plain expression"),
        (
            {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "FP8", "group_size": [1]}}},
            "quantized_layers.a.group_size = [1]: expected an integer",
        ),
        ({"quant_method": "modelopt"}, "expected some groups of layers"),
        (quark({"dtype": "uint4"}, None), "global_quant_config.weight = {'dtype': 'uint4'}: expected one of fp4 fp4"),
        (
            quark({"dtype": "uint4"}, QUARK_FP8),
            "global_quant_config.weight = {'dtype': 'uint4'}: expected one of fp4 fp4",
        ),
        ({"quant_algo": "W1A1"}, "quant_algo = 'W1A1': expected one of FP8"),
        ({"quant_method": "fp8", "modules_to_not_convert": "head"}, "expected a list of modules' names"),
        ("fp8", "quantization_config = 'fp8': expected an object"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {}}, "sparsity_config": {"format": "s-24"}},
            "sparsity_config = {'format': 's-24'}: expected dense weights",
        ),
        ({"quant_method": "fp8", "weight_block_size": [100, 7]}, "weight_block_size = [100, 7]: expected [128, 128]"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size = 128: expected [128, 128]"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": BLOCKS_OF_64}}},
            "block_structure = [64, 64]: expected [128, 128]",
        ),
        ({"quant_method": "hqq"}, "mxfp4; --set quantization_config=null sizes the model in 16 bits"),
        ({"group_size": 64, "bits": 4}, "quant_method: expected one of auto-round"),
    ],
)
def test_what_is_not_known_of_a_release_is_one_line(quantised: object, said: str) -> None:
    with pytest.raises(InputError) as error:
        read_config({**SMALL, "quantization_config": quantised})
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_mlxs_weights_are_not_taken_for_16_bits_where_only_its_own_key_says_them() -> None:
    with pytest.raises(InputError, match=r"quantization\.quant_method: expected one of auto-round"):
        read_config({**SMALL, "quantization": {"group_size": 64, "bits": 4, "mode": "mxfp4"}})


def test_a_method_that_quantises_nothing_of_the_model_is_told() -> None:
    reading = read_config({**SMALL, "quantization_config": {"quant_method": "mxfp4"}})
    assert not reading.model.formats
    assert "quantization_config.quant_method quantises no matrix of this model" in reading.notes


def test_an_explained_time_counts_the_bytes_of_narrow_weights() -> None:
    """Half a byte an element of 25600 x 5120, and scales: a quarter of what bf16 moves."""
    narrow = {"quant_method": "awq", "bits": 4, "group_size": 128}
    config = {**LLAMA_70B, "hidden_size": 5120, "intermediate_size": 25600, "quantization_config": narrow}
    table = ops(config, device="rtx-4090", phase="decode", b=1, context=8192).named("mlp.down_proj")
    ((operator, cost),) = zip(table.operators, table.costs, strict=True)
    assert cost is not None
    parts = {part.what: part for part in explain(operator, cost, table.device)}
    assert parts["waiting for memory"].why.startswith(f"moving {operator.bytes / 1e6:.4g} MB")
    assert operator.bytes < 25600 * 5120 * 2 / 3
    assert sum(part.seconds for part in parts.values()) == pytest.approx(cost.seconds)
    # No closed form of bf16 that a correction has to take back.
    assert abs(parts["kernel choice"].seconds) < 0.5 * cost.seconds


def test_experts_beside_an_mlp_are_not_kept_with_it() -> None:
    """modelopt's release of Gemma 4 keeps each layer's ``mlp``, next to which its ``experts`` are quantised."""
    kept = [f"model.language_model.layers.{layer}.{part}*" for layer in range(2) for part in ("mlp", "self_attn")]
    gemma = {**SMALL, "model_type": "gemma4_text", "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    gemma |= {
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 64,
    }
    quantised = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", *kept]}
    formats = read_config({**gemma, "quantization_config": quantised}).model.formats
    assert [(one.title, size) for one, size in formats.items()] == [("NVFP4", 2 * 8 * 3 * 256 * 64)]


@pytest.mark.parametrize(("device", "told"), [("gaudi3", True), ("h100-sxm", False)])
def test_routers_of_a_type_that_the_device_lacks_run_in_the_models_own(device: str, told: bool) -> None:
    mixture = {"model_type": "glm4_moe", "num_hidden_layers": 4}
    asked: dict[str, Any] = {"device": device, "b": 2, "s": 1024}
    checked, searched = sizer.check(mixture, **asked), sizer.search(mixture, what="experts", **asked)
    assert checked.step is not None
    routed = [[one for one in notes if one.startswith("routers")] for notes in (checked.model.notes, searched.notes)]
    assert [*map(bool, routed)] == [told, told]
