"""The head dimension is one that the device's attention kernel is built for.

Fused attention kernels are compiled for some head dimensions. FlashAttention 2 and 3 run another one in the next larger
kernel (160 as 192 on H100), padded; FlashAttention 4, cuDNN and FlashInfer refuse what they are not built for (192 on
B200), and a slower kernel runs instead; above 256 there is mostly none. Off a multiple of 8 the queries, keys and
values are padded with a copy first, or refused. Which kernel runs follows the device and --attention.

Bad: head_dim 132: FlashAttention 2 runs it as 192, a third of it wasted; on B200 it is refused in training.
Good: head_dim 128.

Suggestion: the nearest that the kernel takes as it is, keeping the hidden size where the heads allow it.
"""

from __future__ import annotations

from shapes.cost.predict import run_for
from shapes.kernels import Run, load_kernel, resolve, run_of
from shapes.operators import Attention
from sizer.rules.arithmetic import heads_that_keep_hidden, square
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ114"
SLUG = "flash-head-dim"
SOURCE = "The kernels' own checks, named in shapes/kernels; flash-attention issue 1141."

#: Head dimensions that are suggested: both FlashAttention 2 and 3 are built for them (160, which torch still carries,
#: is computed as 192 there).
PORTABLE = (64, 96, 128, 192, 256)


def check(context: Context) -> Answer:
    cores = {(op.head_dim, op.v_head_dim): op for op in context.operators if isinstance(op, Attention)}
    if not cores:
        return NotApplicable("no fused attention")
    findings, known = [], False
    for (dim, v_dim), core in sorted(cores.items()):
        run = run_for(core, context.device)
        known = known or bool(run.refused or run.built or run.verified)
        if not _as_it_is(run, dim, v_dim):
            message = _message(run, core, context.device.architecture)
            # Narrower values run in the kernel for the queries' dimension (MLA's 192 and 128): a cost, and no fault.
            violated = not _as_it_is(run, dim, dim if v_dim < dim and run.d_v == dim else v_dim)
            findings.append(Finding("head_dim", dim, message, _suggestions(context, core), violated=violated))
    if not known:
        kernel = resolve(core.kernel, context.device.architecture, core.trains)
        return NotApplicable(f"which head dimensions {load_kernel(kernel).title} is built for is not known here")
    return findings


def _as_it_is(run: Run, dim: int, v_dim: int) -> bool:
    return not run.refused and run.copied is None and (run.d_qk, run.d_v) == (dim, v_dim)


def _message(run: Run, core: Attention, generation: str) -> str:
    dim, v_dim = core.head_dim, core.v_head_dim
    name = f"head_dim {dim}" if dim == v_dim else f"head_dim {dim} with values of {v_dim}"
    parts = [f"{load_kernel(kernel).title} {reason}" for kernel, reason in run.refused]
    title = load_kernel(run.kernel).title
    if run.kernel == "eager":
        return f"{name}: {'; '.join(parts)}: attention falls back to scores and softmax written out"
    waste = 1 - (dim + v_dim) / (run.d_qk + run.d_v)
    runs = f"{name} runs as {run.d_qk}{'' if run.d_qk == run.d_v else f', {run.d_v}'} in {title}"
    if waste:
        runs += f": {waste:.0%} of it is padding"
    if run.copied is not None:
        runs += f"{'; ' if waste else ': '}it is no multiple of 8, so that Q, K and V are padded with a copy first"
    earlier = [one for one in load_kernel(run.kernel).earlier if dim in one.built and dim not in run.built]
    if earlier and generation in load_kernel(run.kernel).takes[0].generations:
        runs += f"; until {earlier[0].until} there was a kernel for {dim}"
    return "; ".join([*parts, runs])


def _suggestions(context: Context, core: Attention) -> tuple[Suggestion, ...]:
    dim = core.head_dim
    if context.dimensions.get("head_dim") != dim or dim != core.v_head_dim:
        return ()

    def fits(candidate: int) -> bool:
        architecture = context.device.architecture
        run = run_of(core.kernel, architecture, core.dtype, candidate, candidate, core.trains)
        return candidate in PORTABLE and _as_it_is(run, candidate, candidate)

    if square(context):
        return heads_that_keep_hidden(context, PORTABLE[0] // 2, fits)
    taken = [candidate for candidate in PORTABLE if fits(candidate)]
    nearest = sorted(taken, key=lambda candidate: abs(candidate - dim))[:1]
    return tuple(Suggestion({"head_dim": candidate}) for candidate in nearest)
