"""Rules on tokens: sequence and microbatch, and the arithmetic of batches and devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import lcm

from shapes.operators import Product
from shapes.operators.parallel import largest_divisor
from shapes.workload import Workload
from sizer.rules.arithmetic import largest_power_of_two, neighbours, next_multiple
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion, rule, suggest


def _sequences(context: Context, values: Iterable[int]) -> tuple[Suggestion, ...]:
    """Those of ``values`` that the model has positions for."""
    longest = context.model.max_positions if context.model is not None else None
    return suggest("s", (value for value in values if longest is None or value <= longest))


@rule("SZ104", source="ML Engineering book, shape recommendation 3; pytorch/ao issue 3111 (fp8).")
def tokens_power_of_two(context: Context) -> Answer:
    """The tokens of a microbatch, b x s, are a multiple of the device's alignment.

    b x s is the reduction dimension of every weight gradient (and the m of every other product, where it costs
    nothing). fp8 products refuse a reduction that is no multiple of 16. Off 16 bytes it is a warning whatever the
    price; what a longer sequence gains as a larger batch is not counted.

    Bad: b 1, s 4090: divisible by 2 only.
    Good: b 1, s 4096.

    Suggestion: the sequence lengths beside it.
    """
    workload = context.workload
    if not workload.train:
        return NotApplicable("no weight gradients in inference")
    if context.model is None or context.model.main.length is not None:
        return NotApplicable("the model, not the workload, sets the sequence length")
    tokens, step = workload.tokens, context.alignment
    if tokens % step == 0:
        return ()
    message = f"b x s = {tokens} is divisible by {largest_power_of_two(tokens)}, not by {step}: wgrad reduces over it"
    near = _sequences(context, neighbours(workload.s, step))
    violated = context.off_vector(tokens)
    return [Finding("s", workload.s, message, near, violated=violated, at_most_s=_lost_over_tokens(context))]


def _lost_over_tokens(context: Context) -> float:
    """Seconds of a step that misaligned leading dimensions and partial tiles of products over the tokens take."""
    sizes = {context.workload.tokens, context.workload.s}
    lost = 0.0
    for op, cost, _ in context.timed():
        if isinstance(op, Product) and sizes & {op.m, op.n, op.k}:
            kept = 1.0 if cost.tile_efficiency is None else cost.tile_efficiency
            lost += op.count * (sum(seconds for _, seconds in cost.alignment_s) + cost.seconds * (1 - kept))
    return lost * context.workload.accumulation


@rule("SZ120", source="Machine Learning Engineering book, 'Batch sizes'")
def batch_arithmetic(context: Context) -> Answer:
    """Batch and device numbers should agree: GBS = MBS x DP x GAS and GPUs = DP x TP x PP x CP.

    A framework told an inconsistent set either refuses to start or silently takes another batch size than was meant,
    and the learning rate with it. GAS, the number of gradient accumulation steps, has to come out as a whole number.

    Bad: 64 GPUs with TP 4 and PP 2 (so DP 8), a microbatch of 4 and a global batch of 1000: 1000 / 32 is 31.25.
    Good: the same with a global batch of 1024 (GAS 32).
    """
    if context.workload.gpus is None and context.workload.global_batch is None:
        return NotApplicable("neither the number of devices nor a global batch was given")
    return [*_devices(context.workload), *_global_batch(context.workload)]


def _devices(workload: Workload) -> Iterator[Finding]:
    gpus, t, p, d, cp = workload.gpus, workload.t, workload.p, workload.d, workload.cp
    if gpus is None or gpus == d * t * p * cp:
        return
    if gpus % (t * p * cp) == 0:
        change = {"d": gpus // (t * p * cp)}
    else:
        # p may not divide them either: then no t does, and 1 x 1 always does.
        stages = largest_divisor(gpus, p)
        shards = largest_divisor(gpus // stages, t)
        ring = largest_divisor(gpus // (stages * shards), cp)
        change = {"t": shards, "p": stages, "cp": ring, "d": gpus // (shards * stages * ring)}
    names, degrees = "DP x TP x PP", f"{d} x {t} x {p}"
    if cp > 1:
        names, degrees = f"{names} x CP", f"{degrees} x {cp}"
    message = f"{gpus} devices, but {names} = {degrees} = {d * t * p * cp}"
    changed = {key: value for key, value in change.items() if value != getattr(workload, key)}
    yield Finding("d", d, message, (Suggestion(changed),), error=True, cause="batch arithmetic")


def _global_batch(workload: Workload) -> Iterator[Finding]:
    whole, b, d = workload.global_batch, workload.b, workload.d
    if whole is None or whole % (b * d) == 0:
        return
    below = [smaller for smaller in range(1, b) if whole % (smaller * d) == 0]
    if below:
        suggestions = suggest("b", below[-1:], "the next smaller microbatch that divides it")
    else:
        suggestions = suggest("global_batch", neighbours(whole, b * d))
    message = f"a global batch of {whole} is not a multiple of MBS x DP = {b} x {d} = {b * d}"
    yield Finding("b", b, message, suggestions, error=True, cause="batch arithmetic")


#: Rows in a row of the smallest common attention tile.
ATTENTION_TILE = 64


@rule(
    "SZ122",
    source="NVIDIA Matrix Multiplication Background User's Guide; vision-transformer practice (register tokens).",
    of_costs=True,
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
    stacks = context.model.stacks if context.model is not None else ()
    fixed = [(stack.name, stack.length) for stack in stacks if stack.length]
    if not fixed:
        return NotApplicable("no stack of fixed length")
    return [
        Finding(
            "s",
            length,
            f"the {name} always has {length} tokens, divisible by {largest_power_of_two(length)}: registers up to "
            f"{next_multiple(length, 8)} align its rows, up to {next_multiple(length, ATTENTION_TILE)} fill its tiles",
        )
        for name, length in fixed
        if length % 8
    ]


@rule(
    "SZ127",
    source="Megatron-LM, training/arguments.py:1335 (seq_length over 2 cp) and core/tensor_parallel/mappings.py:181 "
    "(over t); Transformer Engine, fused_attn/context_parallel.cu.",
)
def sequence_shards(context: Context) -> Answer:
    """A sequence cuts into equal parts over context parallelism (2 cp of them) and over sequence parallelism (t).

    Context parallelism gives each rank one part from the front and one from the back of the sequence, so that causal
    attention is balanced: 2 cp parts. Sequence parallelism scatters a rank's tokens over its t tensor-parallel ranks.
    Frameworks refuse a sequence that does not divide.

    Bad: s 4100 at cp 2: 4 x 1025, which t 4 does not divide. s 4098 at cp 2: no multiple of 4.
    Good: s 8192 at cp 4 and t 8: 8 parts of 1024, 256 tokens a rank.

    Suggestion: the sequence lengths beside it; a smaller degree.
    """
    workload = context.workload
    s, cp = workload.s, workload.cp
    scattered = workload.t if workload.sequence_parallel else 1
    if cp == 1 and scattered == 1:
        return NotApplicable("neither context nor sequence parallelism")
    if workload.decode:
        return NotApplicable("a decode step has one token a request")
    if context.model is not None and context.model.main.length is not None:
        return NotApplicable("the model, not the workload, sets the sequence length")
    parts = {
        f"2 x cp = {2 * cp} parts": 2 * cp if cp > 1 else 1,
        f"{cp * scattered} ranks of cp {cp} and t {workload.t}": cp * scattered,
    }
    cut = [name for name, number in parts.items() if s % number]
    if not cut:
        return ()
    suggestions = _sequences(context, neighbours(s, lcm(*parts.values(), context.alignment)))
    if cp > 1 and s % (2 * cp):
        half = max(1, largest_divisor(s, 2 * cp - 1) // 2)
        suggestions += suggest("cp", [half] if s % (2 * half) == 0 else [])
    message = f"a sequence of {s} does not divide over {' or '.join(cut)}"
    return [Finding("s", s, message, suggestions, error=True)]
