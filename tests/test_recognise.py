"""Models that no reader knows: recognised in the graph of their class's products, and proven against torch itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from shapes.errors import InputError
from shapes.model import ModelShape, MoeShape
from shapes.operators import operators
from shapes.workload import Workload
from sizer import check, memory, ops
from sizer.readers import UnknownModelType, read_config
from sizer.subject import read_model
from tests.test_parity import CONFIGS, EAGER_ALONE, OLD, named

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if OLD:
    pytest.skip("transformers 5's masks and experts", allow_module_level=True)

SMALL = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "pad_token_id": 0,
}
#: Types without a formula that are whole, with what of them tells them from llama.
WHOLE: dict[str, dict[str, Any]] = {
    "moshi": {"head_dim": 16, "ffn_dim": 320},
    "muse_spark_text": {"head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "roc_bert": {},
    # An MLP whose last matrix alone has a bias; biases by distance in every layer; a part of a wrapper.
    "gte": {},
    "umt5": {"d_model": 96, "d_ff": 160, "d_kv": 16, "num_layers": 2, "num_heads": 6},
    "altclip_text_model": {"project_dim": 48},
}


def config(model_type: str, **more: Any) -> dict[str, Any]:
    return {"model_type": model_type, **SMALL, **more}


def proof(model_type: str, **more: Any) -> Any:
    from shapes.trace import recognise_config

    return recognise_config(config(model_type, **more))


#: Of the types that have a reader: those that fused attention runs, whose stack is one of layers alone. llama4's class
#: runs every expert, bert-like and encoder-decoder types have other parts, and default dropouts are no shape.
READ = sorted(
    {"cohere", "cohere2", "deepseek_v3", "gemma", "gemma2", "gemma3_text", "gpt_neox", "gpt_oss", "llama", "mistral"}
    | {"arcee", "ernie4_5", "exaone4", "glm", "granite", "granitemoe", "helium", "hunyuan_v1_dense", "ministral3"}
    | {"ernie4_5_moe", "mimo_v2_flash", "olmo3", "olmoe", "phimoe", "smollm3"}
    | {"bitnet", "hyperclovax", "internlm3", "iquestcoder", "jais2"}
    | {"mixtral", "olmo", "olmo2", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "starcoder2", "glm4_moe"}
)


@pytest.mark.parametrize("label", [label for label in READ if label in CONFIGS and label not in EAGER_ALONE])
def test_a_type_with_a_reader_is_recognised_as_its_reader_reads_it(label: str) -> None:
    from shapes.trace import recognise_config

    found = recognise_config(named(label))
    assert found.unproven == ()
    assert found.model is not None
    expected = read_config(named(label)).model
    for workload in (Workload(b=2, s=40), Workload(b=1, s=24, t=2, phase="infer")):
        assert operators(found.model, workload) == operators(expected, workload)
    assert found.model.parameters == expected.parameters == found.parameters


@pytest.mark.parametrize("model_type", WHOLE)
def test_a_type_without_a_reader_answers_as_a_formula_does(model_type: str) -> None:
    with pytest.raises(UnknownModelType):
        read_config(config(model_type, **WHOLE[model_type]))
    reading = read_model(config(model_type, **WHOLE[model_type]))
    assert reading.recognised
    found = ops(config(model_type, **WHOLE[model_type]), device="h100-sxm", b=2, s=64)
    assert found.to_dict()["operator_path"] == "recognised"
    split = memory(reading, device="h100-sxm", b=2, s=64, tp=2, zero=1, dp=4)
    assert split.parameters == reading.model.parameters


def test_a_type_with_fewer_positions_than_are_run_is_proven_with_as_many_as_it_has() -> None:
    found = proof("clip_text_model", num_hidden_layers=2, hidden_size=64, intermediate_size=128, num_attention_heads=4)
    assert (found.unproven, found.longest) == ((), 77)
    assert found.model.parameters == found.parameters


def test_a_class_that_runs_some_of_its_layers_again_is_run_whole() -> None:
    from shapes.trace import trace_config
    from shapes.trace.config import with_class

    loops = {"n_input_layers": 4, "n_recurrent_layers": 8, "n_output_layers": 4, "n_recurrent_loops": 3}
    looped = config("dory", head_dim=16, num_hidden_layers=16, **loops)
    whole = with_class(looped, lambda built: built.run(64), attention="flash", dtype="bf16")
    once = trace_config({**looped, "n_recurrent_loops": 1}, s=64)
    assert trace_config(looped, s=64).flops == whole.flops > 1.5 * once.flops
    assert proof("dory", head_dim=16, num_hidden_layers=16, **loops).model is None


def test_layers_that_run_anothers_matrices_are_not_counted_twice_in_what_is_not_understood() -> None:
    kinds = ["mamba", "mamba", "hybrid", "mamba", "mamba", "hybrid"]
    sizes = {"hidden_size": 64, "attention_hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4}
    found = proof("zamba", num_hidden_layers=6, layers_block_type=kinds, mamba_dt_rank=4, **sizes)
    assert found.model is None
    assert 0.5 < sum(one.share for one in found.unproven) <= 1


def test_what_a_layer_learns_beside_its_parts_is_counted_with_it() -> None:
    (block,) = recognise_small("gte").main.blocks
    assert (block.mlp.bias, block.extra) == (False, (("mlp.down_proj.bias", 96),))
    encoder, decoder = recognise_small("umt5", **WHOLE["umt5"]).stacks
    for stack in (encoder, decoder):  # 32 buckets of each of 6 heads
        assert [size for _, size in stack.blocks[0].extra] == [32 * 6]
    sizes = {"num_attention_heads": 4, "num_hidden_layers": 2, "hidden_size": 64, "image_size": 64, "patch_size": 16}
    assert proof("mlcd_vision_model", **sizes).model.main.extra == (("vectors", 8),)  # half a head's


def test_norms_between_experts_and_what_brings_tokens_to_their_width_are_counted() -> None:
    sizes = {"moe_hidden_size": 48, "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2}
    found = recognise_small("muse_spark_text", head_dim=16, **sizes)
    sparse = next(block for block in found.main.blocks if isinstance(block.mlp, MoeShape))
    assert sparse.mlp.latent == 48
    assert {48} <= {size for _, size in sparse.extra}


def test_a_class_of_fewer_positions_than_two_lengths_is_proven_at_half_of_them() -> None:
    found = proof("owlvit_text_model", num_hidden_layers=2, max_position_embeddings=16)
    assert (found.unproven, found.longest) == ((), 16)


def test_inputs_that_are_not_known_and_classes_that_are_lacking_are_refused_in_a_line() -> None:
    from shapes.trace import recognise_config

    for model_type in ("videoprism", "voxtral_realtime_text", "oneformer"):
        settings = transformers.CONFIG_MAPPING[model_type]()
        with pytest.raises(InputError, match=r"\A[^\n]+\Z"):
            recognise_config({"model_type": model_type, **settings.to_diff_dict()})


def test_windows_and_rotation_are_each_layers_own() -> None:
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    blocks = proof("exaone4", sliding_window=16, layer_types=kinds).model.main.blocks
    assert [(block.attention.window, block.count) for block in blocks] == [(16, 3), (None, 1)]
    assert [block.attention.rotary_dim for block in blocks] == [16, 0]
    layers = [block.attention.rotary_dim for block in proof("smollm3", no_rope_layers=[1, 1, 1, 0]).model.main.blocks]
    assert layers == [16, 0]


def test_a_wrapper_is_read_as_the_tower_that_ran() -> None:
    from shapes.trace import recognise_config

    text = {**SMALL, "model_type": "qwen3_vl_moe_text", "num_local_experts": 8, "num_experts_per_tok": 2}
    text |= {"moe_intermediate_size": 48, "head_dim": 16}
    found = recognise_config({"model_type": "qwen3_vl_moe", "text_config": text})
    assert found.model is not None
    assert any("visual" in path for path in found.held)
    expected = read_config({"model_type": "qwen3_vl_moe", "text_config": text}).model
    assert found.model.stacks == expected.stacks


def test_a_class_that_runs_on_images_alone_is_read_as_its_text_tower() -> None:
    sizes = {"embed_dim": 96, "ffn_dim": 160, "layers": 3, "attention_heads": 6, "vocab_size": 320}
    settings = transformers.Kosmos2Config(text_config=sizes).to_dict()
    reading = read_model({**settings, "architectures": ["Kosmos2ForConditionalGeneration"]})
    with torch.device("meta"):
        built = transformers.models.kosmos2.modeling_kosmos2.Kosmos2TextForCausalLM(
            transformers.Kosmos2Config(text_config=sizes).text_config
        )
    assert reading.model.parameters == sum(one.numel() for one in built.parameters())
    assert any("left out" in note and "vision tower" in note for note in reading.notes)
    assert any("read as Kosmos2TextForCausalLM" in note for note in reading.notes)


def test_what_is_not_understood_is_named_with_its_share() -> None:
    found = proof("hy_v4", q_lora_rank=40, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8)
    assert found.model is None
    assert any("self_attn" in one.module for one in found.unproven)
    assert 0 < max(one.share for one in found.unproven) < 1
    with pytest.raises(UnknownModelType, match="not understood"):
        read_model(config("zaya", head_dim=16))


class _Wider(torch.nn.Module):
    """An MLP with a product that no known part has."""

    def __init__(self, inner: Any, hidden: int) -> None:
        super().__init__()
        self.inner, self.more = inner, torch.nn.Linear(hidden, hidden, bias=False, device="meta", dtype=torch.bfloat16)

    def forward(self, x: Any) -> Any:
        return self.inner(x) * self.more(x).sigmoid()


class _Scaled(torch.nn.Module):
    def __init__(self, inner: Any, size: int) -> None:
        super().__init__()
        self.inner, self.scale = inner, torch.nn.Parameter(torch.empty(size, device="meta", dtype=torch.bfloat16))

    def forward(self, x: Any) -> Any:
        return self.inner(x) * self.scale


@pytest.mark.parametrize("wrapped", [lambda mlp: _Wider(mlp, 96), lambda mlp: _Scaled(mlp, 1)])
def test_a_class_with_one_product_or_vector_more_is_not_proven(wrapped: Any) -> None:
    from shapes.trace.config import Built, build, load_config
    from shapes.trace.prove import prove

    settings, where = load_config(config("llama"))
    model, _ = build(settings, where, attention="auto", dtype="bf16")
    assert prove(Built(model, settings)).model is not None
    model.model.layers[2].mlp = wrapped(model.model.layers[2].mlp)
    found = prove(Built(model, settings))
    assert found.model is None
    assert any("layers.*.mlp" in one.module for one in found.unproven)


def _block(model: ModelShape, **changes: Any) -> ModelShape:
    """``model`` with facts of its first block's attention changed, in place or one more of them."""
    first, *rest = model.main.blocks
    assert first.attention is not None
    stack = replace(model.main, blocks=(replace(first, attention=replace(first.attention, **changes)), *rest))
    return replace(model, stacks=(stack,))


