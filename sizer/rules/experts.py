"""Rules on experts: their width, what is routed to each, how they are spread and padded."""

from __future__ import annotations

from collections.abc import Iterator

from shapes.model import ModelShape, MoeShape
from shapes.operators import GroupedGemm
from shapes.operators.parallel import expert_counts, nearest_e
from shapes.workload import Workload
from sizer.rules.arithmetic import larger_microbatch, neighbours, next_multiple, powers_near, unaligned_shards
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion, rule, suggest

#: Rows of the common grouped-GEMM tile.
TILE_ROWS = 128


@rule("SZ117", source="Grouped GEMM tiles of 128 rows; strides: transformers issue 48644, pytorch pull request 150374.")
def expert_shapes(context: Context) -> Answer:
    """Experts have aligned widths, divide over the devices, and are routed enough tokens to fill a tile.

    Each expert is a product of its own: its width is n and k as a dense MLP's is, and its m is the tokens routed to it,
    b s top_k / E on average. With fewer than a tile's 128 rows the tensor cores work on padding. torch's grouped
    product takes no matrix whose rows are off 16 bytes: the exception comes at the first step, or experts run one by
    one.

    Bad: expert width 1400; 256 experts, top 8, b x s = 2048: 64 tokens an expert.
    Good: expert width 1408; b x s = 16384: 512 tokens an expert.

    Suggestion: the neighbouring aligned width; a degree that divides the experts, or experts that it divides; a larger
    microbatch.
    """
    model = context.model
    moe = model.moe if model is not None else None
    if model is None or moe is None:
        return NotApplicable("no experts")
    refused = "; grouped products refuse rows off 16 bytes" * context.off_vector(moe.width, context.workload.t)
    said = f"each expert's width: {{}}{refused}"
    width = unaligned_shards(context, "expert_d_ff", "d_ff", moe.width, said, neighbours)
    return [*width, *_spread(model, moe, context.workload), *_routed(context, moe)]


def _spread(model: ModelShape, moe: MoeShape, workload: Workload) -> Iterator[Finding]:
    """Experts that do not divide over e, or e over the data-parallel ranks that hold them."""
    e, d = workload.e, workload.d
    counts = expert_counts(model)
    if any(count % e for count in counts):
        # The data-parallel ranks that hold the experts follow.
        splits = [
            Suggestion({"e": one} if d % one == 0 else {"e": one, "d": next_multiple(d, one)})
            for one in powers_near(e, lambda ranks: not any(count % ranks for count in counts))
        ]
        changes = suggest("experts", (value for value in neighbours(moe.experts, e) if value >= moe.top_k))
        yield Finding("e", e, f"{moe.experts} experts do not divide over e {e}", (*splits, *changes), error=True)
    elif d > 1 and d % e:
        message = f"e {e} does not divide over the {d} data-parallel ranks that hold the experts"
        changes = suggest("e", [nearest_e(model, e, d)]) + suggest("d", [next_multiple(d, e)])
        yield Finding("e", e, message, changes, error=True)


def _routed(context: Context, moe: MoeShape) -> Iterator[Finding]:
    """Fewer tokens an expert than a tile has rows."""
    workload = context.workload
    routed = workload.tokens * moe.top_k * workload.e
    if routed / moe.experts < TILE_ROWS:
        message = (
            f"an expert is routed {routed / moe.experts:.0f} tokens a microbatch (b s top_k / E with even routing), "
            f"fewer than a tile's {TILE_ROWS} rows"
        )
        wanted = workload.b * -(-TILE_ROWS * moe.experts // routed)
        yield Finding("b", workload.b, message, larger_microbatch(context, wanted))


#: Rows that a 16-bit grouped product's groups are padded to: 16 bytes, along the tokens in wgrad.
ROWS_16_BIT = 8
#: A smaller share of padding is not worth a line.
NOTABLE_PADDING = 0.05


@rule(
    "SZ125",
    source="torchtitan, models/common/token_dispatcher.py (TorchAOTokenDispatcher) and pull request 1503; Megatron-LM, "
    "core/fp8_utils.py get_fp8_align_size; DeepGEMM README (contiguous layout).",
    of_costs=True,
)
def expert_group_padding(context: Context) -> Answer:
    """The rows that pad each expert's group up to the grouped product's alignment are few.

    Grouped products take each expert's rows in multiples: 8 in bf16 (16 bytes), 16 in fp8, 32 in MXFP8, 128 in
    block-wise fp8 (DeepGEMM) and NVFP4. Routing gives any number, so that every expert on a device is padded by
    (multiple - 1)/2 rows on average, whose FLOPs are thrown away: many small experts over few tokens are mostly
    padding.

    Bad: 32 experts of a device, top 8 of 2,048 tokens, multiples of 128: 32 x 63.5 rows on 16,384, 12%.
    Good: the same of 8,192 tokens: 3%.

    Suggestion: a larger microbatch.
    """
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
    if share < NOTABLE_PADDING:
        return ()
    message = (
        f"{moe.experts // workload.e} experts' groups are padded to multiples of {multiple} rows: about {padding:,.0f} "
        f"rows beside {rows:,} that were routed, {share:.0%} of the grouped products' work"
    )
    spent = sum(seconds for op, _, seconds in context.timed() if isinstance(op, GroupedGemm))
    wanted = workload.b * -(-int(padding / NOTABLE_PADDING) // rows)
    larger = larger_microbatch(context, wanted, "less padding")
    return [Finding("b", workload.b, message, larger, at_most_s=spent * share * workload.accumulation)]
