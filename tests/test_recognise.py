"""Models that no reader knows: recognised in the graph of their class's products, and proven against torch itself."""

from __future__ import annotations

from typing import Any

import pytest

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
#: Types without a reader that are whole, with what of them tells them from llama.
WHOLE: dict[str, dict[str, Any]] = {
    "cwm": {"head_dim": 16, "sliding_window": 16},
    "exaone_moe": {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    "flex_olmo": {"num_experts": 8, "num_experts_per_tok": 2},
    "granitemoeshared": {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 48},
    "internlm3": {"head_dim": 16},
    "jais2": {"head_dim": 16},
    "nanochat": {},
    "persimmon": {},
    "solar_open": {"head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    "vaultgemma": {"head_dim": 16, "sliding_window": 16},
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
    | {"mixtral", "olmo", "olmo2", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "starcoder2", "glm4_moe"}
)


@pytest.mark.parametrize("label", [label for label in READ if label in CONFIGS and label not in EAGER_ALONE])
def test_a_type_with_a_reader_is_recognised_as_its_reader_reads_it(label: str) -> None:
    from shapes.trace import recognise_config

    found = recognise_config(named(label))
    assert found.unproven == {}
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
    split = memory(config(model_type, **WHOLE[model_type]), device="h100-sxm", b=2, s=64, tp=2, zero=1, dp=4)
    assert split.parameters == reading.model.parameters


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


def test_what_is_not_understood_is_named_with_its_share() -> None:
    found = proof("deepseek_v32", q_lora_rank=40, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8)
    assert found.model is None
    assert any("indexer" in path for path in found.unproven)
    assert 0 < max(found.share.values()) < 1
    with pytest.raises(UnknownModelType, match="indexer"):
        read_model(config("deepseek_v32", q_lora_rank=40, kv_lora_rank=32))


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
    from shapes.trace.config import build, load_config
    from shapes.trace.prove import prove

    settings, where = load_config(config("llama"))
    model, _ = build(settings, where, attention="auto", dtype="bf16", architecture=None, experts=None)
    assert prove(model, settings, "bf16").model is not None
    model.model.layers[2].mlp = wrapped(model.model.layers[2].mlp)
    found = prove(model, settings, "bf16")
    assert found.model is None
    assert any("layers.2.mlp" in path for path in found.unproven)


def test_a_mask_function_is_a_window_a_chunk_or_neither() -> None:
    from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

    from shapes.trace.graph import mask_form

    assert mask_form(causal_mask_function) == (True, None)
    assert mask_form(sliding_window_causal_mask_function(512)) == (True, 512)
    assert mask_form(lambda b, h, q, k: (k <= q) & (q // 1024 == k // 1024)) == (True, 1024)
    assert mask_form(lambda b, h, q, k: k == k) == (False, None)
    assert mask_form(lambda b, h, q, k: (k <= q) & (k % 2 == 0)) is None


def test_findings_of_a_recognised_model_name_its_file_s_keys() -> None:
    report = check(config("nanochat", vocab_size=321), device="h100-sxm", b=2, s=64)
    assert "vocab_size = 321" in str(report)