#: One fact of a shape changed -> the shape that the proof has to refuse.
MUTATIONS: dict[str, Callable[[ModelShape], ModelShape]] = {
    "window off by one": lambda model: _block(model, window=17),
    "no window": lambda model: _block(model, window=None),
    "two heads more": lambda model: _block(model, heads=8),
    "a key head more": lambda model: _block(model, kv_heads=3),
    "wider heads": lambda model: _block(model, head_dim=24),
    "not causal": lambda model: _block(model, causal=False),
    "a bias of queries": lambda model: _block(model, qkv_bias=True),
    "a bias of the output": lambda model: _block(model, o_bias=True),
    "queries and keys not normed": lambda model: _block(model, qk_norm="none"),
    "a gate": lambda model: _block(model, gate="apart"),
    "one product for all three": lambda model: _block(model, fused_qkv=True),
    "tied": lambda model: replace(model, tied=True),
    "a bias of the head": lambda model: replace(model, head_bias=True),
    "a layer less": lambda model: replace(model, stacks=(replace(model.main, blocks=model.main.blocks[:-1]),)),
    "no last norm": lambda model: replace(model, stacks=(replace(model.main, final_norm=0),)),
}


@pytest.fixture(scope="module")
def recorded() -> tuple[Any, ModelShape]:
    from shapes.trace.config import Built, build, load_config
    from shapes.trace.prove import prove

    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    settings, where = load_config(config("exaone4", head_dim=16, sliding_window=16, layer_types=kinds))
    module, _ = build(settings, where, attention="auto", dtype="bf16")
    model = prove(Built(module, settings)).model
    assert model is not None
    return Built(module, settings).graph(64), model


