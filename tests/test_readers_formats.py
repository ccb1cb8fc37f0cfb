"""Formats beside Hugging Face's: detected by their own keys, with their own defaults and traps."""

from __future__ import annotations

from typing import Any

import pytest

from shapes.errors import InputError
from sizer.readers import read_config, read_text

MEGATRON = {"vocab-size": 50257, "num-layers": 24, "hidden-size": 4096, "num-attention-heads": 32, "seq-length": 2048}
NEOX = {"num-layers": 24, "hidden-size": 4096, "num-attention-heads": 32, "seq-length": 2048}
META = {"dim": 4096, "n_layers": 32, "n_heads": 32, "multiple_of": 256, "vocab_size": -1}
NANOGPT = "n_layer = 12\nn_head = 12\nn_embd = 768\nblock_size = 1024\nvocab_size = 50304\n"


def width(config: dict[str, Any], config_format: str) -> int:
    mlp = read_config(config, config_format=config_format).model.dense_mlp
    assert mlp is not None
    return mlp.width


def test_megatron_d_ff_is_4h_and_with_swiglu_two_thirds_of_it_in_64s() -> None:
    assert width(MEGATRON, "megatron") == 4 * 4096
    # floor(8 x 4096 / 3 / 64) x 64 = floor(170.67) x 64
    assert width({**MEGATRON, "swiglu": True}, "megatron") == 170 * 64


@pytest.mark.parametrize(("t", "padded"), [(1, 50304), (8, 51200)])  # 393 x 128; 50 x 1024
def test_megatron_pads_the_vocabulary_to_128_times_t(t: int, padded: int) -> None:
    config = {**MEGATRON, "tensor-model-parallel-size": t}
    assert read_config(config, config_format="megatron").model.vocab == padded


def test_a_megatron_command_line_reads_as_its_arguments() -> None:
    script = (
        "torchrun pretrain_gpt.py --num-layers 24 --hidden-size 4096 \\\n"
        "  --num-attention-heads 32 --seq-length 2048 --vocab-size 50257 --micro-batch-size 2 --swiglu\n"
    )
    reading = read_text(script, where="train.sh")
    assert (reading.format, reading.model.hidden, reading.model.layers) == ("megatron", 4096, 24)
    assert reading.workload["b"] == 2
    assert reading.workload["s"] == 2048


def test_neox_keys_read_the_same_with_dashes_and_underscores() -> None:
    underscored = {key.replace("-", "_"): value for key, value in NEOX.items()}
    assert read_config(NEOX, config_format="gpt_neox").model == read_config(underscored, config_format="gpt_neox").model


def test_meta_d_ff_follows_its_formula_and_vocab_minus_one_is_the_tokenizers() -> None:
    reading = read_config(META)
    # Llama 2 7B: 256 x ceil(floor(8 x 4096 / 3) / 256) = 256 x ceil(42.66) = 11008, and 6,738,415,616 parameters.
    assert reading.format == "meta"
    assert width(META, "meta") == 256 * 43
    assert reading.model.parameters == 6_738_415_616


def test_nanogpt_assignments_are_read_without_running_them() -> None:
    reading = read_text(NANOGPT + "import os\nos.abort()\n", where="train.py")
    assert reading.format == "nanogpt"
    # nanoGPT prints 124.44M with vocab 50304 and biases, positions included:
    # 50304 x 768 + 1024 x 768 + 12 x (12 x 768^2 + 13 x 768) + 2 x 768
    assert reading.model.parameters == (50304 + 1024) * 768 + 12 * (12 * 768**2 + 13 * 768) + 2 * 768


def test_litgpt_multiplies_the_padded_vocabulary() -> None:
    config = {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50254, "padded_vocab_size": 50304}
    assert read_config(config, config_format="litgpt").model.vocab == 50304


@pytest.mark.parametrize("config_format", ["megatron", "gpt_neox", "litgpt", "nanogpt", "meta"])
@pytest.mark.parametrize("value", [0, -1, True, 1e30, "x", [1]], ids=repr)
def test_a_wrong_hidden_size_is_one_line_in_every_format(config_format: str, value: object) -> None:
    key = {"megatron": "hidden-size", "gpt_neox": "hidden-size", "meta": "dim"}.get(config_format, "n_embd")
    base = {"megatron": MEGATRON, "gpt_neox": NEOX, "meta": META}.get(
        config_format, {"n_layer": 12, "n_head": 12, "block_size": 1024, "vocab_size": 50304}
    )
    with pytest.raises(InputError) as caught:
        read_config({**base, key: value}, config_format=config_format, where="file")
    assert str(caught.value).replace("_", "-").startswith("file: " + key.replace("_", "-") + " = ")
    assert "\n" not in str(caught.value)


