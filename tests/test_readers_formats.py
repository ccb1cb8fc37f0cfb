"""Formats next to Hugging Face's: detected by their own keys, with their own defaults and traps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shapes.errors import InputError
from shapes.model.resize import dimensions
from shapes.model.stages import trained_parameters
from shapes.workload import Workload
from sizer.checking import check
from sizer.readers import READERS, NoModel, Source, read_config
from sizer.readers.loading import expand, states_a_model
from sizer.subject import read_subject
from tests.texts import read_text

MEGATRON = {"vocab-size": 50257, "num-layers": 24, "hidden-size": 4096, "num-attention-heads": 32, "seq-length": 2048}
NEOX = {"num-layers": 24, "hidden-size": 4096, "num-attention-heads": 32, "seq-length": 2048}
META = {"dim": 4096, "n_layers": 32, "n_heads": 32, "multiple_of": 256, "vocab_size": -1}
NANOGPT = "n_layer = 12\nn_head = 12\nn_embd = 768\nblock_size = 1024\nvocab_size = 50304\n"

#: Format -> the smallest file of it that states a model.
SMALLEST: dict[str, tuple[str, str]] = {
    # As their headers' bytes are read (tests/test_weights_files.py).
    "gguf": (
        "m.json",
        '{"gguf": "llama", "block_count": 2, "embedding_length": 64, "attention_head_count": 4, '
        '"feed_forward_length": 96, "_token_embd_weight_rows": 320}',
    ),
    "safetensors": (
        "m.json",
        '{"safetensors": 12, "_layers": 2, "_embed_tokens_weight_rows": 320, "_embed_tokens_weight_columns": 64, '
        '"_layers_mlp_gate_proj_weight_rows": 96, "head_dim": 16, "_layers_self_attn_q_proj_weight_rows": 64, '
        '"_layers_self_attn_k_proj_weight_rows": 64}',
    ),
    "torchtitan": ("t.toml", '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8192\n'),
    "huggingface": ("config.json", '{"model_type": "llama"}'),
    "meta": ("params.json", json.dumps(META)),
    "litgpt_training": ("p.yaml", "model_name: tiny-llama-1.1b\ntrain: {micro_batch_size: 12}\n"),
    "litgpt": ("model_config.yaml", "{n_embd: 768, n_layer: 12, n_head: 12, padded_vocab_size: 50304}"),
    "nanogpt": ("train.py", NANOGPT),
    "nemo": (
        "n.yaml",
        "name: megatron_gpt\ntrainer: {devices: 1}\nmodel: {num_layers: 4, hidden_size: 256, num_attention_heads: 4, "
        "encoder_seq_length: 512, max_position_embeddings: 512, vocab_size: 512}\n",
    ),
    "gpt_neox": ("neox.yaml", json.dumps(NEOX | {"pipe-parallel-size": 1, "tokenizer-type": "GPT2BPETokenizer"})),
    "megatron": ("args.yaml", json.dumps(MEGATRON)),
    "diffusers": (
        "config.json",
        '{"_class_name": "FluxTransformer2DModel", "num_attention_heads": 2, "attention_head_dim": 16, '
        '"num_layers": 1, "in_channels": 4, "patch_size": 1, "num_single_layers": 1, "pooled_projection_dim": 8, '
        '"joint_attention_dim": 8}',
    ),
    "maxtext": ("base.yml", "{base_emb_dim: 2048, base_num_decoder_layers: 16}"),
    "olmo": (
        "o.yaml",
        "model: {d_model: 128, n_heads: 4, n_layers: 2, layer_norm_type: rms, weight_tying: false, rope: true, "
        "include_bias: false}",
    ),
    "levanter": ("l.yaml", "{model: {type: gpt2, hidden_dim: 128, num_heads: 4, vocab_size: 1000}}"),
    "open_lm": ("m.json", '{"hidden_dim": 128, "n_layers": 2, "n_heads": 4, "seq_len": 64, "vocab_size": 1000}'),
    "bert_config": (
        "bert_config.json",
        '{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128, '
        '"vocab_size": 320, "type_vocab_size": 2, "max_position_embeddings": 128}',
    ),
    "mlx_pretrain": (
        "m.yaml",
        "model: {architecture: llama, vocab_size: 320, attention: {num_heads: 2},\n  dimensions: {hidden_size: 64, "
        "intermediate_size: 96, num_layers: 2}}\n",
    ),
    "mindformers": (
        "m.yaml",
        "{runner_config: {batch_size: 1}, model: {model_config: {type: LlamaConfig, hidden_size: 64, num_layers: 2, "
        "num_heads: 4, vocab_size: 320}}}",
    ),
    "torchtune_model": (
        "t.yaml",
        "model: {_component_: torchtune.models.llama3_2.llama3_2, vocab_size: 320, num_layers: 2, num_heads: 4, "
        "num_kv_heads: 2, embed_dim: 64, intermediate_dim: 96}\n",
    ),
    "lingua": ("l.yaml", "{model: {dim: 128, n_layers: 2, n_heads: 4, vocab_size: 1000}, data: {seq_len: 64}}"),
    "nanotron": (
        "n.yaml",
        "{model: {model_config: {is_llama_config: true, hidden_size: 128, intermediate_size: 256, "
        "num_attention_heads: 4, num_hidden_layers: 2, vocab_size: 1000}}}",
    ),
    "nanotron_model": (
        "model_config.json",
        '{"is_llama_config": true, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, '
        '"num_hidden_layers": 2, "vocab_size": 1000}',
    ),
    "internevo": (
        "i.py",
        "N = 4\nmodel = dict(num_attention_heads=N, hidden_size=128, num_layers=2, mlp_ratio=8 / 3, vocab_size=1000)\n"
        "data = dict(seq_len=64)\n",
    ),
    "llm_foundry": (
        "l.yaml",
        "{variables: {s: 64}, model: {name: mpt_causal_lm, d_model: 128, n_heads: 4, n_layers: 2, max_seq_len: "
        "'${variables.s}', vocab_size: 1000}}",
    ),
    "fla": ("config.json", '{"model_type": "transformer", "hidden_size": 128, "num_heads": 4}'),
    "deepseek": (
        "config_1B.json",
        '{"dim": 64, "inter_dim": 96, "moe_inter_dim": 32, "n_layers": 2, "n_dense_layers": 1, "n_heads": 2, '
        '"n_routed_experts": 4, "n_shared_experts": 1, "n_activated_experts": 2, "kv_lora_rank": 16, "vocab_size": 99, '
        '"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}',
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_a_format_is_detected_from_its_smallest_file(name: str) -> None:
    where, text = SMALLEST[name]
    reading = read_text(text, where=where)
    assert reading.format == name
    assert reading.model.layers > 0
    # Headers of weights are no text that anybody commits.
    assert states_a_model(where, text.encode()) is (name not in ("gguf", "safetensors"))


#: Real files' sizes, as the releases that they are of have them.
RELEASED: dict[str, tuple[str, dict[str, Any], int]] = {
    "mpt-125m.yaml": (
        "llm_foundry",
        # MPTForCausalLM's: (50368 + 2048) x 768 + 12 x (12 x 768^2 + 13 x 768) + 2 x 768
        {"model": {"d_model": 768, "n_heads": 12, "n_layers": 12, "expansion_ratio": 4, "max_seq_len": 2048}},
        125_311_488,
    ),
    "OLMoE-1B-7B-0924.yml": (
        "olmo",
        {
            "model": {
                "d_model": 2048,
                "n_heads": 16,
                "n_layers": 16,
                "mlp_ratio": 1,
                "weight_tying": False,
                "rope": True,
                "include_bias": False,
                "block_type": "moe",
                "layer_norm_type": "rms",
                "attention_layer_norm": True,
                "embedding_size": 50304,
                "moe_top_k": 8,
                "moe_num_experts": 64,
            }
        },
        6_919_161_856,
    ),
    "OLMo2-7B-stage1.yaml": (
        "olmo",
        {
            "model": {
                "d_model": 4096,
                "n_heads": 32,
                "n_layers": 32,
                "mlp_hidden_size": 22016,
                "weight_tying": False,
                "rope": True,
                "include_bias": False,
                "layer_norm_type": "rms",
                "attention_layer_norm": True,
                "norm_after": True,
                "vocab_size": 100278,
                "embedding_size": 100352,
            }
        },
        7_298_617_344,
    ),
    "gemma2-9b.yml": (
        "maxtext",
        {
            "base_emb_dim": 3584,
            "base_num_query_heads": 16,
            "base_num_kv_heads": 8,
            "base_mlp_dim": 14336,
            "base_num_decoder_layers": 21,
            "head_dim": 256,
            "vocab_size": 256000,
            "decoder_block": "gemma2",
            "logits_via_embedding": True,
            "use_post_attn_norm": True,
            "mlp_activations": ["gelu", "linear"],
        },
        9_241_705_984,
    ),
    "deepseek2-16b.yml": (
        "maxtext",
        {
            "base_emb_dim": 2048,
            "base_num_query_heads": 16,
            "base_num_kv_heads": 16,
            "base_mlp_dim": 10944,
            "base_moe_mlp_dim": 1408,
            "base_num_decoder_layers": 27,
            "first_num_dense_layers": 1,
            "vocab_size": 102400,
            "num_experts": 64,
            "num_experts_per_tok": 6,
            "shared_experts": 2,
            "decoder_block": "deepseek",
            "attention_type": "mla",
            "q_lora_rank": 0,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        },
        15_706_484_224,
    ),
    "mistral-large-3/params.json": (
        "meta",
        {
            "dim": 7168,
            "n_layers": 61,
            "hidden_dim": 16384,
            "n_heads": 128,
            "head_dim": 128,
            "norm_eps": 1e-6,
            "vocab_size": 131072,
            "tied_embeddings": False,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "moe": {
                "num_experts": 128,
                "num_experts_per_tok": 4,
                "num_shared_experts": 1,
                "expert_hidden_dim": 4096,
                "first_k_dense_replace": 3,
                "route_every_n": 1,
            },
        },
        673_421_089_792,
    ),
    "llama2_7b.json": (
        "open_lm",
        {"hidden_dim": 4096, "n_layers": 32, "n_heads": 32, "seq_len": 4096, "vocab_size": 32000},
        6_738_415_616,
    ),
}


@pytest.mark.parametrize("file", RELEASED)
def test_a_layout_counts_what_the_release_has(file: str) -> None:
    name, config, parameters = RELEASED[file]
    reading = read_config(config)
    assert (reading.format, reading.model.parameters) == (name, parameters)


#: DeepSeek's inference/configs of the releases: V2-Lite, and what the others have otherwise.
DEEPSEEK = {
    **{"vocab_size": 102400, "dim": 2048, "inter_dim": 10944, "moe_inter_dim": 1408, "n_layers": 27, "n_heads": 16},
    **{"n_dense_layers": 1, "n_routed_experts": 64, "n_shared_experts": 2, "n_activated_experts": 6, "q_lora_rank": 0},
    **{"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "mscale": 0.707},
}
DEEPSEEK_V3 = {
    **{**DEEPSEEK, "vocab_size": 129280, "dim": 7168, "inter_dim": 18432, "moe_inter_dim": 2048, "n_layers": 61},
    **{"n_heads": 128, "n_dense_layers": 3, "n_routed_experts": 256, "n_shared_experts": 1, "n_activated_experts": 8},
    **{"n_expert_groups": 8, "n_limited_groups": 4, "score_func": "sigmoid", "q_lora_rank": 1536},
}


@pytest.mark.parametrize(
    ("config", "release"),
    [
        (DEEPSEEK, "DeepSeek-V2-Lite"),
        (DEEPSEEK_V3, "DeepSeek-V3"),
        (DEEPSEEK_V3 | {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}, "DeepSeek-V3.2-Exp"),
    ],
)
def test_deepseeks_own_configurations_are_the_releases(config: dict[str, Any], release: str) -> None:
    named, own = read_config(f"deepseek-ai/{release}").model, read_config({**config, "dtype": "fp8"})
    assert (own.model.parameters, own.model.model_type) == (named.parameters, named.model_type)
    assert [one.key for one in own.unread] == ["dtype"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**DEEPSEEK, "score_func": "softmax"}, "score_func = 'softmax': has no formula here: expected sigmoid"),
        (
            {"base_emb_dim": 64, "decoder_block": "llama4"},
            r"decoder_block = 'llama4': has no formula here: expected one",
        ),
        ({"base_emb_dim": 64, "num_experts": 8}, "num_experts = 8: has no formula here: expected 1"),
        ({"base_emb_dim": 64, "base_num_query_heads": "x"}, "base_num_query_heads = 'x': expected an integer"),
        ({"base_emb_dim": 64, "student_overrides": {"model_name": "x"}}, "changes the model that is trained"),
        ({**MEGATRON, "num_joint_layers": 19}, "num_joint_layers = 19: changes the layers"),
        ({"model": {"dim": 64, "n_layers": 2, "n_heads": 2}, "data": {}}, r"model\.vocab_size: .*--set"),
        ({"model": {"type": "gpt2", "hidden_dim": 64}, "data": {"tokenizer": "acme/x"}}, r"model\.vocab_size: .*--set"),
        (
            {"dim": 64, "n_layers": 2, "n_heads": 2, "vocab_size": 8, "norm_eps": 1, "q_lora_rank": 4},
            "latent attention",
        ),
        ({"model": {"model_config": {"is_llama_config": False}}}, "expected one of is_llama_config"),
        # MindFormers' section of this name is no nanotron's.
        ({"model": {"model_config": {"type": "LlamaConfig", "num_layers": 2}}}, "known formats"),
    ],
)
def test_a_layout_refuses_what_it_has_no_formula_for_under_the_files_names(config: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_config(config)


def test_a_layouts_keys_are_the_files_and_an_unknown_one_is_named() -> None:
    reading = read_config({"base_emb_dim": 2048, "base_num_decoder_layers": 4, "base_mpl_dim": 12})
    assert reading.keys["hidden"] == "base_emb_dim"
    assert [one.key for one in reading.unread] == ["base_mpl_dim"]
    assert read_config(Source({"base_emb_dim": 2048}, {"base_mlp_dim": 512})).model.dense_mlp is not None


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


@pytest.mark.parametrize(
    ("more", "dtype", "precision"),
    [
        ({"fp16": {"enabled": True}}, "fp16", "mixed-16"),
        ({"precision": "bfloat16"}, "bf16", "mixed-16"),
        ({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}, "bf16", None),
        ({"precision": "fp32"}, "fp32", None),
        ({}, None, None),
    ],
)
def test_neox_gradients_are_of_deepspeeds_type(more: dict[str, Any], dtype: str | None, precision: str | None) -> None:
    # DeepSpeedEngine.get_data_types: gradients are of the model's type unless data_types.grad_accum_dtype says another.
    found = neox(**more).workload
    assert (found.get("dtype"), found.get("precision")) == (dtype, precision)


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


def test_neox_sparse_attention_is_named_and_its_optimizer_read_where_its_states_are_known() -> None:
    reading = neox(attention_config=[[["global", "local"], "all"]], optimizer={"type": "Lion", "params": {"lr": 1e-4}})
    assert {one.key for one in reading.unread} == {"attention_config"}
    assert reading.workload["optimizer"] == "lion"
    other = neox(optimizer={"type": "OneBitAdam", "params": {"lr": 1e-4}})
    assert {one.key for one in other.unread} == {"optimizer.type"}
    assert "optimizer" not in other.workload


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
    expected = {"s": 2048, "b": 4, "zero": 1, "dtype": "fp16", "checkpointing": "full", "no_overlap": "data"}
    assert reading.workload == expected | {"precision": "mixed-16"}
    with pytest.raises(InputError, match="expected JSON"):
        read_text(text, where="20B.json")


@pytest.mark.parametrize(
    ("more", "padded"),
    [
        ({"tokenizer_type": "HFTokenizer", "vocab-file": "data/20B_tokenizer.json"}, 50304),
        ({"tokenizer_type": "SPMTokenizer"}, 32000),
        ({}, 50304),
    ],
)
def test_neox_without_a_vocabulary_takes_the_named_tokenizers(more: dict[str, Any], padded: int) -> None:
    reading = neox(**more)
    assert reading.model.vocab == padded
    assert "no vocab_size" in reading.notes[0]


MISTRAL = {
    "dim": 4096,
    "n_layers": 32,
    "head_dim": 128,
    "hidden_dim": 14336,
    "n_heads": 32,
    "n_kv_heads": 8,
    "vocab_size": 32000,
}


def test_mistrals_experts_and_tied_embeddings_are_read() -> None:
    dense = read_config(MISTRAL).model
    sparse = read_config({**MISTRAL, "moe": {"num_experts": 8, "num_experts_per_tok": 2}}).model
    assert sparse.parameters == 46_702_792_704  # Mixtral 8x7B, as its class counts
    assert dense.parameters - read_config({**MISTRAL, "tied_embeddings": True}).model.parameters == 32000 * 4096


def test_llama_4s_parameters_are_those_of_its_class_in_transformers() -> None:
    scout = {
        "dim": 5120,
        "ffn_dim_multiplier": 1.2,
        "multiple_of": 2048,
        "n_heads": 40,
        "n_kv_heads": 8,
        "n_layers": 48,
        "vocab_size": 202048,
        "attention_chunk_size": 8192,
        "nope_layer_interval": 4,
        "use_qk_norm": True,
        "moe_args": {"auto_scale_F": True, "capacity_factor": 1.0, "interleave_moe_layer_step": 1, "num_experts": 16},
    }
    theirs = {
        "model_type": "llama4_text",
        "hidden_size": 5120,
        "num_hidden_layers": 48,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "vocab_size": 202048,
    }
    assert read_config(scout).model.parameters == read_config(theirs).model.parameters
    maverick = {**scout, "moe_args": {**scout["moe_args"], "num_experts": 128, "interleave_moe_layer_step": 2}}
    halved = {**theirs, "num_local_experts": 128, "interleave_moe_layer_step": 2}
    assert read_config(maverick).model.parameters == read_config(halved).model.parameters


def test_llama_3_2_is_tied_though_its_file_does_not_say_so() -> None:
    reading = read_config(
        {
            "dim": 2048,
            "n_layers": 16,
            "n_heads": 32,
            "n_kv_heads": 8,
            "vocab_size": 128256,
            "ffn_dim_multiplier": 1.5,
            "multiple_of": 256,
        }
    )
    assert reading.model.parameters == 1_235_814_400
    assert any("tied" in note for note in reading.notes)


def test_litgpts_norms_without_weights_over_all_heads_or_left_out() -> None:
    base = {
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "padded_vocab_size": 128,
        "intermediate_size": 256,
        "mlp_class_name": "LLaMAMLP",
        "bias": False,
        "rotary_percentage": 1.0,
    }
    plain = read_config(base).model.parameters
    assert plain - read_config({**base, "name": "OLMo-1B"}).model.parameters == 2 * 64 * (2 * 2 + 1)
    assert plain - read_config({**base, "norm_1": False}).model.parameters == 2 * 64 * 2
    rms = {**base, "norm_class_name": "RMSNorm", "norm_qk": True}
    heads = read_config({**rms, "norm_qk_type": "olmo2"}).model.parameters - read_config(rms).model.parameters
    assert heads == 2 * (2 * 64 - 2 * 16)  # every head's channels in place of one head's, for q and for k


def test_a_nanogpt_configuration_is_laid_over_train_pys_defaults() -> None:
    text = "dataset = 'shakespeare_char'\nbatch_size = 64\nblock_size = 256\nn_layer = 6\nn_head = 6\nn_embd = 384\n"
    reading = read_text(text + "gradient_accumulation_steps = 2\nmax_iters = 5000\n", where="train_char.py")
    h = 384
    # 65 characters, 256 positions, no biases: 6 x (12h^2 + 2h) + h
    assert reading.model.parameters == (65 + 256) * h + 6 * (12 * h * h + 2 * h) + h
    assert reading.workload == {"b": 64, "global_batch": 128, "compiled": True}
    assert not reading.unread
    pretrained = read_text("init_from = 'gpt2-xl'\nbatch_size = 8\neval_only = True\n", where="eval.py")
    assert pretrained.model.parameters == 1_557_611_200


@pytest.mark.parametrize(
    ("said", "dp", "stack"),
    [
        ("", 8, "ddp-compile"),  # train.py: compile = True; torchrun wraps the model in DistributedDataParallel
        ("compile = False\n", 8, "pytorch-ddp"),
        ("", 1, "ddp-compile"),
        ("compile = False\n", 1, "transformers-eager"),
    ],
)
def test_nanogpt_is_priced_as_its_own_program(tmp_path: Path, said: str, dp: int, stack: str) -> None:
    file = tmp_path / "train_gpt2.py"
    whole = f"wandb_log = True\nwandb_run_name = 'gpt2'\nbatch_size = 12\nblock_size = 1024\neval_iters = 200\n{said}"
    file.write_text(whole, encoding="utf-8")
    assert read_subject(file, d=dp).stack.name == stack


def test_nemos_yaml_is_a_format_of_its_own() -> None:
    text = """