@pytest.mark.parametrize("changed", MUTATIONS)
def test_the_proof_refuses_a_shape_with_one_fact_changed(recorded: tuple[Any, ModelShape], changed: str) -> None:
    from shapes.trace.prove import refuted

    graph, model = recorded
    workload = Workload(b=1, s=64, dtype="bf16", phase="infer")
    assert refuted(model, graph, workload) == []
    assert refuted(MUTATIONS[changed](model), graph, workload)
    assert refuted(model, graph, replace(workload, dtype="fp16"))


def test_memory_that_was_only_reserved_has_no_known_values() -> None:
    """A mask of it would be read as whatever an earlier model left there (minimax_m3_vl_text's indexer was)."""
    import torch

    from shapes.trace.graph import Known

    known, made = Known(), torch.zeros(2, 2, device="meta")
    known.put(made, torch.zeros(2, 2))
    aten = torch.ops.aten
    for reserve, arguments in ((aten.empty_like, (made,)), (aten.new_empty, (made, [2, 2])), (aten.empty, ([2, 2],))):
        out = reserve(*arguments, **({"device": "meta"} if reserve is aten.empty else {}))
        known.follow(reserve.default if reserve is not aten.empty else reserve.memory_format, arguments, {}, out)
        assert known.of(out) is None
        known.follow(aten.fill_.Scalar, (out, 3.0), {}, out)
        assert known.of(out).tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_rotated_channels_and_dropped_biases_are_the_classes() -> None:
    half = proof("stablelm", partial_rotary_factor=0.5, use_qkv_bias=True).model
    assert (half.attention.rotary_dim, half.attention.qkv_bias, half.attention.o_bias) == (8, True, False)
    assert proof("stablelm", partial_rotary_factor=1.0).model.attention.rotary_dim == 16


