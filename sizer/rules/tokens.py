"""Rules on a run: sequence and microbatch, the arithmetic of batches and devices, and the memory that they need."""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from math import gcd, lcm

from shapes.device import Device
from shapes.dtypes import next_multiple
from shapes.memory import divisors, memory_of_parameters
from shapes.model import ModelShape, default_precision
from shapes.operators.types import Product
from shapes.workload import Workload, option_of

from .base import (
    Answer,
    Context,
    Finding,
    Findings,
    NotApplicable,
    Suggestion,
    Suggestions,
    larger_microbatch,
    largest_power_of_two,
    neighbours,
    powers_near,
    rule,
    suggest,
    within,
)


def _sequences(context: Context, values: Iterable[int]) -> Suggestions:
    """Suggestions of those ``values`` that the model has positions for."""
    longest = context.model.max_positions if context.model else None
    return suggest("s", (value for value in values if longest is None or value <= longest))


@rule("SZ104", "ML Engineering book, shape recommendation 3; pytorch/ao issue 3111 (fp8).", "model train length")
def tokens_power_of_two(context: Context) -> Answer:
    """The tokens of a microbatch, b x s, are a multiple of the device's alignment.

    b x s is the reduction dimension of every weight gradient (and the m of every other product, where it costs
    nothing). fp8 products refuse a reduction that is no multiple of 16. Off 16 bytes it is a warning whatever the
    price; what a longer sequence gains as a larger batch is not counted.

    Bad: b 1, s 4090: divisible by 2 only.
    Good: b 1, s 4096.

    Suggestion: the neighbouring sequence lengths.
    """
    workload = context.workload
    tokens, step = workload.tokens, context.alignment
    if tokens % step == 0:
        return ()
    return Finding(
        "s",
        f"b x s = {tokens} is divisible by {largest_power_of_two(tokens)}, not by {step}: wgrad reduces over it",
        _sequences(context, neighbours(workload.s, step)),
        violated=context.off_vector(tokens),
        at_most_s=_lost_over_tokens(context),
    )


def _lost_over_tokens(context: Context) -> float:
    """Seconds of a step that misaligned leading dimensions and partial tiles of products over the tokens take."""
    sizes = {context.workload.tokens, context.workload.s}
    lost = 0.0
    for op, cost, _ in context.timed():
        if isinstance(op, Product) and sizes & {op.m, op.n, op.k}:
            partial = cost.seconds * (1 - (cost.tile_efficiency or 1.0))
            lost += op.count * (sum(seconds for _, seconds in cost.alignment_s) + partial)
    return lost * context.workload.accumulation


@rule(
    "SZ120", "Machine Learning Engineering book, 'Batch sizes'; Megatron-LM, core/pipeline_parallel/schedules.py:1161"
)
def batch_arithmetic(context: Context) -> Answer:
    """Batch and device numbers should agree: GBS = MBS x DP x GAS and GPUs = DP x TP x PP x CP.

    A framework told an inconsistent set either refuses to start or silently takes another batch size than was meant,
    and the learning rate with it. GAS, the number of gradient accumulation steps, has to come out as a whole number,
    and an interleaved pipeline (--vpp) of p stages takes p microbatches or more.

    Bad: 64 GPUs with TP 4 and PP 2 (so DP 8), a microbatch of 4 and a global batch of 1000: 1000 / 32 is 31.25.
    Good: the same with a global batch of 1024 (GAS 32).
    """
    own = context.workload
    if own.gpus is None and own.global_batch is None:
        return "neither the number of devices nor a global batch was given"
    return [*(_devices(own) if context.miscounted else ()), *_global_batch(own, context.sets_any("b"))]


def _devices(workload: Workload) -> Findings:
    left = workload.gpus or 0
    change = dict[str, int]()
    for key in ("p", "t", "cp"):
        degree = getattr(workload, key)
        # As it is, else a power of two.
        change[key] = degree if left % degree == 0 else gcd(left, 1 << degree.bit_length() - 1)
        left //= change[key]
    change["d"] = left
    degrees = f"{workload.d} x {workload.t} x {workload.p} x {workload.cp} = {workload.d * workload.model_ranks}"
    changed = {key: value for key, value in change.items() if value != getattr(workload, key)}
    yield Finding(
        "d",
        f"{workload.gpus} devices, but DP x TP x PP x CP = {degrees}",
        (Suggestion(changed),),
        error=True,
        cause="batch arithmetic",
    )


