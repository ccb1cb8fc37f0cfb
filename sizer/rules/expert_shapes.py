"""Experts have aligned widths, divide over the devices, and meet enough tokens to fill a tile.

Each expert is a product of its own: its width is n and k as a dense MLP's is, and its m is the tokens routed to it,
b s top_k / E on average. With fewer than a tile's 128 rows the tensor cores work on padding.

Bad: expert width 1400; 256 experts, top 8, b x s = 2048: 64 tokens an expert.
Good: expert width 1408; b x s = 16384: 512 tokens an expert.

Suggestion: the neighbouring aligned width; a larger microbatch.
"""

from __future__ import annotations

from sizer.rules.arithmetic import alignment, neighbours, shard_text
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ117"
SLUG = "expert-shapes"
SOURCE = "vLLM issues on block-quantised FP8 experts; grouped GEMM tiles of 128 rows."

#: Rows of the common grouped-GEMM tile.
TILE_ROWS = 128


def check(context: Context) -> Answer:
    moe = context.model.moe if context.model is not None else None
    if moe is None:
        return NotApplicable("no experts")
    workload, findings = context.workload, []
    step = alignment(context) * workload.t
    if moe.width % step:
        message = f"each expert's width: {shard_text('d_ff', moe.width, workload.t, step // workload.t)}"
        suggestions = tuple(Suggestion({"expert_d_ff": value}) for value in neighbours(moe.width, step))
        findings.append(Finding("expert_d_ff", moe.width, message, suggestions))
    if moe.experts % workload.e:
        message = f"{moe.experts} experts do not divide over e {workload.e}"
        findings.append(Finding("e", workload.e, message, error=True))
    tokens = workload.tokens * moe.top_k * workload.e / moe.experts
    if tokens < TILE_ROWS:
        message = (
            f"an expert meets {tokens:.0f} tokens a microbatch (b s top_k / E with even routing), "
            f"fewer than a tile's {TILE_ROWS} rows"
        )
        larger = workload.b * -(-TILE_ROWS * moe.experts // (workload.tokens * moe.top_k * workload.e))
        findings.append(Finding("b", workload.b, message, (Suggestion({"b": larger}),)))
    return findings
