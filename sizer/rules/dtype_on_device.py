"""The element type has tensor cores on the device, and the low-precision recipe has kernels there.

bf16 came with Ampere, fp8 with Ada and Hopper. A type without tensor cores runs on the plain cores, an order of
magnitude slower, or is refused by the libraries. A recipe needs kernels of its own: Ada multiplies fp8, and no library
that shapes/recipes names trains it there in blocks of 128.

Bad: bf16 on V100 or T4; fp8 on A100; blocks of 128 on L40S.
Good: fp16 on V100; bf16 on A100; fp8 on H100; blocks of 128 on H100.

Suggestion: the closest type that the device's tensor cores know (the report's times are then of that type), or a recipe
of the same type that the device has.
"""

from __future__ import annotations

from shapes.recipes import RECIPES, load_recipe
from sizer.rules.base import Answer, Context, Finding, Suggestion

CODE = "SZ119"
SLUG = "dtype-on-device"
SOURCE = "NVIDIA architecture whitepapers (Volta, Turing, Ampere, Hopper): tensor-core data types."

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


def check(context: Context) -> Answer:
    dtype, peaks = context.workload.dtype, context.device.peak_flops
    if dtype in peaks:
        return _recipe(context)
    instead = next((other for other in ALTERNATIVES[dtype] if other in peaks), None)
    message = f"{context.device.name} has no tensor cores for {dtype}"
    suggestions = (Suggestion({"dtype": instead}),) if instead is not None and context.workload.recipe is None else ()
    return [Finding("dtype", dtype, message, suggestions, error=True)]


def _recipe(context: Context) -> list[Finding]:
    """The recipe on a generation that has none of its kernels, of those that any recipe's file knows."""
    recipe, generation = context.workload.low_precision, context.device.architecture
    known = [load_recipe(name) for name in RECIPES]
    others = [one for one in known if generation in one.generations]
    if recipe is None or recipe in others or not others:
        return []
    instead = next((one.name for one in others if one.dtype == recipe.dtype), None)
    message = f"no kernels are known on {generation} for {recipe.title}, only on {', '.join(recipe.generations)}"
    suggestions = (Suggestion({"recipe": instead}),) if instead is not None else ()
    return [Finding("recipe", recipe.name, message, suggestions, violated=True)]
