"""Heads are large enough: h/a is at least 64.

At the same FLOPs many small heads cost time: softmax and masking work grows with a x s^2 while the products shrink.
What fewer heads do to quality is yours to judge; this rule covers time only.

Bad: h 2048, a 64: h/a = 32.
Good: h 2048, a 16: h/a = 128.

Suggestion: fewer heads at the same hidden size.
"""

from __future__ import annotations

from sizer.rules.arithmetic import heads_that_keep_hidden
from sizer.rules.base import Answer, Context, Finding, NotApplicable

CODE = "SZ116"
SLUG = "heads-large-enough"
SOURCE = "ML Engineering book, number and size of attention heads; arXiv 2401.14489."

SMALLEST_HEAD = 64


def check(context: Context) -> Answer:
    dims = context.dimensions
    if not {"heads", "head_dim"} <= dims.keys():
        return NotApplicable("no attention heads known")
    if dims["head_dim"] >= SMALLEST_HEAD:
        return ()
    message = (
        f"{dims['heads']} heads of {dims['head_dim']}: small heads cost time at the same FLOPs (quality is your call)"
    )
    larger = tuple(
        suggestion
        for suggestion in heads_that_keep_hidden(context, SMALLEST_HEAD)
        if int(suggestion.change["heads"]) < dims["heads"]
    )
    return [Finding("heads", dims["heads"], message, larger, cause="head_dim")]
