"""Experts have aligned widths, divide over the devices, and are routed enough tokens to fill a tile.

Each expert is a product of its own: its width is n and k as a dense MLP's is, and its m is the tokens routed to it,
b s top_k / E on average. With fewer than a tile's 128 rows the tensor cores work on padding. torch's grouped product
takes no matrix whose rows are off 16 bytes: the exception comes at the first step, or experts run one by one.

Bad: expert width 1400; 256 experts, top 8, b x s = 2048: 64 tokens an expert.
Good: expert width 1408; b x s = 16384: 512 tokens an expert.

Suggestion: the neighbouring aligned width; a degree that divides the experts, or experts that it divides; a larger
microbatch.
"""

from __future__ import annotations

from collections.abc import Iterator

from shapes.model import ModelShape
from shapes.operators.split import expert_counts, nearest_e
from shapes.workload import Workload
from sizer.rules.arithmetic import (
    alignment,
    degrees_beside,
    larger_microbatch,
    neighbours,
    next_multiple,
    off_vector,
    shard_text,
)
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ117"
SLUG = "expert-shapes"
SOURCE = "Grouped GEMM tiles of 128 rows; strides: transformers issue 48644, pytorch pull request 150374."

#: Rows of the common grouped-GEMM tile.
TILE_ROWS = 128


def check(context: Context) -> Answer:
    model = context.model
    moe = model.moe if model is not None else None
    if model is None or moe is None:
        return NotApplicable("no experts")
    workload, findings = context.workload, []
    step = alignment(context) * workload.t
    if moe.width % step:
        message = f"each expert's width: {shard_text('d_ff', moe.width, workload.t, step // workload.t)}"
        suggestions = tuple(Suggestion({"expert_d_ff": value}) for value in neighbours(moe.width, step))
        violated = off_vector(context, moe.width, workload.t)
        message += "; grouped products refuse rows off 16 bytes" if violated else ""
        findings.append(Finding("expert_d_ff", moe.width, message, suggestions, violated=violated))
    findings += _split(model, moe.experts, moe.top_k, workload)
    tokens = workload.tokens * moe.top_k * workload.e / moe.experts
    if tokens < TILE_ROWS:
        message = (
            f"an expert is routed {tokens:.0f} tokens a microbatch (b s top_k / E with even routing), "
            f"fewer than a tile's {TILE_ROWS} rows"
        )
        larger = workload.b * -(-TILE_ROWS * moe.experts // (workload.tokens * moe.top_k * workload.e))
        findings.append(Finding("b", workload.b, message, larger_microbatch(context, larger)))
    return findings


def _split(model: ModelShape, experts: int, top_k: int, workload: Workload) -> Iterator[Finding]:
    """Experts that do not divide over e, or e over the data-parallel ranks that hold them."""
    e, d = workload.e, workload.d
    counts = expert_counts(model)
    if any(count % e for count in counts):
        # The data-parallel ranks that hold the experts follow.
        splits = [
            Suggestion({"e": one} if d % one == 0 else {"e": one, "d": next_multiple(d, one)})
            for one in degrees_beside(e, lambda ranks: not any(count % ranks for count in counts))
        ]
        changes = [Suggestion({"experts": value}) for value in neighbours(experts, e) if value >= top_k]
        yield Finding("e", e, f"{experts} experts do not divide over e {e}", (*splits, *changes), error=True)
    elif d > 1 and d % e:
        message = f"e {e} does not divide over the {d} data-parallel ranks that hold the experts"
        nearest = Suggestion({"e": nearest_e(model, e, d)})
        yield Finding("e", e, message, (nearest, Suggestion({"d": next_multiple(d, e)})), error=True)
