"""The last wave of thread blocks leaves at most 10% of a product's time idle.

Tiles are spread over the multiprocessors in waves. One tile more than fits costs a whole further wave: 8192 x 14336 in
tiles of 128 x 256 is 3,584 tiles, 27.2 waves on 132 multiprocessors. This holds where a kernel gives each tile a thread
block of its own (Ampere, Ada and older). Hopper's and Blackwell's persistent kernels pay little of it (going from one
wave to two costs 1.7x on A100, 1.05x on H100), so there the rule does not apply.

Bad: 110 tiles on A100's 108 multiprocessors: two waves, the second all but empty.
Good: 108 tiles: one full wave.

Suggestion: the neighbouring width on the crest of a wave, as the cost model sees it.
"""

from __future__ import annotations

from shapes.operators import Gemm
from sizer.rules.arithmetic import alignment, neighbours
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ112"
SLUG = "wave-quantization"
SOURCE = "NVIDIA Matrix Multiplication Background User's Guide, wave quantization; ML Engineering book."

LARGEST_IDLE = 0.10
#: Operators below this share of the step are not worth a line.
NOTABLE_SHARE = 0.02
#: Architectures whose matrix kernels are persistent: a block goes on to the next tile.
PERSISTENT = ("hopper", "blackwell")


def check(context: Context) -> Answer:
    if context.device.architecture in PERSISTENT:
        return NotApplicable("persistent kernels on this architecture pay little for a partial wave")
    if context.model is None or "d_ff" not in context.dimensions:
        return NotApplicable("no MLP width known to move")
    width, t, step_s = context.dimensions["d_ff"], context.workload.t, context.step_s
    shard = -(-width // t)
    idle = [
        (op, cost)
        for op, cost in zip(context.operators, context.costs, strict=True)
        if isinstance(op, Gemm)
        and shard in (op.m, op.n)
        and cost.wave_efficiency is not None
        and cost.wave_efficiency < 1 - LARGEST_IDLE
        and op.count * cost.seconds >= NOTABLE_SHARE * step_s
    ]
    if not idle:
        return ()
    op, cost = min(idle, key=lambda pair: pair[1].wave_efficiency or 1.0)
    message = (
        f"{op.name} {op.phase} ({op.m} x {op.n} x {op.k}) is {cost.tiles} tiles on {context.device.compute.units} "
        f"multiprocessors: {cost.waves:.1f} waves, {1 - (cost.wave_efficiency or 1):.0%} of their slots idle"
    )
    step = max(alignment(context), 128) * t
    values = {value for base in (width - step, width, width + step) for value in neighbours(max(base, step), step)}
    nearest = sorted(values - {width}, key=lambda value: abs(value - width))[:4]
    return [Finding("d_ff", width, message, tuple(Suggestion({"d_ff": value}) for value in nearest))]
