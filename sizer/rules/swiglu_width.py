"""A gated MLP's width, per shard, is a multiple of the device's alignment.

A gated MLP has three matrices instead of two, so its width is cut to two thirds of 4h, and 8h/3 is rarely a good
number: it is n of gate and up, k of down, forward; and the reverse in both gradients.

Bad: h 4096, d_ff 10922 = 8h/3 rounded: divisible by 2 only.
Good: 10944, 11008 (Llama 2): multiples of 64 and of 256.

Suggestion: the neighbouring multiples of the alignment times t, of twice and of four times that; `sizer search --h H`
looks wider.
"""

from __future__ import annotations

from sizer.rules.arithmetic import alignment, neighbours, off_vector, shard_text
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ108"
SLUG = "swiglu-width"
SOURCE = "ML Engineering book, shape recommendation 6 and the SwiGLU search."


def check(context: Context) -> Answer:
    mlp = context.model.dense_mlp if context.model is not None else None
    if mlp is None or not mlp.gated:
        return NotApplicable("no gated dense MLP")
    width, t = mlp.width, context.workload.t
    step = alignment(context) * t
    if width % step == 0:
        return ()
    third = 8 * context.dimensions["hidden"] / 3
    origin = " (8h/3 rounded)" if abs(width - third) <= 1 else ""
    message = f"the width{origin}: {shard_text('d_ff', width, t, step // t)}"
    near = {value for multiple in (1, 2, 4) for value in neighbours(width, multiple * step)}
    suggestions = (Suggestion({"d_ff": value}) for value in sorted(near, key=lambda value: abs(value - width))[:4])
    return [Finding("d_ff", width, message, tuple(suggestions), violated=off_vector(context, width, t))]
