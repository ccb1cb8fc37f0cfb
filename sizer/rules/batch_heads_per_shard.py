"""(b x a)/t is an integer, and so is a/t: every tensor-parallel shard holds whole heads.

Bad: a 20 at t 8: two and a half heads a device.
Good: a 32 at t 8: four heads a device.

Suggestion: the nearest t that divides the heads, or the nearest number of heads that t divides.
"""

from __future__ import annotations

from sizer.rules.arithmetic import neighbours
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ105"
SLUG = "batch-heads-per-shard"
SOURCE = "ML Engineering book, shape recommendation 4; arXiv 2401.14489."


def check(context: Context) -> Answer:
    t, heads = context.workload.t, context.dimensions.get("heads")
    if t == 1:
        return NotApplicable("no tensor parallelism")
    if heads is None:
        return NotApplicable("no attention heads known")
    if heads % t == 0:
        return ()
    hidden = context.dimensions.get("hidden")
    smaller = next(degree for degree in range(t - 1, 0, -1) if heads % degree == 0)
    suggestions = [Suggestion({"t": smaller})]
    suggestions += [
        Suggestion({"heads": value}) for value in neighbours(heads, t) if hidden is None or hidden % value == 0
    ]
    message = f"{heads} heads do not divide over t {t}: Megatron-style tensor parallelism cannot shard them"
    return [Finding("t", t, message, tuple(suggestions), error=True)]
