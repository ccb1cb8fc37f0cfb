"""Rules on splits: heads over tensor parallelism, layers and ends over pipeline stages; experts, however spread."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd

from shapes.memory import memory
from shapes.model import ModelShape, MoeShape
from shapes.model.stages import layers_of_stages
from shapes.operators import GroupedGemm
from shapes.operators.parallel import expert_counts, head_counts, nearest_e, nearest_t
from shapes.workload import Workload
from sizer.rules.arithmetic import (
    NEIGHBOURHOOD,
    larger_microbatch,
    neighbours,
    next_multiple,
    powers_near,
    unaligned_shards,
)
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion, rule, suggest


@rule("SZ105", source="ML Engineering book, shape recommendation 4; arXiv 2401.14489.")
def batch_heads_per_shard(context: Context) -> Answer:
    """(b x a)/t is an integer, and so is a/t: every tensor-parallel shard holds whole heads.

    Bad: a 20 at t 8: two and a half heads a device.
    Good: a 32 at t 8: four heads a device.

    Suggestion: the nearest powers of two that divide the heads as t, or the nearest number of heads that t divides.
    """
    t, dims, model = context.workload.t, context.dimensions, context.model
    if t == 1:
        return NotApplicable("no tensor parallelism")
    known = head_counts(model) if model else tuple({dims["heads"]} if "heads" in dims else ())
    if not known:
        return NotApplicable("no attention heads known")
    cut = [heads for heads in known if heads % t]
    return [_cut_heads(context, known, cut)] if cut else ()


def _cut_heads(context: Context, known: tuple[int, ...], cut: list[int]) -> Finding:
    t, dims, model = context.workload.t, context.dimensions, context.model

    def divides(degree: int) -> bool:
        return gcd(*known) % degree == 0 and (model is None or nearest_t(model, degree) == degree)

    suggestions = suggest("t", powers_near(t, divides))
    if cut == [dims.get("heads")]:
        suggestions += tuple(change for value in neighbours(cut[0], t) for change in _with_heads(dims, value, t))
    heads = " and ".join(map(str, cut))
    message = f"{heads} heads do not divide over t {t}: Megatron-style tensor parallelism cannot shard them"
    return Finding("t", t, message, suggestions, error=True)


def _with_heads(dims: Mapping[str, int], heads: int, t: int) -> Iterator[Suggestion]:
    """So many heads of the same hidden size, else of the same head dimension where that is no other model."""
    hidden, dim, now = dims.get("hidden"), dims.get("head_dim"), dims["heads"]
    if hidden is None or hidden % heads == 0:
        yield Suggestion({"heads": heads})
        return
    plain = dims.get("kv_heads", now) == now and t & (t - 1) == 0
    if plain and dim is not None and now * dim == hidden and abs(heads * dim - hidden) <= NEIGHBOURHOOD * hidden:
        yield Suggestion({"hidden": heads * dim, "heads": heads})


@rule("SZ115", source="Megatron-LM (num-query-groups); GQA, arXiv 2305.13245.")
def kv_heads_per_shard(context: Context) -> Answer:
    """Key/value heads divide over tensor parallelism, or t divides over them.

    With fewer key/value heads than t each is copied to several devices, whose projections then compute the same thing.

    Bad: kv 6 at t 4: neither divides the other. kv 4 at t 8: every key/value head twice.
    Good: kv 8 at t 8.

    Suggestion: a t that divides them. As many key/value heads as t would do, but how many share one is the model's
    affair.
    """
    t, dims = context.workload.t, context.dimensions
    if t == 1:
        return NotApplicable("no tensor parallelism")
    if not {"kv_heads", "heads"} <= dims.keys() or dims["kv_heads"] == dims["heads"]:
        return NotApplicable("no shared key/value heads")
    kv = dims["kv_heads"]
    if kv % t == 0:
        return ()
    copied = t % kv == 0
    what = (
        f" at t {t}: each is copied to {t // kv} devices"
        if copied
        else f" and t {t}: neither divides the other, so they cannot be sharded"
    )
    smaller = next(degree for degree in range(t - 1, 0, -1) if kv % degree == 0 and dims["heads"] % degree == 0)
    message = f"{kv} key/value heads{what}"
    return [Finding("kv_heads", kv, message, suggest("t", [smaller]), error=not copied, violated=copied, cause="t")]


@rule("SZ110", source="arXiv 2401.14489, section VI.")
def layers_per_stage(context: Context) -> Answer:
    """The layers divide evenly over the pipeline's stages.

    Where they do not, the fullest stage holds one layer more and every other stage waits for it.

    Bad: 30 layers at p 4: stages of 8, 8, 7, 7.
    Good: 32 layers at p 4.

    Suggestion: a p that divides them and fits in memory, or the next number of layers that p divides: none fewer, since
    depth is worth more than a stage's balance.
    """
    p, model = context.workload.p, context.model
    if p == 1:
        return NotApplicable("no pipeline parallelism")
    if model is None or len(model.stacks) > 1:
        return NotApplicable("no single stack of layers")
    layers = model.layers
    if layers % p == 0:
        return ()
    what = (
        "a stage without a layer cannot run"
        if p > layers
        else f"the fullest stage holds {-(-layers // p)}, the others wait for it"
    )
    suggestions = suggest("p", _even_stages(context, model)) + suggest("layers", [next_multiple(layers, p)])
    message = f"{layers} layers over p {p}: {what}"
    return [Finding("layers", layers, message, suggestions, error=p > layers, violated=p <= layers)]


def _even_stages(context: Context, model: ModelShape) -> list[int]:
    """The nearest p that divides the layers, below and above, less smaller ones whose step does not fit."""
    p, layers = context.workload.p, model.layers
    even = [degree for degree in range(1, min(layers, 2 * p) + 1) if layers % degree == 0]
    below, above = even[: bisect_left(even, p)][-1], even[bisect_right(even, min(p, layers)) :][:1]
    if p > layers or not context.divides or _fits(context, model, below):
        return [below, *above]
    # Where what was asked for does not fit either, memory is SZ121's to speak of.
    return [below, *above] if 2 * below >= p and not _fits(context, model, p) else above


def _fits(context: Context, model: ModelShape, p: int) -> bool:
    changed = replace(context.workload, p=p, gpus=None)
    return bool(memory(model, changed, device=context.device, implementation=context.implementation).fits)


#: What runs on the last stage after its layers.
ENDS = ("lm_head", "final_norm", "cross_entropy")
#: A smaller share of the stage's time is not worth a layout of its own.
NOTABLE_END = 0.05


@rule(
    "SZ128",
    source="Megatron-LM, core/transformer/transformer_config.py:2385 (account_for_loss_in_pipeline_split); Moonlight "
    "issue 1 (27 layers and a head); The Llama 3 Herd of Models, 3.3.2.",
    of_costs=True,
)
def pipeline_ends(context: Context) -> Answer:
    """The last pipeline stage's head, and what else is not a layer, is balanced by fewer layers.

    A pipeline is as fast as its slowest stage. The output projection (and with it the loss) runs on the last stage
    after its layers, and so do multi-token-prediction modules, each as long as a layer and a head. With a large
    vocabulary over few layers that is one or two layers' time, for which every other stage waits. The embedding at the
    front is a lookup.

    Bad: a vocabulary of 256,000 over 8 layers of h 2048 at p 4: the last stage's head is ten layers' time.
    Good: Llama-3 405B's 126 layers over p 16: eight a stage, seven on the first and the last.

    Suggestion: none that a configuration sets; frameworks count the head as a layer or take a layout of stages.
    """
    model, p = context.model, context.workload.p
    if p == 1:
        return NotApplicable("no pipeline parallelism")
    if model is None or len(model.stacks) > 1 or not context.operators or p > model.layers:
        return NotApplicable("no stages of a single stack are priced")
    return list(_ends(context, model, p))


def _ends(context: Context, model: ModelShape, p: int) -> Iterator[Finding]:
    layers_s = sum(seconds for op, _, seconds in context.timed() if op.name.startswith("layers."))
    heads_s = sum(seconds for op, _, seconds in context.timed() if op.name in ENDS)
    held = layers_of_stages(model.layers, p)
    layer_s, stage_s = layers_s / max(held), heads_s + layers_s
    # Spread over all stages it would take a p-th of the time; the last stage may hold fewer layers already.
    over = heads_s * (p - 1) / p - (max(held) - held[-1]) * layer_s
    if not layer_s or over < NOTABLE_END * stage_s:
        return
    predicted = model.head_passes - 1 if context.workload.train else 0
    what = "the head" if not predicted else f"the head, once more for each of {predicted} predicted tokens,"
    message = (
        f"{what} on the last of {p} stages takes {heads_s / layer_s:.1f} layers' time beside {held[-1]} layers: "
        f"the other stages wait {over / stage_s:.0%} of a microbatch. Count it as a layer "
        "(Megatron-LM: --account-for-loss-in-pipeline-split, --decoder-last-pipeline-num-layers)"
    )
    yield Finding("p", p, message, at_most_s=over * context.workload.accumulation)


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