def test_eager_attention_sees_what_its_masks_let_through() -> None:
    more = {"num_layers": 4, "attention_types": [[["global", "local"], 2]], "window_size": 40, "num_heads": 6}
    found = recognise_small("gpt_neo", **more)
    assert [block.attention.window for block in found.main.blocks] == [None, 40, None, 40]
    assert all(block.attention.causal for block in found.main.blocks)
    assert recognise_small("bloom", n_head=6).stacks == read_config(config("bloom", n_head=6)).model.stacks


def recognise_small(model_type: str, **more: Any) -> ModelShape:
    found = proof(model_type, **more)
    assert found.unproven == ()
    assert found.model is not None
    return found.model


def test_an_encoder_decoder_is_two_stacks_with_cross_attention() -> None:
    sides = {"decoder_layers": 3, "encoder_attention_heads": 6, "decoder_attention_heads": 4}
    widths = {"d_model": 96, "encoder_ffn_dim": 160, "decoder_ffn_dim": 224, "max_position_embeddings": 128}
    found = recognise_small("mbart", **sides, **widths)
    encoder, decoder = found.stacks
    assert (encoder.layers, decoder.layers, encoder.name, decoder.name) == (4, 3, "encoder", "decoder")
    (block,) = decoder.blocks
    assert block.cross is not None
    assert (block.cross.heads, block.cross.cross, block.cross.causal, block.attention.causal) == (4, True, False, True)
    assert not encoder.blocks[0].attention.causal
    assert encoder.blocks[0].cross is None


def test_an_encoder_s_tables_and_head_have_their_roles() -> None:
    found = recognise_small("electra", embedding_size=48, type_vocab_size=2, max_position_embeddings=128)
    assert found.embedding_dim == 48
    assert [linear.out_features for linear in (*found.main.front, *found.before_head)] == [96, 48]
    assert dict(found.main.extra)["token_type_embeddings"] == 2 * 48


def test_an_encoder_that_sees_windows_and_pools_a_token_is_proven() -> None:
    """Its kernel is told of a side of the window, its mask of both; the pooler reads one token."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
    sizes |= {"vocab_size": 320, "max_position_embeddings": 1024, "pad_token_id": 0}
    found = proof("modernbert", **sizes, local_attention=32)
    assert [block.attention.window for block in found.model.main.blocks] == [None, 33, None]
    found = proof("xlm-roberta", **sizes, architectures=["XLMRobertaModel"])
    assert [one.rows for one in found.model.before_head] == [1]


def test_norms_without_weights_are_counted_where_they_run() -> None:
    (block,) = recognise_small("nanochat").main.blocks
    assert (block.norms, block.norm_weights) == (2, 0)
    assert (block.attention.qk_norm, block.attention.qk_norm_weights) == ("head", 0)


def test_values_normed_without_a_weight_are_told_from_keys_of_one_product_that_have_one() -> None:
    """gemma4's layers norm values of a matrix of their own, and every second here those of the keys'."""
    more = {"head_dim": 16, "layer_types": ["sliding_attention", "full_attention"] * 2, "attention_k_eq_v": True}
    more |= {"global_head_dim": 32, "num_global_key_value_heads": 2, "hidden_size_per_layer_input": 0}
    found = recognise_small("gemma4_unified_text", **more)
    layers = [block.attention for block in found.main.blocks for _ in range(block.count)]
    assert [(one.keys_values, one.v_norm) for one in layers] == [("apart", True), ("one", True)] * 2
    assert found == read_config(config("gemma4_unified_text", **more)).model
    (block,) = recognise_small("qwen3", head_dim=16).main.blocks
    assert (block.attention.qk_norm, block.attention.v_norm) == ("head", False)


def test_a_mask_of_the_model_s_own_is_not_taken_for_a_known_one() -> None:
    found = proof("doge", num_attention_heads=6, head_dim=16)
    assert found.model is None
    assert found.unproven


LIGHTLY = """
import sys
from shapes.trace.light import lightly