def neox(**more: Any) -> Any:
    return read_config({**NEOX, "rotary_pct": 1, **more}, config_format="gpt_neox")


@pytest.mark.parametrize(
    ("more", "width"),
    [
        ({}, 4 * 4096),
        ({"activation": "swiglu"}, 16384 // 3),  # floor(floor(2/3 x 16384) / 2) = floor(10922 / 2)
        ({"activation": "swiglu", "mlp_multiple_of": 256}, 22 * 256),
        ({"activation": "swiglu", "mlp_multiple_of": 256, "intermediate_size": 32768}, 43 * 256),  # Llama's 11008
        ({"activation": "geglu", "expansion_factor": 6}, 2 * 4096),
        ({"mlp_type": "llama"}, 8 * 4096 // 3),
    ],
)
def test_neox_cuts_a_gated_mlp_to_two_thirds_of_its_width(more: dict[str, Any], width: int) -> None:
    mlp = neox(**more).model.dense_mlp
    assert mlp.width == width
    assert mlp.gated is bool(more)


def test_neox_norms_experts_and_windows_are_those_of_its_classes() -> None:
    plain = neox(no_weight_tying=True, pos_emb="rotary").model
    h, padded, layers = 4096, 50304, 24
    assert plain.parameters == 2 * padded * h + layers * (12 * h * h + 13 * h) + 2 * h
    bare = neox(no_weight_tying=True, pos_emb="rotary", norm="non_parametric_layernorm").model
    assert plain.parameters - bare.parameters == 2 * h * (2 * layers + 1)
    sparse = neox(no_weight_tying=True, pos_emb="rotary", moe_num_experts=8, moe_expert_interval=2).model
    # every second layer: a router and eight plain MLPs without biases, in place of one with them
    assert sparse.parameters - plain.parameters == layers // 2 * (8 * h + 8 * 8 * h * h - 8 * h * h - 5 * h)
    assert neox(sliding_window_width=512).model.attention.window == 512


@pytest.mark.parametrize("kind", ["mamba", "rwkv", "gmlp", "amlp"])
def test_neox_layers_that_are_no_attention_are_refused(kind: str) -> None:
    with pytest.raises(InputError, match=f"{kind} layers"):
        neox(attention_config=[[["global", kind], 12]])


def test_neox_sparse_attention_and_another_optimizer_are_named() -> None:
    reading = neox(attention_config=[[["global", "local"], "all"]], optimizer={"type": "Lion", "params": {"lr": 1e-4}})
    assert {one.key for one in reading.unread} == {"attention_config", "optimizer.type"}


def test_neox_flow_style_yaml_with_comments_is_yaml_though_it_begins_like_json() -> None:
    text = """{
  # a comment
  "num-layers": 24, "hidden-size": 4096, "num-attention-heads": 32, "seq-length": 2048,
  "optimizer": {"type": "Adam", "params": {"lr": 0.97e-4, }},
  "zero_optimization": {"stage": 1}, "fp16": {"enabled": true}, "checkpoint-activations": true,
  "train_micro_batch_size_per_gpu": 4, "pipe-parallel-size": 0,
}
"""
    reading = read_text(text, where="20B.yml")
    assert reading.format == "gpt_neox"
    assert reading.model == read_config(NEOX, config_format="gpt_neox").model
    expected = {"s": 2048, "b": 4, "zero": 1, "dtype": "fp16", "checkpointing": "full"}
    assert reading.workload == expected
    with pytest.raises(InputError, match="expected JSON"):
        read_text(text, where="20B.json")


@pytest.mark.parametrize(
    ("more", "padded"),
    [({"tokenizer_type": "HFTokenizer", "vocab-file": "data/20B_tokenizer.json"}, 50304),
     ({"tokenizer_type": "SPMTokenizer"}, 32000), ({}, 50304)],
)  # fmt: skip
def test_neox_without_a_vocabulary_takes_the_named_tokenizers(more: dict[str, Any], padded: int) -> None:
    reading = neox(**more)
    assert reading.model.vocab == padded
    assert "no vocab_size" in reading.notes[0]
