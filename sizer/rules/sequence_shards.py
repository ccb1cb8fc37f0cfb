"""A sequence cuts into equal parts over context parallelism (2 cp of them) and over sequence parallelism (t).

Context parallelism gives each rank one part from the front and one from the back of the sequence, so that causal
attention is balanced: 2 cp parts. Sequence parallelism scatters a rank's tokens over its t tensor-parallel ranks.
Frameworks refuse a sequence that does not divide.

Bad: s 4100 at cp 2: 4 x 1025, which t 4 does not divide. s 4098 at cp 2: no multiple of 4.
Good: s 8192 at cp 4 and t 8: 8 parts of 1024, 256 tokens a rank.

Suggestion: the sequence lengths beside it; a smaller degree.
"""

from __future__ import annotations

from shapes.operators.split import largest_divisor
from sizer.rules.arithmetic import alignment, lcm, neighbours
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ127"
SLUG = "sequence-shards"
SOURCE = (
    "Megatron-LM, training/arguments.py:1335 (seq_length over 2 cp) and core/tensor_parallel/mappings.py:181 (over t); "
    "Transformer Engine, fused_attn/context_parallel.cu."
)


def check(context: Context) -> Answer:
    workload = context.workload
    scattered = workload.t if workload.sequence_parallel else 1
    if workload.cp == 1 and scattered == 1:
        return NotApplicable("neither context nor sequence parallelism")
    if workload.decode:
        return NotApplicable("a decode step has one token a request")
    if context.model is not None and context.model.main.length is not None:
        return NotApplicable("the model, not the workload, sets the sequence length")
    s, cp = workload.s, workload.cp
    parts = {"cp": 2 * cp if cp > 1 else 1, "t": cp * scattered}
    cut = {degree: number for degree, number in parts.items() if s % number}
    if not cut:
        return ()
    longest = context.model.max_positions if context.model is not None else None
    whole = lcm(lcm(*parts.values()), alignment(context))
    suggestions = [Suggestion({"s": near}) for near in neighbours(s, whole) if longest is None or near <= longest]
    if "cp" in cut:
        half = largest_divisor(s, 2 * cp - 1) // 2
        suggestions += [Suggestion({"cp": max(1, half)})] if s % (2 * max(1, half)) == 0 else []
    names = {"cp": f"2 x cp = {2 * cp} parts", "t": f"{cp * scattered} ranks of cp {cp} and t {workload.t}"}
    message = f"a sequence of {s} does not divide over {' or '.join(names[degree] for degree in cut)}"
    return [Finding("s", s, message, tuple(suggestions), error=True)]
