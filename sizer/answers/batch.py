"""Batch and device arithmetic: DP = GPUs / (TP x PP), GBS = MBS x DP x GAS."""

from __future__ import annotations

from shapes.errors import InputError, positive_int
from shapes.frozen import frozen
from shapes.workload import Workload


@frozen
class Batch:
    """How many sequences one optimizer step sees, and how they are spread.

    ``microbatches`` is the number of gradient accumulation steps (GAS).
    """

    gpus: int
    t: int
    p: int
    d: int
    microbatch: int
    microbatches: int

    @property
    def global_batch(self) -> int:
        return self.microbatch * self.d * self.microbatches


def batch(
    gpus: int, microbatch: int, *, t: int = 1, p: int = 1, global_batch: int | None = None, microbatches: int = 1
) -> Batch:
    """The consistent arithmetic; InputError where the GPUs or the global batch do not divide.

    >>> batch(8, 4, t=2, p=2).global_batch
    8
    """
    for key, value in (("gpus", gpus), ("microbatch", microbatch), ("tp", t), ("pp", p), ("gas", microbatches)):
        positive_int(value, key, maximum=2**31)
    if gpus % (t * p):
        raise InputError(f"expected a multiple of TP x PP = {t} x {p} = {t * p}", key="gpus", value=gpus)
    d = gpus // (t * p)
    if global_batch is not None:
        positive_int(global_batch, "global_batch", maximum=2**40)
        if global_batch % (microbatch * d):
            raise InputError(
                f"expected a multiple of MBS x DP = {microbatch} x {d} = {microbatch * d}",
                key="global_batch",
                value=global_batch,
            )
        microbatches = global_batch // (microbatch * d)
    return Batch(gpus, t, p, d, microbatch, microbatches)


def batch_of(workload: Workload) -> Batch | None:
    """The arithmetic of a workload whose devices or global batch were said (None: neither was).

    InputError where they do not agree with its degrees and its microbatch.
    """
    if workload.gpus is None and workload.global_batch is None:
        return None
    each = workload.t * workload.cp  # ranks that share a microbatch
    devices = workload.gpus or each * workload.p * workload.d
    found = batch(devices, workload.b, t=each, p=workload.p, global_batch=workload.global_batch)
    if workload.d != found.d:
        raise InputError(f"expected GPUs / (TP x PP x CP) = {found.d}", key="d", value=workload.d)
    return found
