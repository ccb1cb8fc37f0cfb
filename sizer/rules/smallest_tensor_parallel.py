"""Tensor parallelism should be as small as memory allows.

Every layer pays two all-reduces forward and two backward over t devices, and its products shrink to 1/t of their
width. When the step's memory fits with a smaller t, the devices it frees do more as data parallelism.

Memory is that of `sizer memory` as the workload says; a smaller t must divide the attention heads.

Bad: `sizer check config.json --tp 8` on a model whose step fits one device.
Good: the smallest `--tp` that `sizer memory config.json` names.
"""

from __future__ import annotations

from dataclasses import replace

from shapes.memory import memory, smallest_tp
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ106"
SLUG = "smallest-tensor-parallel"
SOURCE = "Machine Learning Engineering book, shape recommendation 5; Megatron-LM (2205.05198)"


def check(context: Context) -> Answer:
    if context.workload.serving:
        return NotApplicable("in serving a larger t buys latency for throughput, which is a choice")
    model, workload = context.model, context.workload
    if model is None:
        return NotApplicable("memory needs a model with named sizes, not a trace")
    if not context.divides:
        return NotApplicable("the model does not divide over its devices (SZ105, SZ110, SZ117)")
    if workload.t == 1:
        return NotApplicable("no tensor parallelism")
    whole = replace(workload, sequence_parallel=False)
    smallest = smallest_tp(model, whole, context.device, largest=workload.t, implementation=context.implementation)
    if smallest is None or smallest >= workload.t:
        return []
    left = memory(model, replace(whole, t=smallest), device=context.device, implementation=context.implementation)
    share = left.total_bytes / context.device.memory.bytes
    note = f"fills {share:.0%} of {context.device.name}; the devices freed become data parallelism"
    change = {"t": smallest} if smallest > 1 or not workload.sequence_parallel else {"t": 1, "sequence_parallel": 0}
    return [
        Finding(
            "t",
            workload.t,
            f"tensor parallelism of {workload.t} where {smallest} fits in memory",
            (Suggestion(change, note),),
        )
    ]
