"""The microbatch should be as large as memory allows.

A larger microbatch makes every product taller and each weight's bytes serve more tokens. Any integer will do: of the
microbatches that fit, 7 beats 4, and no power of two is asked of b.

Memory is that of `sizer memory` as the workload says. The sequences of a step are the training's choice:
without a global batch the rule has nothing to say, and with one it asks for a microbatch that the ranks' share is made
of. Suggestions are priced per token; a communication of gradients that runs once a step is charged once.

Bad: `sizer check config.json -b 4 --global-batch 512` where 8 sequences fit.
Good: the largest divisor of the global batch's share that `sizer memory config.json` finds to fit.
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
    if workload.global_batch is None:
        return NotApplicable("no global batch given (--global-batch): how many sequences a step may take is not known")
    largest = largest_microbatch(model, workload, context.device, implementation=context.implementation)
    if largest < workload.b:
        return NotApplicable("the workload does not fit the device (SZ121)")
    share = workload.global_batch // workload.d
    whole = max((b for b in range(1, min(largest, share) + 1) if share % b == 0), default=0)
    if whole <= workload.b:
        return []
    suggestion = Suggestion({"b": whole}, f"priced per token; the largest of a rank's {share} that fits")
    return [Finding("b", workload.b, f"a microbatch of {workload.b} where {whole} fits", (suggestion,))]