name: megatron_gpt
trainer: {devices: 8, num_nodes: 2, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 32
  tensor_model_parallel_size: 2
  encoder_seq_length: 4096
  max_position_embeddings: 4096
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 11008
  num_attention_heads: 32
  activation: fast-swiglu
  normalization: rmsnorm
  bias: false
  share_embeddings_and_output_weights: false
  position_embedding_type: rope
  make_vocab_size_divisible_by: 128
  num_shards: 3
  activations_checkpoint_granularity: selective
  activations_checkpoint_num_layers: 2
  tokenizer: {library: huggingface, type: meta-llama/Llama-2-7b-hf, model: null}
  optim: {name: distributed_fused_adam, lr: 1e-4}
"""
    reading = read_text(text, where="megatron_llama.yaml")
    assert reading.format == "nemo"
    assert reading.model.parameters == 6_738_415_616  # Llama 2 7B: 32,000 tokens are a multiple of 256
    expected = {"t": 2, "b": 1, "s": 4096, "d": 8, "zero": 1, "dtype": "bf16", "checkpointing": "selective"}
    assert {key: reading.workload[key] for key in expected} == expected
    said = {one.key: one for one in reading.unread}
    assert said.keys() == {"model.num_shards", "model.activations_checkpoint_num_layers"}
    with pytest.raises(InputError, match="num_layer = 3: is not known here and may change the model"):
        read_text(text.replace("num_shards", "num_layer"), where="x.yaml")
    assert read_text(text, where="x.yaml", settings={"model.num_layers": 2}).model.layers == 2


TITAN = """
[model]
name = "llama3"
flavor = "8B"
[optimizer]
name = "AdamW"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
[activation_checkpoint]
mode = "full"
[job]
description = "x"
"""


def test_torchtitans_toml_names_a_model_and_says_how_it_is_trained() -> None:
    reading = read_text(TITAN, where="llama3_8b.toml")
    assert (reading.format, reading.model.parameters) == ("torchtitan", 8_030_261_248)
    # Its ranks of t share the norms too (models/llama3/infra/parallelize.py: SequenceParallel), unless told not to.
    shared = {"b": 1, "s": 8192, "t": 8, "zero": 3, "checkpointing": "full", "reduces": "fp32"}
    assert reading.workload == shared | {"sequence_parallel": True}
    apart = TITAN.replace("[parallelism]", "[parallelism]\nenable_sequence_parallel = false")
    assert read_text(apart, where="llama3_8b.toml").workload == shared
    # training.dtype: weights, gradients and states alike.
    bf16 = TITAN.replace("[training]", '[training]\ndtype = "bfloat16"')
    assert read_text(bf16, where="llama3_8b.toml").workload["precision"] == "bf16"
    assert [one.key for one in reading.unread] == ["parallelism.enable_async_tensor_parallel"]
    # A section of keys that change nothing has some that are read, which may be misspelt.
    typed = read_text(TITAN.replace("tensor_parallel_degree", "tensor_paralel_degree"), where="llama3_8b.toml")
    assert typed.unread[0].meant == "parallelism.tensor_parallel_degree"
    with pytest.raises(InputError, match="8B, 70B"):
        read_text(TITAN.replace('"8B"', '"9B"'), where="llama3_8b.toml")
    with pytest.raises(InputError, match="expected TOML"):
        read_text("[model", where="x.toml")


RECIPE = """
checkpoint_dir: checkpoints/meta-llama/Llama-2-7b-hf
precision: bf16-true
quantize: bnb.nf4
devices: 4
num_nodes: 2
lora_r: 32
lora_alpha: 16
lora_query: true
lora_key: false
lora_value: true
lora_head: true
train:
  global_batch_size: 64
  micro_batch_size: 2
  max_seq_length: 512
optimizer:
  class_path: torch.optim.AdamW
"""


def test_litgpts_recipe_names_a_model_its_adapters_and_its_layout() -> None:
    reading = read_text(RECIPE, where="qlora.yaml")
    assert (reading.format, reading.model.parameters) == ("litgpt_training", 6_738_415_616)
    assert reading.workload == {
        "b": 2,
        "global_batch": 64,
        "s": 512,
        "gpus": 8,
        "zero": 3,
        "dtype": "bf16",
        "finetune": "qlora",
        "base": "nf4",
        "lora_rank": 32,
        "lora_dropout": 0.05,  # of litgpt finetune lora, unless told
        "lora_targets": "q_proj,v_proj",
        "checkpointing": "full",
    }
    assert [one.key for one in reading.unread] == ["lora_head"]
    mixed = RECIPE.replace("bf16-true", "bf16-mixed").replace("quantize: bnb.nf4\n", "")
    # Its weights stay so, with casts for products.
    assert read_text(mixed, where="lora.yaml").workload["base"] == "fp32"
    # queries and values of 4096, 32 layers: A and B of rank 32 each
    assert trained_parameters(reading.model, Workload(finetune="qlora", lora_rank=32)) == 32 * 2 * 2 * 4096 * 32


def test_litgpts_recipe_of_pretraining_states_a_model_or_its_settings() -> None:
    plain = "precision: bf16-mixed\ntrain: {micro_batch_size: 12}\n"
    named = read_text(f"model_name: tiny-llama-1.1b\n{plain}", where="p.yaml")
    assert (named.model.parameters, named.workload["precision"]) == (1_100_048_384, "amp")
    own = "model_config: {n_layer: 2, n_head: 4, n_embd: 64, vocab_size: 512, norm_class_name: RMSNorm}\n"
    assert read_text(own + plain, where="p.yaml").model.layers == 2
    with pytest.raises(InputError, match="did you mean tiny-llama"):
        read_text(f"model_name: tiny-llama-1.2b\n{plain}", where="p.yaml")
    assert "finetune" not in named.workload


NEMO = (
    "name: {name}\ntrainer: {{devices: 1, num_nodes: 1}}\nmodel:\n  num_layers: 4\n  hidden_size: 256\n"
    "  num_attention_heads: 4\n  encoder_seq_length: 512\n"
    "  max_position_embeddings: ${{.encoder_seq_length}}\n"
)


def test_nemos_references_are_followed_and_its_mamba_is_read() -> None:
    reading = read_text(NEMO.format(name="megatron_gpt") + "  vocab_size: 512\n", where="n.yaml")
    assert (reading.model.max_positions, reading.longest) == (512, 512)
    mamba = read_text(NEMO.format(name="mamba") + "  vocab_size: 512\n  mamba_ssm_ngroups: 2\n", where="n.yaml").model
    assert [(block.count, block.mixer and block.mixer.groups) for block in mamba.main.blocks] == [(4, 2)]
    with pytest.raises(InputError, match="gated linear recurrences"):
        read_text(NEMO.format(name="megatron_griffin") + "  vocab_size: 512\n", where="n.yaml")
    with pytest.raises(InputError, match=r"--set model\.vocab_size=N"):
        read_text(NEMO.format(name="megatron_gpt") + "  tokenizer: {library: x, model: '???'}\n", where="n.yaml")


def test_nemos_product_is_worked_out_and_a_key_of_recurrences_alone_is_refused() -> None:
    text = NEMO.format(name="megatron_gpt") + "  vocab_size: 512\n"
    found: Any = read_text(text + "  ffn_hidden_size: '${multiply:3, ${.hidden_size}}'\n", where="n.yaml").model
    assert found.main.blocks[0].mlp.width == 3 * found.hidden
    with pytest.raises(InputError, match="recurrences"):
        read_text(text + "  activations_checkpoint_recurrent: false\n", where="n.yaml")


def test_a_model_of_another_program_with_nanogpts_sizes_is_not_nanogpts() -> None:
    with pytest.raises(NoModel):
        read_config({"_name": "llama2", "n_layer": 11, "n_head": 6, "n_embd": 768, "mlp_type": "relu2"})


ROOT = Path(__file__).parents[1]


def test_what_lies_in_this_repository_is_read_or_is_no_model_configuration() -> None:
    """`sizer check .` fails over no table of ours: of many models, or of readers' own words."""
    ours = [one for folder in ("sizer", "shapes", "tests/tools") for one in expand(str(ROOT / folder))]
    assert {"hf_defaults.json", "layouts.json", "released_written.json"} <= {Path(one).name for one in ours}
    for path in ours:
        with pytest.raises(NoModel):
            read_config(path)


def test_a_table_of_models_is_none_and_a_model_in_sections_is_one() -> None:
    small = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512, "seq_length": 128}
    with pytest.raises(NoModel, match="expected one model, found several: hidden_size 64, 128"):
        read_config({"small": small, "large": {**small, "hidden_size": 128}})
    assert read_config({"encoder": {"hidden_size": 64}, "decoder": small}).model.hidden == 64
    assert read_config({"MODEL_ARGS": small, "MODEL_ARGS_2": {**small, "hidden_size": 128}}).model.hidden == 64


