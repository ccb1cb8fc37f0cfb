"""Rules on element types: tensor cores and kernels for them, and whole blocks of low-precision recipes."""

from __future__ import annotations

from collections.abc import Iterator

from shapes.model import ModelShape
from shapes.model.resize import Side, sides
from shapes.operators.parallel import nearest_t
from shapes.recipes import RECIPES, Recipe, load_recipe
from sizer.rules.arithmetic import neighbours, next_multiple
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion, rule, suggest

#: What to take instead, best first.
ALTERNATIVES: dict[str, tuple[str, ...]] = {
    "fp8": ("bf16", "fp16"),
    "mxfp8": ("fp8", "bf16", "fp16"),
    "nvfp4": ("mxfp8", "fp8", "bf16", "fp16"),
    "int8": ("bf16", "fp16"),
    "bf16": ("fp16", "fp32"),
    "fp16": ("bf16", "fp32"),
    "tf32": ("bf16", "fp16", "fp32"),
    "fp64": ("fp32",),
    "fp32": ("bf16", "fp16"),
}


@rule("SZ119", source="NVIDIA architecture whitepapers (Volta, Turing, Ampere, Hopper): tensor-core data types.")
def dtype_on_device(context: Context) -> Answer:
    """The element type has tensor cores on the device, and the low-precision recipe has kernels there.

    bf16 came with Ampere, fp8 with Ada and Hopper. A type without tensor cores runs on the plain cores, an order of
    magnitude slower, or is refused by the libraries. A recipe needs kernels of its own: Ada multiplies fp8, and no
    library that shapes/recipes names trains it there in blocks of 128.

    Bad: bf16 on V100 or T4; fp8 on A100; blocks of 128 on L40S.
    Good: fp16 on V100; bf16 on A100; fp8 on H100; blocks of 128 on H100.

    Suggestion: the closest type that the device's tensor cores know (the report's times are then of that type), or a
    recipe of the same type that the device has.
    """
    dtype, peaks = context.workload.dtype, context.device.peak_flops
    if dtype in peaks:
        return _recipe(context)
    instead = [other for other in ALTERNATIVES[dtype] if other in peaks][:1]
    message = f"{context.device.name} has no tensor cores for {dtype}"
    changes = tuple(Suggestion({"dtype": other}) for other in instead if context.workload.recipe is None)
    return [Finding("dtype", dtype, message, changes, error=True)]


def _recipe(context: Context) -> list[Finding]:
    """The recipe on a generation that has none of its kernels, of those that any recipe's file knows."""
    recipe, generation = context.workload.low_precision, context.device.architecture
    others = [one for name in RECIPES if generation in (one := load_recipe(name)).generations]
    if recipe is None or recipe in others or not others:
        return []
    instead = [one.name for one in others if one.dtype == recipe.dtype][:1]
    message = f"no kernels are known on {generation} for {recipe.title}, only on {', '.join(recipe.generations)}"
    changes = tuple(Suggestion({"recipe": other}) for other in instead)
    return [Finding("recipe", recipe.name, message, changes, violated=True)]


#: Dimensions that a configuration sets as one number.
_WIDTHS = ("hidden", "d_ff", "expert_d_ff", "shared_d_ff")
#: Blocks larger than this need not divide the latent projection's outputs.
_LATENT_BLOCK = 32


@rule(
    "SZ124",
    source="Transformer Engine, docs/features/low_precision_training and pytorch/utils.py:609-624; vLLM issues 17569, "
    "54178 and SGLang issue 3345 (blocks of 128); shapes/recipes names each recipe's.",
)
def low_precision_shards(context: Context) -> Answer:
    """Every shard of every quantised matrix is made of whole blocks of the low-precision recipe.

    A scale belongs to a block of elements: 128 x 128 in block-wise fp8, 32 in MXFP8, 16 in NVFP4 (whose kernels load
    32); fp8 per tensor wants multiples of 16. What counts is what one tensor-parallel shard holds, of experts and
    shared experts too, and in training the tokens. Where a block is cut some engines refuse the model, some pad the
    shard with zeros and compute on them, some leave the matrix in 16 bits: `sizer deploy` says which. The latent
    projection of MLA ends in a partial block of its own (DeepSeek-V3's 512 + 64), which every engine takes.

    Bad: experts of 1536 at t 8 in blocks of 128: 192 a shard. Padded to 256 they are a third more work.
    Good: the same at t 4: 384 = 3 x 128; or DeepSeek-V3's 2048 at t 16: 128.

    Suggestion: the neighbouring widths that cut into whole blocks, or a smaller t that cuts none.
    """
    recipe, model = context.workload.low_precision, context.model
    if recipe is None:
        return NotApplicable("no low-precision recipe")
    if model is None:
        return NotApplicable("a trace names no weight matrices")
    return [*_cut_features(context, model, recipe), *_cut_tokens(context, recipe)]


def _cut_blocks(model: ModelShape, t: int, step: int) -> dict[str, Side]:
    """Of each dimension the first side of a matrix whose shard is not made of whole blocks of ``step`` elements."""
    found: dict[str, Side] = {}
    for side in sides(model, t, t):
        tail = side.dimension == "kv_lora_rank" and side.output and step > _LATENT_BLOCK
        if side.features % step and not tail:
            found.setdefault(side.dimension, side)
    return found


def _cut_features(context: Context, model: ModelShape, recipe: Recipe) -> Iterator[Finding]:
    t, step = context.workload.t, max(recipe.alignment.features, recipe.alignment.per_shard)
    for dimension, side in _cut_blocks(model, t, step).items():
        padded = next_multiple(side.features, step)
        name = f"{side.whole}/{side.shards} = {side.features}" if side.shards > 1 else str(side.features)
        message = (
            f"{side.matrix}: {name} is no multiple of {step} ({recipe.title}): {recipe.alignment.otherwise}; "
            f"padded to {padded} it is {padded / side.features - 1:.1%} more"
        )
        near = neighbours(side.whole, step * side.shards) if dimension in _WIDTHS else ()
        whole = (degree for degree in range(t - 1, 0, -1) if dimension not in _cut_blocks(model, degree, step))
        smaller = [one for one in whole if one == nearest_t(model, one)][:1] if side.shards > 1 else []
        changes = suggest(dimension, near) + suggest("t", smaller)
        yield Finding(dimension, context.dimensions.get(dimension, side.whole), message, changes, violated=True)


def _cut_tokens(context: Context, recipe: Recipe) -> Iterator[Finding]:
    """Tokens of a training step's microbatch, over which wgrad's blocks run."""
    workload, rows = context.workload, recipe.alignment.rows
    tokens = workload.own_tokens(workload.s)
    if workload.train and "wgrad" in recipe.products and tokens % rows:
        message = f"{tokens} tokens are no multiple of {rows} ({recipe.title}): {recipe.alignment.otherwise}"
        near = suggest("s", neighbours(workload.s, rows * workload.cp))
        yield Finding("s", workload.s, message, near, violated=True)
