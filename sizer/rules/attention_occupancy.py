"""Attention's thread blocks fill the device.

A fused attention kernel gives one thread block to 128 queries of one head of one sequence. With fewer blocks than the
device has multiprocessors, some of them idle through the whole kernel.

Bad: b 1, a 32 at t 8 (4 heads a device), s 2048: 64 blocks on 132 multiprocessors.
Good: b 4, a 32 at t 1, s 4096: 4,096 blocks.

Suggestion: a larger microbatch, or a smaller t.
"""

from __future__ import annotations

from shapes.operators import Attention
from sizer.rules.arithmetic import larger_microbatch
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ113"
SLUG = "attention-occupancy"
SOURCE = "ML Engineering book, FlashAttention; arXiv 2401.14489."

#: Queries a thread block works on in FlashAttention 2 and 3 forward (most head dimensions).
QUERY_TILE = 128


def check(context: Context) -> Answer:
    if context.workload.decode:
        return NotApplicable("decode kernels split the keys too, and fill the device with few requests")
    cores = [op for op in context.operators if isinstance(op, Attention) and op.phase == "forward"]
    if not cores:
        return NotApplicable("no fused attention")
    core = min(cores, key=lambda op: op.batch * op.heads * op.q_len)
    blocks = core.batch * core.heads * -(-core.q_len // QUERY_TILE)
    if blocks >= context.device.compute.units:
        return ()
    message = (
        f"attention has {blocks} thread blocks (b x a/t = {core.batch * core.heads}, s {core.q_len}) "
        f"for {context.device.compute.units} multiprocessors"
    )
    suggestions = [*larger_microbatch(context, context.workload.b * -(-context.device.compute.units // blocks))]
    if context.workload.t > 1:
        divisor = next(d for d in range(2, context.workload.t + 1) if context.workload.t % d == 0)
        suggestions.append(Suggestion({"t": context.workload.t // divisor}))
    return [Finding("b", context.workload.b, message, tuple(suggestions))]