def test_accelerates_mesh_is_read_and_an_empty_section_is_nothing(tmp_path: Path) -> None:
    mesh = {
        "parallelism_config_tp_size": 2,
        "parallelism_config_dp_replicate_size": 2,
        "parallelism_config_dp_shard_size": 2,
        "parallelism_config_cp_size": 1,
    }
    file = tmp_path / "accelerate.yaml"
    file.write_text(
        json.dumps({"distributed_type": "NO", "fsdp_config": {}, "num_processes": 8, "parallelism_config": mesh})
    )
    reading = read_config(Source({"model_type": "gpt2"}, training=(str(file),)))
    assert reading.workload == {"gpus": 8, "t": 2, "replicas": 2, "d": 4}


@pytest.mark.parametrize(
    ("fsdp", "zero"),
    [
        ({"fsdp_sharding_strategy": "FULL_SHARD"}, 3),
        ({"fsdp_sharding_strategy": "SHARD_GRAD_OP"}, 2),
        ({"fsdp_sharding_strategy": "NO_SHARD"}, 0),
        ({"fsdp_sharding_strategy": "HYBRID_SHARD"}, 3),
        ({"fsdp_sharding_strategy": 1}, 3),
        ({"fsdp_sharding_strategy": 2}, 2),
        ({"fsdp_sharding_strategy": 3}, 0),
        ({"fsdp_sharding_strategy": 4}, 3),
        ({"fsdp_version": 2, "fsdp_reshard_after_forward": True}, 3),
        ({"fsdp_version": 2, "fsdp_reshard_after_forward": False}, 2),
        ({"fsdp_version": 1}, 3),
    ],
)
def test_accelerates_fsdp_strategy_says_what_is_sharded(tmp_path: Path, fsdp: dict[str, Any], zero: int) -> None:
    """Gradients and optimizer states alone (SHARD_GRAD_OP, or no resharding after the forward) are ZeRO 2."""
    file = tmp_path / "accelerate.yaml"
    file.write_text(json.dumps({"distributed_type": "FSDP", "num_processes": 8, "fsdp_config": fsdp}))
    assert read_config(Source({"model_type": "gpt2"}, training=(str(file),))).workload.get("zero", 0) == zero


