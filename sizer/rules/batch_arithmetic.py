"""Batch and device numbers should agree: GBS = MBS x DP x GAS and GPUs = DP x TP x PP.

A framework told an inconsistent set either refuses to start or silently takes another batch size than was meant, and
the learning rate with it. GAS, the number of gradient accumulation steps, has to come out as a whole number.

Bad: 64 GPUs with TP 4 and PP 2 (so DP 8), a microbatch of 4 and a global batch of 1000: 1000 / 32 is 31.25.
Good: the same with a global batch of 1024 (GAS 32).
"""

from __future__ import annotations

from collections.abc import Iterator

from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ120"
SLUG = "batch-arithmetic"
SOURCE = "Machine Learning Engineering book, 'Batch sizes'"


def check(context: Context) -> Answer:
    gpus, global_batch = (_given(context, key) for key in ("gpus", "global_batch"))
    if gpus is None and global_batch is None:
        return NotApplicable("neither the number of devices nor a global batch was given")
    workload = context.workload
    return list(findings(workload.t, workload.p, workload.d, workload.b, gpus=gpus, global_batch=global_batch))


def _given(context: Context, key: str) -> int | None:
    value = context.dimensions.get(key, getattr(context.workload, key, None))
    return value if isinstance(value, int) else None


def findings(
    t: int, p: int, d: int, b: int, *, gpus: int | None = None, global_batch: int | None = None
) -> Iterator[Finding]:
    """What does not agree among degrees, microbatch, devices and global batch."""
    if gpus is not None and gpus != d * t * p:
        suggestions = (Suggestion({"d": gpus // (t * p)}),) if gpus % (t * p) == 0 else ()
        yield Finding(
            "d", d, f"{gpus} devices, but DP x TP x PP = {d} x {t} x {p} = {d * t * p}", suggestions, error=True
        )
    if global_batch is not None and global_batch % (b * d):
        below = [smaller for smaller in range(1, b) if global_batch % (smaller * d) == 0]
        yield Finding(
            "b", b, f"a global batch of {global_batch} is not a multiple of MBS x DP = {b} x {d} = {b * d}",
            (Suggestion({"b": below[-1]}, "the next smaller microbatch that divides it"),) if below else (), error=True,
        )  # fmt: skip
