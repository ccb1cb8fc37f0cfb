"""Every leading dimension of every product meets the tensor cores' requirement: forward, dgrad and wgrad, per shard.

16 bytes on V100 and T4 (8 elements of fp16), 128 bytes on A100 and later (64 of bf16, 32 of tf32, 128 of fp8). Which
of m, n, k is a leading dimension depends on the layout: k of both operands forward, k and n in dgrad, m and n in wgrad,
n of the result always. Dimensions that another rule covers (vocabulary, head_dim, hidden size, tokens, gated
width, experts) are handled there; what remains here are plain MLP widths, latent ranks and whatever a trace finds.

Bad: a plain MLP of width 10230: divisible by 2 only.
Good: 10240.

Suggestion: the nearest aligned value of the dimension, where it is one that a configuration sets.
"""

from __future__ import annotations

from collections.abc import Iterator

from shapes.model import AttentionShape
from shapes.operators import Product
from sizer.rules.arithmetic import alignment, largest_power_of_two, neighbours, next_multiple, off_vector, vector
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ109"
SLUG = "tensor-core-alignment"
SOURCE = "NVIDIA Matrix Multiplication Background User's Guide, tensor-core requirements."

#: Below this share of the step a product is not worth a line.
NOTABLE_SHARE = 0.001


def check(context: Context) -> Answer:
    if not any(isinstance(op, Product) for op in context.operators):
        return NotApplicable("no matrix products")
    return list(_findings(context))


def _findings(context: Context) -> Iterator[Finding]:
    step, step_s, covered = alignment(context), context.step_s, _covered(context)
    lost: dict[int, dict[str, float]] = {}
    for op, cost in zip(context.operators, context.costs, strict=True):
        if not isinstance(op, Product):
            continue
        seconds = op.count * sum(penalty for _, penalty in cost.alignment_s)
        for value in {op.m, op.n, op.k} - covered:
            if value % step and seconds:
                by_name = lost.setdefault(value, {})
                name = op.name.removeprefix("layers.*.")
                by_name[name] = by_name.get(name, 0.0) + seconds
    # One line a dimension, however many products have it: fixing it fixes them all.
    for value, by_name in sorted(lost.items(), key=lambda item: -sum(item[1].values())):
        seconds = sum(by_name.values())
        if seconds >= NOTABLE_SHARE * step_s:
            names = sorted(by_name, key=lambda name: -by_name[name])
            power = largest_power_of_two(value)
            is_now = "odd" if power == 1 else f"divisible by {power}"
            message = (
                f"{' and '.join(names[:2])}{f' and {len(names) - 2} more' if len(names) > 2 else ''}: a dimension of "
                f"{value} is {is_now}, not a multiple of {step}: "
                f"misaligned operands take {seconds / step_s:.1%} of the step"
            )
            field, whole, suggestions = _suggestions(context, names[0], value, step)
            at_most_s = seconds * context.workload.accumulation
            violated = off_vector(context, value)
            yield Finding(field, whole, message, suggestions, violated=violated, at_most_s=at_most_s)


def _covered(context: Context) -> set[int]:
    dims, workload = context.dimensions, context.workload
    names = ["vocab", "hidden", "head_dim", "experts", "expert_d_ff", "shared_d_ff"]
    if context.model is not None and context.model.dense_mlp is not None and context.model.dense_mlp.gated:
        names.append("d_ff")
    values = {dims[name] for name in names if name in dims}
    if context.model is not None:
        # What heads of a misaligned head_dim add up to is SZ102's to say.
        values |= {
            own.out_features if linear.shard == "column" else own.in_features
            for stack, block in context.model.all_blocks()
            if isinstance(block.attention, AttentionShape)
            for linear in block.attention.linears(stack.hidden, fused=workload.fused_qkv)
            for own in (linear, linear.on_shard(workload.t))
        }
    # Gate and up may be one product of twice the width.
    values |= {-(-value // workload.t) for value in values}
    values |= {2 * value for value in values}
    if context.model is not None:
        values |= {workload.tokens, workload.s} | {
            length * scale for stack in context.model.stacks if (length := stack.length) for scale in (1, workload.b)
        }
    return values


def _suggestions(context: Context, name: str, value: int, step: int) -> tuple[str, int, tuple[Suggestion, ...]]:
    """The configuration's field behind ``value`` with its whole value and its neighbours; else the product's name."""
    t, width = context.workload.t, context.dimensions.get("d_ff")
    if width is not None and value in (width, -(-width // t)):
        return "d_ff", width, tuple(Suggestion({"d_ff": multiple}) for multiple in neighbours(width, step * t))
    if ".lora_" in name and value == context.workload.lora_rank:
        # What loads require; wider steps are not worth the parameters of a rank.
        return "lora_rank", value, (Suggestion({"lora_rank": next_multiple(value, vector(context))}),)
    return name, value, ()
