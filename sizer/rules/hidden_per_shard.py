"""The hidden size, and the heads' share of it on one tensor-parallel shard, are multiples of the device's alignment.

h is the n or k of every projection; h/t, where the heads add up to h, that of the split ones, which a head dimension
off the alignment spoils. The sources ask for a multiple of 64, which nearly every published model keeps: another h is a
warning whatever its price.

Bad: h 2568 at t 1: divisible by 8 only. h 4160 of 40 heads (104) at t 8: h/t = 520, divisible by 8 only.
Good: h 4096 at t 8: h/t = 512.

Suggestion: the nearest hidden size with whole heads of 64 or 128, or a smaller t.
"""

from __future__ import annotations

from sizer.rules.arithmetic import alignment, neighbours, shard_text, square, whole_heads_near
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ103"
SLUG = "hidden-per-shard"
SOURCE = "ML Engineering book, shape recommendation 3; arXiv 2401.14489, section VI."

#: Elements that the sources ask h to be a multiple of, whatever the device asks beyond (Gaudi: 128).
RECOMMENDED = 64
#: A hidden size further away than this is another model, not a neighbour.
NEIGHBOURHOOD = 0.1


def check(context: Context) -> Answer:
    dims, t = context.dimensions, context.workload.t
    if "hidden" not in dims:
        return NotApplicable("no hidden size known")
    hidden, step = dims["hidden"], alignment(context)
    # Heads that are cut are SZ105's; heads that do not add up to h leave it whole on every shard.
    shards = t if square(context) and dims["heads"] % t == 0 else 1
    if hidden % (step * shards) == 0:
        return ()
    message = shard_text("h", hidden, shards, step)
    whole = hidden % step == 0
    if square(context):
        suggestions = whole_heads_near(context, NEIGHBOURHOOD)
    else:
        near = (*neighbours(hidden, step), *neighbours(hidden, 2 * step))
        close = {value for value in near if abs(value - hidden) <= NEIGHBOURHOOD * hidden}
        suggestions = tuple(
            Suggestion({"hidden": value}) for value in sorted(close, key=lambda value: abs(value - hidden))
        )
    return [
        Finding(
            "hidden",
            hidden,
            message,
            suggestions,
            violated=hidden % min(step, RECOMMENDED) != 0,
            cause="head_dim" if whole else "hidden",
        )
    ]
