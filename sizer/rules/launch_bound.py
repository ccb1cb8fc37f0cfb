"""The device should not wait for the host: a step is no shorter than its kernels take to be launched.

Every kernel costs the host some microseconds. Where a layer's kernels run in less than that, the device idles, whatever
the shapes. What helps: a larger microbatch (as many launches for more work), fewer kernels (torch.compile, fused norms
and rotary embedding, grouped products for experts), or none (CUDA graphs).

Bad: a model of 0.1 B parameters at a microbatch of 1, run eagerly on an H100.
Good: the same at a microbatch of 16, or compiled with CUDA graphs.

Suggestion: the microbatch, doubled until the device hardly waits.
"""

from __future__ import annotations

from dataclasses import replace

from sizer.rules.arithmetic import larger_microbatch
from sizer.rules.base import Answer, Context, Finding, NotApplicable

CODE = "SZ123"
SLUG = "launch-bound"
SOURCE = "Machine Learning Engineering book, 'Kernel launch'; pytorch.org/blog/accelerating-pytorch-with-cuda-graphs"

#: The part of a step that `shapes.cost.step` gives to waiting.
WAITING = "waiting for the host"
#: A smaller share of the step is below what a prediction can tell.
NOTABLE = 0.1


def check(context: Context) -> Answer:
    if context.workload.serving:
        return NotApplicable("serving engines replay CUDA graphs: nothing waits for the host")
    if context.step is None:
        return NotApplicable("operators were timed one by one, without the host between them")
    waiting, seconds = context.step.parts.get(WAITING, 0.0), context.step.seconds
    if waiting < NOTABLE * seconds:
        return ()
    message = (
        f"the device waits {waiting / seconds:.0%} of the step for {context.stack} to launch its kernels: they are too "
        "short. A larger microbatch, torch.compile or CUDA graphs, and grouped products for experts help"
    )
    b = context.workload.b
    # Twice the work for as many launches leaves less than half of the waiting.
    times = 2
    while waiting / seconds / times > NOTABLE / 2:
        times *= 2
    note = "as many launches for more work"
    larger = tuple(replace(suggestion, note=note) for suggestion in larger_microbatch(context, times * b))
    return [Finding("b", b, message, larger)]
