"""Diffusion transformers of diffusers: parameters and products as its classes have them (tools/make_diffusers.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sizer
from shapes.errors import InputError
from shapes.memory import memory
from shapes.operators import operators
from shapes.operators.types import Attention
from shapes.workload import Workload
from sizer.readers import read_config
from sizer.subject import read_subject

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


#: Class -> what is off: DiT by nothing but what no tape has; SD3's last text layers and PixArt's text are cut shorter
#: than the image, which the tape takes them to be as long as.
OFF = {"DiT": 0.01, "SD3": 0.06, "PixArt": 0.09}


@pytest.mark.parametrize("name", OFF)
def test_a_layer_saves_its_modulations_copies_as_the_class_does(name: str) -> None:
    row = next(row for row in ROWS if "saved_a_layer" in row and row["config"]["_class_name"].startswith(name))

    # B is 2 in the tool: so many that what is saved is the fullest moment's.
    workload = Workload(b=64, s=row["tokens"], dtype="bf16", attention="flash")

    def kept(layers: int) -> int:
        model = read_config({**row["config"], "num_layers": layers}).model
        return memory(model, workload).components["activations"]

    assert (kept(4) - kept(2)) / 2 == pytest.approx(32 * row["saved_a_layer"], rel=OFF[name])


def test_an_image_is_a_sequence_of_as_many_tokens() -> None:
    for config in (DIT, PIXART, SD3, FLUX):
        subject = read_subject(config, images="1x1024x768", b=2)
        assert (subject.workload.b, subject.workload.s, subject.workload.images) == (2, 64 * 48, None)
    one, other = (read_subject(FLUX, **said).operators for said in ({"images": "1x1024x1024"}, {"s": 4096}))
    assert one == other
    for images in ("2x1024x1024", "1x1000x1024"):
        with pytest.raises(InputError, match="expected one image a sequence, its sides multiples of 16 pixels"):
            read_subject(SD3, images=images)
    with pytest.raises(InputError, match="the sequence or its image, not both"):
        read_subject(SD3, images="1x1024x1024", s=4096)


@pytest.mark.parametrize("config", [DIT, PIXART, SD3, FLUX], ids=lambda config: str(config["_class_name"]))
def test_what_is_of_language_models_alone_is_refused_in_a_line_that_says_what_works(config: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="expected --what swiglu or heads: "):
        sizer.search(config, what="model")
    with pytest.raises(InputError, match=r"expected a language model.*sizer memory"):
        sizer.deploy(config)
