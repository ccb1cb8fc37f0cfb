"""Changing named dimensions of a model, and what must follow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapes.columns import IntegerTable, rows_by
from shapes.errors import InputError
from shapes.model import AttentionShape, Block, MlaShape, MlpShape, ModelShape, MoeShape, Stack
from shapes.model.layers import each_layer
from shapes.model.resize import dimensions, resize
from sizer.readers import read_config
from sizer.subject import read_model


def gpt3_2_7b() -> ModelShape:
    block = Block(AttentionShape(32, 32, 80), MlpShape(10240, gated=False, bias=True), norm_weights=2, count=32)
    return ModelShape("gpt2", (Stack("decoder", 2560, (block,), positions=2048, final_norm=2),), vocab=50257, tied=True)


def deepseek() -> ModelShape:
    mla = MlaShape(16, 512, 128, 64, 128)
    moe = MoeShape(64, 6, 1408, shared=MlpShape(2816))
    blocks = (Block(mla, MlpShape(10944)), Block(mla, moe, count=26))
    return ModelShape("deepseek_v2", (Stack("decoder", 2048, blocks),), vocab=102400)


def test_no_change_is_the_same_model() -> None:
    for model in (gpt3_2_7b(), deepseek()):
        assert resize(model) == model
        assert resize(model, **dimensions(model)) == model


def test_rotated_channels_stay_where_the_file_says_how_many() -> None:
    codegen = {"model_type": "codegen", "n_embd": 2560, "n_layer": 32, "vocab_size": 51200, "rotary_dim": 64}
    assert resize(read_model({**codegen, "n_head": 32}).model, heads=20) == read_model({**codegen, "n_head": 20}).model
    neox = {"model_type": "gpt_neox", "hidden_size": 2560, "num_hidden_layers": 32, "rotary_pct": 0.25}
    shared = resize(read_model({**neox, "num_attention_heads": 32}).model, heads=20)
    assert shared == read_model({**neox, "num_attention_heads": 20}).model


def test_head_dim_and_key_value_heads_follow_the_heads_at_constant_hidden_size() -> None:
    model = resize(gpt3_2_7b(), heads=20)
    assert dimensions(model) == {**dimensions(gpt3_2_7b()), "heads": 20, "kv_heads": 20, "head_dim": 128}
    assert model.parameters == gpt3_2_7b().parameters  # the matrices are as large as before


def test_a_padded_vocabulary_adds_its_embedding_rows_once_when_tied() -> None:
    assert resize(gpt3_2_7b(), vocab=50304).parameters - gpt3_2_7b().parameters == 47 * 2560


def test_widths_of_dense_expert_and_shared_mlps_are_apart() -> None:
    model = resize(deepseek(), expert_d_ff=1536)
    assert dimensions(model) == {**dimensions(deepseek()), "expert_d_ff": 1536}
    assert model.parameters - deepseek().parameters == 26 * 64 * 3 * 2048 * (1536 - 1408)


@given(layers=st.integers(1, 80))
def test_the_layer_pattern_is_cut_or_repeated(layers: int) -> None:
    model = resize(deepseek(), layers=layers)
    assert model.layers == layers
    dense = sum(block.count for _, block in model.all_blocks() if isinstance(block.mlp, MlpShape))
    assert dense == 1  # the leading dense layer stays one layer


@pytest.mark.parametrize(
    ("change", "key"),
    [({"heads": 33}, "heads"), ({"experts": 8}, "experts"), ({"vocab": 0}, "vocab"), ({"kv_heads": 5}, "kv_heads")],
)
def test_a_change_that_makes_no_model_names_its_dimension(change: dict[str, int], key: str) -> None:
    with pytest.raises(InputError) as caught:
        resize(gpt3_2_7b(), **change)
    assert caught.value.key == key


def test_a_pooling_heads_attention_follows_the_towers_heads() -> None:
    tower = read_config({"model_type": "siglip_vision_model", "hidden_size": 768, "num_attention_heads": 12}).model
    assert tower.pooling is not None
    changed = resize(tower, heads=6).pooling
    assert changed is not None
    assert (changed.heads, changed.kv_heads, changed.head_dim) == (6, 6, 128)


@pytest.mark.parametrize(
    ("name", "every", "pattern"),
    [
        ("google/gemma-3-27b-it", 3, "..F" * 20 + ".."),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 8, ".......F" * 6),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", 8, ".......F" * 3 + "..F"),  # its last layer is full besides
        ("ai21labs/Jamba-v0.1", 4, "..F." * 8),
        ("openai/gpt-oss-120b", 1, "F" * 36),
    ],
)
def test_full_attention_is_in_as_many_layers_as_asked_and_mlps_stay(name: str, every: int, pattern: str) -> None:
    model = read_model(name).model
    changed = resize(model, full_every=every)
    layers, own = (each_layer(one.main.blocks) for one in (changed, model))
    full = (one.attention is not None and one.attention.window is None and one.mixer is None for one in layers)
    assert "".join(".F"[one] for one in full) == pattern
    assert [one.mlp for one in layers] == [one.mlp for one in own]
    assert resize(model, full_every=dimensions(model)["full_every"], layers=model.layers) == model


def test_a_hybrid_that_grows_keeps_its_pattern() -> None:
    model = resize(read_model("Qwen/Qwen3.5-27B").model, layers=70)
    assert dimensions(model)["full_every"] == 4
    assert "full_every" not in dimensions(read_model("meta-llama/Llama-3.1-8B").model)


@pytest.mark.parametrize(
    ("name", "together"),
    [
        ("google/gemma-3-27b-it", True),
        ("Qwen/Qwen3.5-27B", True),
        ("openai/gpt-oss-120b", True),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", False),  # its first layer has another MLP
    ],
)
def test_columns_of_a_hybrid_have_each_row_s_layers_of_either_kind(name: str, together: bool) -> None:
    model = read_model(name).model
    own = dimensions(model)["full_every"]
    layers, every = np.meshgrid(np.arange(model.layers - 9, model.layers + 9), [max(1, own // 2), own, 2 * own])
    table = IntegerTable({"layers": layers.ravel(), "full_every": every.ravel()})
    parts = 0

    def counted(part: IntegerTable | dict[str, int]) -> tuple[int, int]:
        nonlocal parts
        parts += 1
        stack = resize(model, **part).main
        plain = (one for one in stack.blocks if one.attention and one.attention.window is None and not one.mixer)
        return sum(one.count for one in plain), stack.layers

    found = rows_by(table, counted, 2).T.tolist()
    assert (parts < len(found) / 6) == together
    rows = zip(layers.ravel().tolist(), every.ravel().tolist(), strict=True)
    assert found == [[*counted({"layers": deep, "full_every": one})] for deep, one in rows]
