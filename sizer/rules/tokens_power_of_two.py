"""The tokens of a microbatch, b x s, are a multiple of the device's alignment.

b x s is the reduction dimension of every weight gradient (and the m of every other product, where it costs nothing).
fp8 products refuse a reduction that is no multiple of 16. Off 16 bytes it is a warning whatever the price; what a
longer sequence gains as a larger batch is not counted.

Bad: b 1, s 4090: divisible by 2 only.
Good: b 1, s 4096.

Suggestion: the sequence lengths beside it.
"""

from __future__ import annotations

from shapes.operators import Product
from sizer.rules.arithmetic import alignment, largest_power_of_two, neighbours, off_vector
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ104"
SLUG = "tokens-power-of-two"
SOURCE = "ML Engineering book, shape recommendation 3; pytorch/ao issue 3111 (fp8)."


def check(context: Context) -> Answer:
    workload = context.workload
    if not workload.train:
        return NotApplicable("no weight gradients in inference")
    if context.model is None or context.model.main.length is not None:
        return NotApplicable("the model, not the workload, sets the sequence length")
    tokens, step = workload.tokens, alignment(context)
    if tokens % step == 0:
        return ()
    message = f"b x s = {tokens} is divisible by {largest_power_of_two(tokens)}, not by {step}: wgrad reduces over it"
    longest = context.model.max_positions
    lengths = [value for value in neighbours(workload.s, step) if longest is None or value <= longest]
    suggestions = tuple(Suggestion({"s": value}) for value in lengths)
    violated = off_vector(context, tokens)
    return [Finding("s", workload.s, message, suggestions, violated=violated, at_most_s=_most(context))]


def _most(context: Context) -> float:
    """Seconds of a step that misaligned leading dimensions and partial tiles of products over the tokens take."""
    sizes = {context.workload.tokens, context.workload.s}
    seconds = 0.0
    for op, cost in zip(context.operators, context.costs, strict=True):
        if isinstance(op, Product) and sizes & {op.m, op.n, op.k}:
            kept = 1.0 if cost.tile_efficiency is None else cost.tile_efficiency
            seconds += op.count * (sum(lost for _, lost in cost.alignment_s) + cost.seconds * (1 - kept))
    return seconds * context.workload.accumulation
