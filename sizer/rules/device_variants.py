"""Products of few waves run alike on every variant that the device is sold as.

Some accelerators are sold under one name with different numbers of multiprocessors (B300: 148 and 152). Tiles that fill
two waves on one take three on the other: what a search measured on the machine at hand, or a prediction for the one in
the data sheet, does not hold for the other. With many waves the difference is that of the peak.

Bad: 304 tiles on B300: two waves on 152 multiprocessors, three on 148.
Good: 3,584 tiles: 24 or 25 waves.

Suggestion: none; measure on the variant that will train (`sizer search --measure`).
"""

from __future__ import annotations

from math import ceil

from shapes.operators import Gemm
from sizer.rules.base import Answer, Context, Finding, NotApplicable

CODE = "SZ130"
SLUG = "device-variants"
SOURCE = "Machine Learning Engineering book, training/performance, 'Do more SMs give more TFLOPS?'"

#: Waves that differ by less than this, beyond what the units themselves do, are not worth a line.
NOTABLE = 0.10
#: Operators below this share of the step are not worth a line.
NOTABLE_SHARE = 0.02


def check(context: Context) -> Answer:
    units, others = context.device.compute.units, context.device.compute.other_units
    if not others:
        return NotApplicable(f"{context.device.name} is sold with one number of multiprocessors")
    worst: tuple[float, str] | None = None
    for op, cost in zip(context.operators, context.costs, strict=True):
        if not isinstance(op, Gemm) or not cost.tiles or op.count * cost.seconds < NOTABLE_SHARE * context.step_s:
            continue
        for other in others:
            waves, elsewhere = ceil(cost.tiles / units), ceil(cost.tiles / other)
            off = max(waves, elsewhere) / min(waves, elsewhere) - max(units, other) / min(units, other)
            if off >= NOTABLE and (worst is None or off > worst[0]):
                text = (
                    f"{op.name} {op.phase} is {cost.tiles} tiles: {waves} waves on the {context.device.title} with "
                    f"{units} multiprocessors, {elsewhere} on the one with {other}: what is measured on one need not "
                    "hold on the other"
                )
                worst = off, text
    return [Finding("device", context.device.name, worst[1])] if worst is not None else []
