"""Hugging Face readers against transformers: parameters exact, defaults the classes' own."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shapes.errors import InputError
from shapes.model import MoeShape
from sizer.readers import read_config
from sizer.readers.huggingface import BUILDERS, DEFAULTS_OF, NESTED
from sizer.readers.reading import FORMATS, Fields, at
from tests.test_families import FAMILIES
from tests.tools.make_hf_defaults import all_written, classes

TABLE = Path(__file__).parents[1] / "sizer" / "readers" / "hf_defaults.json"
SMALL = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 320,
}
GPT2 = {"n_embd": 96, "n_layer": 3, "n_head": 6, "vocab_size": 320}
MOE = SMALL | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "head_dim": 24}
MLA = SMALL | {
    "num_key_value_heads": 6,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "n_shared_experts": 2,
    "n_group": 1,
    "topk_group": 1,
}
DSA = MLA | {"q_lora_rank": 40, "index_n_heads": 4, "index_head_dim": 16, "index_topk": 8}
DOTS = {"shared_experts_intermediate_size": 40, "sliding_window": 16, "pad_token_id": 0, "swa_head_dim": 24}
DOTS |= {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_q_lora_rank": 24, "swa_kv_lora_rank": 20}
DOTS |= {"swa_qk_nope_head_dim": 16, "swa_v_head_dim": 20, "n_shared_experts": 2}
V4 = DSA | {
    "intermediate_size": 48,
    "head_dim": 16,
    "qk_rope_head_dim": 4,
    "o_groups": 2,
    "o_lora_rank": 10,
    "num_hidden_layers": 4,
}
M3 = ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"]
BIAS = {"attention_bias": True}
TIED = {"tie_word_embeddings": True}
UNTIED = {"tie_word_embeddings": False}
_ROTATION = {"rope_type": "default", "rope_theta": 10000.0}
COMPASS = {"rope_parameters": {"full_attention": _ROTATION, "sliding_attention": _ROTATION}}
VISION = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 160}

#: (model_type, settings that differ from the class's defaults)
BART = {"d_model": 96, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 6, "vocab_size": 320}
BART |= {"decoder_attention_heads": 6, "encoder_ffn_dim": 160, "decoder_ffn_dim": 224, "pad_token_id": 0}
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("mellum", MOE | {"layer_types": ["full_attention"] * 3, "mlp_layer_types": ["dense", "sparse", "sparse"]}),
    *((family, SMALL | tied) for family in ("llama", "mistral", "qwen2", "stablelm") for tied in (TIED, UNTIED)),
    ("llama", SMALL | BIAS | {"mlp_bias": True, "head_dim": 32}),
    ("qwen3", SMALL | BIAS | {"head_dim": 24}),
    *((family, SMALL | BIAS | {"head_dim": 24}) for family in ("gemma", "gemma2", "gemma3_text")),
    ("glm4", SMALL | BIAS | {"head_dim": 24, "pad_token_id": 0}),
    *((family, SMALL | BIAS | UNTIED) for family in ("cohere", "cohere2", "olmo", "olmo2")),
    ("cohere", SMALL | {"use_qk_norm": True}),
    *(("granite", SMALL | setting) for setting in (BIAS | {"mlp_bias": True}, TIED)),
    ("arcee", SMALL | BIAS | {"mlp_bias": True}),
    ("ernie4_5", SMALL | {"head_dim": 24, "use_bias": True} | UNTIED),
    ("exaone4", SMALL | {"sliding_window": 8, "num_hidden_layers": 5}),
    ("glm", SMALL | {"head_dim": 24, "attention_bias": False, "pad_token_id": 0}),
    ("helium", SMALL | BIAS | {"head_dim": 16, "mlp_bias": True}),
    ("hunyuan_v1_dense", SMALL | BIAS | {"head_dim": 24}),
    ("ministral3", SMALL | {"head_dim": 24, "sliding_window": 8}),
    ("olmo3", SMALL | BIAS),
    ("seed_oss", SMALL | {"head_dim": 24, "attention_bias": False, "attention_out_bias": True, "mlp_bias": True}),
    ("axk1", MLA | {"q_lora_rank": 40, "first_k_dense_replace": 1}),
    (
        "beam",
        MOE | BIAS | {"num_hidden_layers": 8, "sliding_window": 8, "n_group": 2, "topk_group": 1, "pad_token_id": 0},
    ),
    ("cohere2_moe", MOE | BIAS | {"first_k_dense_replace": 2, "prefix_dense_intermediate_size": 200}),
    ("cohere2_moe", MOE | {"num_shared_experts": 2, "sliding_window": 8} | UNTIED),
    ("cohere_compass_text", SMALL | BIAS | COMPASS),
    ("emu3_text_model", SMALL | BIAS | {"mlp_bias": True, "pad_token_id": 0}),
    ("flint", MOE | BIAS | {"shared_expert_intermediate_size": 80, "num_hidden_layers": 8, "sliding_window": 8}),
    ("kolibri1", MOE | {"num_local_experts": 8, "shared_expert_intermediate_size": 80, "num_hidden_layers": 6}),
    ("modernbert-decoder", SMALL | BIAS | {"mlp_bias": True, "norm_bias": True, "pad_token_id": 0}),
    ("modernbert-decoder", SMALL | {"sliding_window": 8, "pad_token_id": 0}),
    ("bitnet", SMALL | BIAS | {"pad_token_id": 0}),
    ("ctrl", {"n_embd": 96, "n_layer": 3, "n_head": 6, "dff": 200, "vocab_size": 320}),
    ("diffllama", SMALL | BIAS),
    ("exaone", SMALL | BIAS | {"mlp_bias": True, "head_dim": 24}),
    ("hyperclovax", SMALL | BIAS | {"use_post_norm": True, "mlp_bias": True, "head_dim": 24}),
    ("hyperclovax", SMALL | {"use_post_norm": False, "head_dim": 24}),
    ("internlm3", SMALL | BIAS | {"mlp_bias": True, "head_dim": 24, "pad_token_id": 0}),
    ("iquestcoder", SMALL | BIAS | {"mlp_bias": True, "head_dim": 24}),
    ("jais2", SMALL | {"attention_bias": False, "head_dim": 24}),
    ("apertus1p5_text", SMALL | BIAS | {"pad_token_id": 0}),
    ("apertus1p5_text", SMALL | {"pad_token_id": 0, "output_vocab_size": 96, "tie_word_embeddings": False}),
    ("mistral4", MLA | {"q_lora_rank": None}),
    ("mistral4", MLA | {"q_lora_rank": 40, "first_k_dense_replace": 1}),
    ("sarvam_mla", MLA | {"q_lora_rank": 40}),
    ("sarvam_moe", MLA | {"num_key_value_heads": 2, "head_dim": 24, "use_qk_norm": False}),
    ("smollm3", SMALL | BIAS | {"mlp_bias": True, "no_rope_layers": [1, 0, 1], "pad_token_id": 0}),
    ("stablelm", SMALL | {"use_qkv_bias": True, "qk_layernorm": True}),
    ("stablelm", SMALL | {"use_parallel_residual": True}),
    ("starcoder2", SMALL | {"use_bias": False}),
    ("phi", SMALL | {"qk_layernorm": True}),
    ("phi3", SMALL | {"pad_token_id": 0}),
    ("gpt2", GPT2 | {"n_inner": 200} | UNTIED),
    ("gpt_bigcode", GPT2 | {"multi_query": True}),
    ("gpt_bigcode", GPT2 | {"multi_query": False}),
    ("gptj", GPT2 | {"rotary_dim": 8}),
    ("gpt_neox", SMALL | {"attention_bias": False}),
    ("gpt_neox", SMALL | TIED),
    ("gpt_neox_japanese", SMALL | {"intermediate_multiple_size": 3}),
    ("opt", SMALL | {"ffn_dim": 160, "word_embed_proj_dim": 64, "do_layer_norm_before": False}),
    ("opt", SMALL | {"ffn_dim": 160, "word_embed_proj_dim": 96, "enable_bias": False}),
    ("bloom", {"hidden_size": 96, "n_layer": 3, "n_head": 6, "vocab_size": 320}),
    ("falcon", SMALL | {"bias": True}),
    ("falcon", SMALL | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", SMALL | {"multi_query": False, "parallel_attn": False}),
    ("mpt", {"d_model": 96, "n_heads": 6, "n_layers": 3, "vocab_size": 320, "expansion_ratio": 3}),
    ("mixtral", SMALL | {"num_local_experts": 8, "num_experts_per_tok": 3}),
    ("qwen2_moe", SMALL | MOE | {"shared_expert_intermediate_size": 80, "mlp_only_layers": [1]}),
    ("qwen2_moe", SMALL | MOE | {"shared_expert_intermediate_size": 80, "decoder_sparse_step": 2}),
    ("qwen3_moe", MOE | BIAS | {"mlp_only_layers": [0, 2]}),
    ("qwen3_moe", MOE | {"use_sliding_window": True, "sliding_window": 8}),
    ("granitemoe", MOE | BIAS | {"num_local_experts": 8}),
    ("olmoe", MOE | BIAS | {"head_dim": 16}),
    ("phimoe", MOE | {"num_local_experts": 8, "attention_bias": True, "lm_head_bias": True, "pad_token_id": 0}),
    ("ernie4_5_moe", MOE | {"moe_num_experts": 8, "moe_k": 3, "moe_num_shared_experts": 0, "moe_layer_interval": 2}),
    ("mimo_v2_flash", MLA | {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 24, "v_head_dim": 16}),
    ("deepseek_v2", MLA | {"q_lora_rank": None}),
    ("deepseek_v2", MLA | BIAS | {"q_lora_rank": 40}),
    ("deepseek_v3", MLA | {"q_lora_rank": None}),
    ("deepseek_v3", MLA | BIAS | {"q_lora_rank": 40}),
    ("deepseek_v32", DSA | BIAS),
    ("glm_moe_dsa", DSA | {"num_hidden_layers": 4, "index_topk_freq": 2}),
    (
        "glm_moe_dsa",
        DSA | {"indexer_types": ["full", "shared", "full"], "mlp_layer_types": ["sparse", "dense", "dense"]},
    ),
    ("axk2", DSA | {"pad_token_id": 0, "gated_norm_rank": 4}),
    ("hy_v4", DSA | BIAS | {"num_hidden_layers": 6, "hc_mult": 3, "pad_token_id": 0}),
    ("dots3_note_text", DSA | DOTS | {"num_hidden_layers": 4, "attention_bias": True}),
    ("deepseek_v4", V4 | {"compress_ratios": [0, 4, 128, 4, 0], "hc_mult": 3}),
    ("minimax_m3_vl_text", MOE | {"num_local_experts": 8, "rotary_dim": 8, "layer_types": M3, "index_n_heads": 2}),
    ("glm4_moe", MLA | {"num_key_value_heads": 2, "head_dim": 24, "use_qk_norm": True}),
    ("gpt_oss", MOE | {"num_local_experts": 8}),
    ("minimax_m2", MOE | {"num_local_experts": 8, "rotary_dim": 8}),
    ("llama4_text", MOE | {"num_local_experts": 8, "intermediate_size_mlp": 200, "interleave_moe_layer_step": 2}),
    ("xlm", {"emb_dim": 96, "n_layers": 3, "n_heads": 6, "vocab_size": 320, "n_langs": 3, "causal": True}),
    (
        "bailing_hybrid",
        MLA
        | {"num_hidden_layers": 4, "head_dim": 16, "num_experts": 8, "num_experts_per_token": 2, "layer_group_size": 2}
        | {"num_expert_group": 1, "pad_token_id": 0},
    ),
    ("bert", SMALL),
    ("roberta", SMALL),
    ("camembert", SMALL),
    ("data2vec-text", SMALL),
    ("xlm-roberta", SMALL | {"type_vocab_size": 1}),
    ("electra", SMALL | {"embedding_size": 64}),
    ("electra", SMALL | {"embedding_size": 96}),
    ("ernie", SMALL | {"use_task_id": True}),
    ("megatron-bert", SMALL),
    ("rembert", SMALL | {"input_embedding_size": 48, "output_embedding_size": 80}),
    ("roberta-prelayernorm", SMALL),
    ("roformer", SMALL | {"embedding_size": 64}),
    ("xlm-roberta-xl", SMALL),
    ("modernbert", SMALL | {"pad_token_id": 0}),
    ("modernbert", SMALL | BIAS | {"mlp_bias": True, "norm_bias": True, "pad_token_id": 0}),
    ("t5", {"d_model": 96, "d_kv": 24, "d_ff": 160, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 6}),
    ("mt5", {"d_model": 96, "d_kv": 24, "d_ff": 160, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 6}),
    ("t5", {"d_model": 96, "d_ff": 160, "num_layers": 2, "feed_forward_proj": "gated-gelu"} | UNTIED),
    ("bart", BART),
    *((kin, BART) for kin in ("blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart")),
    ("marian", BART | {"share_encoder_decoder_embeddings": False}),
    ("marian", BART | {"share_encoder_decoder_embeddings": False} | UNTIED),
    (
        "whisper",
        {
            "d_model": 96,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 6,
            "decoder_attention_heads": 6,
            "encoder_ffn_dim": 160,
            "decoder_ffn_dim": 224,
            "vocab_size": 320,
            "pad_token_id": 0,
        },
    ),
    ("vit", VISION | {"qkv_bias": False}),
    ("siglip_vision_model", VISION),
    # Biases of queries, keys and values alone; of the dense layers' MLP; of none although the file asks.
    ("solar_open", MOE | BIAS | {"n_routed_experts": 8}),
    ("sarvam_moe", MOE | BIAS | {"n_shared_experts": 1}),
    ("minicpm3", MLA | {"q_lora_rank": 40, "mlp_bias": True, "num_experts_per_tok": None}),
    ("youtu", MLA | {"q_lora_rank": 40, "mlp_bias": True, "num_experts_per_tok": None}),
    ("dots3_note_text", DSA | DOTS | {"num_hidden_layers": 4, "mlp_bias": True}),
    ("cohere_compass_text", SMALL | COMPASS | {"head_dim": 24}),
]

#: Types that have no class of their own in transformers' AutoModelForCausalLM -> the type whose blocks they are.
BLOCKS_OF = {
    "deepseek_ref": "deepseek_v4",
    "kimi_k2": "deepseek_v3",
    "minimax_m3": "minimax_m3_vl_text",
    "bailing_moe_v2": "bailing_moe",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_omni_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}

#: Real defaults, cut to a few layers where building hundreds of experts would take minutes.
CUT = {"deepseek_v2": 2, "deepseek_v3": 4, "minimax_m2": 2, "llama4_text": 4, "glm4_moe": 2}
CUT |= dict.fromkeys(("axk2", "deepseek_v32", "deepseek_v4", "dots3_note_text", "glm_moe_dsa", "hy_v4"), 4)
CUT |= dict.fromkeys(("ernie4_5_moe", "granitemoe", "mimo_v2_flash", "olmoe", "phimoe"), 3)
CUT |= dict.fromkeys(
    (family for family, own in FAMILIES.items() if "num_hidden_layers" in own and family != "gpt_neo"), 3
)
#: Classes whose own defaults no checkpoint has: no experts; 96 heads that do not divide h = 4096; no head_dim.
UNBUILDABLE: dict[str, dict[str, Any]] = {
    "cohere_compass_text": COMPASS,
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 6, "n_shared_experts": 2},
    "hunyuan_v1_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    "glm4_moe": {"head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    # The class holds matrices for experts that run nothing, which no release has.
    "longcat_flash": {"zero_expert_num": 0},
}
#: Built with their towers (tests/test_towers.py, tests/test_sparse.py), or (dbrx, gemma3n_text) by no release of
#: transformers from their own defaults.
TOWERS = ("phi4_multimodal", "step3p5", "dbrx", "gemma3n_text", "mistral_large4_text")
#: Read under another type's defaults and not a class of transformers, or only a tower of a larger class.
DEFAULTS = [
    (family, ({"num_hidden_layers": CUT[family]} if family in CUT else {}) | UNBUILDABLE.get(family, {}))
    for family in sorted(BUILDERS)
    if family not in DEFAULTS_OF
    and not family.endswith(("_vl_text", "_vl_moe_text", "_omni_text", "_omni_moe_text", "4v_text", "4v_moe_text"))
    and family not in TOWERS
]
#: Old and hand-written files of three families use the general names of their attribute_map; the general name wins.
ALIASES: list[tuple[str, dict[str, Any]]] = [
    ("t5", {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "head_dim": 24, "d_ff": 160}),
    ("t5", {"hidden_size": 96, "num_hidden_layers": 2, "num_layers": 3, "d_ff": 160}),
    ("bart", {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "decoder_attention_heads": 6}),
    ("bart", {"hidden_size": 96, "num_hidden_layers": 2, "encoder_layers": 5, "decoder_attention_heads": 6}),
    ("whisper", {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 320}),
    ("bart", {"d_model": 96, "vocab_size": 320, "tie_word_embeddings": False}),
    ("whisper", {"d_model": 96, "tie_word_embeddings": False}),
    ("marian", BART | UNTIED),
]
SEQ2SEQ = ("bart", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart", "t5", "mt5")
AUTO = dict.fromkeys(SEQ2SEQ, "AutoModelForSeq2SeqLM") | {"whisper": "AutoModelForSpeechSeq2Seq"}
BASE = ("bert", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert", "modernbert", "rembert", "roberta")
BASE += ("roberta-prelayernorm", "roformer", "sam2", "sam2_vision_model", "vit", "siglip_vision_model", "xlm-roberta")
BASE += ("xlm-roberta-xl",)

#: Of a wrapper, and so of no AutoModelForCausalLM.
OF_WRAPPERS = {"mistral4": "Mistral4ForCausalLM", "emu3_text_model": "Emu3ForCausalLM"}


def built(family: str, settings: dict[str, Any]) -> Any:
    """The class a reader of that type stands for: the base model of encoders, else the model with its LM-head."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(family, **settings)
    if family in ("t5", "mt5"):
        # transformers 5 ties the head whatever the file says, until a checkpoint's differs; both sides share a table.
        config.tie_word_embeddings = settings.get("tie_word_embeddings", True)
        with torch.device("meta"):
            model = transformers.T5ForConditionalGeneration(config)
        model.set_input_embeddings(model.shared)
        return model
    auto = AUTO.get(family, "AutoModel" if family in BASE else "AutoModelForCausalLM")
    with torch.device("meta"):
        if family in OF_WRAPPERS:
            return getattr(transformers, OF_WRAPPERS[family])(config)
        return getattr(transformers, auto).from_config(config)


