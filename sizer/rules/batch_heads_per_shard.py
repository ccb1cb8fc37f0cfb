"""(b x a)/t is an integer, and so is a/t: every tensor-parallel shard holds whole heads.

Bad: a 20 at t 8: two and a half heads a device.
Good: a 32 at t 8: four heads a device.

Suggestion: the nearest t that divides the heads, or the nearest number of heads that t divides.
"""

from __future__ import annotations

from math import gcd

from shapes.operators.split import head_counts, largest_divisor, nearest_t
from sizer.rules.arithmetic import neighbours
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ105"
SLUG = "batch-heads-per-shard"
SOURCE = "ML Engineering book, shape recommendation 4; arXiv 2401.14489."


def check(context: Context) -> Answer:
    t, dims = context.workload.t, context.dimensions
    if t == 1:
        return NotApplicable("no tensor parallelism")
    known = head_counts(context.model) if context.model else tuple({dims["heads"]} if "heads" in dims else ())
    if not known:
        return NotApplicable("no attention heads known")
    split = [heads for heads in known if heads % t]
    if not split:
        return ()
    smaller = nearest_t(context.model, t) if context.model else largest_divisor(gcd(*known), t)
    suggestions = [Suggestion({"t": smaller})]
    if split == [dims.get("heads")]:
        hidden = dims.get("hidden")
        suggestions += [
            Suggestion({"heads": value}) for value in neighbours(split[0], t) if hidden is None or hidden % value == 0
        ]
    heads = " and ".join(map(str, split))
    message = f"{heads} heads do not divide over t {t}: Megatron-style tensor parallelism cannot shard them"
    return [Finding("t", t, message, tuple(suggestions), error=True)]