def standing_in():
    return [name for name, one in sys.modules.items() if type(one).__name__ == "_Light"]

import torch
available = torch.distributed.is_available()
try:
    with lightly():
        from transformers import masking_utils
        assert standing_in()
        raise KeyError
except KeyError:
    assert not standing_in() and torch.distributed.is_available() == available
with lightly():
    from torch._dynamo.utils import is_compile_supported  # as torchvision does
import torch._dynamo
assert not standing_in() and is_compile_supported is torch._dynamo.utils.is_compile_supported
own = torch._dynamo._trace_wrapped_higher_order_op.TransformGetItemToIndex
assert type(masking_utils.TransformGetItemToIndex()) is own
"""


def test_stand_ins_give_way_to_who_asks_for_more_and_none_outlives_an_error() -> None:
    subprocess.run([sys.executable, "-c", LIGHTLY], check=True)


def test_a_class_that_loops_over_tokens_is_named() -> None:
    from shapes.trace import recognise_config

    found = recognise_config({"model_type": "rwkv", "hidden_size": 512, "num_hidden_layers": 4})
    assert found.model is None
    (unproven,) = found.unproven
    assert unproven.share == 1.0
    assert "loops over tokens" in unproven.reason


def test_a_mask_function_is_a_window_a_chunk_or_neither() -> None:
    from torch import device
    from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

    from shapes.trace.graph import mask_form

    assert mask_form(causal_mask_function) == (True, None)
    with device("meta"):  # a caller's own
        assert mask_form(causal_mask_function) == (True, None)
    assert mask_form(sliding_window_causal_mask_function(512)) == (True, 512)
    assert mask_form(lambda b, h, q, k: (k <= q) & (q // 1024 == k // 1024)) == (True, 1024)
    assert mask_form(lambda b, h, q, k: k == k) == (False, None)
    assert mask_form(lambda b, h, q, k: (k <= q) & (k % 2 == 0)) is None
    # A prefix that all tokens see, shorter than any window; and a window to both sides, which is cut at the ends.
    assert mask_form(lambda b, h, q, k: (k <= q) | (k < 16)) is None
    assert mask_form(lambda b, h, q, k: (q - k).abs() <= 64) == (False, 129)


def test_findings_of_a_recognised_model_name_its_file_s_keys() -> None:
    report = check(config("jais2", vocab_size=321), device="h100-sxm", b=2, s=64)
    assert "vocab_size = 321" in str(report)


def test_two_cores_on_the_same_queries_are_one_attention_that_runs_twice() -> None:
    found = recognise_small("diffllama")
    assert (found.attention.cores, found.attention.kv_heads) == (2, 2)
    once = replace(found.attention, cores=1)
    changed = replace(found, stacks=(replace(found.main, blocks=(replace(found.main.blocks[0], attention=once),)),))
    runs = [
        [one.count for one in operators(model, Workload(b=1, s=64)) if one.kind == "attention"]
        for model in (found, changed)
    ]
    assert runs == [[8, 8], [4, 4]]


def test_adapters_and_heads_of_several_codebooks_are_counted() -> None:
    small = {"intermediate_size": 160, "max_position_embeddings": 128, "default_language": "en_XX"}
    assert [one.name for one in recognise_small("xmod", **small).main.blocks[0].before] == [
        "adapter.up_proj",
        "adapter.down_proj",
    ]
    found = recognise_small("rembert", input_embedding_size=48, output_embedding_size=64)
    assert (found.embedding_dim, found.head_inputs, found.head_linear.in_features) == (48, 64, 64)
    codebooks = {"hidden_size": 96, "num_attention_heads": 6, "num_hidden_layers": 2, "ffn_dim": 160, "vocab_size": 320}
    found = proof("musicgen", decoder={**codebooks, "model_type": "musicgen_decoder"}).model
    assert (found.heads, found.embedding_tables) == (4, 4)
    heads = [one for one in operators(found, Workload(b=1, s=32)) if one.name == "lm_head"]
    assert {one.count for one in heads} == {4}


def test_of_texts_paired_with_images_both_towers_are_there() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision = {**sizes, "image_size": 64, "patch_size": 16, "projection_dim": 16}
    text = {**sizes, "vocab_size": 64, "max_position_embeddings": 77, "projection_dim": 16}
    given = {"model_type": "clip", "text_config": text, "vision_config": vision, "projection_dim": 16}
    config = transformers.CONFIG_MAPPING["clip"](**{key: given[key] for key in given if key != "model_type"})
    with torch.device("meta"):
        built = transformers.CLIPModel(config)
    for said in ({}, {"architectures": ["CLIPModel"]}):
        report = check({**config.to_dict(), **said}, device="h100-sxm")
        assert report.model.parameters == sum(one.numel() for one in built.parameters())
        assert not report.model.unproven
    reading = read_model(config.to_dict())
    assert not any("not run" in note for note in reading.notes)
    image, words = reading.model.stacks
    # 16 patches and one for their class, of 3 x 16 x 16 pixels, which have no gradient.
    (patches,) = image.front
    assert (image.length, patches.rows, patches.in_features, patches.grad_input) == (17, 16, 768, False)
    assert (words.length, words.name) == (None, "decoder")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "settings"), [("sam_vision_model", {"num_hidden_layers": 2, "global_attn_indexes": [1]})]
)
def test_masks_are_listed_and_what_is_not_understood_named(model_type: str, settings: dict[str, Any]) -> None:
    built = transformers.CONFIG_MAPPING[model_type](**settings)
    with torch.device("meta"):
        theirs = sum(one.numel() for one in transformers.AutoModel.from_config(built).parameters())
    result = check(built.to_dict(), b=1).to_dict()
    assert result["model"]["parameters"] == theirs
    assert "SZ132" in {finding["code"] for finding in result["findings"]}
    assert result["model"]["unproven"]


VIDEOS = {"crop_size": 32, "frames_per_clip": 4, "num_hidden_layers": 2, "pred_num_hidden_layers": 2}
PICTURES = {"hidden_size": 96, "num_attention_heads": 6, "num_hidden_layers": 3, "image_size": 64, "patch_size": 16}


@pytest.mark.parametrize(
    ("model_type", "settings", "lengths"),
    [
        # Norms and, of DINO's, what scales each part's output.
        ("dinov2", PICTURES, [17]),
        ("dinov3_vit", PICTURES | {"intermediate_size": 160}, [17]),
        ("deit", PICTURES | {"intermediate_size": 160}, [18]),
        ("ijepa", PICTURES | {"intermediate_size": 160}, [16]),
        ("patchtst", {"num_hidden_layers": 2}, [32]),
        # Each channel is a series that sees itself alone.
        ("patchtst", {"num_hidden_layers": 2, "num_input_channels": 3}, [96]),
        # A series as patches, none of which is padding.
        ("timesfm", {"num_hidden_layers": 2}, [16]),
        # Its predictor reads all tokens twice: as they are, and as those that are predicted.
        (
            "vjepa2",
            {"crop_size": 32, "frames_per_clip": 4, "num_hidden_layers": 2, "pred_num_hidden_layers": 2},
            [8, 16],
        ),
    ],
)
def test_what_reads_images_videos_or_series_is_proven_with_as_many_tokens_as_it_cuts_them_into(
    model_type: str, settings: dict[str, Any], lengths: list[int]
) -> None:
    built = transformers.CONFIG_MAPPING[model_type](**settings)
    reading = read_model(built.to_dict())
    assert reading.recognised
    assert [stack.length for stack in reading.model.stacks] == lengths
    assert all(stack.front for stack in reading.model.stacks)
    assert reading.longest == lengths[-1]
    with torch.device("meta"):
        theirs = sum(one.numel() for one in _class_of(built).parameters())
    assert reading.model.parameters == theirs
    step = check(built.to_dict(), device="h100-sxm", b=2).step
    assert step is not None


def test_a_series_is_as_long_as_its_patches_and_turned_by_positions_that_depend_on_its_padding() -> None:
    (block,) = recognise_small("timesfm2_5", num_hidden_layers=2, head_dim=16, num_attention_heads=6).main.blocks
    core = block.attention
    assert (core.causal, core.rotary_dim, core.qk_norm) == (True, 16, "head")
    assert [size for _, size in block.extra] == [16]  # what scales queries


def _class_of(built: Any) -> Any:
    """The class that a configuration's own file names, of transformers' classes of classes."""
    from shapes.trace.config import model_class

    return model_class(built, "")._from_config(built)


@pytest.mark.parametrize("label", ["gemma3n_text", "gemma4_text"])
def test_what_is_not_understood_of_layers_with_embeddings_of_their_own_is_named_by_module(label: str) -> None:
    from shapes.trace import recognise_config
    from tests.test_families import config as of_family

    found = recognise_config(of_family(label))
    named = {one.module: one.reason for one in found.unproven}
    assert found.model is None
    assert "token embeddings of another size than 320 x 96" in named["model.embed_tokens_per_layer"]
    assert any(name.startswith("model.layers.*") for name in named)
    assert "" not in named


@pytest.mark.parametrize(
    ("model_type", "settings", "lists"),
    [
        # Layers numbered for a random generator alone are alike.
        ("big_bird", {"num_hidden_layers": 12}, 1),
        # So are those of which each has its own number in a list of the configuration.
        ("llama", {"num_hidden_layers": 12, "kv_source_layers": [*range(12)]}, 1),
        # Two stacks of 16 layers in a configuration of 128.
        ("hrm_text", {}, 2),
    ],
)
def test_layers_that_are_alike_run_twice_however_they_are_numbered(
    model_type: str, settings: dict[str, Any], lists: int
) -> None:
    from shapes.trace.config import build, load_config
    from shapes.trace.repeats import layers_cut

    config, where = load_config({"model_type": model_type, **settings})
    module, _ = build(config, where, attention="auto", dtype="bf16")
    with layers_cut(module, config, config.num_hidden_layers) as cut:
        assert cut is not None
        assert (cut.kept, len(cut.containers)) == ((0, 1), lists)


def test_layers_that_a_list_sends_to_other_layers_are_told_apart() -> None:
    from shapes.trace.config import build, load_config
    from shapes.trace.repeats import layers_cut

    asked = {"model_type": "llama", "num_hidden_layers": 12, "kv_source_layers": [*range(11), 0]}
    config, where = load_config(asked)
    module, _ = build(config, where, attention="auto", dtype="bf16")
    with layers_cut(module, config, 12) as cut:
        assert cut is None


@pytest.mark.parametrize("model_type", ["xlnet", "xlstm"])
def test_a_class_that_mixes_element_types_is_run_in_fp32(model_type: str) -> None:
    from shapes.trace import recognise_config

    found = recognise_config(SIZES_OF[model_type])
    assert (found.model, found.dtype) == (None, "fp32")
    assert found.unproven
    assert found.built is not None
    assert found.built.notes[-1] == "its class mixes element types: it is run in fp32"


SIZES_OF: dict[str, dict[str, Any]] = {
    "xlnet": {"model_type": "xlnet", "n_layer": 2, "d_model": 64, "n_head": 4, "d_inner": 128, "vocab_size": 320},
    "xlstm": {"model_type": "xlstm", "num_hidden_layers": 2, "hidden_size": 256, "num_heads": 4, "vocab_size": 320},
}


def test_a_quantised_release_of_a_recognised_type_has_its_format() -> None:
    plain, blocks = config("moshi", head_dim=16, ffn_dim=320), {"quant_method": "fp8", "weight_block_size": [128, 128]}
    found = read_model({**plain, "quantization_config": blocks})
    formats = dict(found.model.main.blocks[0].formats)
    assert formats["attention.q_proj"].bits == 8
    served = {"phase": "decode", "device": "h100-sxm", "b": 1, "context": 64}
    weights = [memory(one, **served).to_dict()["components"]["weights"] for one in (found, read_model(plain))]
    assert weights[0] < 0.8 * weights[1]
    with pytest.raises(InputError, match="quant_method = 'none-such': expected one of"):
        read_model({**plain, "quantization_config": {"quant_method": "none-such"}})


def test_what_a_recognised_class_does_not_read_is_named() -> None:
    strange = config("molmo2_text", head_dim=16, num_hiden_layers=2, architectures=["Molmo2ForEverything"])
    found = read_model(strange)
    assert [one.key for one in found.unread] == ["num_hiden_layers"]
    assert "Molmo2ForEverything is not known: read as Molmo2TextModel" in found.notes


def test_towers_around_a_recognised_text_tower_count_as_in_its_class() -> None:
    text = {**SMALL, "model_type": "glm_ocr_text", "head_dim": 64, "num_nextn_predict_layers": 0}
    vision = {"depth": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48, "out_hidden_size": 96}
    seen = {"model_type": "glm_ocr", "text_config": text, "vision_config": vision}
    model = read_model(seen).model
    assert model.towers[0].stack.layers == 2
    with torch.device("meta"):
        class_ = transformers.GlmOcrForConditionalGeneration(transformers.GlmOcrConfig(**seen))
    assert model.parameters == sum(one.numel() for one in class_.parameters())
    images = ops(seen, device="h100-sxm", b=1, s=256, images="1x112x112")
    assert any(one.name.startswith("vision.") for one in images.operators)


def test_parts_that_did_not_run_count_in_parameters_and_are_named() -> None:
    found = read_model(config("trocr", d_model=96, decoder_layers=2, decoder_attention_heads=6, decoder_ffn_dim=160))
    (note,) = [one for one in found.left_out if one.startswith("not run")]
    assert "encoder_attn" in note
    with torch.device("meta"):
        class_ = transformers.TrOCRForCausalLM(transformers.TrOCRConfig(**found.config))
    assert found.model.parameters == sum(one.numel() for one in class_.parameters())


def test_layers_that_do_not_run_leave_the_others_of_their_kind_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """mllama's layers that read images do not run without any; a few of all layers show them all."""
    from shapes.trace import recognise_config, repeats

    text = {**SMALL, "num_hidden_layers": 12, "cross_attention_layers": [1, 4, 7, 10]}
    asked = {"model_type": "mllama", "text_config": text}
    found = recognise_config(asked)
    assert found.model is not None
    assert found.held == ("model.layers.1", "model.layers.4")
    assert found.model.layers == 8
    monkeypatch.setattr(repeats, "_kept", lambda *_: None)
    whole = recognise_config(asked)
    assert (whole.model, whole.parameters) == (found.model, found.parameters)
    assert whole.held == tuple(f"model.layers.{layer}" for layer in (1, 4, 7, 10))


