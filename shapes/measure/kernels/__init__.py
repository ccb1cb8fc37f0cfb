"""Operators turned into callables on a device, in their real layouts (see ``build``). torch is imported inside."""

from __future__ import annotations

from shapes.measure.backend import Backend
from shapes.measure.jobs import Job, MemoryBound, Part
from shapes.measure.kernels.common import UnsupportedError
from shapes.measure.timer import Kernel
from shapes.operators import Attention, Gemm, GroupedGemm

__all__ = ["UnsupportedError", "build"]


def build(job: Job, backend: Backend, seed: int = 0) -> Kernel:
    """The kernel that runs ``job`` on ``backend``'s device, inputs and all.

    UnsupportedError where no kernel here does this work; torch's own errors (out of memory, a shape a kernel refuses)
    pass through.
    """
    work = job.work
    if isinstance(work, Gemm):
        from shapes.measure.kernels.gemm import gemm

        return gemm(work, job.kernel, backend, seed)
    if isinstance(work, GroupedGemm):
        from shapes.measure.kernels.grouped import grouped_gemm

        return grouped_gemm(work, job.kernel, backend, seed)
    if isinstance(work, Attention):
        from shapes.measure.kernels.attention import attention

        return attention(work, job.kernel, backend, seed)
    if isinstance(work, MemoryBound):
        from shapes.measure.kernels.memory_bound import memory_bound

        return memory_bound(work, backend, seed)
    if isinstance(work, Part):
        from shapes.measure.kernels.parts import part

        return part(work, backend, seed)
    raise UnsupportedError(f"{work.kind} {work.name}: needs its shapes or several devices, which are not known here")
