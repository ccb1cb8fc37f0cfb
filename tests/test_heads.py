"""Heads that ``architectures`` names, against transformers' classes on the meta device and published totals."""

from __future__ import annotations

from typing import Any

import pytest

from shapes.errors import InputError
from sizer import check, memory, ops
from sizer.readers import read_config
from sizer.readers.huggingface import BUILDERS
from sizer.readers.reading import FORMATS, rows
from sizer.readers.released import released

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 320,
    "max_position_embeddings": 128,
    "num_labels": 3,
}
OPT = {**SMALL, "ffn_dim": 96, "word_embed_proj_dim": 32}
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 320}
CLASSES = [
    *(f"Llama{head}" for head in ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")),
    "LlamaModel",
    "Qwen2ForSequenceClassification",
    "Qwen3Model",
    "GPT2ForSequenceClassification",
    "GPT2Model",
    "OPTForSequenceClassification",
    "T5EncoderModel",
    "T5Model",
    *(f"Bert{head}" for head in ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")),
    "BertModel",
    "BertLMHeadModel",
    "RobertaForTokenClassification",
    "RobertaForSequenceClassification",
    "XLMRobertaForMaskedLM",
    "CamembertForCausalLM",
    "Data2VecTextForCausalLM",
    "Data2VecTextForSequenceClassification",
    "Data2VecTextForTokenClassification",
    "ModernBertModel",
    *(f"ModernBertFor{head}" for head in ("MaskedLM", "SequenceClassification", "QuestionAnswering")),
]
LLAMA_3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


@pytest.mark.parametrize("architecture", CLASSES)
def test_the_class_that_a_file_names_has_its_own_head(architecture: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    built = getattr(transformers, architecture)
    sizes: dict[str, Any] = OPT if architecture.startswith("OPT") else T5 if architecture.startswith("T5") else SMALL
    config = built.config_class(**sizes, pad_token_id=0)
    with torch.device("meta"):
        theirs = sum(one.numel() for one in built(config).parameters())
    model = read_config({**config.to_dict(), "architectures": [architecture]}).model
    assert model.parameters == theirs
    assert model.head == architecture.endswith(("LMHeadModel", "ForMaskedLM", "ForCausalLM"))


def test_published_totals_of_classifiers_and_drafts() -> None:
    def parameters(architecture: str, **more: Any) -> int:
        return read_config({**LLAMA_3_8B, "architectures": [architecture], **more}).model.parameters

    assert round(parameters("LlamaForSequenceClassification") / 1e9, 2) == 7.50
    # pytorch_model.bin of EAGLE3-LLaMA3.1-Instruct-8B is 850 MB in 16 bits, which holds no embedding.
    draft = parameters("LlamaForCausalLMEagle3", num_hidden_layers=1, draft_vocab_size=32000)
    assert draft * 2 == pytest.approx(850e6, rel=0.002)
    layer = (8_030_261_248 - 2 * 128256 * 4096) // 32
    eagle = parameters("LlamaForCausalLMEagle", num_hidden_layers=1)
    assert eagle == pytest.approx(128256 * 4096 + 2 * 4096 * 4096 + layer, rel=1e-4)


#: SpecForge's qwen3-8b drafts.
QWEN3_DRAFT = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
#: Of a layer's matrices: queries and output, keys and values, the MLP.
QWEN3_LAYER = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 12288


def test_dflash_and_p_eagle_drafts_have_the_matrices_of_their_own_code() -> None:
    dflash = {"target_layer_ids": [1, 9, 17, 25, 33], "mask_token_id": 151669}
    own = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "dflash_config": dflash}
    reading = read_config({**QWEN3_DRAFT, **own, "num_hidden_layers": 5, "num_target_layers": 36})
    # z-lab/Qwen3-8B-DFlash-b16: 1.05 B, neither embedding nor head, five of the target's states through one matrix.
    norms = 5 * (2 * 4096 + 2 * 128) + 2 * 4096
    assert reading.model.parameters == 5 * QWEN3_LAYER + 5 * 4096**2 + norms
    assert reading.model.head
    assert any("own block are left out" in note for note in reading.notes)
    own = {"architectures": ["PEagleDraftModel"], "model_type": "llama", "draft_vocab_size": 32000}
    model = read_config({**QWEN3_DRAFT, **own, "num_hidden_layers": 4}).model
    wide = 4096 * (4096 + 2 * 1024)  # the first layer's queries, keys and values read two states
    outside = (151936 + 32000) * 4096 + 3 * 4096**2 + 3 * 4096
    assert model.parameters == 4 * QWEN3_LAYER + wide + outside + (4 * 2 + 1 + 1) * 4096


QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("layers", [1, 48])
def test_a_module_of_multi_token_prediction_is_one_sparse_layer_whatever_its_file_says(layers: int) -> None:
    # sglang's classes: a matrix of two states, one layer, the two norms before it and one behind it.
    h = 2048
    attention = 2 * h * 32 * 128 + 2 * h * 4 * 128 + 2 * 128
    own = {"architectures": ["Qwen3MoeForCausalLMMTP"], "num_hidden_layers": layers, "mlp_only_layers": [0]}
    reading = read_config({**QWEN3_MOE, **own})
    assert reading.model.parameters == 2 * h * h + attention + 128 * 3 * 768 * h + 128 * h + 2 * h + 3 * h
    assert reading.model.head
    assert "Qwen3MoeForCausalLMMTP: a draft model, one layer, which shares what its target has" in reading.notes
    # DeepSeek-V3's report: 11.5 B beside the embedding and the head, which are shared.
    release, _ = released("deepseek-ai/DeepSeek-R1")
    assert release["first_k_dense_replace"] == 3
    draft = read_config({**release, "architectures": ["DeepseekV3ForCausalLMNextN"], "num_hidden_layers": layers}).model
    h, heads = 7168, 128
    latent = h * 1536 + 1536 + 1536 * heads * 192 + h * 576 + 512 + 512 * heads * 256 + heads * 128 * h
    assert draft.parameters == latent + 257 * 3 * 2048 * h + 256 * h + 2 * h + 2 * h * h + 3 * h
    assert round(draft.parameters / 1e9, 1) == 11.6


def test_a_wrapper_s_draft_has_no_tower() -> None:
    text = {**QWEN3_MOE, "model_type": "qwen3_vl_moe_text", "num_hidden_layers": 48}
    config = {"model_type": "qwen3_vl_moe", "text_config": text, "vision_config": {"model_type": "qwen3_vl_moe"}}
    assert read_config(config).model.towers
    assert not read_config({**config, "architectures": ["Qwen3VLMoeForCausalLMMTP"]}).model.towers


def test_memory_says_that_a_class_keeps_its_scores() -> None:
    bloom = {"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 320}
    said = "left out without --attention eager: scores, which transformers' class keeps (it has no fused attention)"
    assert said in memory(bloom, s=64).notes


@pytest.mark.slow
def test_types_whose_class_has_no_fused_attention_say_so() -> None:
    """Scores of their own are most of what a step saves there, and --attention eager counts them."""
    transformers = pytest.importorskip("transformers")
    auto = transformers.models.auto
    notes = FORMATS["huggingface"]["notes_of_types"]
    configs = auto.configuration_auto.CONFIG_MAPPING
    attends = {*BUILDERS} - {"falcon_mamba", "mamba", "mamba2", "rwkv", "xlstm"}
    for kind in sorted(attends.intersection(configs)):
        config = configs[kind]
        mappings = (auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING, auto.modeling_auto.MODEL_MAPPING)
        if built := next((one[config] for one in mappings if config in one), None):
            built, *_ = built if isinstance(built, tuple) else (built,)
            note = " ".join(notes.get(kind, ()))
            said = "--attention eager" in note
            assert said == (not built._supports_sdpa), kind
            assert ("flash kernel" in note) == (said and built._supports_flash_attn), kind


@pytest.mark.parametrize("t", [1, 2, 16])
def test_a_dflash_draft_runs_its_keys_and_values_over_its_targets_states_too(t: int) -> None:
    dflash = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 5}
    dflash |= {"dflash_config": {"target_layer_ids": [1, 9, 17, 25, 33]}}
    draft, causal = (
        ops({**QWEN3_DRAFT, **one}, b=2, s=512, tp=t, device="h100-sxm").to_dict()["operators"]
        for one in (dflash, {"model_type": "qwen3", "num_hidden_layers": 5})
    )
    forward = (one for one in draft if one["phase"] == "forward" and one["name"].endswith("_proj"))
    # 8 heads of keys and values, of which a rank holds at least one, twice: of the tokens and of the target's states.
    keys_values = 2 * 4096 * 128 * max(8 // t, 1)
    others = (QWEN3_LAYER - 2 * 4096 * 1024) // t
    assert sum(one["count"] * one["flops"] for one in forward) == 5 * 2 * 1024 * (others + 2 * keys_values)
    # A query sees the target's states before it, as in the causal attention of the layers' own type.
    cores = [[one for one in rows if "core" in one["name"]] for rows in (draft, causal)]
    assert cores[0]
    assert cores[0] == cores[1]


def test_a_dflash_draft_with_a_latent_is_refused() -> None:
    latent = {"model_type": "deepseek_v3", "architectures": ["DFlashDraftModel"], "num_nextn_predict_layers": 0}
    with pytest.raises(InputError, match="expected a draft with keys and values of heads"):
        read_config(latent)


#: SpecForge's qwen3-8b-dspark.json and qwen3-8b-domino.json, and what their classes' matrices come to.
QWEN3_8B_DRAFT = {
    "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 5, "head_dim": 128,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 151936, "num_target_layers": 36,
}  # fmt: skip
DFLASH_8B = 1_048_626_432
SPARK = {"projector_type": "dspark", "attention_mode": "gqa", "markov_rank": 256, "confidence_head_alpha": 1.0}
SPARK |= {"enable_confidence_head": True, "confidence_head_with_markov": True}
DOMINO = {"projector_type": "domino", "emb_dim": 256, "gru_hidden_dim": 1024}


@pytest.mark.parametrize(
    ("kind", "more", "parameters"),
    [
        ("DFlash", {}, 0),
        ("DSpark", SPARK, 2 * 151936 * 256 + 4096 + 256 + 1),
        ("DSpark", SPARK | {"confidence_head_with_markov": False}, 2 * 151936 * 256 + 4096 + 1),
        ("DSpark", SPARK | {"enable_confidence_head": False, "confidence_head_with_markov": False}, 2 * 151936 * 256),
        ("DSpark", SPARK | {"markov_head_type": "gated"}, 2 * 151936 * 256 + 4353 + (4096 + 256) * 256 + 256),
        ("DSpark", SPARK | {"markov_head_type": "rnn"}, 2 * 151936 * 256 + 4353 + (4096 + 2 * 256) * 768 + 768),
        ("Domino", DOMINO, 3 * 1024 * (4096 + 1024) + (4096 + 1024) * 256 + 256 * 151936),
    ],
)
def test_a_blocks_draft_has_what_corrects_its_logits(kind: str, more: dict[str, Any], parameters: int) -> None:
    said = {"dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33], **more}}
    reading = read_config({**QWEN3_8B_DRAFT, "architectures": [f"{kind}DraftModel"], **said})
    assert (reading.model.parameters, reading.unread) == (DFLASH_8B + parameters, ())
    assert {one.name for one in reading.model.before_head} == {
        "DFlash": set(),
        "DSpark": {"markov_w2"}
        | ({"confidence_head"} if more.get("enable_confidence_head") else set())
        | {"gated": {"gate_proj"}, "rnn": {"joint_proj"}}.get(more.get("markov_head_type", ""), set()),
        "Domino": {"prefix_gru.input", "prefix_gru.state", "embed_proj.0", "embed_proj.2"},
    }[kind]


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        ("DSpark", SPARK | {"markov_head_type": "wide"}, "markov_head_type = 'wide': expected one of vanilla, gated"),
        ("DSpark", {}, "dflash_config.markov_rank: expected this key"),
        ("Domino", {}, "dflash_config.gru_hidden_dim: expected this key"),
        *(
            (one, {}, "expected a draft of Eagle3, PEagle, DFlash, DSpark, Domino, Eagle")
            for one in ("Other", "DFlash2")
        ),
    ],
)
def test_a_draft_without_its_heads_sizes_or_of_another_kind_is_refused(
    kind: str, more: dict[str, Any], said: str
) -> None:
    config = {**QWEN3_8B_DRAFT, "architectures": [f"{kind}DraftModel"]}
    with pytest.raises(InputError, match=said):
        read_config({**config, "dflash_config": {"target_layer_ids": [1, 9], **more}})


def test_eagle_3s_class_is_llamas_whatever_its_type_and_may_norm_each_state() -> None:
    draft = {
        **QWEN3_8B_DRAFT,
        "num_hidden_layers": 1,
        "draft_vocab_size": 32000,
        "architectures": ["LlamaForCausalLMEagle3"],
    }
    plain = read_config(draft | {"model_type": "llama"}).model.parameters
    for model_type in ("llama", "qwen2", "qwen3"):
        assert read_config(draft | {"model_type": model_type}).model.parameters == plain
    assert read_config(draft | {"fc_norm": True}).model.parameters == plain + 3 * 4096
    assert read_config(draft | {"fc_norm": True, "target_hidden_size": 2048}).model.parameters == (
        plain - 3 * 2048 * 4096 + 3 * 2048
    )


def test_jinas_own_bert_is_137_million_and_says_whose_code_it_has() -> None:
    jina = {"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
    own = {"position_embedding_type": "alibi", "feed_forward_type": "geglu", "auto_map": {"AutoModel": "there"}}
    sizes = {"intermediate_size": 3072, "vocab_size": 30528, "max_position_embeddings": 8192}
    reading = read_config({**jina, **own, **sizes})
    assert reading.model.parameters == 137_368_320
    assert any("auto_map" in note for note in reading.notes)


def test_a_classifier_gets_no_advice_on_a_vocabulary_head_and_heads_may_not_contradict() -> None:
    odd = {**LLAMA_3_8B, "vocab_size": 50257}
    languages = check({**odd, "architectures": ["LlamaForCausalLM"]})
    scores = check({**odd, "architectures": ["LlamaForSequenceClassification"]})
    assert any("vocab" in finding.slug for finding in languages.findings)
    assert not any("vocab" in finding.slug for finding in scores.findings)
    with pytest.raises(InputError, match="expected one class: these have different heads"):
        read_config({**odd, "architectures": ["LlamaForCausalLM", "LlamaForTokenClassification"]})
    assert any("not known" in note for note in read_config({**odd, "architectures": ["LlamaForJuggling"]}).notes)


def test_a_class_of_no_type_that_is_known_is_told() -> None:
    reading = read_config({**LLAMA_3_8B, "architectures": ["DeepseekV41ForCausalLM"]})
    assert "DeepseekV41ForCausalLM is no class of llama that is known: read as llama" in reading.notes
    read = [read_config(released(name)[0]) for name in rows() if name.startswith(("Qwen/", "tencent/"))]
    assert read
    assert not any("is no class of" in note for one in read for note in one.notes)
