"""Key/value heads divide over tensor parallelism, or t divides over them.

With fewer key/value heads than t each is copied to several devices, whose projections then compute the same thing.

Bad: kv 6 at t 4: neither divides the other. kv 4 at t 8: every key/value head twice.
Good: kv 8 at t 8.

Suggestion: a t that divides them. As many key/value heads as t would do, but how many share one is the model's affair.
"""

from __future__ import annotations

from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ115"
SLUG = "kv-heads-per-shard"
SOURCE = "Megatron-LM (num-query-groups); GQA, arXiv 2305.13245."


def check(context: Context) -> Answer:
    t, dims = context.workload.t, context.dimensions
    if t == 1:
        return NotApplicable("no tensor parallelism")
    if not {"kv_heads", "heads"} <= dims.keys() or dims["kv_heads"] == dims["heads"]:
        return NotApplicable("no shared key/value heads")
    kv = dims["kv_heads"]
    if kv % t == 0:
        return ()
    smaller = next(degree for degree in range(t - 1, 0, -1) if kv % degree == 0 and dims["heads"] % degree == 0)
    suggestions = (Suggestion({"t": smaller}),)
    if t % kv == 0:
        message = f"{kv} key/value heads at t {t}: each is copied to {t // kv} devices"
        return [Finding("kv_heads", kv, message, suggestions, violated=True, cause="t")]
    message = f"{kv} key/value heads and t {t}: neither divides the other, so they cannot be sharded"
    return [Finding("kv_heads", kv, message, suggestions, error=True, cause="t")]
