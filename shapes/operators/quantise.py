"""A low-precision recipe applied to a step's operators: which products run in it, and the kernels that quantise.

Activations are quantised before each product that reads them, by rows and, where wgrad runs in the recipe, by columns;
gradients of outputs once for dgrad and wgrad; weights once a step, which training's update makes necessary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import ceil

from shapes.operators.types import Elementwise, Gemm, GroupedGemm, Operator, Phase
from shapes.recipes import Recipe

#: Bytes an element has before it is quantised.
WIDE = 2


def apply_recipe(operators: Iterable[Operator], recipe: Recipe, training: bool) -> Iterator[Operator]:
    """``operators`` whose linear layers were lowered in ``recipe.dtype``, as the recipe runs them."""
    for operator in operators:
        if not isinstance(operator, Gemm | GroupedGemm) or operator.dtype != recipe.dtype:
            yield operator
        elif operator.name.rsplit(".", 1)[-1] in recipe.keeps:
            yield _wide(operator)
        else:
            yield from _quantised(operator, recipe, training)
            yield replace(operator, recipe=recipe.name) if operator.phase in recipe.products else _wide(operator)


def _wide(operator: Gemm | GroupedGemm) -> Operator:
    return replace(operator, dtype="bf16", **({"out_dtype": None} if isinstance(operator, Gemm) else {}))  # type: ignore[arg-type] # a field of Gemm alone


def _quantised(operator: Gemm | GroupedGemm, recipe: Recipe, training: bool) -> Iterator[Elementwise]:
    """What is quantised for a product and the others of its layer."""
    batch = operator.batch if isinstance(operator, Gemm) else 1
    if operator.phase == "forward":
        # X of m tokens by k features, read by rows now and by columns in wgrad.
        layouts = 1 + (training and "wgrad" in recipe.products)
        yield _kernel(operator, "forward", batch * operator.m * operator.k, layouts, recipe)
    elif operator.phase == "wgrad":
        layouts = ("dgrad" in recipe.products) + ("wgrad" in recipe.products)
        if layouts:
            # dY of m features by k tokens.
            yield _kernel(operator, "dgrad", batch * operator.m * operator.k, layouts, recipe)
        groups = operator.groups if isinstance(operator, GroupedGemm) else batch
        weights = 1 + ("dgrad" in recipe.products)
        yield _kernel(operator, "optimizer", groups * operator.m * operator.n, weights, recipe, ".weight")


def _kernel(
    operator: Gemm | GroupedGemm, phase: Phase, elements: int, layouts: int, recipe: Recipe, what: str = ""
) -> Elementwise:
    return Elementwise(
        name=f"{operator.name}{what}.quantise",
        phase=phase,
        what="quantise",
        bytes_read=elements * WIDE * recipe.quantise.passes,
        bytes_written=ceil(elements * layouts * recipe.quantise.bytes_per_element),
        dtype="bf16",
        count=operator.count,
    )
