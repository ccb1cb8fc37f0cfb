"""SAM 2: its image encoder's stages of windows, and the whole with a prompt, against transformers' class."""

from __future__ import annotations

from typing import Any

import pytest

from shapes.errors import InputError
from shapes.memory import memory
from shapes.model import AttentionShape
from shapes.operators import operators
from shapes.operators.types import Attention
from shapes.workload import Workload
from sizer import check
from sizer.readers import read_config

#: The encoders' sizes of facebook/sam2.1-hiera-tiny, -base-plus and -large (sam2/configs/sam2.1/*.yaml).
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "base-plus": {
        "hidden_size": 112,
        "embed_dim_per_stage": [112, 224, 448, 896],
        "num_attention_heads_per_stage": [2, 4, 8, 16],
        "blocks_per_stage": [2, 3, 16, 3],
        "global_attention_blocks": [12, 16, 20],
        "window_positional_embedding_background_size": [14, 14],
    },
    "large": {
        "hidden_size": 144,
        "embed_dim_per_stage": [144, 288, 576, 1152],
        "num_attention_heads_per_stage": [2, 4, 8, 16],
        "blocks_per_stage": [2, 6, 36, 4],
        "global_attention_blocks": [23, 33, 43],
        "window_size_per_stage": [8, 4, 16, 8],
    },
}


def config(model_type: str, size: str = "tiny", **more: Any) -> dict[str, Any]:
    backbone = {"model_type": "sam2_hiera_det_model", **SIZES[size], **more}
    widths = backbone.get("embed_dim_per_stage", [96, 192, 384, 768])
    vision = {"backbone_config": backbone, "backbone_channel_list": widths[::-1], "model_type": "sam2_vision_model"}
    return vision if model_type == "sam2_vision_model" else {"model_type": "sam2", "vision_config": vision}


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("model_type", ["sam2_vision_model", "sam2"])
def test_parameters_and_products_equal_the_class(model_type: str, size: str) -> None:
    pytest.importorskip("torch"), pytest.importorskip("transformers.models.sam2")
    from shapes.trace import trace_config
    from shapes.trace.prove import products

    model = read_config(config(model_type, size)).model
    traced = trace_config(config(model_type, size), phase="train")
    ran, said = products(traced.operators), products(operators(model, Workload(b=1)))
    assert model.parameters == traced.parameters
    assert said - ran == {}
    # Positions of the image's tokens and of a point are products of constants, which no step runs.
    constant = {key[3:6] for key in ran - said}
    assert constant == ({(4096, 128, 2), (2, 128, 2)} if model_type == "sam2" else set())


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["sam2_vision_model", "sam2"])
def test_flops_equal_torchs_counter(model_type: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    pytest.importorskip("transformers.models.sam2")
    from torch.utils.flop_counter import FlopCounterMode

    settings = transformers.CONFIG_MAPPING[model_type](**config(model_type))
    with torch.device("meta"):
        built = transformers.AutoModel.from_config(settings, attn_implementation="eager").eval().requires_grad_(False)
        image = torch.empty(1, 3, 1024, 1024)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        built(pixel_values=image)
    model = read_config(config(model_type)).model
    found = operators(model, Workload(b=1, phase="infer", attention="eager"))
    # The class also multiplies each token's heads with one another, for scores that nothing reads.
    more = 0
    for stack in model.stacks[:4]:
        for block in stack.blocks:
            core = block.attention
            assert isinstance(core, AttentionShape)
            assert core.tiles[2]
            more += block.count * 2 * core.tiles[2] * core.heads**2 * core.head_dim
    if model_type == "sam2":  # constants' products, and the masks of four tokens
        more += 2 * (4096 + 2) * 128 * 2 + 2 * 4 * 65536 * 32
    assert sum(one.flops * one.count for one in found) + more == counter.get_total_flops()


def test_windows_are_filled_up_and_their_queries_pooled() -> None:
    found = operators(read_config(config("sam2_vision_model")).model, Workload(b=2, phase="infer"))
    cores = {(one.batch, one.q_len, one.kv_len) for one in found if isinstance(one, Attention)}
    # 14 x 14 windows cut 64 x 64 tokens in 5 x 5, 70 tokens a side; 8 x 8 of 256 x 256, of which 4 x 4 queries remain.
    assert {(2 * 25, 196, 196), (2 * 1024, 16, 64), (2, 4096, 4096)} <= cores


def test_a_smaller_image_has_fewer_windows() -> None:
    whole, half = (read_config(config("sam2_vision_model", image_size=[side, side])).model for side in (1024, 512))
    assert [stack.length for stack in half.stacks] == [128**2, 64**2, 32**2, 16**2]
    assert whole.parameters == half.parameters


def test_what_the_class_cannot_be_is_refused_by_its_key() -> None:
    with pytest.raises(InputError, match=r"num_attention_heads_per_stage = \[1, 5, 4, 8\]: expected a divisor"):
        read_config(config("sam2", num_attention_heads_per_stage=[1, 5, 4, 8]))
    with pytest.raises(InputError, match=r"window_size_per_stage = \[8, 4\]: expected a list of 4 integers"):
        read_config(config("sam2_vision_model", window_size_per_stage=[8, 4]))
    with pytest.raises(InputError, match=r"backbone_channel_list = \[1\]: expected \[768, 384, 192, 96\]"):
        read_config(config("sam2_vision_model") | {"backbone_channel_list": [1]})
    with pytest.raises(InputError, match="fpn_kernel_size = 3: expected 1"):
        read_config(config("sam2_vision_model") | {"fpn_kernel_size": 3})


def test_every_answer_is_of_the_whole_model() -> None:
    report = check(config("sam2"), b=4, phase="infer").to_dict()
    assert report["operator_path"] == "formula"
    assert report["step"]["seconds"] > 0
    model = read_config(config("sam2")).model
    cores = [one for one in operators(model, Workload(b=4)) if isinstance(one, Attention) and one.phase == "forward"]
    scores = sum(one.count * one.batch * one.heads * one.q_len * one.kv_len for one in cores)
    eager, fused = (
        memory(model, Workload(b=4, attention=kernel)).components["activations"] for kernel in ("eager", "sdpa")
    )
    # Written out, some copies of each window's scores are kept, and not of the whole image's.
    assert 2 < (eager - fused) / (2 * scores) < 8