def _torchs_own() -> dict[str, tuple[Any, int]]:
    """torch's own modules, and how many sequences of hidden states each is called with."""
    layers = {"batch_first": True, "dim_feedforward": 96, "dropout": 0.0}
    encoder, decoder = torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer
    return {
        "encoder": (torch.nn.TransformerEncoder(encoder(48, 4, **layers), 3), 1),
        "pre-norm": (torch.nn.TransformerEncoder(encoder(48, 4, norm_first=True, **layers), 3), 1),
        "layer": (encoder(48, 4, **layers), 1),
        "decoder": (torch.nn.TransformerDecoder(decoder(48, 4, **layers), 3), 2),
        "both": (torch.nn.Transformer(48, 4, 2, 2, **layers), 2),
        "attention": (torch.nn.MultiheadAttention(48, 4, batch_first=True), 3),
    }


@pytest.mark.parametrize("name", ["encoder", "pre-norm", "layer", "decoder", "both", "attention"])
def test_torchs_own_layers_by_themselves_are_whole(name: str) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from shapes.trace import recognise_module

    module, called = _torchs_own()[name]
    inputs = tuple(torch.randn(2, 24, 48, requires_grad=True) for _ in range(called))
    found = recognise_module(module, inputs, {}).model
    assert found is not None
    assert found.parameters == sum(parameter.numel() for parameter in module.parameters())
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        out = module(*inputs)
        (out[0] if isinstance(out, tuple) else out).sum().backward()
    step = operators(found, Workload(2, 24, "fp32", attention="eager"))
    assert sum(one.flops * one.count for one in step) == counter.get_total_flops()


def test_torchs_own_layers_with_the_sequence_first_say_what_to_do() -> None:
    from shapes.trace import recognise_module

    module = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(48, 4, 96), 2)
    proof = recognise_module(module, (torch.randn(24, 2, 48),), {})
    assert proof.model is None
    assert proof.unproven[0].reason.endswith("if its first dimension is the sequence, build it with batch_first=True")
