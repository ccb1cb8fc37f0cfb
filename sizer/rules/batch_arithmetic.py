"""Batch and device numbers should agree: GBS = MBS x DP x GAS and GPUs = DP x TP x PP x CP.

A framework told an inconsistent set either refuses to start or silently takes another batch size than was meant, and
the learning rate with it. GAS, the number of gradient accumulation steps, has to come out as a whole number.

Bad: 64 GPUs with TP 4 and PP 2 (so DP 8), a microbatch of 4 and a global batch of 1000: 1000 / 32 is 31.25.
Good: the same with a global batch of 1024 (GAS 32).
"""

from __future__ import annotations

from collections.abc import Iterator

from shapes.operators.split import largest_divisor
from shapes.workload import Workload
from sizer.rules.arithmetic import neighbours
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ120"
SLUG = "batch-arithmetic"
SOURCE = "Machine Learning Engineering book, 'Batch sizes'"


def check(context: Context) -> Answer:
    gpus, global_batch = context.workload.gpus, context.workload.global_batch
    if gpus is None and global_batch is None:
        return NotApplicable("neither the number of devices nor a global batch was given")
    return [*_devices(context.workload), *_batch(context.workload)]


def _devices(workload: Workload) -> Iterator[Finding]:
    gpus, t, p, d, cp = workload.gpus, workload.t, workload.p, workload.d, workload.cp
    if gpus is None or gpus == d * t * p * cp:
        return
    if gpus % (t * p * cp) == 0:
        change = {"d": gpus // (t * p * cp)}
    else:
        # p may not divide them either: then no t does, and 1 x 1 always does.
        stages = largest_divisor(gpus, p)
        shards = largest_divisor(gpus // stages, t)
        ring = largest_divisor(gpus // (stages * shards), cp)
        change = {"t": shards, "p": stages, "cp": ring, "d": gpus // (shards * stages * ring)}
    names, degrees = (
        ("DP x TP x PP", f"{d} x {t} x {p}") if cp == 1 else ("DP x TP x PP x CP", f"{d} x {t} x {p} x {cp}")
    )
    message = f"{gpus} devices, but {names} = {degrees} = {d * t * p * cp}"
    changed = {key: value for key, value in change.items() if value != getattr(workload, key)}
    yield Finding("d", d, message, (Suggestion(changed),), error=True, cause="batch arithmetic")


def _batch(workload: Workload) -> Iterator[Finding]:
    whole, b, d = workload.global_batch, workload.b, workload.d
    if whole is None or whole % (b * d) == 0:
        return
    below = [smaller for smaller in range(1, b) if whole % (smaller * d) == 0]
    if below:
        suggestions = [Suggestion({"b": below[-1]}, "the next smaller microbatch that divides it")]
    else:
        suggestions = [Suggestion({"global_batch": value}) for value in neighbours(whole, b * d)]
    message = f"a global batch of {whole} is not a multiple of MBS x DP = {b} x {d} = {b * d}"
    yield Finding("b", b, message, tuple(suggestions), error=True, cause="batch arithmetic")
