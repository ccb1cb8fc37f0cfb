"""Operators turned into callables on a device, in their real layouts (see ``build``). Importing this loads torch.

``PLANS``: kind of work -> how it is run. A new kind needs a plan here and a class in ``shapes.measure.jobs``.
"""

from collections.abc import Callable
from typing import Any

import torch

from shapes.measure.backend import Backend
from shapes.measure.jobs import Job, MemoryBound, Part
from shapes.measure.timer import TimedKernel, sets_needed
from shapes.operators.types import Attention, Gemm, GroupedGemm, RoutedGemm

from .common import Plan, UnsupportedError
from .functions import attention, memory_bound
from .parts import part
from .products import gemm, grouped_gemm

#: (the work, the kernel's name, a source of random numbers on the device) -> how it is run.
PLANS: dict[type, Callable[[Any, str, Any], Plan]] = {
    Gemm: gemm,
    GroupedGemm: grouped_gemm,
    RoutedGemm: grouped_gemm,
    Attention: attention,
    MemoryBound: memory_bound,
    Part: part,
}


def build(job: Job, backend: Backend, seed: int = 0) -> TimedKernel:
    """The kernel that runs ``job`` on ``backend``'s device, inputs and all.

    UnsupportedError where no kernel here does this work; torch's own errors (out of memory, a shape a kernel refuses)
    pass through.
    """
    work = job.work
    if type(work) not in PLANS:
        named = getattr(work, "name", "")
        raise UnsupportedError(f"{work.kind} {named}: needs its shapes or several devices, which are not known here")
    plan = PLANS[type(work)](work, job.kernel, torch.Generator(device=backend.device).manual_seed(seed))
    sets, flush = sets_needed(plan.set_bytes, backend.cache_bytes, backend.free_bytes)
    if plan.most_sets is not None:
        flush, sets = flush and sets == 1, min(sets, plan.most_sets)
    groups = tuple(plan.inputs() for _ in range(sets))
    return TimedKernel(
        calls=tuple(plan.call(*group) for group in groups),
        check=lambda: plan.check(*groups[0]),
        bound=plan.bound,
        set_bytes=plan.set_bytes,
        name=plan.name,
        capturable=plan.capturable,
        needs_flush=flush,
    )
