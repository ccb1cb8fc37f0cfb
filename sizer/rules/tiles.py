"""Rules on how kernels fill a device: tiles, waves, thread blocks, memory-bound products, launches."""

from collections.abc import Iterator
from math import ceil, inf
from operator import itemgetter

from shapes.cost import Cost
from shapes.dtypes import next_multiple
from shapes.frozen import replace
from shapes.memory import divisors
from shapes.operators.types import Attention, Gemm, Operator, Product

from .base import Answer, Context, Finding, Suggestions, larger_microbatch, nearest_first, neighbours, rule, suggest

LARGEST_WASTE = 0.05
#: Operators below this share of the step are not worth a line, of tiles and of waves.
NOTABLE_TILED, NOTABLE_WAVES = 0.01, 0.02


def _notable_products(context: Context, share: float) -> Iterator[tuple[Gemm, Cost, float]]:
    """Plain products that take ``share`` of the step or more, with their cost and that share."""
    step_s = context.step_s
    for op, cost, seconds in context.timed():
        if isinstance(op, Gemm) and seconds >= share * step_s:
            yield op, cost, seconds / step_s


@rule(
    "SZ111",
    "NVIDIA Matrix Multiplication Background User's Guide, dimension quantization; ML Engineering book.",
    "costs model",
)
def tile_quantization(context: Context) -> Answer:
    """Partial tiles throw away at most 5% of the computed output.

    A product is computed in tiles (128 x 128, 128 x 256 …). Where m or n is not a multiple of the tile, the last row or
    column of tiles computes values that nobody keeps: time goes with whole tiles.

    Bad: m = n = 257 in tiles of 128: 9 tiles computed, 4.03 kept.
    Good: m = n = 256: 4 tiles, all kept.

    Suggestion: the dimension at the tile's edge. How much of this costs time differs by device, so the price decides.
    The head dimension is left to SZ102 and SZ114.
    """
    if all(cost.tile_efficiency is None for cost in context.costs):
        return "no tiled products"
    found = []
    for op, cost, share in _notable_products(context, NOTABLE_TILED):
        kept, tile = cost.tile_efficiency or 1.0, cost.tile or (1, 1)
        if kept >= 1 - LARGEST_WASTE:
            continue
        # The dimension of whose whole tiles the least is kept.
        value, edge = min(zip((op.m, op.n), tile, strict=True), key=lambda pair: pair[0] / next_multiple(*pair))
        name, changes = _behind(context, value)
        # Without a dimension to move, an edge is how the model is built and no advice.
        if not changes:
            continue
        text = (
            f"{op.name} {op.phase} ({op.m} x {op.n} x {op.k}) in tiles of {tile[0]} x {tile[1]} keeps "
            f"{kept:.0%} of what it computes; the edge is at multiples of {edge}"
        )
        found.append((share * (1 - kept), Finding(name, text, changes)))
    # For each dimension the finding that wastes most.
    return {one.field: one for _, one in sorted(found, key=itemgetter(0))}.values()