def parameters_of(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())  # tied ones are listed once


@pytest.mark.slow
@pytest.mark.parametrize(("family", "settings"), SETTINGS, ids=lambda value: value if isinstance(value, str) else "")
def test_parameters_equal_those_of_the_model_class(family: str, settings: dict[str, Any]) -> None:
    assert read_config({"model_type": family, **settings}).model.parameters == parameters_of(built(family, settings))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "settings"), ALIASES, ids=lambda value: value if isinstance(value, str) else "")
def test_general_names_and_untied_tables_of_encoder_decoders_count_as_in_the_class(
    family: str, settings: dict[str, Any]
) -> None:
    if pytest.importorskip("transformers").__version__.startswith("4."):
        pytest.skip("transformers 4 has other aliases")
    settings = settings | {"pad_token_id": 0}
    assert read_config({"model_type": family, **settings}).model.parameters == parameters_of(built(family, settings))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "settings"), DEFAULTS, ids=[family for family, _ in DEFAULTS])
def test_parameters_under_the_class_defaults_are_exact(family: str, settings: dict[str, Any]) -> None:
    assert read_config({"model_type": family, **settings}).model.parameters == parameters_of(built(family, settings))


@pytest.mark.parametrize(
    ("family", "settings"),
    [(f, s) for f, s in SETTINGS if isinstance(s.get("num_experts_per_tok"), int)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_active_parameters_leave_out_the_experts_a_token_does_not_meet(family: str, settings: dict[str, Any]) -> None:
    # The class's own expert tensors, found by name: each holds all experts, of which top_k are met.
    shape, model = read_config({"model_type": family, **settings}).model, built(family, settings)
    moe = shape.moe
    assert moe is not None
    routed = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    idle = routed // moe.experts * (moe.experts - moe.top_k)
    assert routed
    assert shape.active_parameters == parameters_of(model) - idle


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(json.loads(TABLE.read_text())))
def test_the_table_of_defaults_is_what_transformers_says(family: str) -> None:
    table, transformers = json.loads(TABLE.read_text())[family], pytest.importorskip("transformers")
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip("a tower's configuration class, not registered alone")
    told = json.loads(json.dumps(transformers.AutoConfig.for_model(family).to_dict(), default=str))
    assert {key: told.get(key) for key in table} == table


def test_siglip_is_read_as_its_vision_tower_and_its_texts_are_no_unknown_key() -> None:
    found = read_config({"model_type": "siglip", "vision_config": VISION, "text_config": VISION})
    assert ("vision tower only (siglip_vision_model)" in found.notes, found.unread) == (True, ())


@pytest.mark.parametrize("outer", [name for name, (_, _, part) in NESTED.items() if part == "text tower"])
def test_a_vision_language_model_is_read_as_its_text_tower(outer: str) -> None:
    inner = NESTED[outer][1]
    text = {
        "model_type": inner,
        **(MOE if inner in ("llama4_text", "step3_text", "deepseek_v2") else SMALL),
        "num_local_experts": 8,
    }
    text |= {"share_q_dim": 48} if inner == "step3_text" else {}
    nested = read_config({"model_type": outer, "text_config": text})
    alone = read_config(text)
    assert nested.model == replace(alone.model, part="text tower", tied=nested.model.tied)
    assert nested.keys["hidden"] == "text_config.hidden_size"
    other = read_config({"model_type": outer, "llm_config": text, "vocab_size": text["vocab_size"]})
    assert (other.model, len(other.unread)) == (nested.model, len(nested.unread))


def test_releases_of_t5_are_as_large_as_published() -> None:
    # google/flan-t5-base and google-t5/t5-base: 247.6 M and 222.9 M, by their checkpoints.
    flan = {"model_type": "t5", "d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12, "vocab_size": 32128}
    flan |= {"feed_forward_proj": "gated-gelu", **UNTIED}
    assert read_config(flan).model.parameters == 247_577_856
    plain = flan | {"d_ff": 3072, "feed_forward_proj": "relu", "tie_word_embeddings": True}
    assert read_config(plain).model.parameters == 222_903_552


def test_another_vocabulary_of_marians_decoder_is_refused() -> None:
    with pytest.raises(InputError, match="decoder_vocab_size = 99: expected vocab_size = 58101"):
        read_config({"model_type": "marian", "decoder_vocab_size": 99})


@pytest.mark.parametrize("said", [True, False])
def test_gemma3_attends_to_both_sides_where_the_file_says(said: bool) -> None:
    attention = read_config({"model_type": "gemma3_text", **SMALL, "use_bidirectional_attention": said}).model.attention
    assert attention is not None
    assert attention.causal is not said


def test_layers_follow_the_network_dense_first_then_experts() -> None:
    blocks = read_config({"model_type": "deepseek_v3", **MLA, "q_lora_rank": 40}).model.main.blocks
    assert [(isinstance(block.mlp, MoeShape), block.count) for block in blocks] == [(False, 1), (True, 2)]


@pytest.mark.parametrize(("family", "other"), BLOCKS_OF.items())
def test_a_type_without_a_class_is_read_with_the_blocks_of_another(family: str, other: str) -> None:
    stated = MOE | TIED | {"num_key_value_heads": 2, "head_dim": 24, "first_k_dense_replace": 1, "o_groups": 2}
    one, same = (read_config({"model_type": name, **stated}).model for name in (family, other))
    assert (one.stacks, one.vocab) == (same.stacks, same.vocab)


def test_sizes_that_a_file_leaves_to_its_class_are_said() -> None:
    """A file without its sizes is checked as a Llama 7B, which nobody may have meant."""
    (note,) = read_config({"model_type": "llama", "num_hidden_layers": 2}).notes
    sizes = "hidden_size 4096, num_attention_heads 32, intermediate_size 11008, vocab_size 32000"
    assert note == f"not in the file, the class's own: {sizes}"
    text = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
    (_, note) = read_config({"model_type": "qwen2_vl", "text_config": text}).notes[:2]
    assert note == "not in the file, the class's own: intermediate_size 29568, vocab_size 152064"


@pytest.mark.slow
def test_a_config_object_reads_as_its_mapping() -> None:
    config = pytest.importorskip("transformers").LlamaConfig(**SMALL)
    assert read_config(config).model == read_config({"model_type": "llama", **SMALL}).model


def windows_of(settings: dict[str, Any]) -> list[int | None]:
    """The attention window of each layer."""
    blocks = read_config({**SMALL, "num_hidden_layers": 4, "sliding_window": 64, **settings}).model.main.blocks
    return [block.attention.window for block in blocks for _ in range(block.count)]  # type: ignore[union-attr]


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwens_layers_slide_from_max_window_layers_on_and_only_where_it_is_switched_on(family: str) -> None:
    switched = {"model_type": family, "use_sliding_window": True}
    assert windows_of(switched | {"max_window_layers": 3}) == [None, None, None, 64]
    assert windows_of(switched | {"max_window_layers": 0}) == [64] * 4
    assert windows_of({"model_type": family, "max_window_layers": 0}) == [None] * 4
    listed = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    assert windows_of(switched | {"max_window_layers": 3, "layer_types": listed}) == [64, None, None, 64]


@pytest.mark.parametrize(
    ("family", "settings", "expected"),
    [
        ("mistral", {}, [64, 64, 64, 64]),
        ("gemma2", {}, [64, None, 64, None]),
        ("gemma3_text", {}, [64, 64, 64, 64]),  # the sixth of six is whole
        ("gemma3_text", {"sliding_window_pattern": 2}, [64, None, 64, None]),
        ("cohere2", {}, [64, 64, 64, None]),
        ("cohere", {}, [None] * 4),
        ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2}, [64, None, 64, None]),
        ("qwen2_moe", {"num_experts": 4, "moe_intermediate_size": 48}, [None] * 4),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_which_layers_slide(family: str, settings: dict[str, Any], expected: list[int | None]) -> None:
    assert windows_of({"model_type": family, **settings}) == expected


@pytest.mark.parametrize("model_type", ["gemma4_assistant", "gemma4_unified_assistant"])
def test_an_assistant_is_refused_and_not_read_as_its_text_tower(model_type: str) -> None:
    with pytest.raises(InputError, match="the model that it drafts for"):
        read_config({"model_type": model_type, "text_config": {"model_type": "gemma4_text", **SMALL}})


@pytest.mark.parametrize("alike", [True, False])
def test_sizes_of_gemma4s_whole_layers_are_read_layer_by_layer_too(alike: bool) -> None:
    """transformers 5.15 and later write them so; a 31B of such a file was 0.3 billion parameters too large."""
    keys = {"global_head_dim": 32, "num_global_key_value_heads": 1}
    config = {"model_type": "gemma4_text", **SMALL, "head_dim": 16, "num_hidden_layers": 6, "attention_k_eq_v": True}
    config |= {"layer_types": ["sliding_attention", "full_attention"] * 3}
    own = {"head_dim": 32, "num_key_value_heads": 1}
    each = {str(layer): own if alike or layer != 3 else {**own, "head_dim": 64} for layer in (1, 3, 5)}
    if alike:
        found = read_config({**config, "per_layer_config": each})
        assert found.model == read_config({**config, **keys}).model
        assert found.model != read_config(config).model
        assert not found.unread
        config["per_layer_config"] = {"1": 3}
        with pytest.raises(InputError, match=r"per_layer_config.1 = 3: expected an object"):
            read_config(config)
    else:
        with pytest.raises(InputError, match="expected one head_dim for all"):
            read_config({**config, "per_layer_config": each})


LLAMA_3 = {"model_type": "llama", **SMALL}
SLIDES, WHOLE = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("family", "words", "reason"),
    [
        ("llama", [WHOLE, "strange_attention", WHOLE], "transformers' words for layers, found strange_attention"),
        ("llama", ["strange_attention"] * 3, "transformers' words for layers, found strange_attention"),
        ("gemma2", [SLIDES, "strange_attention", WHOLE], "layers of full_attention, sliding_attention"),
        # Known words that the class does not know what to do with.
        ("gemma2", [SLIDES, "linear_attention", WHOLE], "layers of full_attention, sliding_attention"),
        ("llama", [SLIDES, WHOLE, WHOLE], "layers of one kind"),
        # Of a type whose windows are off unless the file says otherwise.
        ("qwen3", [WHOLE, "linear_attention", WHOLE], "layers of full_attention, sliding_attention"),
        ("qwen2", [WHOLE] * 2, "a list of 3 strings"),
        # Of other families.
        ("olmo_hybrid", [SLIDES, "linear_attention", WHOLE], "layers of full_attention, linear_attention"),
        ("gemma2", [SLIDES, "chunked_attention", WHOLE], "layers of full_attention, sliding_attention"),
    ],
)
def test_layers_that_differ_in_an_unknown_way_are_refused(family: str, words: list[str], reason: str) -> None:
    with pytest.raises(InputError, match=f"layer_types = .*expected .*{reason}"):
        read_config(LLAMA_3 | {"model_type": family, "head_dim": 16, "sliding_window": 64, "layer_types": words})
    assert read_config(LLAMA_3 | {"layer_types": [WHOLE] * 3}).model == read_config(LLAMA_3).model


FIRST = {**{family.partition(" ")[0]: settings for family, settings in FAMILIES.items()}, **dict(reversed(SETTINGS))}


@pytest.mark.parametrize("family", FIRST)
def test_a_list_of_layers_has_a_known_word_for_each(family: str) -> None:
    """Whether the family reads the list, or its class alone does."""
    config = {"model_type": family, **FIRST[family]}
    layers = config.get("num_hidden_layers", config.get("decoder_layers", 0)) or read_config(config).model.layers
    lists = {key: config[key] for key in FORMATS["huggingface"]["by_layer"] if isinstance(config.get(key), list)}
    lists.setdefault("layer_types", [WHOLE] * layers)
    for key, said in lists.items():
        for wrong in (
            said[: layers - 1],
            said * 2,
            [*said[:-1], "no such layer"],
            [[one] for one in said],
            {"all": WHOLE},
        ):
            with pytest.raises(InputError, match=key):
                read_config(config | {key: wrong})


#: Flags that a class writes itself from another key, and one of layers beside experts that no release has.
DERIVED = {("t5", "is_gated_act"), ("mt5", "is_gated_act"), ("gemma4_text", "use_double_wide_mlp")}


def transformers_with(family: str) -> Any:
    """transformers, where it has a configuration class of this type."""
    transformers = pytest.importorskip("transformers")
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip("no class of its own, or a type of a later transformers")
    return transformers


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", sorted(FIRST))
def test_each_flag_of_a_class_by_itself_counts_as_in_the_class(family: str) -> None:
    """Whatever flag is turned: the class's parameters, or it is refused or named as not read."""
    transformers = transformers_with(family)
    for key, value in transformers.AutoConfig.for_model(family, **FIRST[family]).to_dict().items():
        if not isinstance(value, bool) or (family, key) in DERIVED:
            continue
        turned = {**FIRST[family], key: not value}
        try:
            theirs = parameters_of(built(family, turned))
            reading = read_config({"model_type": family, **turned})
        except Exception:  # either refuses it
            continue
        assert reading.model.parameters == theirs or key in [one.key for one in reading.unread], key


@pytest.mark.parametrize("word", ["conv", "hybrid", "linear_attention", "sliding_attention"])
def test_a_word_of_another_familys_layers_is_refused(word: str) -> None:
    config = {"model_type": "minimax_m3_vl_text", **FIRST["minimax_m3_vl_text"], "layer_types": [*M3[:2], word]}
    with pytest.raises(InputError, match=r"layer_types = .*expected layers of full_attention, minimax_m3_sparse"):
        read_config(config)


@pytest.mark.parametrize("family", ["axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4", "mistral_large4_text"])
def test_layers_whose_class_chooses_keys_in_all_of_them_have_one_word(family: str) -> None:
    config = {"model_type": family, **FIRST.get(family, FIRST["deepseek_v32"])}
    layers = read_config(config).model.layers
    for words in ([SLIDES], ["conv"], ["indexed_attention"] * (layers - 1) + [WHOLE]):
        listed = {"layer_types": words * (layers // len(words))}
        with pytest.raises(InputError, match=r"layer_types = .*expected layers of one kind .*_attention|conv"):
            read_config(config | listed)
    for word in ("indexed_attention", "deepseek_sparse_attention", WHOLE):
        found = read_config(config | {"layer_types": [word] * layers})
        assert (found.model, found.unread) == (read_config(config).model, ())


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("cohere_compass_text", "num_attention_heads", 0),
        ("cohere2_moe", "sliding_window_pattern", 0),
        ("cohere2_moe", "prefix_dense_sliding_window_pattern", 0),
        ("zamba", "attn_layer_period", 0),
        ("gemma4_text", "intermediate_size", []),
    ],
)
def test_a_size_that_others_are_divided_by_is_no_zero_and_a_list_not_empty(family: str, key: str, value: Any) -> None:
    config = {"model_type": family, **FIRST.get(family, {}), key: value}
    with pytest.raises(
        InputError, match=rf"{key} = {re.escape(str(value))}: expected an integer (of at least|between) 1"
    ):
        read_config(config)


def test_a_key_of_the_class_is_not_called_unknown() -> None:
    config = {"model_type": "deepseek_v32", **FIRST["deepseek_v32"], "n_group": 1, "num_attention_heads": 0}
    with pytest.raises(InputError, match=r"num_attention_heads = 0: expected an integer between 1 and \d+$"):
        read_config(config)


def test_a_class_of_another_type_than_the_files_is_said() -> None:
    note = "model_type llama and MistralForCausalLM of another type: read as llama, as transformers does"
    other = read_config(LLAMA_3 | {"architectures": ["MistralForCausalLM"]})
    assert note in other.notes
    assert other.model == read_config(LLAMA_3).model
    for same in ("LlamaForCausalLM", "LlamaForSequenceClassification", "MyOwnForCausalLM"):
        assert not [one for one in read_config(LLAMA_3 | {"architectures": [same]}).notes if "another type" in one]
    # A type of its own that runs another's class.
    kimi = read_config({"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]})
    assert not [one for one in kimi.notes if "another type" in one]


WRITTEN = json.loads(TABLE.with_name("hf_written.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(WRITTEN))
def test_what_a_class_writes_by_itself_is_known(family: str) -> None:
    transformers = transformers_with(family)
    told = json.loads(json.dumps(transformers.CONFIG_MAPPING[family]().to_dict(), default=str))
    if not WRITTEN[family].items() <= {key: at(told, key) for key in WRITTEN[family]}.items():
        pytest.skip("another default of another transformers")
    assert [one.key for one in read_config(told).unread if one.key in WRITTEN[family]] == []


@pytest.mark.slow
def test_the_table_of_what_classes_write_is_made_the_same_again() -> None:
    transformers = pytest.importorskip("transformers")
    made = json.loads(json.dumps(all_written()))
    differing = {one for one in {*made, *WRITTEN} if made.get(one) != WRITTEN.get(one)}
    # Another version has other types and other defaults.
    if differing and transformers.__version__ != "5.24.0":
        pytest.skip("made by transformers 5.24.0")
    assert not differing, "run python tests/tools/make_hf_defaults.py"
    assert classes() == json.loads(TABLE.with_name("hf_classes.json").read_text())


def test_what_a_class_writes_may_matter_at_another_value() -> None:
    def told(value: float) -> list[str]:
        return [one.key for one in read_config({"model_type": "falcon_mamba", "mixer_rms_eps": value}).unread]

    assert (told(1e-6), told(1e-5)) == ([], ["mixer_rms_eps"])


def test_the_first_bloom_has_a_width_of_its_own_name() -> None:
    """Its class takes n_embed too (bigscience/bloom's config.json), GPT-2's does not."""
    said = {"n_embed": 1024, "n_layer": 24, "vocab_size": 250880}
    model = read_config({**said, "model_type": "bloom", "num_attention_heads": 16}).model
    assert model.parameters == 559_214_592
    with pytest.raises(InputError, match="n_embed = 1024: is no key of its class, which reads n_embd"):
        read_config({**said, "model_type": "gpt2", "n_head": 16})


def test_a_list_with_an_entry_a_layer_is_checked_once_and_not_by_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4,000 layers it took 2 s."""
    own, asked = Fields.integers, list[str]()

    def integers(self: Fields, *names: str, length: int | None = None) -> list[int]:
        asked.extend(names)
        return own(self, *names, length=length)

    monkeypatch.setattr(Fields, "integers", integers)
    sizes = {"model_dim": 128, "num_transformer_layers": 30, "head_dim": 64, "ffn_multipliers": [2.0] * 30}
    lists = {"num_query_heads": [4] * 30, "num_kv_heads": [2] * 30}
    read_config({"model_type": "openelm", **sizes, **lists, "ffn_dim_divisor": 64, "vocab_size": 320})
    assert 1 <= asked.count("num_query_heads") <= 3


@pytest.mark.parametrize("given", [None, [], [2.0], ["2"] * 3, 2.0])
def test_a_list_of_factors_that_is_absent_empty_or_short_is_refused_by_its_own_name(given: Any) -> None:
    sizes = {"model_type": "openelm", "model_dim": 128, "num_transformer_layers": 3, "head_dim": 64, "vocab_size": 320}
    config = {**sizes, "num_query_heads": [4] * 3, "num_kv_heads": [2] * 3, "ffn_multipliers": given}
    with pytest.raises(InputError, match=r"ffn_multipliers.*: expected a list of 3 numbers"):
        read_config(config)
