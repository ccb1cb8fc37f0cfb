"""Families of transformers: each reader's model proven against its class, and answered on every command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shapes.errors import InputError
from shapes.memory import memory
from shapes.model import AttentionShape, MoeShape
from shapes.model.layers import each_layer
from shapes.model.stages import parameter_tensors
from shapes.workload import Workload
from sizer.cli import main
from sizer.readers import read_config
from sizer.readers.huggingface import DECODERS
from tests.test_parity import CONFIGS, OLD
from tests.tiers import every_run

SMALL = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "pad_token_id": 0,
}
MOE = SMALL | {"num_experts": 8, "num_local_experts": 8, "n_routed_experts": 8, "num_experts_per_tok": 2}
MOE |= {"moe_intermediate_size": 48, "head_dim": 16, "n_group": 1, "topk_group": 1}
MLA = {"num_key_value_heads": 6, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}
MLA |= {"q_lora_rank": 40}
GPT2 = {"n_embd": 96, "n_layer": 3, "n_head": 6, "vocab_size": 320}
KINDS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
MIXED = {"layer_types": KINDS, "sliding_window": 16}

GEMMA = SMALL | MIXED | {"num_hidden_layers": 10, "head_dim": 16, "global_head_dim": 32}
GEMMA |= {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 300, "num_kv_shared_layers": 4}
GEMMA |= {
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 2,
    "activation_sparsity_pattern": [0.0] * 10,
}

#: Type (and what of it) -> settings in which what tells it from llama has an effect.
FAMILIES: dict[str, dict[str, Any]] = {
    "afmoe": MOE | {"num_shared_experts": 1, "sliding_window": 16},
    "apertus": SMALL,
    "aria_text": SMALL | {"moe_num_experts": 8, "moe_topk": 2},
    "biogpt": SMALL,
    "codegen": GPT2 | {"n_head": 8, "rotary_dim": 8},
    "cwm": SMALL | {"head_dim": 16, "sliding_window": 16},
    "dbrx": {"d_model": 96, "n_heads": 6, "n_layers": 3, "vocab_size": 320, "max_seq_len": 128}
    | {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}}
    | {"ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 8, "moe_top_k": 2}},
    "doge": SMALL | {"head_dim": 16, "attention_bias": True, "mlp_bias": True},
    "dots1": MOE | {"first_k_dense_replace": 1, "n_shared_experts": 2},
    "exaone_moe": MOE | {"sliding_window": 16},
    "flex_olmo": MOE,
    "glm4v_moe_text": MOE | {"attention_bias": True, "first_k_dense_replace": 1, "head_dim": 128},
    "glm4_moe_lite": MOE | MLA | {"head_dim": 8},
    "gemma3n_text": GEMMA | {"laurel_rank": 16, "intermediate_size": [160, 160, 160, 160, 200] * 2},
    "gemma4_text": GEMMA | {"use_double_wide_mlp": True},
    "gemma4_text keys as values": GEMMA
    | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0},
    "gemma4_text experts": GEMMA
    | {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 48},
    "gemma4_unified_text": SMALL | MIXED | {"head_dim": 16, "global_head_dim": 32},
    "gpt_neo": SMALL | {"num_heads": 6, "attention_types": [[["global", "local"], 2]], "window_size": 16},
    "granite_swa": SMALL | {"sliding_window": 16},
    "granitemoe_swa": MOE | {"shared_intermediate_size": 64, "sliding_window": 16},
    "granitemoeshared": MOE | {"shared_intermediate_size": 64},
    "hunyuan_v1_moe": MOE | {"moe_topk": [2, 2, 2, 2], "moe_intermediate_size": [160] * 4},
    "hy_v3": MOE,
    "phimoe of one expert": MOE | {"num_local_experts": 8, "num_experts_per_tok": 1, "pad_token_id": 0},
    "laguna": MOE | MIXED | {"num_attention_heads_per_layer": [6, 4, 4, 6], "shared_expert_intermediate_size": 32},
    "mellum": MOE | MIXED,
    "minicpm3": SMALL | MLA,
    "ministral": SMALL | {"head_dim": 16, "sliding_window": 16},
    "nanochat": SMALL,
    "nemotron": SMALL | {"head_dim": 16},
    "openai-gpt": GPT2,
    "persimmon": SMALL | {"qk_layernorm": True},
    "solar_open": MOE,
    "vaultgemma": SMALL | {"head_dim": 16, "sliding_window": 16},
    "xglm": {"d_model": 96, "attention_heads": 6, "num_layers": 3, "ffn_dim": 160, "vocab_size": 320},
    "youtu": SMALL | MLA,
}
#: Their classes attend eagerly, whatever is asked for, or with masks of their own.
EAGER = frozenset({"codegen", "doge", "gpt_neo", "openai-gpt", "xglm"})
#: Its class runs one expert after the other, in products of the rows that even routing gives.
LOOPS = frozenset({"dbrx"})
#: Their classes are towers of others', without a head.
HEADLESS = frozenset({"glm4v_moe_text"})
#: Read as another type is, whose class has towers (or is not in transformers), or is proven elsewhere.
ALIKE = {"kimi_k2", "mimo", "phi4_multimodal", "phi4mm", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text"}
ALIKE |= {"Dream", "PanguEmbedded", "grok", "llada", "llada2_moe", "minicpm", "sdar", "sdar_moe", "step3_text"}
ALIKE |= {"glm4v_text", "qwen3_vl_moe_text", "qwen2_5_omni_text", "qwen3_omni_moe_text"}


#: Types without a class in transformers, by their releases -> their parameters there.
_SIXTEEN = [0.5, 0.73, 0.97, 1.2, 1.43, 1.67, 1.9, 2.13, 2.37, 2.6, 2.83, 3.07, 3.3, 3.53, 3.77, 4.0]
OPENELM = {
    "model_type": "openelm",
    "num_transformer_layers": 16,
    "model_dim": 1280,
    "head_dim": 64,
    "vocab_size": 32000,
    "num_query_heads": [12] * 5 + [16] * 7 + [20] * 4,
    "num_kv_heads": [3] * 5 + [4] * 7 + [5] * 4,
    "ffn_multipliers": _SIXTEEN,
    "ffn_dim_divisor": 256,
    "normalize_qk_projections": True,
}
NEMOTRON_LAYERS = [(8, 5.25)] * 48 + [(8, 2.625)] + [(None, 1.3125)] * 10 + [(None, 1.0)] * 8
NEMOTRON_LAYERS += [(None, 0.5)] * 6 + [(None, 2.625)] * 5 + [(None, 3.28125), (None, 5.25)]
NEMOTRON = {
    "model_type": "nemotron-nas",
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "vocab_size": 128256,
    "block_configs": [
        {"attention": {"n_heads_in_group": group, "no_op": group is None}, "ffn": {"ffn_mult": factor, "no_op": False}}
        for group, factor in NEMOTRON_LAYERS
    ],
}
#: Ling-mini-2.0, and its predecessor without norms of queries and keys.
LING = {
    "model_type": "bailing_moe",
    "architectures": ["BailingMoeV2ForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "use_qk_norm": True,
    "vocab_size": 157184,
}
#: DeepSeek-MoE-16B, which has heads of keys and values.
DEEPSEEK = {
    "model_type": "deepseek",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "vocab_size": 102400,
}
PUBLISHED = [
    (OPENELM, 271_527_168),
    (NEMOTRON, 49_867_145_216),
    (LING, 16_255_638_528),
    (DEEPSEEK, 16_375_728_128),
]
#: Of releases with code of their own: what qwen2-7b has, and models as wide as llama-8b.
OWN = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
OWN |= {"num_key_value_heads": 4, "vocab_size": 151936, "tie_word_embeddings": False}
OF_4096 = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32}
OF_4096 |= {"head_dim": 128, "vocab_size": 151936}
MINICPM = {"vocab_size": 73448}
LLADA = {"model_type": "llada", "architectures": ["LLaDAModelLM"], "d_model": 4096, "n_heads": 32, "n_kv_heads": 32}
LLADA |= {"n_layers": 32, "mlp_hidden_size": 12288, "vocab_size": 126464, "weight_tying": False}
GROK = {"model_type": "git", "architectures": ["Grok1ForCausalLM"], "hidden_size": 8192, "intermediate_size": 32768}
GROK |= {"moe_intermediate_size": 16384, "num_experts_per_tok": 2, "num_local_experts": 8, "residual_moe": True}
GROK |= {"num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 64, "vocab_size": 131072}
STEP3 = {"model_type": "step3_text", "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 64}
STEP3 |= {"num_attention_groups": 1, "num_hidden_layers": 61, "head_dim": 256, "share_q_dim": 2048, "moe_top_k": 3}
STEP3 |= {"moe_num_experts": 48, "moe_intermediate_size": 5120, "share_expert_dim": 5120, "vocab_size": 128815}
STEP3 |= {"moe_layers_enum": ",".join(map(str, range(4, 60)))}
HUNYUAN = {"model_type": "hunyuan_v1_moe", **OF_4096, "intermediate_size": 3072, "moe_topk": [8] * 32}
HUNYUAN |= {"moe_intermediate_size": [3072] * 32, "num_experts": 64, "num_shared_expert": [1] * 32}
HUNYUAN |= {"vocab_size": 128167, "tie_word_embeddings": True}
#: Of more than one file name: total in billions, as the authors round it.
ROUNDED = [
    ({"model_type": "longcat_flash", "vocab_size": 131072, "zero_expert_num": 256}, 560),
    (OWN | {"model_type": "Dream", "architectures": ["DreamModel"], "vocab_size": 152064}, 7.62),
    (OWN | {"model_type": "internvl_chat", "llm_config": {"model_type": "qwen2", **OWN}}, 7.61),
    (OWN | {**OF_4096, "model_type": "PanguEmbedded", "num_hidden_layers": 34, "intermediate_size": 12800}, 8.03),
    (OWN | {"model_type": "sdar", **OF_4096, "intermediate_size": 12288, "num_hidden_layers": 36}, 8.19),
    (OWN | {"model_type": "minicpm", **OF_4096, "intermediate_size": 16384, "num_key_value_heads": 2} | MINICPM, 8.19),
    (LLADA, 8.0156),
    (GROK, 269.5),
    (STEP3, 316),
    (LING | {"model_type": "bailing_moe_linear", "layer_group_size": 5}, 16.4),
    (LING | {"model_type": "llada2_moe"}, 16.26),
    (HUNYUAN, 80.39),
    ({"model_type": "phi4mm", "num_attention_heads": 24, "num_key_value_heads": 8, "tie_word_embeddings": True}, 3.8),
]


def config(label: str) -> dict[str, Any]:
    return {"model_type": label.split()[0], **FAMILIES[label]}


def test_every_decoder_family_has_a_small_configuration() -> None:
    from tests.test_readers import SETTINGS

    if not OLD:
        read_elsewhere = {family for family, _ in SETTINGS}  # proven in tests/test_formula_proofs.py
        read_elsewhere |= {"openelm", "nemotron-nas", "longcat_flash", "bailing_moe", "bailing_moe_v2", "deepseek"}
        read_elsewhere |= {"step3p5"}  # tests/test_readers.py, too
        sparse = {
            "axk2",
            "dots3_note_text",
            "deepseek_ref",
            "deepseek_v32",
            "deepseek_v4",
            "glm_moe_dsa",
            "hy_v4",
            "hy_v4_vl_text",
            "mistral_large4_text",
            "minimax_m3",
            "minimax_m3_vl_text",
        }
        assert set(DECODERS) <= {*FAMILIES, *CONFIGS, *ALIKE, *read_elsewhere, *sparse}


@pytest.mark.slow
@pytest.mark.skipif(OLD, reason="transformers 5's masks and experts")
@pytest.mark.parametrize(
    ("label", "s"),
    every_run([(label, s) for label in FAMILIES for s in (64, 96)], *((label, 96) for label in FAMILIES)),
)
def test_a_reader_s_model_has_its_class_s_parameters_and_products(label: str, s: int) -> None:
    pytest.importorskip("transformers")
    from shapes.trace.config import Built, build, load_config
    from shapes.trace.prove import differences, run_products

    model = read_config(config(label)).model
    model = replace(model, head=False) if label in HEADLESS else model
    settings, where = load_config(config(label))
    module, _ = build(settings, where, attention="auto", dtype="bf16")
    assert model.parameters == sum(parameter.numel() for parameter in module.parameters())
    run = run_products(Built(module, settings).graph(s))
    apart = differences(model, run, Workload(b=1, s=s, phase="infer"))
    kinds = [line.split(" forward ")[1].split()[0] for line in apart]
    assert set(kinds) <= ({"1"} if label in EAGER else {"gemm", "grouped"} if label in LOOPS else set()), apart


def test_no_shared_expert_is_refused_where_the_class_makes_one_as_wide_as_a_dense_mlp() -> None:
    with pytest.raises(InputError, match=r"num_shared_experts = 0: expected an integer between 1"):
        read_config({**config("hy_v3"), "num_shared_experts": 0})


def test_a_class_that_rounds_a_head_down_is_read_so() -> None:
    model = read_config({"model_type": "glm4_moe", "num_hidden_layers": 2}).model
    assert model.attention is not None
    assert model.attention.head_dim == 4096 // 96


@pytest.mark.parametrize(("settings", "parameters"), PUBLISHED, ids=lambda value: str(value)[:30])
def test_releases_of_types_without_a_class_have_their_published_sizes(
    settings: dict[str, Any], parameters: int
) -> None:
    assert read_config(settings).model.parameters == parameters


@pytest.mark.parametrize(("settings", "billions"), ROUNDED, ids=lambda value: str(value)[:30])
def test_releases_have_the_sizes_that_their_authors_round(settings: dict[str, Any], billions: float) -> None:
    assert read_config(settings).model.parameters / 1e9 == pytest.approx(billions, rel=0.012)


def test_choices_of_longcat_that_no_whole_number_has_an_expert_are_refused() -> None:
    with pytest.raises(InputError, match="zero_expert_num = 100: expected a divisor of top_k x experts = 6144"):
        read_config({"model_type": "longcat_flash", "zero_expert_num": 100})


def test_longcat_s_layers_are_two_and_some_of_its_choices_run_nothing() -> None:
    model = read_config({"model_type": "longcat_flash"}).model
    assert (model.main.layers, model.moe and (model.moe.experts, model.moe.empty, model.moe.top_k)) == (
        56,
        (512, 256, 8),
    )
    first, second = each_layer(model.main.blocks)[:2]
    assert isinstance(first.mlp, MoeShape)
    assert first.mlp.shared == second.mlp


def test_a_language_model_that_does_without_latents_says_so() -> None:
    plain = {"use_mla": False, "num_key_value_heads": 6, "kv_lora_rank": None, "qk_rope_head_dim": 0}
    attention = read_config({"model_type": "deepseek_v2", **MOE, **plain}).model.attention
    assert isinstance(attention, AttentionShape)
    assert (attention.kv_heads, attention.head_dim) == (6, 16)


def test_windows_may_be_spelled_as_letters() -> None:
    sizes = SMALL | {"model_type": "exaone4", "sliding_window": 16}
    spelled = read_config(sizes | {"sliding_window_pattern": "LLG"}).model
    assert spelled == read_config(sizes | {"sliding_window_pattern": 3}).model
    with pytest.raises(InputError, match="sliding_window_pattern = 'LXG'"):
        read_config(sizes | {"sliding_window_pattern": "LXG"})


@pytest.mark.parametrize("kind", ["qwen2_5_omni", "qwen3_omni_moe"])
def test_of_an_omni_model_the_language_model_is_read(kind: str) -> None:
    text = MOE | {"model_type": f"{kind}_text"}
    thinker = {
        "model_type": f"{kind}_thinker",
        "text_config": text,
        "audio_config": {"d_model": 64, "encoder_attention_heads": 4},
    }
    reading = read_config({"model_type": kind, "thinker_config": thinker, "talker_config": {"hidden_size": 8}})
    assert len(reading.model.towers) == 1
    assert replace(reading.model, towers=()) == replace(read_config(text).model, part="text tower")
    assert reading.keys["hidden"] == "thinker_config.text_config.hidden_size"
    assert any("talker" in note for note in reading.notes)
    seen = {**thinker, "vision_config": {"depth": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48}}
    assert len(read_config({"model_type": kind, "thinker_config": seen}).model.towers) == 2
    assert any("audio" in note for note in reading.notes)


#: Type -> shares of a layer's hidden states and of its attention's weights that its class drops where a file says none.
DROPPED = {"gpt2": (0.1, 0.1), "bert": (0.1, 0.1), "opt": (0.1, 0.0), "biogpt": (0.1, 0.1), "llama": (0.0, 0.0)}
DROPPED |= {"whisper": (0.0, 0.0), "t5": (0.1, 0.1)}


@pytest.mark.parametrize("kind", DROPPED)
def test_an_absent_dropout_is_what_its_class_takes_it_to_be(kind: str) -> None:
    block = read_config({"model_type": kind}).model.main.blocks[0]
    assert block.attention is not None
    assert (block.dropout, block.attention.dropout) == DROPPED[kind]
    told = dict.fromkeys(("resid_pdrop", "attn_pdrop", "dropout", "hidden_dropout_prob", "dropout_rate"), 0.0)
    assert read_config({"model_type": kind, **told}).model.main.blocks[0].dropout == 0


#: Of the parts that only some families have: heads and gates by layer, layers' own embeddings next to experts, borrowed
#: keys and several streams, layers without attention.
PARTS = ["laguna", "gemma4_text experts", "gemma3n_text", "nemotron-nas"]
COMMANDS = [
    ("check", "--tp", "2"),
    ("ops", "-b", "2", "-s", "64", "--tp", "2"),
    ("ops", "--phase", "decode", "-s", "512"),
    ("memory", "-b", "2", "-s", "64", "--tp", "2", "--pp", "2"),
    ("plan", "--gpus", "2", "--global-batch", "4", "-s", "64"),
    ("deploy", "--tp", "2"),
]


@pytest.mark.slow
@pytest.mark.parametrize("label", PARTS)
def test_every_command_answers(label: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    small = {"hidden_size": 512, "num_attention_heads": 16, "vocab_size": 320}
    path.write_text(json.dumps({**NEMOTRON, **small} if label == "nemotron-nas" else config(label)))
    for command, *options in COMMANDS:
        result = CliRunner().invoke(main, [command, str(path), *options], catch_exceptions=False)
        assert result.exit_code == 0 or (result.exit_code == 1 and command in ("check", "deploy")), result.output


def test_layers_embeddings_lie_in_the_first_stage_and_borrowed_keys_in_no_cache() -> None:
    model = read_config(config("gemma4_text")).model
    first, last = (
        sum(one.copies * one.elements for one in parameter_tensors(model, Workload(p=2), stage) if "layer_" in one.name)
        for stage in ("first", "last")
    )
    # The table of 10 layers' 8 channels, its norm and entry, and 5 layers' pairs; the last stage has its 5 pairs.
    assert first - last == 300 * 80 + 80 * 96 + 8
    assert last == 5 * 2 * 8 * 96
    # Of 10 layers 6 keep keys and values: 5 of a window of 16 tokens, one of all 512.
    held = memory(model, Workload(phase="decode", s=512, b=1))
    assert held.components["kv_cache"] == 2 * 2 * (5 * 16 * 32 + 512 * 64)


def test_widths_that_a_class_and_a_release_read_under_different_keys_are_one() -> None:
    with pytest.raises(InputError, match=r"moe_intermediate_size = \[48, .*: expected intermediate_size = 3072"):
        read_config(HUNYUAN | {"moe_intermediate_size": [48] * 32})