def test_accelerates_unknown_strategy_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "accelerate.yaml"
    file.write_text(json.dumps({"distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": "FULL"}}))
    with pytest.raises(InputError, match=r"sharding_strategy = 'FULL': .*expected .*SHARD_GRAD_OP"):
        read_config(Source({"model_type": "gpt2"}, training=(str(file),)))


@pytest.mark.parametrize(("fsdp", "zero"), [("full_shard auto_wrap", 3), ("hybrid_shard", 3), ("shard_grad_op", 2)])
def test_the_trainers_fsdp_words_say_what_is_sharded(tmp_path: Path, fsdp: str, zero: int) -> None:
    file = tmp_path / "args.json"
    file.write_text(json.dumps({"per_device_train_batch_size": 1, "fsdp": fsdp}))
    assert read_config(Source({"model_type": "gpt2"}, training=(str(file),))).workload["zero"] == zero


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        ({"stage": 2}, "data"),
        ({"stage": 2, "overlap_comm": True}, "none"),
        ({"stage": 3}, "none"),
        ({"stage": 3, "overlap_comm": False}, "data"),
        ({"stage": "auto"}, "data"),
    ],
)
def test_deepspeed_overlaps_the_reduction_with_stage_3_or_where_told(
    zero: dict[str, object], expected: str, tmp_path: Path
) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": zero}))
    assert (
        read_config(Source({"model_type": "gpt2"}, training=(str(file),))).workload.get("no_overlap", "none")
        == expected
    )
    megatron = {
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 512,
        "max_position_embeddings": 64,
    }
    both = read_config(Source(megatron, training=(str(file),))).workload["no_overlap"]
    assert both == ",".join(["tensor-forward", *(["data"] if expected == "data" else [])])


def test_saved_training_arguments_are_told_from_accelerates_settings_and_give_adapters(tmp_path: Path) -> None:
    file = tmp_path / "training_args.json"
    saved = {
        "per_device_train_batch_size": 2,
        "fsdp": "",
        "fsdp_config": {"min_num_params": 0, "xla": False},
        "optim": "paged_adamw_32bit",
        "max_seq_length": 1024,
        "lora_rank": 64,
        "train_mode": "qlora",
        "lora_target_modules": ["q_proj", "v_proj"],
    }
    file.write_text(json.dumps(saved))
    reading = read_config(Source({"model_type": "gpt2"}, training=(str(file),)))
    assert reading.workload == {
        "b": 2,
        "s": 1024,
        "finetune": "qlora",
        "lora_rank": 64,
        "lora_targets": "q_proj,v_proj",
        "optimizer": "adamw-fp32",
    }
    assert reading.unread == ()
    file.write_text(json.dumps({**saved, "train_mode": "full"}))
    assert "finetune" not in read_config(Source({"model_type": "gpt2"}, training=(str(file),))).workload


def test_a_llama_factory_recipe_says_how_a_named_model_is_tuned(tmp_path: Path) -> None:
    """Its base is quantised without peft's preparation, and it recomputes layers unless told otherwise."""
    file = tmp_path / "lora_sft.yaml"
    recipe = {
        "finetuning_type": "lora",
        "quantization_bit": 4,
        "lora_target": "all",
        "cutoff_len": 2048,
        "per_device_train_batch_size": 1,
        "bf16": True,
    }
    file.write_text(json.dumps(recipe))
    workload = read_config(Source({"model_type": "gpt2"}, training=(str(file),))).workload
    assert workload == {
        "b": 1,
        "s": 2048,
        "dtype": "bf16",
        "finetune": "qlora",
        "base": "nf4-16",
        "lora_rank": 8,
        "lora_targets": "all-linear",
        "checkpointing": "full",
    }
    file.write_text(json.dumps({**recipe, "finetuning_type": "full", "disable_gradient_checkpointing": True}))
    whole = read_config(Source({"model_type": "gpt2"}, training=(str(file),))).workload
    assert not {"finetune", "checkpointing"} & set(whole)


