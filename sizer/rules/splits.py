"""Rules on splits: heads over tensor parallelism, layers and ends over pipeline stages; experts, however spread."""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from math import gcd

from shapes.dtypes import next_multiple
from shapes.memory import divisors
from shapes.model import ModelShape, MoeShape
from shapes.operators.parallel import divides_over, expert_counts, head_counts
from shapes.operators.types import GroupedGemm
from shapes.step.seconds import layer_and_ends, spread, work
from shapes.workload import Workload

from .base import (
    NEIGHBOURHOOD,
    Answer,
    Context,
    Finding,
    Findings,
    Suggestion,
    larger_microbatch,
    nearest_first,
    neighbours,
    powers_near,
    rule,
    square,
    suggest,
    unaligned_shards,
)


@rule("SZ105", "ML Engineering book, shape recommendation 4; arXiv 2401.14489.", "shards")
def batch_heads_per_shard(context: Context) -> Answer:
    """(b x a)/t is an integer, and so is a/t: every tensor-parallel shard holds whole heads.

    Bad: a 20 at t 8: two and a half heads a device.
    Good: a 32 at t 8: four heads a device.

    Suggestion: the nearest powers of two that divide the heads as t, or the nearest number of heads that t divides.
    """
    t, dims, model = context.workload.t, context.dimensions, context.model
    known = head_counts(model) if model else tuple(filter(None, [dims.get("heads")]))
    if not known:
        return "no attention heads known"
    cut = [heads for heads in known if heads % t]
    if not cut:
        return ()
    whole = partial(divides_over, model) if model else lambda degree: gcd(*known) % degree == 0
    suggestions = suggest("t", powers_near(t, whole))
    if cut == [dims.get("heads")]:
        suggestions += tuple(change for value in neighbours(cut[0], t) for change in _with_heads(context, value))
    heads = " and ".join(map(str, cut))
    return Finding(
        "t",
        f"{heads} heads do not divide over t {t}: Megatron-style tensor parallelism cannot shard them",
        suggestions,
        error=True,
    )


def _with_heads(context: Context, heads: int) -> Iterator[Suggestion]:
    """This number of heads at the same hidden size, else at the same head dimension if the model stays alike."""
    dims, t = context.dimensions, context.workload.t
    now, hidden = dims["heads"], dims.get("hidden", 0)
    plain = square(context) and dims.get("kv_heads", now) == now and t & (t - 1) == 0
    if hidden % heads == 0:
        yield Suggestion({"heads": heads})
    elif plain and abs(heads - now) <= NEIGHBOURHOOD * now:
        yield Suggestion({"hidden": heads * dims["head_dim"], "heads": heads})


@rule("SZ115", "Megatron-LM (num-query-groups); GQA, arXiv 2305.13245.", "shards")
def kv_heads_per_shard(context: Context) -> Answer:
    """Key/value heads divide over tensor parallelism, or t divides over them.

    With fewer key/value heads than t each is copied to several devices, whose projections then compute the same thing.
    Engines do so as they load a model: where it is served that is a warning only if fewer ranks are faster, else
    information. So is a model of one, which all query heads share, and training whose devices have no room for fewer
    ranks, with more stages in their place neither.

    Bad: kv 6 at t 4: neither divides the other. kv 4 at t 8: every key/value head twice.
    Good: kv 8 at t 8.

    Suggestion: a power of two as t that divides them; where neither divides the other and t is one, also the nearest
    numbers of key/value heads that t and the heads divide.
    """
    t, heads = context.workload.t, context.dimensions.get("heads", 0)
    kv = context.dimensions.get("kv_heads", heads)
    if not heads or kv == heads:
        return "no shared key/value heads"
    if kv % t == 0:
        return ()
    changes = suggest("t", powers_near(t, lambda degree: gcd(kv, heads) % degree == 0)[:1])
    if t % kv:
        # No model is made over for a degree that nobody runs.
        near = (one for one in range(t, heads, t) if heads % one == 0 == t & (t - 1))
        return Finding(
            "kv_heads",
            f"{kv} key/value heads and t {t}: neither divides the other, so they cannot be sharded",
            changes + suggest("kv_heads", nearest_first(near, kv)[:2]),
            error=True,
            cause="t",
        )
    cache = f", and the cache held {t // kv} times" * context.workload.decode
    message = f"{kv} key/value heads at t {t}: each is copied to {t // kv} devices{cache}"
    # One is shared by all query heads, as the model is made: every rank holds all of the cache.
    mendable = kv > 1 and not _copies_for_room(context, kv)
    violated = mendable and context.workload.train
    return Finding("kv_heads", message, changes * mendable, violated=violated, cause="t", noted=True)


