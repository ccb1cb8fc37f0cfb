"""The head dimension h/a is a multiple of the device's alignment.

Scores have k = head_dim, values n = head_dim, in every head of every layer. The grade is the largest power of two that
divides the head dimension, up to the alignment (64 elements of bf16 on A100 and later) in the type that the attention
core runs in: bf16 where the projections around it are fp8. Off a multiple of 32 (80, 100, 125) it is a warning whatever
the price, on every device; 96 is judged by its kernel (SZ114), which is mostly built for it.

Bad: h 2560, a 32: h/a = 80, divisible by 16 only.
Good: h 2560, a 20: h/a = 128; or a 40: 64.

Suggestion: the nearest numbers of heads that keep the hidden size, or the nearest hidden sizes of heads of 128 or 64.
"""

from __future__ import annotations

from shapes.cost.predict import run_for
from shapes.operators import Attention, Gemm, Operator
from sizer.rules.arithmetic import (
    alignment,
    heads_that_keep_hidden,
    neighbours,
    shard_text,
    square,
    whole_heads_near,
)
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ102"
SLUG = "head-dim-power-of-two"
SOURCE = "ML Engineering book, shape recommendation 3; arXiv 2401.14489, section VI."

#: Elements below which a head dimension's largest power of two is a warning: 64 bytes of bf16, half a cache line. The
#: paper's curves of score and value products by that power lie apart below it and together from it on.
RECOMMENDED = 32
#: A hidden size further away than this is another model, not a neighbour.
NEIGHBOURHOOD = 0.1


def check(context: Context) -> Answer:
    dims = context.dimensions
    if "head_dim" not in dims:
        return NotApplicable("no attention heads known")
    dim, step = dims["head_dim"], _core_alignment(context)
    if dim % step == 0 or _built_for(context, dim):
        return ()
    message = shard_text("head_dim", dim, 1, step)
    if square(context):
        suggestions = (*heads_that_keep_hidden(context, step), *whole_heads_near(context, NEIGHBOURHOOD))
    else:
        suggestions = tuple(Suggestion({"head_dim": value}) for value in neighbours(dim, step))[-1:]
    return [Finding("head_dim", dim, message, suggestions, violated=dim % min(step, RECOMMENDED) != 0)]


def _built_for(context: Context, dim: int) -> bool:
    """Whether ``dim`` keeps what is recommended and the attention kernel is built for it, as most are for 96."""
    cores = (op for op in context.operators if isinstance(op, Attention) and op.head_dim == dim)
    return dim % RECOMMENDED == 0 and any(dim in run_for(core, context.device).built for core in cores)


def _core_alignment(context: Context) -> int:
    """The alignment in the attention core's own element type, as its operators have it."""
    core = next((op.dtype for op in context.operators if _is_core(op)), None)
    return context.device.alignment_elements(core) if core is not None else alignment(context)


def _is_core(op: Operator) -> bool:
    return isinstance(op, Attention) or (isinstance(op, Gemm) and op.kind == "bmm")