def test_layers_that_attend_to_a_vision_encoder_are_refused_in_params_json() -> None:
    llama = {"dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 256, "norm_eps": 1e-5}
    llama["vision_num_cross_attention_layers"] = -1
    assert read_config(llama).format == "meta"
    with pytest.raises(InputError, match=r"vision_num_cross_attention_layers = 8: has no formula here"):
        read_config({**llama, "vision_num_cross_attention_layers": 8})


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (
            {"base_model": "a/b", "micro_batch_size": 2},
            r"names a model \(base_model = 'a/b'\).*give that model's config",
        ),
        (
            {
                "model": {"_component_": "torchtune.models.x"},
                "dataset": {"_component_": "d"},
                "batch_size": 2,
                "seed": 1,
                "gradient_accumulation_steps": 1,
            },
            "_component_ = 'torchtune.models.x'",
        ),
        ({"model": {"name": "mpt_causal_lm", "d_model": 64}}, "known formats"),
        ({"seed": 1}, "known formats"),
    ],
)
def test_a_recipe_that_leaves_the_sizes_to_another_file_says_what_to_give(recipe: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_config(recipe)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{model: my/8b, dataset: mine, batch_size: 4, learning_rate: 1e-4}", "no model of this name is known"),
        ("{dim: 1152, n_layers: 28, n_heads: 16, patch_size: 2}", "nearest are meta without vocab_size"),
        (
            "{hidden_size: 768, num_layers: 12, num_attention_heads: 12, image_size: 224}",
            "megatron without vocab_size",
        ),
        (
            "{dim: 64, n_layers: 2, n_heads: 4, vocab_size: 9, norm_eps: 1, n_embd: 4, n_head: 2, n_layer: 2, bias: 1}",
            "of nanogpt and of meta",
        ),
        ("{model_type: llama, hidden_size: 64, hidden_size: 128}", "hidden_size: is given twice"),
        (
            "{model_type: llama, auto_map: {}, block_configs: [{attention: {}}]}",
            "changes layers that differ and is not read here",
        ),
    ],
)
def test_nothing_is_guessed(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_text(text, where="train.yaml")


FORK = "{n_embd: 64, n_head: 4, n_layer: 2, vocab_size: 96, bias: true, %s}"


@pytest.mark.parametrize("own", ["n_kv_head: 2", "model: modern", "ffn: {act: swiglu, mlp_ratio: 3}", "norm: rms"])
def test_a_key_that_nobody_knows_and_whose_words_name_a_part_of_a_model_is_refused(own: str) -> None:
    key = own.partition(":")[0]
    with pytest.raises(InputError, match=f"{key}.*is not known here and may change the model; --set {key}"):
        read_text(FORK % own, where="a.yaml")
    assert read_text(FORK % own, where="a.yaml", settings={key: None}).model.layers == 2


@pytest.mark.parametrize(
    "own", ["n_kv_head: null", "use_moe: false", "moe_aux_loss: 0.1", "run: {save_layers_path: x, depth: 0}", "mood: 3"]
)
def test_a_key_that_is_off_or_says_how_a_model_is_run_is_not_refused(own: str) -> None:
    assert read_text(FORK % own, where="a.yaml").model.parameters == 2 * (12 * 64**2 + 13 * 64) + (96 + 1024 + 2) * 64


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # nanogptx: train.py's switch next to a section of sizes that is its own.
        ("{init_from: scratch, model: {n_layer: 4, n_head: 4, n_embd: 128}}", "expected a configuration in one of"),
        # A trainer that borrows the names: nobody says that its layers are GPT-2's.
        ("{n_layer: 12, n_head: 8, n_embd: 512, block_size: 64, learning_rate: 1}", "nearest are nanogpt without bias"),
        (
            "{model_type: gpt2, n_embd: 1024, n_heads: 16}",
            "n_heads = 16: is no key of its class, which reads n_head",
        ),
        ("{model_type: llama, n_layers: 16}", "which reads num_hidden_layers"),
    ],
)
def test_sizes_under_names_of_another_program_are_not_read(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_text(text, where="train.yaml")


def test_a_key_that_changes_the_model_can_be_taken_out_and_a_merged_one_replaced() -> None:
    text = "{model_type: llama, auto_map: {}, block_configs: [{attention: {}}]}"
    assert read_text(text, where="a.yaml", settings={"block_configs": None}).model.layers == 32
    merged = "base: &base {n_embd: 96}\n<<: *base\nmodel_type: gpt2\nn_embd: 192\n"
    assert read_text(merged, where="a.yaml").model.hidden == 192
    with pytest.raises(InputError, match="n_embd: is given twice"):
        read_text('{"model_type": "gpt2", "n_embd": 64, "n_embd": 128}', where="config.json")


def test_a_key_that_only_an_expression_asks_for_is_named_where_it_is_no_number() -> None:
    with pytest.raises(InputError, match="multiple_of = 'x': expected an integer"):
        read_config({**META, "multiple_of": "x"}, config_format="meta")
    sparse = {**META, "moe": {"num_experts": 8, "num_experts_per_tok": 9}}
    with pytest.raises(InputError, match=r"moe\.num_experts_per_tok = 9: expected at most the 8 experts"):
        read_config(sparse, config_format="meta")


JSON5 = """{
  // a model
  model_type: 'llama', /* "hidden_size": 1, */
  "hidden_size": 64, "intermediate_size": 96, num_hidden_layers : 2,
  "num_attention_heads": 4, "vocab_size": 320, "_name_or_path": "s3://a//b, }",
}
"""


def test_json_may_have_comments_last_commas_and_bare_keys() -> None:
    for where, before in (("c.json", ""), ("c.jsonc", "// A comment.\n"), ("c.json5", "/* A comment\n: too */\n")):
        reading = read_text(before + JSON5, where=where)
        assert (reading.model.layers, reading.config["_name_or_path"]) == (2, "s3://a//b, }")
    with pytest.raises(InputError, match="is given twice"):
        read_text(JSON5.replace("num_hidden_layers : 2", "'hidden_size': 2"), where="c.json")
    with pytest.raises(InputError, match=r"expected JSON: Expecting ',' delimiter, line 4"):
        read_text(JSON5.replace(", num_hidden", " num_hidden"), where="c.json")
    # In a YAML file two strokes are no comment.
    with pytest.raises(InputError):
        read_text(JSON5, where="c.yaml")


def test_utf_16_and_whole_floats_are_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(json.dumps({"model_type": "llama", "hidden_size": 4096.0}).encode("utf-16"))
    assert read_config(file).model.hidden == 4096
    with pytest.raises(InputError, match="multiple_of = 0: expected an integer"):
        read_text('{"dim": 64, "n_layers": 2, "n_heads": 4, "multiple_of": 0, "vocab_size": 320}', where="params.json")


def test_a_recipe_may_leave_its_devices_to_the_machine() -> None:
    plain = "model_name: tiny-llama-1.1b\ntrain: {micro_batch_size: 12}\ndevices: auto\nnum_nodes: 2\n"
    assert read_text(plain, where="p.yaml").workload == {"b": 12}


def test_olmos_shared_experts_are_refused() -> None:
    config = RELEASED["OLMoE-1B-7B-0924.yml"][1]
    with pytest.raises(InputError, match="moe_shared_expert"):
        read_config({"model": config["model"] | {"moe_shared_expert": True}})


#: vllm-project/speculators' config.json: the draft's layers in a section.
SPECULATOR = {
    **{"speculators_model_type": "eagle3", "draft_vocab_size": 100, "norm_before_residual": True},
    **{"auto_map": {"": "x.Y"}, "target_hidden_size": None, "speculators_version": "0.1.0"},
    "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "meta-llama/Llama-3.1-8B-Instruct"}},
    "transformer_layer_config": {
        **{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16},
        **{"num_hidden_layers": 1, "num_key_value_heads": 2, "vocab_size": 1000},
    },
}
#: q, k, v of one input, o, gate, up, down; the norms of a layer and the last one.
LAYER = 64 * (4 + 2 * 2) * 16 + 64 * 64 + 3 * 64 * 96
NORMS = 3 * 64


@pytest.mark.parametrize(
    ("kind", "more", "parameters"),
    [  # Eagle3DraftModel: q, k, v read the embedding too, whose norm is one more; three states, a head of its own
        ("Eagle3", {}, LAYER + 64 * (4 + 2 * 2) * 16 + NORMS + 64 + 3 * 64 * 64 + 100 * 64),
        (
            *("Eagle3", {"eagle_aux_hidden_state_layer_ids": [1, 2]}),
            LAYER + 64 * (4 + 2 * 2) * 16 + NORMS + 64 + 2 * 64 * 64 + 100 * 64,
        ),
        # DFlashDraftModel: what a matrix and a norm make of five states
        ("DFlash", {"aux_hidden_state_layer_ids": [1, 2, 3, 4, 5]}, LAYER + NORMS + 64 + 5 * 64 * 64),
    ],
)
def test_speculators_drafts_have_the_parameters_of_their_classes(
    kind: str, more: dict[str, Any], parameters: int
) -> None:
    reading = read_config({**SPECULATOR, **more, "architectures": [f"{kind}Speculator"]})
    assert (reading.model.parameters, reading.model.vocab, reading.unread) == (parameters, 100, ())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"architectures": ["DSparkSpeculator"]}, "dflash_config.markov_rank: expected this key"),
        ({"architectures": ["MTPSpeculator"]}, "expected a draft of Eagle3, PEagle, DFlash, DSpark, Domino, Eagle"),
        ({"architectures": ["Eagle3Speculator"], "norm_before_fc": True}, "changes the norms before a draft's first"),
    ],
)
def test_a_speculator_with_other_parts_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_config({**SPECULATOR, **more})


