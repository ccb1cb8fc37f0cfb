"""Vision towers: parameters against transformers' classes on the meta device, and what images cost."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import pytest

from shapes.errors import InputError
from shapes.frozen import replace
from shapes.memory import memory
from shapes.model import block_tensors, linear_tensors
from shapes.operators import operators as listed
from shapes.operators.types import Attention, Collective
from shapes.workload import Workload
from sizer import check, ops
from sizer.readers import read_config
from sizer.readers.huggingface import NESTED
from sizer.readers.reading import FORMATS
from sizer.readers.released import released
from sizer.subject import read_subject

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "pad_token_id": 0,
}
SEEN = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "patch_size": 14}
QWEN = {"depth": 4, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48, "out_hidden_size": 64, "patch_size": 16}
SIGLIP = "siglip_vision_model"
#: Wrapper -> the vision configuration, and the text tower's type.
WRAPPERS: dict[str, tuple[dict[str, Any], str]] = {
    "gemma3": ({**SEEN, "image_size": 896, "vision_use_head": False}, "gemma3_text"),
    "llava": ({**SEEN, "image_size": 336, "model_type": "clip_vision_model"}, "llama"),
    "llava_next": ({**SEEN, "image_size": 336, "model_type": "clip_vision_model"}, "llama"),
    "llava_onevision": ({**SEEN, "image_size": 98, "vision_use_head": False, "model_type": SIGLIP}, "qwen2"),
    "paligemma": ({**SEEN, "image_size": 98, "vision_use_head": False, "model_type": SIGLIP}, "gemma"),
    "smolvlm": ({**SEEN, "image_size": 98}, "llama"),
    "idefics3": ({**SEEN, "image_size": 98}, "llama"),
    "mistral3": ({**SEEN, "image_size": 1540, "model_type": "pixtral", "head_dim": 8}, "mistral"),
    "mistral_large4": ({**SEEN, "image_size": 1540, "model_type": "pixtral", "head_dim": 8}, "mistral_large4_text"),
    "hy_v4_vl": ({**SEEN, "max_image_size": 56, "out_hidden_size": 64}, "hy_v4_vl_text"),
    "qwen2_vl": ({"depth": 3, "embed_dim": 32, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 3}, "qwen2_vl_text"),
    "qwen2_5_vl": ({**QWEN, "fullatt_block_indexes": [1, 3], "patch_size": 14}, "qwen2_5_vl_text"),
    "exaone4_5": ({**QWEN, "num_key_value_heads": 2, "fullatt_block_indexes": [1, 3], "patch_size": 14}, "exaone4"),
    "qwen3_vl": ({**QWEN, "deepstack_visual_indexes": [0, 2]}, "qwen3_vl_text"),
    "cohere_compass": ({**QWEN, "deepstack_visual_indexes": [0, 2]}, "cohere_compass_text"),
    "kimi_k25": ({**SEEN}, "deepseek_v3"),
    "lfm2_vl": ({**SEEN, "num_patches": 36, "vision_use_head": False}, "lfm2"),
    "lfm3_vl": ({**SEEN, "num_hidden_layers": 5, "num_key_value_heads": 2, "patch_size": 16}, "lfm3"),
    "glm4v": ({**QWEN, "image_size": 112, "patch_size": 14}, "glm4v_text"),
    "glm46v": ({**QWEN, "image_size": 112, "patch_size": 14}, "glm4v_text"),
    "glm4v_moe": ({**QWEN, "image_size": 112, "patch_size": 14, "attention_bias": True}, "glm4v_moe_text"),
    "aya_vision": ({**SEEN, "image_size": 98, "vision_use_head": False, "model_type": SIGLIP}, "cohere2"),
    "internvl": ({**SEEN, "image_size": [448, 448], "patch_size": [14, 14], "attention_bias": True}, "qwen2"),
    "gemma4": ({**SEEN, "num_key_value_heads": 4, "patch_size": 16, "position_embedding_size": 64}, "gemma4_text"),
    "minimax_m3_vl": ({**SEEN, "model_type": "clip_vision_model"}, "minimax_m3_vl_text"),
    "llava_next_video": ({**SEEN, "image_size": 336, "model_type": "clip_vision_model"}, "llama"),
    "video_llava": ({**SEEN, "image_size": 98, "model_type": "clip_vision_model"}, "llama"),
    "vipllava": ({**SEEN, "image_size": 336, "model_type": "clip_vision_model"}, "llama"),
    "lighton_ocr": ({**SEEN, "image_size": 1540, "model_type": "pixtral", "head_dim": 8}, "qwen3"),
    "cohere2_vision": ({**SEEN, "image_size": 98, "vision_use_head": False, "model_type": SIGLIP}, "cohere2"),
    "qianfan_ocr": ({**SEEN, "image_size": [448, 448], "patch_size": [14, 14], "attention_bias": True}, "qwen3"),
    "deepseek_vl": ({**SEEN, "image_size": 98, "model_type": SIGLIP}, "llama"),
    "ovis2": ({**SEEN, "image_size": 224, "vocab_size": 96}, "qwen2"),
    "glmga": ({**QWEN, "image_size": 112, "patch_size": 14}, "glm4v_text"),
    "hyperclovax_vision_v2": ({**QWEN, "fullatt_block_indexes": [1, 3], "patch_size": 14}, "hyperclovax"),
    "video_llama_3": ({**SEEN, "num_channels": 3}, "qwen2"),
    "janus": ({**SEEN, "image_size": 98, "mlp_ratio": 4.0, "depth": 3, "projection_dim": 64}, "llama"),
    "step3p7": ({**SEEN, "image_size": 98, "max_position_embeddings": 49}, "step3p5"),
    "llama4": (
        {
            **SEEN,
            "intermediate_size": 128,
            "image_size": 336,
            "vision_output_dim": 40,
            "projector_input_dim": 40,
            "projector_output_dim": 40,
        },
        "llama4_text",
    ),
}
SMALL_MLA = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "q_lora_rank": 16}
SMALL_MLA |= {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "head_dim": 8}


def configured(wrapper: str) -> dict[str, Any]:
    transformers = pytest.importorskip("transformers")
    vision, text_type = WRAPPERS[wrapper]
    text = {**LLAMA, "model_type": text_type, **(SMALL_MLA if text_type == "deepseek_v3" else {})}
    if text_type == "llama4_text":
        text |= {"intermediate_size_mlp": 96, "num_local_experts": 2}
    if text_type == "cohere_compass_text":
        usual = {"rope_type": "default", "rope_theta": 10000.0}
        text["rope_parameters"] = {"full_attention": usual, "sliding_attention": usual}
    own = {"kimi_k25": "projection_hidden_size", "aya_vision": "alignment_intermediate_size", "ovis2": "hidden_size"}
    own |= {"cohere2_vision": "alignment_intermediate_size", "minimax_m3_vl": "projector_hidden_size"}
    more = {own[wrapper]: 32} if wrapper in own else {}
    config = transformers.CONFIG_MAPPING[wrapper](text_config=text, vision_config=vision, **more)
    found: dict[str, Any] = config.to_dict()
    return found


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrappers_parameters_are_its_classs_tower_and_all(wrapper: str) -> None:
    _compare_tower(wrapper, configured(wrapper))


def _compare_tower(wrapper: str, config: dict[str, Any]) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    with torch.device("meta"):
        built = transformers.AutoModelForImageTextToText.from_config(transformers.CONFIG_MAPPING[wrapper](**config))
    reading = read_config(config)
    vision = sum(
        one.numel()
        for name, one in built.named_parameters()
        if not re.search("language_model|text_model|lm_head|vqmodel|generation_", name)  # which Janus draws with
    )
    assert reading.model.parameters - replace(reading.model, towers=()).parameters == vision
    assert any("with its vision tower" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("wrapper", "key", "value"),
    [
        ("llava", "num_channels", 1),
        ("qwen2_vl", "in_channels", 6),
        ("internvl", "use_absolute_position_embeddings", False),
        ("internvl", "use_mean_pooling", False),
        ("janus", "use_qk_norm", True),
    ],
)
def test_a_tower_with_one_key_of_its_class_turned_counts_as_its_class(wrapper: str, key: str, value: Any) -> None:
    config = configured(wrapper)
    _compare_tower(wrapper, config | {"vision_config": config["vision_config"] | {key: value}})


@pytest.mark.parametrize(("model_type", "name"), [("colpali", "ColPali"), ("colqwen2", "ColQwen2")])
def test_a_retrievers_parameters_are_its_classs_whose_model_it_wraps(model_type: str, name: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.CONFIG_MAPPING[model_type](
        vlm_config=configured({"colpali": "paligemma", "colqwen2": "qwen2_vl"}[model_type]), embedding_dim=40
    )
    with torch.device("meta"):
        built = getattr(transformers, f"{name}ForRetrieval")(config)
    reading = read_config({**config.to_dict(), "architectures": [type(built).__name__]})
    assert reading.model.parameters == sum(one.numel() for one in built.parameters())
    assert [(one.name, one.out_features) for one in reading.model.before_head] == [("embedding_proj_layer", 40)]


def test_a_policy_is_no_smaller_text_model() -> None:
    """pi0's expert of actions, a second decoder, attends with the layers of the model that it wraps."""
    config = {"model_type": "pi0", "vlm_config": configured("paligemma"), "dit_config": {"model_type": "gemma"}}
    with pytest.raises(InputError, match=r"dit_config.*has no formula here: a policy"):
        read_config(config)


