"""Every shard of every quantised matrix is made of whole blocks of the low-precision recipe.

A scale belongs to a block of elements: 128 x 128 in block-wise fp8, 32 in MXFP8, 16 in NVFP4 (whose kernels load 32);
fp8 per tensor wants multiples of 16. What counts is what one tensor-parallel shard holds, of experts and shared experts
too, and in training the tokens. Where a block is cut some engines refuse the model, some pad the shard with zeros and
compute on them, some leave the matrix in 16 bits: `sizer deploy` says which. The latent projection of MLA ends in a
partial block of its own (DeepSeek-V3's 512 + 64), which every engine takes.

Bad: experts of 1536 at t 8 in blocks of 128: 192 a shard. Padded to 256 they are a third more work.
Good: the same at t 4: 384 = 3 x 128; or DeepSeek-V3's 2048 at t 16: 128.

Suggestion: the neighbouring widths that cut into whole blocks, or a smaller t that cuts none.
"""

from __future__ import annotations

from collections.abc import Iterator

from shapes.model import ModelShape
from shapes.model.matrices import Side, sides
from shapes.operators.split import nearest_t
from shapes.recipes import Recipe
from sizer.rules.arithmetic import neighbours, next_multiple
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ124"
SLUG = "low-precision-shards"
SOURCE = (
    "Transformer Engine, docs/features/low_precision_training and pytorch/utils.py:609-624; vLLM issues 17569, 54178 "
    "and SGLang issue 3345 (blocks of 128); shapes/recipes names each recipe's."
)

#: Dimensions that a configuration sets as one number.
_WIDTHS = ("hidden", "d_ff", "expert_d_ff", "shared_d_ff")
#: Blocks larger than this need not divide the latent projection's outputs.
_LATENT_BLOCK = 32


def check(context: Context) -> Answer:
    recipe, model = context.workload.low_precision, context.model
    if recipe is None:
        return NotApplicable("no low-precision recipe")
    if model is None:
        return NotApplicable("a trace names no weight matrices")
    step = max(recipe.alignment.features, recipe.alignment.per_shard)
    return [*_features(context, model, recipe, step), *_tokens(context, recipe)]


def cut_blocks(model: ModelShape, t: int, step: int) -> dict[str, Side]:
    """Of each dimension the first side of a matrix whose shard is not made of whole blocks of ``step`` elements."""
    found: dict[str, Side] = {}
    for side in sides(model, t, t):
        tail = side.dimension == "kv_lora_rank" and side.output and step > _LATENT_BLOCK
        if side.features % step and not tail:
            found.setdefault(side.dimension, side)
    return found


def _features(context: Context, model: ModelShape, recipe: Recipe, step: int) -> Iterator[Finding]:
    t = context.workload.t
    for dimension, side in cut_blocks(model, t, step).items():
        padded = next_multiple(side.features, step)
        name = f"{side.whole}/{side.shards} = {side.features}" if side.shards > 1 else str(side.features)
        message = (
            f"{side.matrix}: {name} is no multiple of {step} ({recipe.title}): {recipe.alignment.otherwise}; "
            f"padded to {padded} it is {padded / side.features - 1:.1%} more"
        )
        near = neighbours(side.whole, step * side.shards) if dimension in _WIDTHS else ()
        suggestions = [Suggestion({dimension: value}) for value in near]
        if side.shards > 1:
            whole = (degree for degree in range(t - 1, 0, -1) if dimension not in cut_blocks(model, degree, step))
            degree = next((one for one in whole if one == nearest_t(model, one)), None)
            suggestions += [Suggestion({"t": degree})] if degree is not None else []
        value = context.dimensions.get(dimension, side.whole)
        yield Finding(dimension, value, message, tuple(suggestions), violated=True)


def _tokens(context: Context, recipe: Recipe) -> Iterator[Finding]:
    """Tokens of a training step's microbatch, over which wgrad's blocks run."""
    workload, rows = context.workload, recipe.alignment.rows
    tokens = workload.own_tokens(workload.s)
    if workload.train and "wgrad" in recipe.products and tokens % rows:
        message = f"{tokens} tokens are no multiple of {rows} ({recipe.title}): {recipe.alignment.otherwise}"
        suggestions = tuple(Suggestion({"s": value}) for value in neighbours(workload.s, rows * workload.cp))
        yield Finding("s", workload.s, message, suggestions, violated=True)