def test_a_draft_of_another_kind_than_eagles_is_no_model_of_its_layers_type() -> None:
    draft = {"architectures": ["OtherDraftModel"], "model_type": "qwen3", "num_hidden_layers": 5, "hidden_size": 64}
    with pytest.raises(InputError, match="expected a draft of Eagle3"):
        read_config({**draft, "auto_map": {"AutoModel": "x.Y"}, "dflash_config": {"mask_token_id": 1}})


@pytest.mark.parametrize(("said", "kv_heads"), [({"grouped_query": True, "num_kv_heads": 4}, 4), ({}, 1)])
def test_nanotrons_starcoder_has_the_key_value_heads_that_its_class_has(said: dict[str, Any], kv_heads: int) -> None:
    """Starcoder2Config: one head for all unless they are grouped, 4h where no width is given, tied (BigCode's 7B)."""
    sizes = {"hidden_size": 4608, "num_attention_heads": 36, "num_hidden_layers": 32, "vocab_size": 49152}
    model = read_config({"model": {"model_config": {"is_starcoder2_config": True, **sizes, **said}}}).model
    assert dimensions(model)["kv_heads"] == kv_heads
    assert (dimensions(model)["d_ff"], model.tied) == (18432, True)
    assert kv_heads == 1 or model.parameters == 7_173_923_840  # bigcode/starcoder2-7b's


@pytest.mark.parametrize("key", ["is_mamba_config", "sinusoidal_position_embedding"])
def test_nanotrons_other_models_are_refused_as_its_own(key: str) -> None:
    with pytest.raises(InputError, match="has no formula here: expected one of is_llama_config"):
        read_config({"model": {"model_config": {key: True, "num_hidden_layers": 2, "hidden_size": 64}}})


def test_a_vocabulary_taken_from_a_tokenizers_name_is_told() -> None:
    model = {"type": "mistral", "hidden_dim": 128, "num_heads": 4, "num_layers": 2, "sliding_window": 64}
    reading = read_config({"model": model, "data": {"tokenizer": "acme/mistral-7b-own"}})
    assert "no vocab_size: 32,000 tokens of acme/mistral-7b-own are taken" in reading.notes
    assert [one.key for one in reading.unread] == ["model.sliding_window"]


def test_maxtexts_base_file_of_2024_has_a_shared_expert_that_no_dense_layer_reads() -> None:
    held = {"base_emb_dim": 2048, "num_experts": 1, "shared_experts": 1, "tile_activation_dim": 1024}
    reading = read_config(held)
    assert reading.unread == ()
    assert reading.model == read_config({"base_emb_dim": 2048}).model


def test_maxtexts_mistral_of_2024_has_experts_where_it_says_so() -> None:
    sizes = {"decoder_block": "mistral", "base_emb_dim": 256, "base_num_query_heads": 2, "base_num_kv_heads": 2}
    moe = {"num_experts": 8, "num_experts_per_tok": 2}
    assert read_config(sizes).model == read_config({**sizes, "decoder_block": "llama2"}).model
    assert read_config(sizes | moe).model == read_config({**sizes, **moe, "decoder_block": "mixtral"}).model


def test_maxtexts_gpt3_is_a_gpt2_of_its_sizes_and_its_step_is_read() -> None:
    sizes = {"base_emb_dim": 256, "base_num_query_heads": 2, "base_num_kv_heads": 2, "base_mlp_dim": 1024}
    gpt3 = {"decoder_block": "gpt3", "mlp_activations": ["gelu"], "trainable_position_size": 64, "vocab_size": 512}
    found = read_config({**sizes, **gpt3, "logits_via_embedding": True, "base_num_decoder_layers": 3})
    gpt2 = {"model_type": "gpt2", "n_embd": 256, "n_head": 2, "n_layer": 3, "n_positions": 64, "vocab_size": 512}
    assert found.model.parameters == read_config(gpt2).model.parameters
    step = {"ici_fsdp_parallelism": -1, "dcn_data_parallelism": -1, "dtype": "bfloat16", "opt_type": "adam_pax"}
    found = read_config({**sizes, **step, "remat_policy": "full"})
    assert found.workload == {"zero": 3, "dtype": "bf16", "checkpointing": "full"}
    assert not found.unread
    found = read_config({**sizes, **step, "remat_policy": "save_dot_with_context_except_mlp"})
    assert (found.workload["checkpointing"], found.notes) == ("layernorm,mlp", ())
    found = read_config({**sizes, "remat_policy": "minimal", "dcn_data_parallelism": 4})
    assert [one.key for one in found.unread] == ["dcn_data_parallelism"]
    assert any("remat_policy" in one for one in found.notes)
    assert read_config({**sizes, "quantize_kvcache": True}).workload == {"phase": "decode"}


def test_levanters_step_is_read_with_its_trainers_defaults() -> None:
    model = {"type": "gpt2", "hidden_dim": 128, "num_heads": 4, "vocab_size": 1000}
    usual = {"zero": 3, "checkpointing": "full", "dtype": "fp32"}
    del model["vocab_size"]
    assert read_config({"model": model}).model.vocab == 50257  # its tokenizer is GPT-2's where it says none
    assert read_config({"model": model}).workload == usual
    axes = {"model_axis_size": 4, "tensor_parallel_axes": ["mlp", "heads"]}
    held = {"model": {**model, "gradient_checkpointing": False}, "trainer": {"mp": "p=f32,c=bfloat16", **axes}}
    found = read_config({**held, "optimizer": {"type": "sophia-h"}})
    assert found.workload == {"zero": 3, "dtype": "bf16", "t": 4}
    assert [one.key for one in found.unread] == ["optimizer.type"]
    assert any(
        "model_axis_size" in one for one in read_config({"model": model, "trainer": {"model_axis_size": 4}}).notes
    )


@pytest.mark.parametrize(("said", "phase"), [("eval_only = True", "prefill"), ("eval_only = False", None)])
def test_nanogpts_evaluation_runs_forward_alone(said: str, phase: str | None) -> None:
    text = f"batch_size = 8\n{said}\ninit_from = 'gpt2'\n"
    assert read_text(text, where="eval_gpt2.py").workload.get("phase") == phase


def test_googles_bert_config_without_a_type_is_the_published_bert() -> None:
    """bert-base-uncased, whose checkpoint has 109,482,240 parameters without its heads for pre-training."""
    base = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    base |= {"vocab_size": 30522, "type_vocab_size": 2, "max_position_embeddings": 512}
    assert read_config(base | {"hidden_act": "gelu", "hidden_dropout_prob": 0.1}).model.parameters == 109_482_240


def test_torchtitans_degrees_are_read_where_its_files_of_2024_have_them() -> None:
    model = {"name": "llama3", "flavor": "8B"}
    training = {"tensor_parallel_degree": 2, "data_parallel_shard_degree": 4, "data_parallel_replicate_degree": 2}
    found = read_config({"model": model, "training": training}).workload
    assert {key: found[key] for key in ("t", "d", "replicas", "zero")} == {"t": 2, "d": 8, "replicas": 2, "zero": 3}
    found = read_config({"model": model, "training": {"data_parallel_degree": 4}}).workload
    assert (found["d"], found["zero"]) == (4, 3)


def test_torchchats_models_are_read_and_what_serves_by_a_flavor_is_refused() -> None:
    """gpt-fast's names, and Granite's scalings, which are no parameters; 34 B and 2.5 B as its files are called."""
    big = {"n_layers": 48, "n_heads": 64, "dim": 8192, "vocab_size": 32000, "n_local_heads": 8, "hidden_dim": 22016}
    assert read_config(big).model.parameters == 33_743_970_304
    small = {"dim": 2048, "n_heads": 32, "n_local_heads": 8, "n_layers": 40, "hidden_dim": 8192, "vocab_size": 49155}
    granite = {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "tie_word_embeddings": True, "block_size": 8192}
    found = read_config(small | granite)
    assert (found.model.parameters, found.notes, found.unread) == (2_533_531_648, (), ())
    served = {"model": {"name": "llama3", "flavor": "8B"}, "parallel": {"tensor_parallel_degree": 2}}
    with pytest.raises(NoModel, match="serves a model by its flavor"):
        read_config(served | {"inference": {"batch_size": 8}})