def _copies_for_room(context: Context, kv: int) -> bool:
    """Whether the layout fits, and none on ``kv`` tensor-parallel ranks, which copy nothing: more data or stages."""
    own = context.workload
    others = {"t": kv}, {"t": kv, "p": own.p * own.t // kv}
    return bool(own.train and own.gpus) and context.holds({}) and not any(map(context.holds, others))


#: A smaller share of a microbatch is not worth a layout of its own.
NOTABLE_WAIT = 0.05
#: Waiting that no number of layers excuses: of published layouts the least even has 11% (96 layers and a head over 12).
LARGEST_WAIT = 0.15


@rule(
    "SZ110",
    "arXiv 2401.14489, section VI; Megatron-LM, core/transformer/transformer_config.py:2385 "
    "(account_for_loss_in_pipeline_split); The Llama 3 Herd of Models, 3.3.2.",
    "costs model",
)
def pipeline_balance(context: Context) -> Answer:
    """The pipeline's stages take the same time: layers, head and predicted tokens spread evenly.

    A pipeline is as fast as its slowest stage. The output projection (and with it the loss) runs on the last stage
    after its layers, and so do multi-token-prediction modules, each as long as a layer and a head: each counts as
    the layers that take as long. Layers that p does not divide are no fault where the ends make up the difference. It
    is a fault if even in the best layout the slowest stage takes 15% more than the mean; with --gpus or --dp only if
    fewer stages are faster.

    Bad: 30 layers and a small vocabulary at p 4: stages of 8, 8, 7, 7. A vocabulary of 256,000 over 8 layers of h 2048
    at p 4, two a stage: the last stage's head is ten layers' time.
    Good: Llama-3 405B's 126 layers over p 16: eight a stage, seven on the first and the last.

    Suggestion: with --gpus or --dp fewer stages, if memory allows them, else more tensor parallelism in their place.
    Without them fewer layers on the last stage, which no configuration sets (frameworks count the head as a layer or
    take a layout of stages).
    """
    model, p = context.whole, context.workload.p
    if p == 1:
        return "no pipeline parallelism"
    if len(model.stacks) > 1:
        return "no single stack of layers"
    if p > model.layers:
        return Finding(
            "p",
            f"{model.layers} layers over p {p}: a stage without a layer cannot run",
            suggest("p", powers_near(p, lambda stages: stages <= model.layers)[:1]),
            error=True,
        )
    return _unbalanced(context) if context.operators else "no stages are priced"


def _unbalanced(context: Context) -> Findings:
    """The findings on stages that wait for the slowest one, in the usual layout and in the best."""
    model, p = context.whole, context.workload.p
    layers = model.layers
    stage, held = work(context.operators, [cost.seconds for cost in context.costs]), -(-layers // p)
    if context.step:
        layer_s, head_s = layer_and_ends(stage, held, context.stack, context.device)
    else:  # an engine's, or measured: nothing waits for the host
        layer_s, head_s = (sum(part.seconds.values()) for part in (stage.layers, stage.ends))
        layer_s /= held
    if not layer_s:
        return
    head = head_s / layer_s
    best, even = float(spread(layers, p, head)[2]), next_multiple(layers, p)
    usual = layers / p + head if layers == even else best
    mean = (layers + head) / p
    over = best / mean - 1
    # The wait that whole layers cannot avoid.
    excused = float(spread(even, p, head)[2]) * p / (even + head) - 1
    passes = (model.head_passes - 1) * context.workload.train
    ends = "the head" + f", once more for each of {passes} predicted tokens," * bool(passes)
    violated = over >= min(LARGEST_WAIT, excused + NOTABLE_WAIT)
    if violated or usual - best >= NOTABLE_WAIT * usual:
        lost_s = (best - mean if violated else usual - best) * layer_s * context.workload.accumulation
        # Where the devices are said, what fewer stages save is known.
        said = violated and context.sets_any("gpus", "d")
        changes = tuple(islice(_fewer_stages(context), MOST_TRIED * said))
        yield Finding(
            "p",
            f"{layers} layers over p {p}, {ends} worth {head:.1f} of them: the slowest stage takes {usual:.1f} layers' "
            f"time, in the best layout {best:.1f}, {over:.0%} over the mean: take fewer stages, or count the ends as "
            "layers (Megatron-LM: --account-for-loss-in-pipeline-split, --decoder-last-pipeline-num-layers)",
            changes,
            violated=violated and not said,
            at_most_s=float(lost_s),  # no number of numpy's: JSON has none
        )


#: Ways out that are priced: of three powers of two one may not make the devices, and the next be slower.
MOST_TRIED = 3


def _fewer_stages(context: Context) -> Iterator[Suggestion]:
    """Powers of two below p that memory allows, else with so many more tensor-parallel ranks."""
    t, p = context.workload.t, context.workload.p
    for power in reversed(range((p - 1).bit_length())):
        ways = {"p": 1 << power}, {"p": 1 << power, "t": t * (p >> power)}
        yield from map(Suggestion, islice(filter(context.holds, ways), 1))


#: Published pipelines fill and drain for at most a seventh of their microbatches' time (Megatron-LM's, Llama 3's).
LARGE_BUBBLE = 0.25


@rule("SZ138", "Megatron-LM (arXiv 2104.04473), 2.2.", "costs model split train")
def pipeline_bubble(context: Context) -> Answer:
    """A pipeline runs many microbatches a step, or its stages in chunks, so that filling and draining it is short.

    A stage waits for (p - 1)/vpp of its m microbatches' times: a share of (p - 1)/(vpp m). Interleaving (vpp chunks of
    layers a stage) shortens it and sends vpp times the messages; it takes m of p or more, a multiple of it. Asked
    where the sequences of a step are said.

    Bad: p 8 and 8 microbatches: seven eighths on top of the step's work.
    Good: p 8 and 64 microbatches, or 8 of them in 5 chunks a stage. Chunks that nobody spoke of are information.

    Suggestion: chunks of equal layers, as few as will do; fewer stages, where memory allows them; twice the
    tensor-parallel ranks, so that half the replicas run twice the microbatches.
    """
    workload = context.workload
    p, many = workload.p, workload.accumulation
    if p == 1 or workload.global_batch is None:
        return "no pipeline, or no global batch given (--global-batch)"
    share = (p - 1) / (workload.vpp * many)
    if share < LARGE_BUBBLE:
        return ()
    each, left = divmod(context.whole.layers, p)
    equal = divisors(each, 0 if left else each)
    enough = [one for one in equal if one * LARGE_BUBBLE >= share * workload.vpp] or equal[-1:]
    return Finding(
        "vpp",
        f"filling and draining {p} stages (vpp {workload.vpp}) adds {share:.0%} to {many} microbatches",
        suggest("vpp", enough[: many % p == 0])
        + tuple(_fewer_stages(context))
        + suggest("t", [2 * workload.t] * (workload.d % 2 == 0)),
    )


#: Rows of the common grouped-GEMM tile.
TILE_ROWS = 128


@rule(
    "SZ117", "Grouped GEMM tiles of 128 rows; strides: transformers issue 48644, pytorch pull request 150374.", "model"
)
def expert_shapes(context: Context) -> Answer:
    """Experts have aligned widths, divide over the devices, and are routed enough tokens to fill a tile.

    Each expert is a product of its own: its width is n and k as a dense MLP's is, and its m is the tokens routed to it,
    b s top_k / E on average. With fewer than a tile's 128 rows the tensor cores work on padding (in decoding the bytes
    of the weights decide). torch's grouped product takes no matrix whose rows are off 16 bytes: the exception comes at
    the first step, or experts run one by one.

    Bad: expert width 1400; 256 experts, top 8, b x s = 2048: 64 tokens an expert.
    Good: expert width 1408; b x s = 16384: 512 tokens an expert.

    Experts may be spread over tensor- and context-parallel ranks as well (parallel folding): e then divides t cp d.

    Suggestion: the neighbouring aligned width; a degree that divides the experts, or experts that it divides; a larger
    microbatch.
    """
    model, workload = context.whole, context.workload
    moe = model.moe
    if not moe:
        return "no experts"
    refused = "; grouped products refuse rows off 16 bytes" * context.off_vector(moe.width, workload.expert_t)
    said = f"each expert's width: {{}}{refused}"
    found = unaligned_shards(context, "expert_d_ff", "d_ff", moe.width, said, neighbours)
    found += _spread(model, moe, workload)
    routed = workload.expert_tokens(workload.tokens) * moe.top_k * workload.e
    if routed / moe.experts < TILE_ROWS * (1 - NOTABLE_PADDING) and not workload.decode:
        message = (
            f"an expert is routed {routed / moe.experts:.0f} tokens a microbatch (b s top_k / E with even routing), "
            f"fewer than a tile's {TILE_ROWS} rows"
        )
        wanted = workload.b * -(-TILE_ROWS * moe.experts // routed)
        found.append(Finding("b", message, larger_microbatch(context, wanted)))
    return found


def _spread(model: ModelShape, moe: MoeShape, workload: Workload) -> Findings:
    """Experts that do not divide over e, or e over the data-parallel ranks that hold them."""
    e, d, ranks = workload.e, workload.d, workload.stage_ranks
    open_ = workload.gpus is None

    def whole(ranks: int) -> bool:
        return not any(count % ranks for count in expert_counts(model))

    if not whole(e):
        # The data-parallel ranks that hold the experts follow, where the devices leave them open.
        splits = [
            Suggestion({"e": one} if d % one == 0 else {"e": one, "d": next_multiple(d, one)})
            for one in powers_near(e, lambda one: whole(one) and (open_ or d % one == 0))
        ]
        changes = suggest("experts", (value for value in neighbours(moe.experts, e) if value >= moe.top_k))
        yield Finding("e", f"{moe.experts} experts do not divide over e {e}", (*splits, *changes), error=True)
    elif workload.train and workload.etp is None and workload.expert_t != workload.t:
        message = (
            f"e {e} is more than the {ranks // workload.t} ranks that hold the same weights: experts lie whole on "
            "tensor-parallel ranks too (Megatron-Core's parallel folding, --expert-tensor-parallel-size 1)"
        )
        yield Finding("e", message)
    elif ranks % (e * workload.expert_t):
        fewer = powers_near(e, lambda ranks: d % ranks == 0 and whole(ranks))[:1]
        message = f"e {e} x etp {workload.expert_t} does not divide the {ranks} ranks (t cp d) that experts lie on"
        changes = suggest("e", fewer) + suggest("d", [next_multiple(d, e)] * open_)
        yield Finding("e", message, changes, error=True)


#: Rows that a 16-bit grouped product's groups are padded to: 16 bytes, along the tokens in wgrad.
ROWS_16_BIT = 8
#: A smaller share of padding is not worth a line.
NOTABLE_PADDING = 0.05


@rule(
    "SZ125",
    "torchtitan, models/common/token_dispatcher.py (TorchAOTokenDispatcher) and pull request 1503; Megatron-LM, "
    "core/fp8_utils.py get_fp8_align_size; DeepGEMM README (contiguous layout).",
    "costs model rows",
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
    moe, workload = context.whole.moe, context.workload
    if not moe:
        return "no experts"
    recipe = workload.low_precision
    multiple = recipe.alignment.expert_rows if recipe else ROWS_16_BIT
    rows = workload.own_tokens(workload.s) * moe.top_k
    padding = moe.experts / workload.e * (multiple - 1) / 2
    share = padding / (rows + padding)
    if share < NOTABLE_PADDING:
        return ()
    spent = context.seconds_of(lambda op: isinstance(op, GroupedGemm))
    wanted = workload.b * -(-int(padding / NOTABLE_PADDING) // rows)
    return Finding(
        "b",
        f"{moe.experts // workload.e} experts' groups are padded to multiples of {multiple} rows: about {padding:,.0f} "
        f"rows on top of the {rows:,} routed, {share:.0%} of the grouped products' work",
        larger_microbatch(context, wanted, "less padding"),
        at_most_s=spent * share * workload.accumulation,
    )
