"""The microbatch should be as large as memory allows.

A larger microbatch makes every product taller and each weight's bytes serve more tokens. Any integer will do: of the
microbatches that fit, 7 beats 4, and no power of two is asked of b.

Memory is that of `sizer memory` with AdamW in the default precision. Suggestions are priced per token.

Bad: `sizer check config.json -b 4` where 7 sequences fit.
Good: the largest microbatch that `sizer memory config.json` names.
"""

from __future__ import annotations

from shapes.memory import largest_microbatch
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ107"
SLUG = "largest-microbatch"
SOURCE = "Machine Learning Engineering book, shape recommendation 2 and 'Batch sizes'"


def check(context: Context) -> Answer:
    model, workload = context.model, context.workload
    if model is None:
        return NotApplicable("memory needs a model with named sizes, not a trace")
    if not context.divides:
        return NotApplicable("the model does not divide over its devices (SZ105, SZ110, SZ117)")
    if not context.sets_any("b"):
        return NotApplicable("no microbatch given (-b)")
    if not workload.train:
        return NotApplicable("a serving batch is as large as the requests that wait")
    largest = largest_microbatch(model, workload, context.device, implementation=context.implementation)
    if largest < workload.b:
        return NotApplicable("the workload does not fit the device (SZ121)")
    if largest == workload.b:
        return []
    suggestion = Suggestion({"b": largest}, f"priced per token; the largest that fits {context.device.name}")
    return [Finding("b", workload.b, f"a microbatch of {workload.b} where {largest} fits", (suggestion,))]