def test_torchtunes_builders_with_sizes_are_read_and_others_refused() -> None:
    """Of llama3_2 the embedding is the head too (TiedLinear); a generation's file decodes."""
    model = {"vocab_size": 320, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "embed_dim": 64}
    layer = 64 * (64 + 2 * 32 + 64) + 3 * 64 * 256 + 2 * 64  # an absent intermediate_dim is 256
    for kind, tables in (("llama3_2", 1), ("llama3", 2)):
        config = {"model": {"_component_": f"torchtune.models.{kind}.{kind}", **model}, "max_new_tokens": 8}
        found = read_config(config)
        assert found.model.parameters == tables * 320 * 64 + 2 * layer + 64
        assert (found.format, found.workload["phase"]) == ("torchtune_model", "decode")
    with pytest.raises(InputError, match=r"model\._component_ .*expected llama2, llama3"):
        read_config({"model": {"_component_": "torchtune.models.gemma.gemma", **model}})


def test_mindformers_sizes_adapters_and_degrees_are_read() -> None:
    """LlamaConfig's width is Meta's; its degrees hold where use_parallel, and of adapters LoRA alone has a price."""
    sizes = {"type": "LlamaConfig", "hidden_size": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 320}
    lora = {"pet_type": "lora", "lora_rank": 8, "target_modules": ".*wq|.*wv"}
    config = {
        "use_parallel": True,
        "runner_config": {"batch_size": 2},
        "parallel_config": {"data_parallel": 2, "model_parallel": 4, "use_seq_parallel": True},
        "recompute_config": {"recompute": True},
        "optimizer": {"type": "FP32StateAdamWeightDecay"},
        "model": {"model_config": {**sizes, "multiple_of": 32, "seq_length": 128, "pet_config": lora}},
    }
    found = read_config(config)
    assert found.model.parameters == 2 * 320 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 192 + 2 * 64) + 64
    said = {"b": 2, "s": 128, "t": 4, "d": 2, "checkpointing": "full", "finetune": "lora", "lora_rank": 8}
    assert said.items() <= found.workload.items()
    assert (found.workload["lora_targets"], found.unread) == ("q_proj,v_proj", ())
    found = read_config(config | {"use_parallel": False, "run_mode": "predict"})
    assert (found.workload["phase"], found.workload["t"]) == ("decode", 1)
    plain, biased = (
        read_config({"model": {"model_config": {**sizes, "qkv_has_bias": biased}}, "runner_config": {}}).model
        for biased in (False, True)
    )
    assert biased.parameters - plain.parameters == 2 * 3 * 64
    wide = {"multiple_of": 256, "ffn_dim_multiplier": 1.3, "hidden_size": 8192, "num_layers": 80, "num_heads": 64}
    llama2 = {**sizes, **wide, "n_kv_heads": 8, "vocab_size": 32000}
    assert read_config({"model": {"model_config": llama2}, "runner_config": {}}).model.parameters == 68_976_648_192
    for own, around, said in (
        ({"pet_config": {"pet_type": "ptuning2"}}, {}, "LoRA alone"),
        ({"type": "GLM32kConfig"}, {}, "expected LlamaConfig"),
        ({}, {"moe_config": {"expert_num": 8}}, "its experts are not read here"),
        ({}, {"moe_config": {"expert_num": 8, "num_experts_chosen": 2, "shared_expert_num": 2}}, "its shared experts"),
        ({"type": "ChatGLM2Config", "ffn_hidden_size": 96, "add_bias_linear": True}, {}, "expected False"),
    ):
        with pytest.raises(InputError, match=said):
            read_config({"model": {"model_config": {**sizes, **own}}, "runner_config": {}} | around)


def test_mindformers_experts_and_glms_sizes_are_their_releases() -> None:
    mixtral = {"type": "LlamaConfig", "hidden_size": 4096, "num_layers": 32, "num_heads": 32, "n_kv_heads": 8}
    mixtral |= {"vocab_size": 32000, "intermediate_size": 14336}
    around = {"moe_config": {"expert_num": 8, "num_experts_chosen": 2}, "parallel_config": {"expert_parallel": 4}}
    found = read_config({"model": {"model_config": mixtral}, **around})
    assert (found.model.parameters, found.workload["e"]) == (46_702_792_704, 4)
    glm = {"type": "ChatGLM2Config", "hidden_size": 4096, "num_layers": 40, "num_attention_heads": 32}
    glm |= {"padded_vocab_size": 151552, "ffn_hidden_size": 13696, "multi_query_attention": True, "add_qkv_bias": True}
    glm |= {"multi_query_group_num": 2, "seq_length": 8192, "rmsnorm": True, "post_layer_norm": True}
    found = read_config(
        {"run_mode": "predict", "model": {"model_config": glm}, "parallel_config": {"model_parallel": 2}}
    )
    assert found.model.parameters == 9_399_951_360  # glm-4-9b-chat's
    assert (found.workload["t"], found.workload["phase"], found.unread) == (2, "decode", ())


def test_internevos_isp_splits_the_sequence_and_its_checkpoint_is_a_share_of_the_layers() -> None:
    config = {
        "model": {"num_attention_heads": 4, "hidden_size": 128, "num_layers": 8, "mlp_ratio": 3, "vocab_size": 1000},
        "data": {"seq_len": 64},
        "parallel": {"zero1": {"size": -1}, "tensor": {"size": 2, "mode": "isp"}, "weight": {"size": 4}},
    }
    config["model"] |= {"checkpoint": 0.5, "dtype": "torch.bfloat16"}
    found = read_config(config)
    said = {"cp": 2, "cp_comm": "a2a", "zero": 1, "checkpointing": "full:4", "dtype": "bf16"}
    assert said.items() <= found.workload.items()
    assert "t" not in found.workload
    assert any("ISP gathers" in one for one in found.notes)
    found = read_config(config | {"parallel": {"tensor": {"size": 2, "mode": "msp"}}})
    assert (found.workload["t"], found.workload["sequence_parallel"]) == (2, True)


def test_maxtexts_olmo3_has_full_attention_in_every_fourth_layer() -> None:
    sizes = {"base_emb_dim": 4096, "base_num_query_heads": 32, "base_num_kv_heads": 32, "base_mlp_dim": 11008}
    sizes |= {"base_num_decoder_layers": 32, "head_dim": 128, "vocab_size": 100278, "sliding_window_size": 4096}
    config = {"decoder_block": "olmo3", "use_qk_norm": True, "inhomogeneous_layer_cycle_interval": 4, **sizes}
    assert read_config(config).model.parameters == 7_298_011_136  # Olmo-3-1025-7B's
    with pytest.raises(InputError, match="expected 4"):
        read_config(config | {"inhomogeneous_layer_cycle_interval": 6})


@pytest.mark.parametrize(
    ("name", "flavor", "parameters"),
    [("gpt_oss", "120b", 116_829_156_672), ("qwen3_5", "35B-A3B", 35_107_181_936)],
)
def test_torchtitans_newer_models_are_their_releases(name: str, flavor: str, parameters: int) -> None:
    found = read_config({"model": {"name": name, "flavor": flavor}, "training": {"seq_len": 64}})
    assert found.model.parameters == parameters


def test_olmos_mixtures_name_no_key_of_how_they_run_and_their_sharding_is_read() -> None:
    moe = {"block_type": "moe", "moe_num_experts": 8, "moe_top_k": 2, "moe_dropless": True, "moe_loss_weight": 0.01}
    sizes = {"d_model": 128, "n_heads": 4, "n_layers": 2, "layer_norm_type": "rms", "rope": True, "include_bias": False}
    config = {"model": {**sizes, **moe}, "optimizer": {"name": "adamw"}, "activation_checkpointing": "whole_layer"}
    found = read_config(config | {"distributed_strategy": "fsdp", "fsdp": {"sharding_strategy": "FULL_SHARD"}})
    assert (found.workload["zero"], found.workload["checkpointing"]) == (3, "full")
    assert found.unread == ()


def test_mlx_pretrains_vocabulary_is_its_tokenizers() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_layers": 2}
    config: dict[str, Any] = {"model": {"architecture": "llama", "dimensions": sizes, "attention": {"num_heads": 2}}}
    config["data"] = {"tokenizer_path": "tokenizer", "tokenizer": {"normal_vocab_size": 32000}}
    with pytest.raises(InputError, match=r"--set model\.vocab_size=N"):
        read_config(config)
    found = read_config(config, settings={"model.vocab_size": 320})
    twin = read_config(
        {
            "model_type": "llama",
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 2,
            "vocab_size": 320,
            "tie_word_embeddings": True,
        }
    )
    assert found.model.parameters == twin.model.parameters


