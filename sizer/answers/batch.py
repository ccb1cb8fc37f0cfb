"""Batch and device arithmetic: GPUs = DP x TP x PP x CP, GBS = MBS x DP x GAS."""

from __future__ import annotations

from shapes.errors import InputError
from shapes.workload import Workload


def check_batch(workload: Workload) -> None:
    """InputError where devices or a global batch that were said do not agree with the degrees and the microbatch."""
    t, p, b, d = workload.t * workload.cp, workload.p, workload.b, workload.d  # t: ranks that share a microbatch
    gpus, whole = workload.gpus, workload.global_batch
    if gpus is not None and gpus % (t * p):
        raise InputError(f"expected a multiple of TP x PP = {t} x {p} = {t * p}", key="gpus", value=gpus)
    if gpus is not None and gpus != t * p * d:
        raise InputError(f"expected GPUs / (TP x PP x CP) = {gpus // (t * p)}", key="d", value=d)
    if whole is not None and whole % (b * d):
        raise InputError(f"expected a multiple of MBS x DP = {b} x {d} = {b * d}", key="global_batch", value=whole)
