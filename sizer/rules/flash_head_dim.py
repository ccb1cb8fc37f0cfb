"""The head dimension is one that the fused attention kernel is built for.

FlashAttention is compiled for head dimensions 32, 64, 96, 128, 160, 192, 224 and 256; another one up to 256 runs in the
next larger kernel, padded, and one above 256 not at all. It must be a multiple of 8.

Bad: head_dim 132: the 160 kernel, a fifth of it wasted.
Good: head_dim 128.

Suggestion: the nearest of these, keeping the hidden size where the heads allow it.
"""

from __future__ import annotations

from shapes.operators import Attention
from sizer.rules.arithmetic import heads_that_keep_hidden, square
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ114"
SLUG = "flash-head-dim"
SOURCE = "FlashAttention (head dimensions of its kernels); flash-attention issue 1141."

BUCKETS = (32, 64, 96, 128, 160, 192, 224, 256)


def check(context: Context) -> Answer:
    dims = sorted({max(op.head_dim, op.v_head_dim) for op in context.operators if isinstance(op, Attention)})
    if not dims:
        return NotApplicable("no fused attention")
    findings = []
    for dim in dims:
        if dim in BUCKETS:
            continue
        if dim > BUCKETS[-1]:
            message = f"no fused kernel takes a head_dim above {BUCKETS[-1]}: attention falls back to the eager path"
        else:
            bucket = next(bucket for bucket in BUCKETS if bucket > dim)
            odd = "" if dim % 8 == 0 else " and is no multiple of 8"
            message = f"head_dim {dim} runs in the kernel for {bucket}{odd}: {1 - dim / bucket:.0%} of it is padding"
        findings.append(Finding("head_dim", dim, message, _suggestions(context, dim)))
    return findings


def _suggestions(context: Context, dim: int) -> tuple[Suggestion, ...]:
    if context.dimensions.get("head_dim") != dim:
        return ()
    if square(context):
        return heads_that_keep_hidden(context, BUCKETS[0])
    nearest = sorted(BUCKETS, key=lambda bucket: abs(bucket - dim))[:1]
    return tuple(Suggestion({"head_dim": bucket}) for bucket in nearest)