def test_an_encoders_wrapper_counts_what_joins_its_tower() -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    sizes = {key: value for key, value in LLAMA.items() if key != "model_type"}
    vision = {**SEEN, "image_size": 64, "patch_size": 8, "vision_use_head": False}
    config = transformers.ModernVBertConfig(text_config=sizes, vision_config=vision, pixel_shuffle_factor=2)
    with torch.device("meta"):
        built = transformers.ModernVBertModel(config)
    reading = read_config(config.to_dict())
    assert reading.model.parameters == sum(one.numel() for one in built.parameters())
    (tower,) = reading.model.towers
    assert tower.cut(64, 64) == (1, 64, 16)  # 8 x 8 patches, four a token


def test_a_retriever_of_an_encoder_has_the_head_that_its_file_names() -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.ColModernVBertConfig(embedding_dim=40)
    with torch.device("meta"):
        built = transformers.ColModernVBertForRetrieval(config)
    reading = read_config({**config.to_dict(), "architectures": ["ColModernVBertForRetrieval"]})
    assert reading.model.parameters == sum(one.numel() for one in built.parameters())
    assert [(one.name, one.out_features) for one in reading.model.before_head] == [("embedding_proj_layer", 40)]


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"])
def test_an_encoders_wrapper_has_the_head_that_its_file_names(head: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    sizes = {key: value for key, value in LLAMA.items() if key != "model_type"}
    vision = {**SEEN, "image_size": 64, "patch_size": 8, "vision_use_head": False}
    config = transformers.ModernVBertConfig(text_config=sizes, vision_config=vision, pixel_shuffle_factor=2)
    with torch.device("meta"):
        built = getattr(transformers, f"ModernVBert{head}")(config)
    reading = read_config({**config.to_dict(), "architectures": [f"ModernVBert{head}"]})
    assert reading.model.parameters == sum(one.numel() for one in built.parameters())


HEARS = {"d_model": 32, "encoder_layers": 3, "encoder_attention_heads": 4, "encoder_ffn_dim": 128}
#: The same of those that hear: the audio configuration, and the text tower's type.
LISTENERS: dict[str, tuple[dict[str, Any], str]] = {
    "qwen2_audio": ({**HEARS, "model_type": "qwen2_audio_encoder", "max_source_positions": 40}, "qwen2"),
    "voxtral": ({**SEEN, "intermediate_size": 128, "max_source_positions": 40}, "llama"),
    **{
        wrapper: ({**SEEN, "model_type": "audioflamingo3_encoder", "max_source_positions": 40}, "qwen2")
        for wrapper in ("audioflamingo3", "musicflamingo")
    },
    "qwen3_asr": ({**HEARS, "output_dim": 64, "downsample_hidden_size": 24, "num_mel_bins": 40}, "qwen3"),
    "moss_transcribe_diarize": ({**SEEN, "max_source_positions": 40}, "qwen3"),
    "qwen2_5_omni_thinker": ({**HEARS, "output_dim": 64}, "qwen2_5_omni_text"),
    "qwen3_omni_moe_thinker": (
        {**HEARS, "output_dim": 64, "downsample_hidden_size": 24, "num_mel_bins": 40},
        "qwen3_omni_moe_text",
    ),
}


@pytest.mark.parametrize("wrapper", LISTENERS)
def test_a_tower_that_hears_counts_as_in_its_class_and_runs_in_no_step(wrapper: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    audio, text_type = LISTENERS[wrapper]
    more: dict[str, Any] = {"vision_config": dict(QWEN)} if "thinker" in wrapper else {}
    known = transformers.CONFIG_MAPPING[wrapper]
    text = {**LLAMA, "model_type": text_type, "head_dim": 16}
    config = known(text_config=text, audio_config=audio, **more).to_dict()
    with torch.device("meta"):
        built = getattr(transformers, known.__name__.replace("Config", "ForConditionalGeneration"))(known(**config))
    model = read_config(config).model
    heard = sum(
        one.numel()
        for name, one in built.named_parameters()
        if not re.search("language_model|lm_head|visual|model.model|thinker.model", name)
    )
    (tower,) = (one for one in model.towers if one.stack.name == "audio")
    rest = replace(model, towers=tuple(one for one in model.towers if one is not tower))
    assert model.parameters - rest.parameters == heard
    assert listed(model, Workload(phase="infer", s=256)) == listed(rest, Workload(phase="infer", s=256))
    if not rest.towers:
        with pytest.raises(InputError, match="expected a model with a vision tower"):
            read_subject(config, images="1x64x64")


def test_a_known_tower_in_a_wrapper_that_is_not_known_counts_without_what_joins_it() -> None:
    around = {"model_type": "ovis", "llm_config": LLAMA, "vision_config": {**SEEN, "model_type": SIGLIP}}
    reading = read_config(around)
    assert len(reading.model.towers) == 1
    assert not reading.model.towers[0].behind
    assert "left out: what joins its vision tower to the text" in reading.left_out


@pytest.mark.parametrize(
    ("wrapper", "outer", "vision"),
    [
        ("llava_next", {"vision_feature_layer": [-2, -1, 0]}, {}),
        ("internvl", {"tie_word_embeddings": False}, {"norm_type": "rms_norm", "use_qk_norm": True}),
        ("internvl", {"tie_word_embeddings": True}, {}),
        ("mistral3", {"tie_word_embeddings": True}, {}),
    ],
)
def test_what_a_wrapper_says_next_to_its_towers_counts_as_in_its_class(
    wrapper: str, outer: dict[str, Any], vision: dict[str, Any]
) -> None:
    """Features of several layers side by side, the tower's norms, and whether the head is the embedding's."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = {**configured(wrapper), **outer}
    config["vision_config"] |= vision
    with torch.device("meta"):
        built = transformers.AutoModelForImageTextToText.from_config(transformers.CONFIG_MAPPING[wrapper](**config))
    assert read_config(config).model.parameters == sum(one.numel() for one in built.parameters())


@pytest.mark.parametrize("wrapper", FORMATS["huggingface"]["own_ties"])
@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("text", [False, True])
def test_a_class_that_ties_by_its_own_word_passes_over_its_text_towers(wrapper: str, outer: bool, text: bool) -> None:
    transformers = pytest.importorskip("transformers")
    key, inner, _ = NESTED[wrapper]
    tower: dict[str, Any] = {"model_type": inner, "tie_word_embeddings": text}
    if inner == "qwen3_omni_moe_text":  # its class's own 28 heads do not divide its hidden size
        tower |= {"num_attention_heads": 32}
    said = {"tie_word_embeddings": outer, key: tower}
    config = transformers.CONFIG_MAPPING[wrapper](**said)
    assert config.tie_word_embeddings == outer
    assert read_config({"model_type": wrapper, **said}).model.tied == outer


def test_omnis_default_head_is_its_own_as_in_its_class() -> None:
    """11.3 B: its text tower's class, which has no head, says that it ties one, and the thinker's that it does not."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.CONFIG_MAPPING["qwen2_5_omni_thinker"]()
    with torch.device("meta"):
        built = transformers.Qwen2_5OmniThinkerForConditionalGeneration(config)
    parameters = sum(one.numel() for one in built.parameters())
    assert read_config(config).model.parameters == parameters
    assert not read_config({"model_type": "qwen2_5_omni_thinker"}).model.tied


def test_a_wrapper_with_a_text_class_of_its_own_fills_in_that_ones_defaults() -> None:
    text = {key: size for key, size in LLAMA.items() if key != "vocab_size"} | {"model_type": "qwen2"}
    config = {"model_type": "qwen2_vl", "text_config": text, "vision_config": {"depth": 1, "hidden_size": 64}}
    assert read_config(config).model.vocab == 152064
    assert read_config(text).model.vocab == 151936


def test_a_chat_models_class_has_its_language_models_head() -> None:
    chat = {"model_type": "skywork_chat", "architectures": ["SkyworkR1VChatModel"], "llm_config": LLAMA}
    assert read_config(chat).model.parameters == read_config(LLAMA).model.parameters


def test_images_run_the_tower_once_with_the_prompt_and_not_while_decoding() -> None:
    config = configured("qwen3_vl")
    plain = read_subject(config, phase="infer", b=2, s=256)
    seen = read_subject(config, phase="infer", b=2, s=256, images="2x256x128")
    tower = [one for one in seen.operators if one.name.startswith("vision.")]
    assert tuple(one for one in seen.operators if one not in tower) == plain.operators
    (core,) = (one for one in tower if isinstance(one, Attention))
    assert (core.batch, core.q_len, core.count) == (4, 16 * 8, 4)  # patches of 16 pixels, four images
    assert "images: 64 of a sequence's 256 tokens, which its vision tower makes" in seen.notes
    assert read_subject(config, phase="decode", b=2, context=256, images="2x256x128").operators == (
        read_subject(config, phase="decode", b=2, context=256).operators
    )
    trained = read_subject(config, b=2, s=256, images="2x256x128")
    wgrads = {one.name: one.count for one in trained.operators if one.phase == "wgrad" and "vision." in one.name}
    # The patches', four of the layers', two of the merger's, which deepstack has once more for each of two layers.
    assert len(wgrads) == 1 + 4 + 2
    assert [wgrads[name] for name in ("vision.patch_embedding", "vision.merger.linear_fc1")] == [1, 3]
    without = memory(trained.model, read_subject(config, b=2, s=256).workload)  # type: ignore[arg-type]
    saved = memory(trained.model, trained.workload).components["activations"]  # type: ignore[arg-type]
    one = read_subject(config, b=2, s=256, images="1x256x128").workload
    less = memory(trained.model, one).components["activations"]  # type: ignore[arg-type]
    assert saved - less == less - without.components["activations"] > 0


def test_qwen3_vls_tower_is_cut_as_megatron_bridge_does_and_others_are_whole() -> None:
    """Its layers and mergers by tensor parallelism, patches and positions on every rank.

    Without sequence or context parallelism. The text tower is the text model's.
    """
    model = read_config("Qwen/Qwen3-VL-8B-Instruct").model
    (tower,) = model.towers
    plain = read_config("Qwen/Qwen3-8B").model

    def held(t: int) -> int:
        found = [sum(one.copies * one.elements for one in each.front_tensors(t)) for each in (model, plain)]
        return found[0] - found[1]

    tensors = [one for block in tower.stack.kinds for one in block_tensors(block, tower.stack.hidden)]
    cut = sum(one.copies * one.elements for one in (*tensors, *linear_tensors(tower.behind)))
    assert cut / 8 < held(8) - (held(1) - cut) < 1.01 * cut / 8
    assert (tower.ranks(8), tower.ranks(32)) == (8, 1)  # 16 heads
    text = [listed(one, Workload(t=8, sequence_parallel=True)) for one in (replace(model, towers=()), plain)]
    assert text[0] == text[1]
    seen = listed(model, Workload(t=8, cp=2, s=4096, sequence_parallel=True, images="1x512x512", phase="infer"))
    vision = [one for one in seen if one.name.startswith("vision.")]
    (core,) = (one for one in vision if isinstance(one, Attention))
    assert (core.heads, core.q_len) == (2, 32 * 32)
    reduced = {one.name: one.count for one in vision if isinstance(one, Collective)}
    assert reduced["vision.layers.*.tensor_parallel.all_reduce"] == 2 * 27
    whole = read_config("Qwen/Qwen2.5-VL-7B-Instruct").model
    assert whole.towers[0].ranks(2) == 1


def test_a_training_step_keeps_what_the_tower_makes_of_each_image() -> None:
    def kept(images: str | None) -> int:
        subject = read_subject(configured("qwen3_vl"), b=2, s=256, images=images)
        assert subject.model is not None
        return memory(subject.model, subject.workload).components["activations"]

    none, one, two = kept(None), kept("1x128x128"), kept("2x128x128")
    # Two sequences of 64 patches each, whose 32 channels four layers keep at least twice in 16 bits.
    assert two - one == one - none > 2 * 64 * 32 * 4 * 2 * 2


@pytest.mark.parametrize(
    ("images", "said"),
    [("1x1024", "expected count x height x width"), ("9x512x512", "expected images of at most the sequence's 256")],
)
def test_images_that_cannot_be_are_one_line(images: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_subject(configured("qwen3_vl"), phase="infer", b=1, s=256, images=images)
    with pytest.raises(InputError, match="expected a model with a vision tower"):
        read_subject(LLAMA, images="1x64x64")


def test_an_unknown_wrapper_is_read_as_its_text_tower_and_says_what_is_left_out() -> None:
    around = {
        "model_type": "ovis",
        "llm_config": LLAMA,
        "vision_config": {"model_type": "aimv2"},
        "audio_config": {"a": 1},
    }
    reading = read_config(around)
    assert reading.model.parameters == read_config(LLAMA).model.parameters
    assert {note for note in reading.notes if "left out" in note} == {
        "left out, with what joins it to the text: vision tower",
        "left out, with what joins it to the text: audio tower",
    }
    assert any("text tower only" in note for note in reading.notes)


#: MoonViT as the vision_config of moonshotai/Kimi-K2.5 has it.
MOONVIT = {
    "init_pos_emb_height": 64,
    "init_pos_emb_time": 4,
    "init_pos_emb_width": 64,
    "merge_kernel_size": [2, 2],
    "mm_hidden_size": 1152,
    "patch_size": 14,
    "text_hidden_size": 7168,
    "vt_hidden_size": 1152,
    "vt_intermediate_size": 4304,
    "vt_num_attention_heads": 16,
    "vt_num_hidden_layers": 27,
}


def test_kimi_k25_is_kimi_k2_and_a_tower() -> None:
    plain = read_config("moonshotai/Kimi-K2-Instruct").model
    model = read_config({**released("moonshotai/Kimi-K2.5")[0], "vision_config": MOONVIT}).model
    assert 0.4e9 < model.parameters - plain.parameters < 0.5e9


@pytest.mark.parametrize("phase", ["train", "prefill"])
def test_kimi_k25_runs_as_kimi_k2_but_for_the_formats_of_their_releases(phase: str) -> None:
    """K2 is released in fp8 in blocks, K2.5 in int4: a prompt runs in those (278 and 242 ms), else in 209 ms each."""
    seconds = []
    for name in ("moonshotai/Kimi-K2-Instruct", "moonshotai/Kimi-K2.5"):
        config = deepcopy(released(name)[0])
        for part in (config, config.get("text_config", {})):
            part.pop("quantization_config", None)
        seconds.append(ops(config, device="h200", phase=phase, b=1, s=4096, tp=8).step.seconds)
    assert seconds[1] == pytest.approx(seconds[0], rel=0.05)


def test_advice_is_on_the_text_tower() -> None:
    config = configured("qwen3_vl")
    report = check(config, phase="infer", b=2, s=256, images="1x512x512")
    assert report.to_dict()["step"]["seconds"] > check(config, phase="infer", b=2, s=256).to_dict()["step"]["seconds"]
    assert not any("head_dim 8 " in finding.message for finding in report.findings)
