"""The tokens of a microbatch, b x s, are a multiple of the device's alignment.

b x s is the reduction dimension of every weight gradient (and the m of every other product, where it costs nothing).
fp8 products refuse a reduction that is no multiple of 16.

Bad: b 1, s 4090: divisible by 2 only.
Good: b 1, s 4096.

Suggestion: the next sequence length, or the microbatch, that makes b x s a multiple.
"""

from __future__ import annotations

from sizer.rules.arithmetic import alignment, largest_power_of_two, lcm, neighbours, next_multiple
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
    whole = lcm(step, workload.s) // workload.s
    suggestions = [Suggestion({"s": value}) for value in lengths]
    if whole <= 16:
        suggestions.append(Suggestion({"b": next_multiple(workload.b, whole)}))
    return [Finding("s", workload.s, message, tuple(suggestions))]