def _behind(context: Context, value: int) -> tuple[str, Suggestions]:
    """The width behind ``value`` (none: "") and its neighbours that fill their tiles.

    A smaller vocabulary would lose tokens.
    """
    t, dims = context.workload.t, context.dimensions
    for name in ("vocab", "d_ff"):
        if name in dims and value in ((now := dims[name]), -(-now // t)):
            near = (other for other in neighbours(now, 128 * t) if other > now or (other < now and name != "vocab"))
            return name, suggest(name, near)
    return "", ()


LARGEST_IDLE = 0.10
#: Architectures whose matrix kernels are persistent: a block goes on to the next tile.
PERSISTENT = ("hopper", "blackwell")


@rule(
    "SZ112",
    "NVIDIA Matrix Multiplication Background User's Guide, wave quantization; ML Engineering book.",
    "costs model",
)
def wave_quantization(context: Context) -> Answer:
    """The last wave of thread blocks leaves at most 10% of a product's time idle.

    Tiles are spread over the multiprocessors in waves. One tile more than fits costs a whole further wave: 8192 x 14336
    in tiles of 128 x 256 is 3,584 tiles, 27.2 waves on 132 multiprocessors. This holds where a kernel gives each tile a
    thread block of its own (Ampere, Ada and older). Hopper's and Blackwell's persistent kernels pay little of it (going
    from one wave to two costs 1.7x on A100, 1.05x on H100), so there the rule does not apply.

    Bad: 110 tiles on A100's 108 multiprocessors: two waves, the second all but empty.
    Good: 108 tiles: one full wave.

    Suggestion: the neighbouring width on the crest of a wave, as the cost model sees it.
    """
    if context.device.architecture in PERSISTENT:
        return "persistent kernels on this architecture pay little for a partial wave"
    if "d_ff" not in context.dimensions:
        return "no MLP width known to move"
    width, t = context.dimensions["d_ff"], context.workload.t
    idle = [
        (share, op, cost)
        for op, cost, _ in _notable_products(context, NOTABLE_WAVES)
        if -(-width // t) in (op.m, op.n) and (share := 1 - (cost.wave_efficiency or 1.0)) > LARGEST_IDLE
    ]
    if not idle:
        return ()
    share, op, cost = max(idle, key=itemgetter(0))
    step = max(context.alignment, 128) * t
    near = {*neighbours(width, step), *neighbours(width, 2 * step)} - {width}
    return Finding(
        "d_ff",
        f"{op.name} {op.phase} ({op.m} x {op.n} x {op.k}) is {cost.tiles} tiles on {context.device.compute.units} "
        f"multiprocessors: {cost.waves:.1f} waves, {share:.0%} of their slots idle",
        suggest("d_ff", nearest_first(near, width)),
    )


#: Queries a thread block works on in FlashAttention 2 and 3 forward (most head dimensions).
QUERY_TILE = 128


@rule("SZ113", "ML Engineering book, FlashAttention; arXiv 2401.14489.", "costs model rows")
def attention_occupancy(context: Context) -> Answer:
    """Attention's thread blocks fill the device.

    A fused attention kernel gives one thread block to 128 queries of one head of one sequence. With fewer blocks than
    the device has multiprocessors, some of them idle through the whole kernel.

    Bad: b 1, a 32 at t 8 (4 heads a device), s 2048: 64 blocks on 132 multiprocessors.
    Good: b 4, a 32 at t 1, s 4096: 4,096 blocks.

    Suggestion: a larger microbatch, or a smaller t that fits.
    """
    workload, units = context.workload, context.device.compute.units
    cores = [op for op in context.operators if isinstance(op, Attention) and op.phase == "forward"]
    if not cores:
        return "no fused attention"
    core = min(cores, key=lambda op: op.batch * op.heads * op.q_len)
    blocks = core.batch * core.heads * -(-core.q_len // QUERY_TILE)
    if blocks >= units:
        return ()
    larger = larger_microbatch(context, workload.b * -(-units // blocks))
    spent = context.seconds_of(lambda op: isinstance(op, Attention))
    idle_s = spent * (1 - blocks / units) * workload.accumulation
    smaller = (t for t in divisors(workload.t, workload.t - 1) if context.holds({"t": t}))
    return Finding(
        "b",
        f"attention has {blocks} thread blocks (b x a/t = {core.batch * core.heads}, s {core.q_len}) "
        f"for {units} multiprocessors",
        larger + suggest("t", smaller),
        at_most_s=idle_s,
    )


#: Times the tokens at which a projection's FLOPs a byte no longer grow.
MANY = 1 << 20
#: Share of the step that all memory-bound products together must take before the rule speaks.
NOTABLE_BOUND = 0.05


@rule(
    "SZ118",
    "NVIDIA Matrix Multiplication Background User's Guide, math and memory bounds.",
    "costs model products rows",
)
def memory_bound_gemm(context: Context) -> Answer:
    """No product that takes a notable share of the step is bound by memory instead of arithmetic.

    A product below the ridge point (FLOPs per byte under peak FLOPs over bandwidth: 295 for bf16 on an H100) waits for
    its operands; the tensor cores idle. Small m (few tokens), small experts and narrow projections are the usual
    causes.

    Bad: 256 tokens through 4096 x 4096 on H100: 228 FLOPs a byte.
    Good: 16,384 tokens: 1,820 FLOPs a byte.

    Suggestion: more tokens a microbatch, where that brings the product past the ridge point (of experts where the
    layout says how many ranks' tokens they have); for eager attention's
    scores and values, which are as narrow in any batch, the fused kernel. It costs what they wait for memory.
    """
    workload = context.workload
    slow = [(op, s) for op, cost, s in context.timed() if cost.bound == "memory" and isinstance(op, Product)]
    spent, step_s = sum(map(itemgetter(1), slow)), context.step_s
    if spent < NOTABLE_BOUND * step_s:
        return ()
    worst, _ = max(slow, key=itemgetter(1))
    message = (
        f"memory-bound products take {spent / step_s:.0%} of the step; the largest is {worst.name} "
        f"{worst.phase} at {worst.flops / worst.bytes:.0f} FLOPs a byte"
    )
    if worst.kind == "bmm" and workload.attention == "eager":
        # A larger batch is more such products, not larger ones: what helps is to keep the scores on chip.
        return Finding("attention", message, suggest("attention", ["auto"]))
    most, peak = _in_long_batches(worst), context.device.peak(worst.dtype)
    if most < peak / context.device.memory.bandwidth_bytes_per_s:
        return Finding("b", f"{message}, and {most:.0f} in any batch: it is narrow")
    # A rank's expert has the tokens of all ranks that the experts are spread over: unsaid, they are not known.
    known = isinstance(worst, Gemm) or context.sets_any("gpus", "d", "e")
    # Their arithmetic stays, whatever a larger batch saves of messages.
    waits_s = sum(s - op.count * op.flops / peak for op, s in slow) * workload.accumulation
    return Finding("b", message, larger_microbatch(context, 2 * workload.b) * known, at_most_s=waits_s)


def _in_long_batches(operator: Operator) -> float:
    """FLOPs a byte that a projection comes to with ever more tokens; infinite where more tokens are more products."""
    if not isinstance(operator, Gemm) or operator.kind != "gemm":
        return inf
    tokens = "k" if operator.phase == "wgrad" else "m"
    longer = replace(operator, **{tokens: MANY * getattr(operator, tokens)})
    return longer.flops / longer.bytes


#: The part of a step that a `StepCost` gives to waiting.
WAITING = "waiting for the host"
#: A smaller share of the step is below what a prediction can tell.
NOTABLE_WAITING = 0.1


@rule(
    "SZ123",
    "Machine Learning Engineering book, 'Kernel launch'; pytorch.org/blog/accelerating-pytorch-with-cuda-graphs",
    "costs model",
)
def launch_bound(context: Context) -> Answer:
    """The device should not wait for the host: a step is no shorter than its kernels take to be launched.

    Every kernel costs the host some microseconds. Where a layer's kernels run in less than that, the device idles,
    whatever the shapes. What helps: a larger microbatch (as many launches for more work), fewer kernels (torch.compile,
    fused norms and rotary embedding, grouped products for experts), or none (CUDA graphs).

    Bad: a model of 0.1 B parameters at a microbatch of 1, run eagerly on an H100.
    Good: the same at a microbatch of 16, or compiled with CUDA graphs.

    Suggestion: the microbatch, doubled until the device hardly waits.
    """
    b = context.workload.b
    if context.workload.serving:
        return "serving engines replay CUDA graphs: nothing waits for the host"
    if not context.step:
        return "operators were timed one by one, without the host between them"
    idle_s = context.step.parts.get(WAITING, 0.0)
    waiting = idle_s / context.step.seconds
    if waiting < NOTABLE_WAITING:
        return ()
    # Compute-bound operators grow with the microbatch, until they outlast the wait.
    one_s = idle_s / context.workload.accumulation
    grows_s = sum(seconds for _, cost, seconds in context.timed() if cost.bound == "compute")
    wanted = b << ceil(one_s / max(grows_s, one_s / MANY)).bit_length()
    return Finding(
        "b",
        f"the device waits {waiting:.0%} of the step for {context.stack.name} to launch its kernels: they are too "
        "short. A larger microbatch, torch.compile or CUDA graphs, and grouped products for experts help",
        larger_microbatch(context, wanted, "as many launches for more work"),
        at_most_s=idle_s,
    )


#: Share of the step that padded rows' products must take before the rule speaks.
NOTABLE_ROWS = 0.25


@rule("SZ135", "NVIDIA Matrix Multiplication Background User's Guide, dimension quantization.", "costs model")
def decode_tiles(context: Context) -> Answer:
    """A decoding batch fills the rows of the tiles that its products compute, where computing takes the time.

    A step of decoding has as many rows as requests, and kernels compute tiles of 16 to 128. On most devices the bytes
    of the weights take longer than the padded rows. Where arithmetic is scarce in proportion to bandwidth (H20) the
    rows that are padded are paid for.

    Bad: 33 requests on H20: 69% of the rows that are computed are kept.
    Good: 48 requests, in the same time; or 33 on H100, which waits for the weights.

    Suggestion: none: a batch is as large as the requests that wait. As many as fill the tile cost the same.
    """
    if not context.workload.decode:
        return "not decoding"
    paid = [
        (share, op.m, cost.tile[0])
        for op, cost, share in _notable_products(context, NOTABLE_TILED)
        if cost.tile and cost.bound == "compute"
    ]
    if sum(share for share, _, _ in paid) < NOTABLE_ROWS:
        return ()
    _, rows, tile = max(paid)
    filled = next_multiple(rows, tile)
    if rows >= (1 - LARGEST_WASTE) * filled:
        return ()
    return Finding(
        "b", f"{rows} rows in tiles of {tile} keep {rows / filled:.0%} of what is computed: {filled} cost the same"
    )
