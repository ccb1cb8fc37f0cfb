"""The rows that pad each expert's group up to the grouped product's alignment are few.

Grouped products take each expert's rows in multiples: 8 in bf16 (16 bytes), 16 in fp8, 32 in MXFP8, 128 in block-wise
fp8 (DeepGEMM) and NVFP4. Routing gives any number, so that every expert on a device is padded by (multiple - 1)/2 rows
on average, whose FLOPs are thrown away: many small experts over few tokens are mostly padding.

Bad: 32 experts of a device, top 8 of 2,048 tokens, multiples of 128: 32 x 63.5 rows on 16,384, 12%.
Good: the same of 8,192 tokens: 3%.

Suggestion: a larger microbatch.
"""

from __future__ import annotations

from dataclasses import replace

from shapes.operators import GroupedGemm
from sizer.rules.arithmetic import larger_microbatch
from sizer.rules.base import Answer, Context, Finding, NotApplicable

CODE = "SZ125"
SLUG = "expert-group-padding"
SOURCE = (
    "torchtitan, models/common/token_dispatcher.py (TorchAOTokenDispatcher) and pull request 1503; Megatron-LM, "
    "core/fp8_utils.py get_fp8_align_size; DeepGEMM README (contiguous layout)."
)

#: Rows that a 16-bit grouped product's groups are padded to: 16 bytes, along the tokens in wgrad.
ROWS_16_BIT = 8
#: A smaller share of padding is not worth a line.
NOTABLE = 0.05


def check(context: Context) -> Answer:
    model, workload = context.model, context.workload
    moe = model.moe if model is not None else None
    if moe is None:
        return NotApplicable("no experts")
    if workload.decode:
        return NotApplicable("decode kernels mask rows instead of padding groups")
    recipe = workload.low_precision
    multiple = recipe.alignment.expert_rows if recipe is not None else ROWS_16_BIT
    rows = workload.own_tokens(workload.s) * moe.top_k
    padding = moe.experts / workload.e * (multiple - 1) / 2
    share = padding / (rows + padding)
    if share < NOTABLE:
        return ()
    message = (
        f"{moe.experts // workload.e} experts' groups are padded to multiples of {multiple} rows: about {padding:,.0f} "
        f"rows beside {rows:,} that were routed, {share:.0%} of the grouped products' work"
    )
    spent = sum(
        op.count * cost.seconds
        for op, cost in zip(context.operators, context.costs, strict=True)
        if isinstance(op, GroupedGemm)
    )
    wanted = workload.b * -(-int(padding / NOTABLE) // rows)
    larger = tuple(replace(one, note="less padding") for one in larger_microbatch(context, wanted))
    return [Finding("b", workload.b, message, larger, at_most_s=spent * share * workload.accumulation)]
