"""Low-precision recipes: which products run in them, what quantising moves, which shapes they take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shapes.cost import predict, predict_many
from shapes.device import list_devices, load_device
from shapes.errors import InputError
from shapes.model import ModelShape
from shapes.operators import operators
from shapes.operators.types import Elementwise, Gemm
from shapes.recipes import DEFAULT, RECIPES, load_recipe
from shapes.workload import Workload
from sizer import check, read_config

LLAMA = "tests/data/configs/llama-3.1-8b.json"


@pytest.fixture(scope="module")
def llama() -> ModelShape:
    return read_config(LLAMA).model


def products(model: ModelShape, workload: Workload) -> dict[tuple[str, str], str]:
    return {(op.name, op.phase): op.dtype for op in operators(model, workload) if isinstance(op, Gemm)}


def quantising(model: ModelShape, workload: Workload, name: str) -> dict[tuple[str, str], Elementwise]:
    return {
        (op.name, op.phase): op
        for op in operators(model, workload)
        if isinstance(op, Elementwise) and op.what == "quantise" and name in op.name
    }


@pytest.mark.parametrize("name", RECIPES)
def test_every_file_names_its_recipe_with_sources_and_generations_that_exist(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.quantise.source
    assert recipe.alignment.source
    assert set(recipe.products) <= {"forward", "dgrad", "wgrad"}
    assert set(recipe.generations) <= {load_device(device).architecture for device in list_devices()}


@pytest.mark.parametrize(("dtype", "recipe"), DEFAULT.items())
def test_an_element_type_alone_stands_for_a_recipe(dtype: str, recipe: str) -> None:
    workload = Workload(dtype=dtype)
    assert workload.low_precision == load_recipe(recipe)
    assert Workload(recipe=recipe).dtype == dtype


def test_sixteen_bits_quantise_nothing(llama: ModelShape) -> None:
    assert Workload().low_precision is None
    assert quantising(llama, Workload(), "") == {}


def test_a_training_recipe_runs_all_three_products_and_leaves_the_head_and_the_attention_core(
    llama: ModelShape,
) -> None:
    found = products(llama, Workload(recipe="blockwise"))
    assert {found["layers.*.mlp.down_proj", phase] for phase in ("forward", "dgrad", "wgrad")} == {"fp8"}
    assert {found["lm_head", phase] for phase in ("forward", "dgrad", "wgrad")} == {"bf16"}


def test_int8_runs_the_forward_alone(llama: ModelShape) -> None:
    found = products(llama, Workload(dtype="int8"))
    assert [found["layers.*.mlp.down_proj", phase] for phase in ("forward", "dgrad", "wgrad")] == [
        "int8",
        "bf16",
        "bf16",
    ]


def test_what_quantising_moves_is_worked_out_from_the_tensors(llama: ModelShape) -> None:
    # 2 x 1024 tokens, down_proj 14336 -> 4096, 32 layers.
    moved = quantising(llama, Workload(b=2, s=1024, recipe="blockwise"), "mlp.down_proj")
    x, dy, w = 2048 * 14336, 2048 * 4096, 14336 * 4096
    forward = moved["layers.*.mlp.down_proj.quantise", "forward"]
    # Read in 16 bits once; written by rows and by columns, with an fp32 scale every 128 elements.
    assert (forward.bytes_read, forward.bytes_written, forward.count) == (2 * x, 2 * x * 1.03125, 32)
    gradient = moved["layers.*.mlp.down_proj.quantise", "dgrad"]
    assert (gradient.bytes_read, gradient.bytes_written) == (2 * dy, 2 * dy * 1.03125)
    weight = moved["layers.*.mlp.down_proj.weight.quantise", "optimizer"]
    assert (weight.bytes_read, weight.bytes_written) == (2 * w, 2 * w * 1.03125)


def test_current_scaling_reads_each_tensor_once_more_than_delayed(llama: ModelShape) -> None:
    once, twice = (
        quantising(llama, Workload(recipe=recipe), "down_proj")["layers.*.mlp.down_proj.quantise", "forward"]
        for recipe in ("delayed", "tensorwise")
    )
    assert twice.bytes_read == 2 * once.bytes_read
    assert twice.bytes_written == once.bytes_written


def test_inference_quantises_activations_by_rows_alone_and_no_weights(llama: ModelShape) -> None:
    found = quantising(llama, Workload(phase="infer", recipe="delayed", b=1, s=128), "mlp.down_proj")
    (only,) = found.values()
    assert only.bytes_written == 128 * 14336


def test_full_checkpointing_quantises_activations_twice_and_weights_once(llama: ModelShape) -> None:
    found = quantising(llama, Workload(recipe="mxfp8", checkpointing="full"), "mlp.down_proj")
    counts = {phase: op.count for (_, phase), op in found.items()}
    assert counts == {"forward": 64, "dgrad": 32, "optimizer": 32}


def test_a_recipe_decides_the_element_type_and_refuses_another() -> None:
    assert Workload(recipe="mxfp8", dtype="fp8").dtype == "mxfp8"
    with pytest.raises(InputError, match="dtype = 'fp32': expected bf16 or mxfp8 with the recipe mxfp8"):
        Workload(recipe="mxfp8", dtype="fp32")
    with pytest.raises(InputError, match="recipe = 'fp6': expected one of delayed, tensorwise"):
        Workload(recipe="fp6")


def test_lower_precision_is_faster_where_products_are_large_and_less_so_by_what_it_quantises(llama: ModelShape) -> None:
    def seconds(**workload: object) -> float:
        listed = operators(llama, Workload(b=2, s=4096, **workload))  # type: ignore[arg-type]
        return sum(cost.seconds * op.count for op, cost in zip(listed, predict_many(listed, "b200"), strict=True))

    sixteen, delayed, current, four = (
        seconds(),
        seconds(recipe="delayed"),
        seconds(recipe="tensorwise"),
        seconds(recipe="nvfp4"),
    )
    assert four < delayed < current < sixteen


def test_products_of_four_by_four_bits_take_half_of_what_fp8_ones_do_on_an_mi355x() -> None:
    product = Gemm("g", "forward", 16384, 8192, 8192, dtype="fp8")
    four = replace(product, dtype="mxfp4", weight_bytes=load_recipe("mxfp4").quantise.bytes_per_element)
    fp8_s, four_s = (predict(one, "mi355x").seconds for one in (product, four))
    # aiter's best are 5.80 PFLOP/s of 10.07 and 2.99 of 5.03.
    assert 1.7 < fp8_s / four_s < 2.1
    assert four_s > four.flops / 10.07e15


def test_a_device_without_the_type_names_those_it_has() -> None:
    with pytest.raises(InputError, match="h100-sxm has"):
        predict(Gemm("g", "forward", 4096, 4096, 4096, dtype="nvfp4"), "h100-sxm")


def test_alignment_says_what_a_rule_needs() -> None:
    block = load_recipe("blockwise").alignment
    assert (block.features, block.per_shard, block.expert_rows) == (128, 128, 128)
    assert load_recipe("mxfp8").alignment.overlap == 128
    assert load_recipe("nvfp4").alignment.expert_rows == 128


def test_a_recipe_that_the_device_lacks_is_a_finding_and_times_are_those_of_what_it_has() -> None:
    report = check(LLAMA, device="h100-sxm", recipe="nvfp4")
    (finding,) = [one for one in report.findings if one.code == "SZ119"]
    assert (finding.field, finding.value) == ("dtype", "nvfp4")
    assert "times are those of fp8: h100-sxm has no nvfp4" in report.model.notes


@pytest.mark.parametrize(
    ("device", "recipe", "instead"),
    [
        ("l40s", "blockwise", "delayed"),
        ("mi355x", "blockwise", "delayed"),
        ("h100-sxm", "blockwise", None),
        ("l40s", "delayed", None),
    ],
)
def test_a_recipe_without_kernels_on_the_devices_generation_is_a_finding(
    device: str, recipe: str, instead: str | None
) -> None:
    report = check(LLAMA, device=device, recipe=recipe, phase="infer")
    found = [one for one in report.findings if one.code == "SZ119"]
    assert [one.suggestions[0].change for one in found] == ([] if instead is None else [{"recipe": instead}])
    assert all(device not in one.message and "only on hopper, blackwell" in one.message for one in found)


def test_blocks_of_128_run_kernels_of_their_own_which_relatives_borrow(llama: ModelShape) -> None:
    by_recipe = {
        recipe: {op.recipe for op in operators(llama, Workload(recipe=recipe)) if isinstance(op, Gemm)}
        for recipe in ("delayed", "blockwise")
    }
    assert by_recipe == {"delayed": {"delayed", None}, "blockwise": {"blockwise", None}}  # None: head and attention
    # 16 rows in a tile of 128: H20's unit takes as long as for 128, which smaller tiles would not.
    per_tensor, blocks = (
        predict(Gemm("x", "forward", 16, 4096, 4096, dtype="fp8", recipe=recipe), "h20")
        for recipe in (None, "blockwise")
    )
    assert (per_tensor.tier, blocks.tier) == ("borrowed", "borrowed")
    # Public rows (pipeweave) of 16 x 3072 x 4096 take 40.6 us, which nothing was fitted on.
    assert (
        abs(predict(Gemm("x", "forward", 16, 3072, 4096, dtype="fp8", recipe="blockwise"), "h20").seconds - 40.6e-6)
        < 2e-6
    )
    assert blocks.seconds > 1.5 * per_tensor.seconds


def test_a_recipe_without_kernels_of_its_own_is_priced_by_its_element_type() -> None:
    for device in ("h100-sxm", "l40s", "mi300x"):
        plain, delayed = (
            predict(Gemm("x", "forward", 4096, 4096, 4096, dtype="fp8", recipe=one), device)
            for one in (None, "delayed")
        )
        assert plain == delayed


def test_mxfp8_runs_on_blackwell_and_on_cdna_4_and_not_before() -> None:
    # Primus publishes Llama 3.1 8B's run in it on MI355X.
    llama = "meta-llama/Llama-3.1-8B"
    refused = {
        name: [one.severity for one in check(llama, device=name, recipe="mxfp8").findings if one.code == "SZ119"]
        for name in ("b200", "mi350x", "mi355x", "mi300x", "h200")
    }
    assert refused == {"b200": [], "mi350x": [], "mi355x": [], "mi300x": ["error"], "h200": ["error"]}
