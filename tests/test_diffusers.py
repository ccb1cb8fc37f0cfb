"""Diffusion transformers of diffusers: parameters and products as its classes have them (tools/make_diffusers.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shapes.errors import InputError
from shapes.memory import memory
from shapes.operators import operators
from shapes.operators.types import Attention
from shapes.workload import Workload
from sizer.readers import read_config

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "diffusers.json").read_text("utf-8"))
DIT, PIXART, SD3, FLUX = (
    next(row["config"] for row in ROWS if row["config"]["_class_name"].startswith(name))
    for name in ("DiT", "PixArt", "SD3", "Flux")
)


@pytest.mark.parametrize("row", ROWS, ids=[f"{i}-{row['config']['_class_name']}" for i, row in enumerate(ROWS)])
def test_parameters_and_products_equal_the_class(row: dict[str, Any]) -> None:
    reading = read_config(row["config"])
    assert reading.format == "diffusers"
    assert reading.unread == ()
    assert reading.model.parameters == row["parameters"]
    for phase, flops in row["flops"].items():
        # B of the tool; eager, since the counter sees the products of torch's attention on the meta device.
        workload = Workload(b=2, s=row["tokens"], dtype="fp32", attention="eager", phase=phase)
        assert sum(one.flops * one.count for one in operators(reading.model, workload)) == flops


def test_a_text_is_as_long_as_its_pipeline_takes_unless_that_is_said() -> None:
    config = {key: value for key, value in SD3.items() if key != "text_tokens"}
    reading = read_config(config)
    assert any("--set text_tokens=N" in note for note in reading.notes)
    # Attention is over the image's 4,096 tokens and 256 of T5 with 77 of CLIP.
    cores = [one for one in operators(reading.model, Workload(b=1, s=4096)) if isinstance(one, Attention)]
    assert {(one.q_len, one.kv_len) for one in cores} == {(4429, 4429)}
    said = read_config(config, settings={"text_tokens": 154})
    assert not any("text_tokens" in note for note in said.notes)
    assert {block.context for block in said.model.main.blocks} == {154}
    # Its own attention is to the image alone; the text is what cross attention reads.
    cores = [one for one in operators(read_config(PIXART).model, Workload(b=1, s=4096)) if isinstance(one, Attention)]
    assert {(one.q_len, one.kv_len) for one in cores} == {(4096, 4096), (4096, 300)}


def test_an_image_has_the_tokens_of_the_files_size() -> None:
    assert read_config(DIT).longest == 16 * 16
    assert read_config(SD3).longest == 64 * 64


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"_class_name": "UNet2DConditionModel", "block_out_channels": [320]}, "of a DiT, PixArt, Stable Diffusion 3"),
        ({**DIT, "norm_type": "layer_norm"}, "norm_type|_class_name"),
        ({**DIT, "activation_fn": "geglu"}, "activation_fn = 'geglu': has no formula here"),
        ({**SD3, "dual_attention_layers": [3]}, r"dual_attention_layers = \[3\]: has no formula here"),
        ({**SD3, "qk_norm": "layer_norm"}, "qk_norm = 'layer_norm': has no formula here"),
        ({key: value for key, value in FLUX.items() if key != "num_layers"}, "num_layers|num_hidden_layers"),
    ],
)
def test_what_has_no_formula_is_refused_by_its_key(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_config(config)


def test_tensor_parallelism_splits_the_texts_matrices_too() -> None:
    flux = read_config(FLUX).model
    whole, half = (memory(flux, Workload(b=1, s=4096, t=t)).parameters for t in (1, 2))
    # Modulations, embeddings of time and text, and the two ends are on every rank.
    left = sum(
        block.count * one.out_features * one.in_features
        for block in flux.main.blocks
        for one in block.linears(flux.hidden)
        if one.shard == "none"
    )
    assert abs(half - (whole + left) / 2) < 0.02 * whole


def test_a_decode_step_is_refused() -> None:
    with pytest.raises(InputError, match="flux is none"):
        operators(read_config(FLUX).model, Workload(b=1, s=1, phase="decode"))
