"""The hidden size of one tensor-parallel shard, h/t, is a multiple of the device's alignment.

h is the n or k of every projection; h/t that of the split ones.

Bad: h 2568 at t 1: divisible by 8 only. h 4160 at t 8: h/t = 520, divisible by 8 only.
Good: h 4096 at t 8: h/t = 512.

Suggestion: the nearest hidden size that keeps the number of heads, or a smaller t.
"""

from __future__ import annotations

from sizer.rules.arithmetic import alignment, largest_power_of_two, lcm, neighbours, square
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ103"
SLUG = "hidden-per-shard"
SOURCE = "ML Engineering book, shape recommendation 3."

#: A hidden size further away than this is another model, not a neighbour.
NEIGHBOURHOOD = 0.1


def check(context: Context) -> Answer:
    dims, t = context.dimensions, context.workload.t
    if "hidden" not in dims:
        return NotApplicable("no hidden size known")
    hidden, step = dims["hidden"], alignment(context)
    if hidden % (step * t) == 0:
        return ()
    shard = hidden // t if hidden % t == 0 else hidden / t
    grade = largest_power_of_two(hidden // t) if hidden % t == 0 else 1
    message = f"h/t = {shard:g} is divisible by {grade}, not by {step}"
    multiple = lcm(step * t, dims["heads"]) if square(context) else step * t
    near = [value for value in neighbours(hidden, multiple) if abs(value - hidden) <= NEIGHBOURHOOD * hidden]
    suggestions = [Suggestion({"hidden": value}) for value in near]
    if t > 1 and hidden % (step * (t // 2)) == 0 and t % 2 == 0:
        suggestions.append(Suggestion({"t": t // 2}))
    return [Finding("hidden", hidden, message, tuple(suggestions))]
