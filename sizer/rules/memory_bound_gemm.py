"""No product that takes a notable share of the step is bound by memory instead of arithmetic.

A product below the ridge point (FLOPs per byte under peak FLOPs over bandwidth: 295 for bf16 on an H100) waits for its
operands; the tensor cores idle. Small m (few tokens), small experts and narrow projections are the usual causes.

Bad: 256 tokens through 4096 x 4096 on H100: 228 FLOPs a byte.
Good: 16,384 tokens: 1,820 FLOPs a byte.

Suggestion: more tokens a microbatch, where that brings the product past the ridge point; for eager attention's scores
and values, which are as narrow in any batch, the fused kernel.
"""

from __future__ import annotations

from dataclasses import replace

from shapes.operators import Gemm, Operator, Product
from sizer.rules.arithmetic import larger_microbatch
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ118"
SLUG = "memory-bound-gemm"
SOURCE = "NVIDIA Matrix Multiplication Background User's Guide, math and memory bounds."

#: Times the tokens at which a projection's FLOPs a byte no longer grow.
MANY = 1 << 20
#: Share of the step that all memory-bound products together must take before the rule speaks.
NOTABLE_SHARE = 0.05


def check(context: Context) -> Answer:
    products = [
        (op, cost) for op, cost in zip(context.operators, context.costs, strict=True) if isinstance(op, Product)
    ]
    if not products:
        return NotApplicable("no matrix products")
    if context.workload.decode or (not context.workload.train and context.workload.s == 1):
        return NotApplicable("decoding reads every weight for a token a request: it is bound by memory by nature")
    slow = [(op, cost) for op, cost in products if cost.bound == "memory"]
    seconds = sum(op.count * cost.seconds for op, cost in slow)
    if seconds < NOTABLE_SHARE * context.step_s:
        return ()
    worst, _ = max(slow, key=lambda pair: pair[0].count * pair[1].seconds)
    message = (
        f"memory-bound products take {seconds / context.step_s:.0%} of the step; the largest is {worst.name} "
        f"{worst.phase} at {worst.flops / worst.bytes:.0f} FLOPs a byte"
    )
    return [_way_out(context, worst, message)]


def _way_out(context: Context, worst: Operator, message: str) -> Finding:
    workload = context.workload
    if isinstance(worst, Gemm) and worst.kind == "bmm" and workload.attention == "eager":
        # A larger batch is more such products, not larger ones: what helps is to keep the scores on chip.
        return Finding("attention", workload.attention, message, (Suggestion({"attention": "auto"}),))
    most = _in_long_batches(worst)
    if most is not None and most < context.device.peak(worst.dtype) / context.device.memory.bandwidth_bytes_per_s:
        return Finding("b", workload.b, f"{message}, and {most:.0f} in any batch: it is narrow")
    return Finding("b", workload.b, message, larger_microbatch(context, 2 * workload.b))


def _in_long_batches(operator: Operator) -> float | None:
    """FLOPs a byte that a projection comes to with ever more tokens; None where more tokens are more products."""
    if not isinstance(operator, Gemm) or operator.kind != "gemm":
        return None
    tokens = "k" if operator.phase == "wgrad" else "m"
    longer = replace(operator, **{tokens: MANY * getattr(operator, tokens)})
    return longer.flops / longer.bytes