def _global_batch(workload: Workload, said: bool) -> Findings:
    """A step that is no whole number of microbatches; a microbatch that nobody ``said`` is the times' alone."""
    whole, b, d = workload.global_batch, workload.b, workload.d
    if whole is not None and workload.vpp > 1 and workload.accumulation < workload.p:
        yield Finding(
            "vpp",
            f"{workload.accumulation} microbatches a step: Megatron-LM interleaves p = {workload.p} or more",
            suggest("vpp", [1]),
            violated=True,
        )
    if whole is None or whole % (b * d) == 0:
        return
    below = [] if whole % d else divisors(whole // d, b - 1)
    smaller = suggest("b", below[-1:], "the next smaller microbatch that divides it")
    suggestions = smaller or suggest("global_batch", neighbours(whole, b * d))
    message = f"a global batch of {whole} is not a multiple of MBS x DP = {b} x {d} = {b * d}"
    if not said and below:
        yield Finding("b", f"{message}: times are of that default, and -b {below[-1]} would divide it")
        return
    yield Finding("b", message, suggestions, error=True, cause="batch arithmetic")


#: Rows in a row of the smallest common attention tile.
ATTENTION_TILE = 64
#: A smaller share of tokens that pad documents' ends is not worth a line.
NOTABLE_ENDS = 0.05


@rule(
    "SZ122",
    "NVIDIA Matrix Multiplication Background User's Guide; vision-transformer practice (register tokens).",
    "costs model",
)
def odd_sequence(context: Context) -> Answer:
    """A fixed-length encoder's sequence sits on the tile.

    A vision transformer's sequence is its patches and, often, one class token: 196 + 1 = 197, 256 + 1 = 257. Every
    product of the tower has b x 197 rows, every attention 197 x 197, in tiles of 64 or 128.

    Bad: 224 x 224 pixels in patches of 16 with a class token: 197.
    Good: 256 patches without a class token, or 257 padded with register tokens to 264 or 320.

    Suggestion: add register tokens up to the next multiple of 8 (aligned rows) or 64 (whole tiles), or pool instead of
    a class token.
    """
    fixed = [stack for stack in context.whole.stacks if stack.length]
    if not fixed:
        return "no stack of fixed length"
    return [
        Finding(
            "s",
            f"the {stack.name} always has {length} tokens, divisible by {largest_power_of_two(length)}: registers up "
            f"to {next_multiple(length, 8)} align its rows, to {next_multiple(length, ATTENTION_TILE)} fill its tiles",
            value=length,
        )
        for stack in fixed
        if (length := stack.length or 0) % 8
    ]


@rule(
    "SZ127",
    "Megatron-LM, training/arguments.py:1335 (seq_length over 2 cp) and core/tensor_parallel/mappings.py:181 "
    "(over t); Transformer Engine, fused_attn/context_parallel.cu and AttnFuncWithCPAndQKVOA2A (heads over cp).",
    "rows length",
)
def sequence_shards(context: Context) -> Answer:
    """A sequence cuts into equal parts over context parallelism (2 cp of them) and over sequence parallelism (t).

    Context parallelism gives each rank one part from the front and one from the back of the sequence, so that causal
    attention is balanced: 2 cp parts. Sequence parallelism scatters a rank's tokens over its t tensor-parallel ranks.
    Frameworks refuse a sequence that does not divide. All-to-all context parallelism (Ulysses, --workload cp-comm=a2a)
    hands whole heads to its ranks instead (of keys too in Transformer Engine; others copy those).

    Bad: s 4100 at cp 2: 4 x 1025, which t 4 does not divide. s 4098 at cp 2: no multiple of 4.
    Good: s 8192 at cp 4 and t 8: 8 parts of 1024, 256 tokens a rank.

    Suggestion: the neighbouring sequence lengths; a smaller degree.
    """
    workload = context.workload
    s, cp = workload.s, workload.cp
    scattered = workload.t if workload.sequence_parallel else 1
    if cp * scattered == 1:
        return "neither context nor sequence parallelism"
    parts = {
        f"2 x cp = {2 * cp} parts": 2 * cp if cp > 1 else 1,
        f"{cp * scattered} ranks of cp {cp} and t {workload.t}": cp * scattered,
    }
    cut = [name for name, number in parts.items() if s % number]
    if cut:
        # A degree that only the tokens of its ranks do not divide over may not run for other causes too.
        halves = s % (2 * cp) > 0
        return Finding(
            "s",
            f"a sequence of {s} does not divide over {' or '.join(cut)}",
            _sequences(context, neighbours(s, lcm(*parts.values(), context.alignment)))
            + suggest("cp", powers_near(cp, lambda ranks: s % (2 * ranks) == 0)[:1] * halves),
            error=True,
            cause="t" * (not halves),
        )
    return _whole_heads(workload, context.dimensions.get("heads", cp) // workload.t)


def _whole_heads(workload: Workload, heads: int) -> Answer:
    cp = workload.cp
    if workload.cp_comm == "p2p" or heads % cp == 0:
        return ()
    return Finding(
        "cp",
        f"all-to-all context parallelism cannot hand {heads} heads to {cp} ranks in whole numbers",
        suggest("cp_comm", ["p2p"]),
        violated=True,
    )


@rule(
    "SZ137",
    "Megatron-Bridge, docs/training/packed-sequences.md (pad_seq_to_mult); Transformer Engine, "
    "dot_product_attention/context_parallel.py:5144 (pad_thd_sequences_for_cp)",
    "costs model split train rows length",
)
def packed_documents(context: Context) -> Answer:
    """Documents that sequences are packed of are long enough for context parallelism to cut.

    Attention stays within a document (variable-length kernels; its FLOPs are the documents', not the sequence's), and
    each document is cut into 2 cp parts of its own, half of them a rank's in two. Its end is padded to a multiple of 2
    cp and, under sequence parallelism, of cp t: half a multiple a document on average. Parts below a tile of 64 rows
    are computed as whole ones. A sequence that memory alone would hold needs no ring then. Asked where the length of
    documents is said (--workload document=512, the mean; longer ones among them weigh more).

    Bad: documents of 512 tokens in sequences of 32,768 at cp 8: 16 parts of 32 tokens.
    Good: the same at cp 2: parts of 128.

    Suggestion: the largest smaller cp whose parts fill tiles and that memory allows.
    """
    workload = context.workload
    document, cp = workload.document, workload.cp
    if document is None or cp == 1:
        return "no context parallelism, or the length of packed documents is not said"
    multiple = lcm(2 * cp, cp * workload.t if workload.sequence_parallel else 1)
    share = (multiple - 1) / (2 * document + multiple - 1)
    if document >= 2 * cp * ATTENTION_TILE and share < NOTABLE_ENDS:
        return ()
    rings = (
        ring
        for ring in divisors(cp, cp - 1)[::-1]
        if ring == 1 or document >= 2 * ring * ATTENTION_TILE
        if context.holds({"cp": ring})
    )
    return Finding(
        "cp",
        f"documents of {document} tokens are cut into {2 * cp} parts of {document / (2 * cp):.0f} (tiles have "
        f"{ATTENTION_TILE} rows) and padded to multiples of {multiple}, {share:.0%} of all tokens",
        suggest("cp", islice(rings, 1)),
    )


@rule(
    "SZ106",
    "Machine Learning Engineering book, shape recommendation 5; Megatron-LM (2205.05198)",
    "costs model split shards counted",
)
def smallest_tensor_parallel(context: Context) -> Answer:
    """Tensor parallelism should be as small as memory allows.

    Every layer pays two all-reduces forward and two backward over t devices, and its products shrink to 1/t of their
    width. When the step's memory fits with a smaller t, the devices it frees do more as data parallelism.

    Memory is that of `sizer memory` for the workload, and has to fit in 92% of the device's; a smaller t must divide
    the attention heads. If it fits only with a smaller microbatch, both are changed. Of the degrees that fit the one
    that saves most counts: over slow links gradients cost more than messages do. A degree alone (`--tp 8`) is a part of
    a layout: a note then says which t fits. Unless the workload names sequence parallelism, only the messages of t
    count as a saving: norms and residuals, which each rank computes whole, would be shared with it at the same t.
    Messages do not count for a stack where no run says how many it hides (torchtitan).

    Bad: `sizer check config.json --tp 8 --gpus 8` on a model whose step fits one device.
    Good: the smallest `--tp` that `sizer memory config.json` names.
    """
    workload = context.workload
    if workload.serving:
        return "in serving a larger t buys latency for throughput, which is a choice"
    t, b = workload.t, workload.b
    # The smallest may cost more in messages of data parallelism than one between.
    fits = dict[int, Suggestion]()
    for one in divisors(t, t - 1):
        if workload.s % max(1, workload.cp * workload.sequence_parallel * one):
            continue
        ways = {"t": one}, {"t": one, "b": b * one // t}
        for way in ways[: 1 + (b * one % t == 0)]:
            change = within(workload, way)
            needed = context.total_bytes({**change, "sequence_parallel": workload.sequence_parallel and one > 1})
            fills = f"fills {needed / context.device.memory.bytes:.0%} of {context.device.name}"
            if needed <= context.room_bytes:
                fits.setdefault(one, Suggestion(change, f"{fills}; the devices freed become data parallelism"))
    if not fits:
        return ()
    message = f"tensor parallelism of {t} where {min(fits)} fits in memory"
    if not _spread(context):
        return NotApplicable(f"{message}; {_unsaid(context)}", note=True)
    return Finding("t", message, tuple(fits.values()))


@rule(
    "SZ107",
    "Machine Learning Engineering book, shape recommendation 2 and 'Batch sizes'",
    "costs model split train counted",
)
def largest_microbatch(context: Context) -> Answer:
    """The microbatch should be as large as memory allows.

    A larger microbatch makes every product taller and each weight's bytes serve more tokens. Any integer will do: of
    the microbatches that fit, 7 beats 4, and no power of two is asked of b.

    Memory is that of `sizer memory` for the workload. The sequences of a step are the training's choice: without a
    global batch the rule says nothing, and with one it asks for a microbatch that divides the ranks' share of it.
    Suggestions are priced per token; a communication of gradients that runs once a step is charged once. If experts are
    spread over ranks, one rank's may be routed twice the mean, so that half of what fits by the mean is asked for.

    Bad: `sizer check config.json -b 4 --global-batch 512` where 8 sequences fit.
    Good: the largest divisor of the global batch's share that `sizer memory config.json` finds to fit.
    """
    workload = context.workload
    b = workload.b
    if not context.sets_any("b"):
        return "no microbatch given (-b)"
    if workload.global_batch is None:
        return "no global batch given (--global-batch): how many sequences a step may take is not known"
    if context.largest_microbatch() < b:
        return "no larger one fits, or not even this (SZ121)"
    share = workload.global_batch // workload.d
    changes = larger_microbatch(context, share, f"priced per token; the largest of a rank's {share} that fits")
    return [Finding("b", f"a microbatch of {b} where {one.change['b']} fits", (one,)) for one in changes]


GIB = 2**30
#: Fields that say how a training run is spread, and how a serving one is.
LAYOUT = ("gpus", "d")
SERVING_LAYOUT = ("gpus", "d", "t", "p")
#: Degrees of a training run that leave open how many data-parallel ranks there are.
SPLITS = ("t", "p", "cp")
#: How cards of workstations and inference servers are linked: few are at hand, and fewer fit a large model together.
CARD_LINK = "PCIe"
#: Parallel degrees tried: one node's eight devices, then whole nodes.
DEGREES = (2, 4, 8, 16, 32, 64)


@rule("SZ121", "Machine Learning Engineering book, 'Anatomy of model's memory usage'", "costs split counted")
def fits_in_memory(context: Context) -> Answer:
    """A step has to fit the device's memory.

    Ways out, each by itself enough, are listed from the cheapest in step time: what ZeRO's communication, an extra
    forward of checkpointing, or a larger t's all-reduces cost is priced; sequence parallelism with a t costs no further
    message. Shards stay inside the devices that are linked, and within those given.

    Memory is that of `sizer memory` for the workload. It is an error if the layout was said (the devices or the
    data-parallel ranks of a training run; any degree of a serving one). Else a note says what a single device would
    need, and which part of the layout is missing (`--tp 16` alone is a part of one). A model that is not understood
    whole (SZ132) counts with its parameters alone. Activations of a layout with tensor, pipeline or context parallelism
    are those of fused kernels, which run such layouts, unless said otherwise. A step fits in 92% of a device's memory;
    from there to 8% over it may fit, and is no error: predicted peaks have been off by as much
    (reports/memory-peaks.md). It is no error either if a key on offloading was not read. A served model has to fit
    whole.

    Bad: `sizer check config.json -b 4 --dp 8` for an 8B model on 80 GB devices.
    Good: the same with `--zero 3 --checkpointing full`.
    """
    if not context.model:
        return _parameters_fit(context)
    workload, device, needed = context.workload, context.device, context.memory()
    if needed.fits:
        return []
    largest = max(needed.parts, key=lambda part: part.bytes)
    gib = round(needed.total_bytes / GIB, 2)
    most = f"most of it {largest.name.replace('_', ' ')}, {largest.bytes / GIB:.1f} GiB"
    may = " (it may fit: predicted peaks have been off by 8%)" * needed.may_fit
    has = f"{gib:.1f} GiB of {device.memory.bytes / GIB:.1f} GiB on {device.name}{may}"
    if not _spread(context):
        finds = "`sizer plan` finds a split" if workload.train else "`sizer memory --phase decode --tp N` counts one"
        message = f"memory: {has} as it is split here, {most}; {_unsaid(context)}; {finds}"
        return NotApplicable(message, note=True)
    helps = ["a fused cross-entropy (SZ133)"] * (largest.name == "logits_and_loss")
    moved = next((one.key for one in context.unread if re.search("kept|memory|shard|spread", str(one.changes))), "")
    may = f"; {moved}, which is not read, may change it" * bool(moved)
    message = f"needs {has}; {most}{_more_ways(workload, device, helps)}{may}"
    return Finding("memory", message, _that_fit(context), error=not (needed.may_fit or moved), value=gib)


def _that_fit(context: Context) -> Suggestions:
    """The first change of the same fields that fits: the smallest degree or stage. If one fits, no further fields."""
    ways = dict[frozenset[str], Suggestion]()
    for change in _ways_out(context.whole, context.workload, context.device.link.domain_devices):
        enough = any(fields <= change.keys() for fields in ways)
        if not enough and (total := context.total_bytes(change)) <= context.room_bytes:
            ways[frozenset(change)] = Suggestion(change, f"fits with {total / GIB:.1f} GiB")
    return tuple(ways.values())


@rule(
    "SZ139",
    "Reducing Activation Recomputation in Large Transformer Models (arXiv 2205.05198), 5",
    "costs model split train counted",
)
def needless_recomputation(context: Context) -> Answer:
    """Nothing runs forward again that memory would hold.

    Full recomputation runs every layer's forward pass twice, a third more work; selective recomputation attention's
    core alone. Memory is that of `sizer memory`, and fits in 92% of the device's. It is information: longer sequences
    than the usual may need the room.

    Bad: an 8B model over 8 GPUs of 141 GB under ZeRO 3 with `--checkpointing full` and one sequence each.
    Good: the same without.

    Suggestion: none, else selective.
    """
    done = context.workload.checkpointing
    if done == "none":
        return "nothing is recomputed"
    changes = suggest(
        "checkpointing", (one for one in ("none", "selective") if one != done and context.holds({"checkpointing": one}))
    )
    return [Finding("checkpointing", "runs forward again what memory would hold", changes)] * bool(changes)


#: Share of the device's memory from which logits are worth a note.
NOTABLE_LOGITS = 0.1


@rule(
    "SZ133",
    "Liger Kernel (arXiv 2410.10989), FusedLinearCrossEntropy; Cut Your Losses (arXiv 2411.09009); transformers "
    "use_liger_kernel, torchtitan components/loss.py:606 (ChunkedLossWrapper)",
    "costs model split train",
)
def fused_cross_entropy(context: Context) -> Answer:
    """Logits that are a tenth of the device's memory are not held whole: the loss is fused with the output projection.

    Logits are b s v numbers, with their fp32 copy and gradients up to 12 bytes each: large vocabularies make them the
    peak of a step with recomputed layers. A loss fused with the projection, or run in chunks of the sequence, holds a
    chunk of them, and leaves room for a larger microbatch. Asked where the layout was said; which loss runs is the
    framework's affair and no key of a configuration.

    Bad: Llama 3.1 8B, b 4 of 4,096 tokens: 24 GiB of logits.
    Good: the same with Liger's fused linear cross-entropy, or a vocabulary of 32,000.

    Suggestion: none that a configuration sets.
    """
    if not context.whole.head or not _spread(context):
        return "no loss, or the layout was not said"
    found = context.memory()
    logits = found.components.get("logits_and_loss", 0)
    if logits < NOTABLE_LOGITS * context.device.memory.bytes:
        return ()
    gib = round(logits / GIB, 1)
    return Finding(
        "logits",
        f"logits and their gradients hold {gib} of {found.total_bytes / GIB:.1f} GiB: a cross-entropy fused with "
        "the output projection (Liger, cut-cross-entropy) or run in chunks holds a part of them",
        value=gib,
    )


#: A smaller share of the step is not worth a line.
NOTABLE_UPDATE = 0.05
#: A fifth of the step is too much, where the sequences of a step were said.
LARGE_UPDATE = 0.2


@rule(
    "SZ134",
    "Muon is Scalable for LLM Training (arXiv 2502.16982), 2.3; Megatron-LM, core/optimizer/muon.py",
    "costs model split train",
)
def muon_update(context: Context) -> Answer:
    """Muon's update is a small part of a step.

    Every hidden matrix is made orthogonal by five Newton-Schulz iterations, 4 r r c + 2 r r r FLOPs each for r rows and
    c >= r columns: square matrices cost most a parameter, and the cost does not shrink with the tokens of a step. Steps
    of few tokens spend much of their time on it; AdamW's update only moves bytes. A rank's shard is made orthogonal by
    itself (Megatron-LM's blockwise mode). A fifth of a step whose sequences were said is a warning.

    Bad: Llama 3.1 8B on one device, b 4 and no accumulation: 6.7e14 FLOPs, a fifth of the step.
    Good: the same over 64 accumulated microbatches, or each of 8 ranks taking an eighth of the matrices (ZeRO 1).

    Suggestion: more tokens a step, or matrices spread over the data-parallel ranks.
    """
    workload = context.workload
    if workload.optimizer != "muon":
        return "another optimizer"
    products = [(op, s) for op, _, s in context.timed() if op.phase == "optimizer" and isinstance(op, Product)]
    seconds, flops = sum(s for _, s in products), sum(op.flops * op.count for op, _ in products)
    share = seconds / (context.step.seconds if context.step else context.step_s)
    if share < NOTABLE_UPDATE:
        return ()
    return Finding(
        "optimizer",
        f"Newton-Schulz of the hidden matrices is {flops:.1e} FLOPs a rank, {seconds * 1e3:,.0f} ms, {share:.0%} "
        "of the step: accumulate more, or spread matrices over data-parallel ranks",
        violated=workload.global_batch is not None and share >= LARGE_UPDATE,
        at_most_s=seconds,
    )


def _parameters_fit(context: Context) -> Answer:
    """The finding on memory of the parameters alone, if nothing else is known."""
    workload, device = context.workload, context.device
    if workload.finetune:
        return "adapters of a model that is not understood are not known"
    least = memory_of_parameters(context.parameters, workload)
    if least <= device.memory.bytes:
        return ()
    gib = round(least / GIB, 2)
    states = "weights, gradients and optimizer states" if workload.train else "weights"
    message = (
        f"{context.parameters:,} parameters alone need at least {gib:.1f} GiB of {device.memory.bytes / GIB:.1f} GiB "
        f"on {device.name} ({states}; activations are not known)"
    )
    if _spread(context):
        return Finding("memory", message, error=True, value=gib)
    return NotApplicable(f"memory: {message}", note=True)


def _spread(context: Context) -> bool:
    """Whether it was said how the model is spread."""
    return context.sets_any(*(LAYOUT if context.workload.train else SERVING_LAYOUT))


def _unsaid(context: Context) -> str:
    """Words on the part of a layout that was not said, for a training run that names some degrees of it."""
    degrees = [f"{option_of(key)} {getattr(context.workload, key)}" for key in SPLITS if context.sets_any(key)]
    part = f"{', '.join(degrees)} is a part of a layout, its devices were" if degrees else "how it is spread was"
    return f"{part} not said ({'--gpus or --dp' if context.workload.train else '--tp, --pp or --gpus'})"


def _more_ways(workload: Workload, device: Device, fused: list[str]) -> str:
    """Words on further savings of memory that no field of a workload states, by kind of hardware."""
    if not workload.train:
        return "; narrower weights (`sizer memory --weights`) help too"
    adapted = (workload.gpus == 1 or CARD_LINK in device.link.intra_node) and not workload.finetune
    narrow = ["an 8-bit optimizer"] * (workload.finetune in (None, "full"))  # adapters' states are few
    spread = "LoRA or QLoRA for fine-tuning" if adapted else "more devices, another split (`sizer plan`)"
    return f"; {', '.join((spread, *fused, *narrow))} help too (`sizer memory`)"


Change = dict[str, int | str]


def _ways_out(model: ModelShape, workload: Workload, domain: int) -> Iterator[Change]:
    """Changes that may save enough memory, from the cheapest in step time."""
    if workload.attention == "eager":
        yield {"attention": "auto"}
    if workload.decode and workload.cache_dtype in ("bf16", "fp16", "fp32"):
        yield {"kv_dtype": "fp8"}
    if workload.train and (workload.precision or default_precision(workload)) == "mixed":
        yield {"precision": "mixed-16"}  # gradients of 16 bits, reduced so
    sharded = workload.train and workload.d > 1
    # ZeRO 3 is not run with a pipeline: it would gather a stage's weights for every microbatch.
    beyond = 3 if workload.p > 1 else 4
    stages: list[Change] = [{"zero": stage} for stage in range(workload.zero + 1, beyond if sharded else 0)]
    parts = (f"full:{-(-model.layers * quarter // (4 * workload.p))}" for quarter in (1, 2, 3))
    recomputes = workload.train and workload.checkpointing != "full"
    again: list[Change] = [{"checkpointing": how} for how in (*parts, "full") if recomputes]
    # Sequence parallelism cuts what tensor parallelism leaves whole (norms, residuals), without a further message.
    cut: Change = {"sequence_parallel": True} if workload.train and workload.t > 1 else {}
    yield from (change | more for change in (cut, {}, *again) for more in ({}, *stages))
    if workload.finetune == "lora":
        yield from ({"finetune": "qlora", **more} for more in ({}, *again))
    # As many sequences as fit, of those that keep a step's tokens.
    yield from ({"b": size, **more} for more in ({}, *stages) for size in divisors(workload.b, workload.b - 1)[::-1])
    # Of more stages, which hold fewer layers than those parts are of, all.
    yield from (wider | more for wider in _wider(model, workload, domain) for more in ({}, *again[-("p" in wider) :]))


def _wider(model: ModelShape, workload: Workload, domain: int) -> Iterator[Change]:
    """Larger degrees, of linked devices first, then of stages."""
    shards = [{"t": degree} for degree in DEGREES if workload.t < degree <= domain]
    pipelines = [{"p": degree} for degree in DEGREES if degree > workload.p and model.layers % degree == 0]
    for split in (*shards, *pipelines * (workload.zero < 3)):
        wider = within(workload, split)
        if "d" in wider or workload.gpus is None:
            yield wider