def test_a_command_of_nanogpts_own_options_is_read_where_no_file_of_settings_runs_first(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    command = "python train.py {} --n_layer=3 --n_head=4 --n_embd=256 --batch_size=2 --bias=False\n"
    script.write_text(command.format("") + command.format("").replace("256", "512"), "utf-8")
    found = read_config(script)
    # 3 layers of 12 x 256^2 and two norms, the last norm, both embeddings
    parameters = 3 * (12 * 256**2 + 2 * 256) + 256 + (50304 + 1024) * 256
    assert (found.format, found.workload["b"], found.model.parameters) == ("nanogpt", 2, parameters)
    assert any("several models" in note for note in found.notes)
    script.write_text(command.format("config/train_shakespeare_char.py"), "utf-8")
    with pytest.raises(NoModel):
        read_config(script)
    script.write_text(command.format("").replace("4", "$(( A / B ))"), "utf-8")
    with pytest.raises(InputError, match=r"n_head = '\$\(\( A / B \)\)'"):
        read_config(script)


def test_llm_foundrys_fsdp_and_optimizer_are_read_and_its_runs_price_it() -> None:
    """scripts/train/yamls/pretrain/mpt-7b.yaml, on eight A100s; its tables have 3,623 and 3,725 tokens/s of more."""
    model = {"name": "mpt_causal_lm", "d_model": 4096, "n_heads": 32, "n_layers": 32, "max_seq_len": 2048}
    training = {"global_train_batch_size": 1024, "device_train_microbatch_size": 8, "precision": "amp_bf16"}
    fsdp = {"sharding_strategy": "FULL_SHARD", "mixed_precision": "PURE", "activation_checkpointing": True}
    config = {"model": model, **training, "fsdp_config": fsdp, "optimizer": {"name": "decoupled_adamw", "lr": 1.2e-4}}
    report = check(config, device="a100-sxm", gpus=8)
    workload = report.workload
    assert (workload.zero, workload.checkpointing, workload.d, workload.b) == (3, "full", 8, 8)
    assert not read_config(config).unread
    assert 1024 * 2048 / 8 / report.step_s == pytest.approx(3700, rel=0.06)
    lion = read_config({**config, "optimizer": {"name": "decoupled_lionw"}, "precision": "amp_fp8"})
    assert (lion.workload["optimizer"], lion.workload["dtype"]) == ("lion", "fp8")


def test_nanogpts_own_configuration_leaves_its_sizes_to_train_py(tmp_path: Path) -> None:
    """config/train_gpt2.py: the sizes are train.py's defaults, GPT-2's."""
    text = "wandb_run_name = 'gpt2-124M'\nbatch_size = 12\nblock_size = 1024\ngradient_accumulation_steps = 5 * 8\n"
    file = tmp_path / "train_gpt2.py"
    file.write_text(f"{text}max_iters = 600000\neval_interval = 1000\neval_iters = 200\n", encoding="utf-8")
    found = read_config(file)
    assert (found.model.parameters, found.workload["b"], found.longest) == (124_373_760, 12, 1024)


def test_megatrons_fp8_parameters_and_16_bit_gradients_are_what_it_holds() -> None:
    """examples/llama/train_llama3_8b_h100_fp8.sh: 8 B parameters on eight devices of 80 GB."""
    sizes = {"num_layers": 4, "hidden_size": 1024, "num_attention_heads": 8, "seq_length": 1024, "micro_batch_size": 1}
    script = {**sizes, "vocab_size": 32000, "bf16": True, "fp8_format": "hybrid", "use_distributed_optimizer": True}
    plain = read_config(script).workload
    lean = read_config({**script, "fp8_param_gather": True, "grad_reduce_in_bf16": True})
    assert "precision" not in plain
    wanted = {"precision": "fp8-weights", "gathers": "fp8", "reduces": "bf16"}
    assert {key: lean.workload[key] for key in wanted} == wanted


@pytest.mark.parametrize("section", ["moe", "moe_args"])
def test_a_section_is_an_object_or_left_open(section: str) -> None:
    with pytest.raises(InputError, match=f"{section} = 3: expected an object"):
        read_text(json.dumps({**META, section: 3}), where="params.json")
    left_open = read_text(json.dumps({**META, section: None}), where="params.json")
    assert left_open.model == read_text(json.dumps(META), where="params.json").model


def test_lingua_shards_as_its_file_says() -> None:
    model: dict[str, Any] = {"dim": 128, "n_layers": 2, "n_heads": 4, "vocab_size": 1000}
    settings: dict[str, Any] = {
        "fsdp_type": "full_shard",
        "compile": True,
        "model_dtype": "fp16",
        "spawn_method": "spawn",
    }
    config = {
        "model": model,
        "data": {"seq_len": 64, "load_async": True},
        "distributed": settings,
        "optim": {"lr": 1.0},
    }
    report = check(config)
    assert (report.workload.zero, report.workload.dtype, report.workload.s) == (3, "fp16", 64)
    assert not [one for one in report.findings if one.code == "SZ131"]
    assert check({**config, "distributed": {}}).workload.zero == 0


def test_neox_runs_layers_again_however_many_at_once() -> None:
    sizes: dict[str, Any] = {"num_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "seq_length": 64}
    sizes |= {"pipe_parallel_size": 1, "model_parallel_size": 1, "vocab_size": 1024}
    for many in (1, 4):
        config = {**sizes, "max_position_embeddings": 64, "checkpoint_activations": True, "checkpoint_num_layers": many}
        scales = {"enabled": True, "min_loss_scale": 1, "auto_cast": True, "hysteresis": 2}
        report = check({**config, "comms_logger": {"enabled": False, "prof_all": True}, "fp16": scales})
        assert report.workload.checkpointing == "full"
        assert not [one for one in report.findings if one.code == "SZ131"]
        # One step of accumulation changes nothing, two may.
        told = read_config({**config, "gradient_accumulation_steps": many}).unread
        assert [(one.key, one.value) for one in told] == [("gradient_accumulation_steps", "4")] * (many > 1)


def test_nanotron_turns_no_queries_in_every_fourth_layer_as_smollm3_does() -> None:
    sizes: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = {**sizes, "intermediate_size": 256, "vocab_size": 1024, "is_qwen2_config": True, "no_rope_layer": 4}
    config["num_hidden_layers"] = 8
    config |= {"tie_word_embeddings": True, "max_position_embeddings": 64}
    own = read_config(
        {**config, "model_type": "smollm3", "no_rope_layer_interval": 4, "no_rope_layer": None}
    ).model.main
    for file in (config, {"model": {"model_config": config}}):
        assert read_config(file).model.main.blocks == own.blocks
        assert [bool(one.attention and one.attention.rotary_dim) for one in own.blocks] == [True, False, True, False]


def test_keys_that_published_runs_of_nemo_and_primus_have_are_none_of_a_typing_error() -> None:
    sizes: dict[str, Any] = {"num_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "ffn_hidden_size": 256}
    nemo = {**sizes, "encoder_seq_length": 64, "cross_entropy_loss_fusion": True, "tp_only_amax_red": True}
    nemo |= {"defer_embedding_wgrad_compute": True, "moe_expert_capacity_factor": 1.0}
    primus = {**sizes, "vocab_size": 1024, "seq_length": 64, "max_position_embeddings": 64, "disable_wandb": True}
    primus |= {"pp_algorithm": "1f1b", "pin_cpu_grads": True, "xielu": True, "ademamix_alpha": 8, "goldfish_k": 50}
    for config in ({"model": {**nemo, "vocab_size": 1024}, "trainer": {"devices": 8}}, primus):
        found = check(config)
        assert not [one.field for one in found.findings if one.code == "SZ131"]


def test_recurrent_layers_of_linguas_are_refused_by_their_keys() -> None:
    """A Mamba of lingua's has a llama's keys too."""
    model = {"dim": 128, "n_layers": 2, "n_heads": 4, "state_dim": 16}
    with pytest.raises(InputError, match=r"model\.state_dim = 16: has no formula here: recurrent layers"):
        read_config({"model": model, "data": {"seq_len": 64}})


def test_maxtexts_gemma_4_is_the_release() -> None:
    """Its models/gemma4-26b.yml, of whose layers every sixth sees all."""
    said: dict[str, Any] = {
        **{"base_num_decoder_layers": 30, "base_emb_dim": 2816, "base_num_query_heads": 16, "base_num_kv_heads": 8},
        **{"base_mlp_dim": 2112, "base_moe_mlp_dim": 704, "mlp_activations": ["gelu", "linear"], "head_dim": 256},
        **{"global_head_dim": 512, "global_num_kv_heads": 2, "vocab_size": 262144, "decoder_block": "gemma4"},
        **{"logits_via_embedding": True, "sliding_window_size": 1024, "use_post_attn_norm": True},
        **{"use_post_ffw_norm": True, "share_kv_projections": True, "v_norm_with_scale": False, "num_experts": 128},
        **{"num_experts_per_tok": 8, "shared_experts": 1},
    }
    own, released = read_config(said).model.main, read_config("google/gemma-4-26B-A4B").model.main
    assert own.blocks == released.blocks
    with pytest.raises(InputError, match="v_norm_with_scale = True: has no formula here"):
        read_config({**said, "v_norm_with_scale": True})
