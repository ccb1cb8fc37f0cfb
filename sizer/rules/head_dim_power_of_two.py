"""The head dimension h/a is a multiple of the device's alignment.

Scores have k = head_dim, values n = head_dim, in every head of every layer. The grade is the largest power of two that
divides the head dimension, up to the alignment (64 elements of bf16 on A100 and later) in the type that the attention
core runs in: bf16 where the projections around it are fp8.

Bad: h 2560, a 32: h/a = 80, divisible by 16 only.
Good: h 2560, a 20: h/a = 128; or a 40: 64.

Suggestion: the nearest numbers of heads that keep the hidden size, or the nearest hidden size that keeps the heads.
"""

from __future__ import annotations

from shapes.operators import Attention, Gemm, Operator
from sizer.rules.arithmetic import (
    alignment,
    heads_that_keep_hidden,
    largest_power_of_two,
    lcm,
    neighbours,
    square,
)
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ102"
SLUG = "head-dim-power-of-two"
SOURCE = "ML Engineering book, shape recommendation 3; arXiv 2401.14489, section VI."

#: A hidden size further away than this is another model, not a neighbour.
NEIGHBOURHOOD = 0.1


def check(context: Context) -> Answer:
    dims = context.dimensions
    if "head_dim" not in dims:
        return NotApplicable("no attention heads known")
    dim, step = dims["head_dim"], _core_alignment(context)
    if dim % step == 0:
        return ()
    message = f"head_dim is divisible by {largest_power_of_two(dim)}, not by {step}"
    return [
        Finding("head_dim", dim, message, (*heads_that_keep_hidden(context, step), *_nearest_hidden(context, step)))
    ]


def _core_alignment(context: Context) -> int:
    """The alignment in the attention core's own element type, as its operators have it."""
    core = next((op.dtype for op in context.operators if _is_core(op)), None)
    return context.device.alignment_elements(core) if core is not None else alignment(context)


def _is_core(op: Operator) -> bool:
    return isinstance(op, Attention) or (isinstance(op, Gemm) and op.kind == "bmm")


def _nearest_hidden(context: Context, step: int) -> tuple[Suggestion, ...]:
    dims = context.dimensions
    if not square(context):
        return tuple(Suggestion({"head_dim": value}) for value in neighbours(dims["head_dim"], step))[-1:]
    nearest = min(
        neighbours(dims["hidden"], lcm(dims["heads"] * step, context.workload.t)),
        key=lambda value: abs(value - dims["hidden"]),
    )
    if abs(nearest - dims["hidden"]) > NEIGHBOURHOOD * dims["hidden"]:
        return ()
    return (Suggestion({"hidden": nearest}, f"head_dim {nearest // dims['heads']}"),)
