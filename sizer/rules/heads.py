"""Rules on heads: their dimension and number, latent attention's ranks, recurrences' heads and chunks."""

from math import gcd

from shapes.cost import run_for
from shapes.dtypes import next_multiple
from shapes.frozen import among
from shapes.kernels import Run, load_kernel, run_of
from shapes.model import MlaShape
from shapes.operators.types import Attention

from .base import (
    Answer,
    Context,
    Finding,
    Findings,
    Suggestions,
    heads_that_keep_hidden,
    nearest_first,
    neighbours,
    powers_near,
    rule,
    shard_text,
    square,
    suggest,
    whole_heads_near,
)

#: Elements below which a head dimension's largest power of two is a warning: 64 bytes of bf16, half a cache line. The
#: paper's curves of score and value products by that power lie apart below it and together from it on.
RECOMMENDED_HEAD = 32


@rule("SZ102", "ML Engineering book, shape recommendation 3; arXiv 2401.14489, section VI.", "heads")
def head_dim_power_of_two(context: Context) -> Answer:
    """The head dimension h/a is a multiple of the device's alignment.

    Scores have k = head_dim, values n = head_dim, in every head of every layer. The grade is the largest power of two
    that divides the head dimension, up to the alignment (64 elements of bf16 on A100 and later) in the type that the
    attention core runs in: bf16 where the projections around it are fp8. Off a multiple of 32 (80, 100, 125) it is a
    warning whatever the price, on every device, but in decoding, which waits for the cache; 96 is judged by its kernel
    (SZ114), which is mostly built for it.

    Bad: h 2560, a 32: h/a = 80, divisible by 16 only.
    Good: h 2560, a 20: h/a = 128; or a 40: 64.

    Suggestion: the nearest numbers of heads that keep the hidden size, or the nearest hidden sizes of heads of 128 or
    64.
    """
    dim, cores = context.dimensions["head_dim"], [op for op in context.operators if op.kind in ("attention", "bmm")]
    # In the core's own element type, as its operators have it.
    step = context.device.alignment_elements(cores[0].dtype) if cores else context.alignment
    kept = [run_for(op, context.device).built for op in cores if isinstance(op, Attention) and op.head_dim == dim]
    if dim % step == 0 or (dim % RECOMMENDED_HEAD == 0 and any(dim in built for built in kept)):
        return ()
    if square(context):
        suggestions = *heads_that_keep_hidden(context, step), *whole_heads_near(context)
    else:
        suggestions = suggest("head_dim", neighbours(dim, step)[-1:])
    return Finding(
        "head_dim",
        shard_text("head_dim", dim, 1, step),
        suggestions,
        violated=not context.workload.decode and dim % min(step, RECOMMENDED_HEAD) != 0,
    )


SMALLEST_HEAD = 64


@rule("SZ116", "ML Engineering book, number and size of attention heads; arXiv 2401.14489.", "heads")
def heads_large_enough(context: Context) -> Answer:
    """Heads are large enough: h/a is at least 64.

    At the same FLOPs many small heads cost time: softmax and masking work grows with a x s^2 while the products shrink.
    What fewer heads do to quality is yours to judge; this rule covers time only.

    Bad: h 2048, a 64: h/a = 32.
    Good: h 2048, a 16: h/a = 128.

    Suggestion: fewer heads at the same hidden size.
    """
    heads, dim = context.dimensions["heads"], context.dimensions["head_dim"]
    if dim >= SMALLEST_HEAD:
        return ()
    message = f"{heads} heads of {dim}: small heads cost time at the same FLOPs (quality is your call)"
    return Finding("heads", message, heads_that_keep_hidden(context, SMALLEST_HEAD), cause="head_dim")


#: Head dimensions that are suggested: both FlashAttention 2 and 3 are built for them (160, which torch still carries,
#: is computed as 192 there).
PORTABLE = (64, 96, 128, 192, 256)


@rule("SZ114", "The kernels' own checks, named in shapes/kernels; flash-attention issue 1141.")
def flash_head_dim(context: Context) -> Answer:
    """The head dimension is one that the device's attention kernel is built for.

    Fused attention kernels are compiled for some head dimensions. FlashAttention 2 and 3 run another one in the next
    larger kernel (160 as 192 on H100), padded; FlashAttention 4, cuDNN and FlashInfer refuse what they are not built
    for (192 on B200), and a slower kernel runs instead; above 256 that is mostly torch's memory-efficient one. Off a
    multiple of 8 the queries, keys and values are padded with a copy first, or refused. Which kernel runs follows the
    device and --attention.

    Bad: head_dim 132: FlashAttention 2 runs it as 192, a third of it wasted; on B200 it is refused in training.
    Good: head_dim 128.

    Suggestion: the nearest that the kernel takes as it is, keeping the hidden size where the heads allow it.
    """
    cores = {(op.head_dim, op.v_head_dim): op for op in context.operators if isinstance(op, Attention)}
    if not cores:
        return "no fused attention"
    runs = [(core, run_for(core, context.device)) for _, core in sorted(cores.items())]
    if not any(run.refused or run.built or run.verified for _, run in runs):
        return f"which head dimensions {load_kernel(runs[-1][1].kernel).title} is built for is not known here"
    found = []
    for core, run in runs:
        dim, v_dim = core.head_dim, core.v_head_dim
        if not _as_it_is(run, dim, v_dim):
            # Narrower values run in the kernel for the queries' dimension (MLA's 192 and 128): a cost, and no fault.
            violated = not _as_it_is(run, dim, dim if v_dim < dim and run.d_v == dim else v_dim)
            found.append(
                Finding("head_dim", _padding_text(run, core), _taken_whole(context, core), violated=violated, value=dim)
            )
    return found


def _as_it_is(run: Run, dim: int, v_dim: int) -> bool:
    return not run.refused and run.copied is None and (run.d_qk, run.d_v) == (dim, v_dim)


def _padding_text(run: Run, core: Attention) -> str:
    dim, v_dim = core.head_dim, core.v_head_dim
    name = f"head_dim {dim}" if dim == v_dim else f"head_dim {dim} with values of {v_dim}"
    parts = [f"{load_kernel(kernel).title} {reason}" for kernel, reason in run.refused]
    kernel = load_kernel(run.kernel)
    if run.kernel == "eager":
        return f"{name}: {'; '.join(parts)}: attention falls back to scores and softmax written out"
    padded, waste = f"{run.d_qk}, {run.d_v}", 1 - (dim + v_dim) / (run.d_qk + run.d_v)
    runs = f"{name} runs as {run.d_qk if run.d_qk == run.d_v else padded} in {kernel.title}"
    said = [f"{waste:.0%} of it is padding"] if waste else []
    if run.copied is not None:
        said.append("it is no multiple of 8, so that Q, K and V are padded with a copy first")
    runs += f"{': ' if said else ''}{'; '.join(said)}"
    return "; ".join([*parts, runs])


def _taken_whole(context: Context, core: Attention) -> Suggestions:
    """Head dimensions that the kernel takes as they are."""
    dim = core.head_dim
    if context.dimensions.get("head_dim") != dim or dim != core.v_head_dim:
        return ()

    def fits(candidate: int) -> bool:
        run = run_of(core.kernel, context.device.architecture, core.dtype, candidate, candidate, core.trains)
        return candidate in PORTABLE and _as_it_is(run, candidate, candidate)

    if square(context):
        return heads_that_keep_hidden(context, PORTABLE[0] // 2, fits)
    return suggest("head_dim", nearest_first(filter(fits, PORTABLE), dim)[:1])


#: (kv_lora_rank, rope) that public decode kernels are built for.
LATENT_DECODE = ((512, 64), (256, 64))
#: Query heads that a decode kernel computes at once.
HEAD_TILE = 64


@rule(
    "SZ126",
    "FlashMLA (head_dim 576, values 512); FlashInfer, mla/_core.py (supported_mla_head_dimensions); DeepSpeed "
    "issue 8276 (kv_lora_rank 68).",
    "model",
)
def mla_shape(context: Context) -> Answer:
    """Multi-head latent attention has the ranks and head dimensions that its kernels are built for.

    Decoding attends to the latents themselves: queries and keys of kv_lora_rank + rope, values of kv_lora_rank. The
    kernels (FlashMLA, FlashInfer's, TensorRT-LLM's) are built for 512 + 64 = 576 and 512, DeepSeek's; TensorRT-LLM's
    generated ones for 256 + 64 as well. Another model is served by a slower, generic kernel or by none. Training and
    prompts run heads of nope + rope and values, (192, 128) for DeepSeek, which SZ114 judges. Ranks off 16 bytes shift
    what lies behind them in a flat buffer of parameters off the alignment that grouped products ask for. A rank with
    fewer than 64 heads computes tiles of 64 rows all the same, and tensor parallelism copies the whole latent cache to
    every rank.

    Bad: kv_lora_rank 384 and rope 32: no decode kernel. kv_lora_rank 68: grouped products fail under ZeRO's flat
    buffers.
    Good: kv_lora_rank 512, rope 64, as DeepSeek-V2, V3, Kimi K2.

    Suggestion: none, since a rank is the model's affair; DeepSeek's dimensions are named.
    """
    attention = context.whole.attention
    if not isinstance(attention, MlaShape):
        return "no multi-head latent attention"
    return _latent(context, attention)


def _latent(context: Context, mla: MlaShape) -> Findings:
    rank, rope, t, step = mla.kv_lora_rank, mla.qk_rope_head_dim, context.workload.t, context.vector
    if (rank, rope) not in LATENT_DECODE:
        built = " or ".join(f"{one} + {other}" for one, other in LATENT_DECODE)
        message = f"kv_lora_rank {rank} with rope {rope}: MLA's decode kernels are built for {built}, others run slowly"
        yield Finding("kv_lora_rank", message, violated=True)
    for name, value in (("q_lora_rank", mla.q_lora_rank or step), ("kv_lora_rank", rank)):
        if value % step:
            message = f"{name} {value} is no multiple of {step}: what lies behind it in a flat buffer is off 16 bytes"
            yield Finding(name, message, violated=True)
    if context.workload.decode and t > 1 and mla.heads // t < HEAD_TILE:
        message = (
            f"{mla.heads // t} query heads a rank in tiles of {HEAD_TILE}, and the whole latent cache on each of {t} "
            "ranks: data-parallel attention computes whole tiles and holds each request's cache once"
        )
        yield Finding("t", message)


#: Keys that the state's kernel takes, and the pieces that it works in.
WIDEST_KEY, PIECE = 256, 64
#: A smaller share of padding in the last chunk is not worth a line.
NOTABLE_CHUNK = 0.05
#: (heads, what they share in whole numbers).
_SHARED = (("linear_value_heads", "linear_key_heads"), ("state_heads", "state_groups"))


@rule(
    "SZ129",
    "Megatron-LM, core/ssm/mamba_mixer.py:250-274 and core/ssm/gated_delta_net/common.py:207; "
    "flash-linear-attention, ops/common/chunk_delta_h.py (K <= 256).",
)
def recurrence_shape(context: Context) -> Answer:
    """A recurrence's heads, groups and head dimensions are ones that its kernels take and that the split divides.

    Gated delta nets (Qwen3-Next, Kimi Linear) and Mamba-2 layers (Nemotron-H, Granite 4) work on chunks of a sequence:
    products within a chunk, a state of key x value dimension between chunks. Value heads share key heads, and Mamba's
    heads groups, in whole numbers (a file of others is refused); tensor parallelism cuts both. Flash-linear-attention's
    kernel for the state takes keys of up to 256 and works in pieces of 64. A last chunk that is not full is computed
    whole.

    Bad: 16 key heads at t 32; key heads of 320; 8 groups at t 16; s 257 in chunks of 256.
    Good: Qwen3-Next's 32 value heads over 16 key heads of 128 at t 8; s 4096 in chunks of 256.

    Suggestion: a t that divides heads and groups, a sequence of whole chunks.
    """
    if not any(heads in context.dimensions for heads, _ in _SHARED):
        return "no recurrence known"
    return [*_recurrent_heads(context), *_recurrent_pieces(context)]


def _recurrent_heads(context: Context) -> Findings:
    """Heads and groups that t does not cut."""
    dims, t = context.dimensions, context.workload.t
    for names in _SHARED:
        held = among(dims, names)
        if not context.workload.train and held.get("state_groups") == 1:
            del held["state_groups"]  # engines copy a single group; in training it is cut
        common = gcd(*held.values())
        if common % t:
            words = " and ".join(f"{size} {name.partition('_')[2].replace('_', ' ')}" for name, size in held.items())
            message = f"{words} do not divide over t {t}: tensor parallelism cannot shard the recurrence"
            fewer = powers_near(t, lambda degree, whole=common: whole % degree == 0)[:1]  # type: ignore[misc]
            yield Finding("t", message, suggest("t", fewer), error=True)


def _recurrent_pieces(context: Context) -> Findings:
    """Keys that the kernel pads or refuses, and a last chunk that is mostly padding."""
    key, chunk = map(context.dimensions.get, ("linear_key_dim", "chunk"))
    s = context.workload.s
    if key and (key > WIDEST_KEY or key % PIECE):
        runs = f"none above {WIDEST_KEY}" if key > WIDEST_KEY else f"it as {next_multiple(key, PIECE)}"
        message = f"key heads of {key}: the state's kernel works in pieces of {PIECE} and runs {runs}"
        yield Finding("linear_key_dim", message, violated=key > WIDEST_KEY)
    if chunk and context.workload.train and s % chunk:
        share = 1 - s / next_multiple(s, chunk)
        if share >= NOTABLE_CHUNK:
            message = f"the last chunk of {chunk} holds {s % chunk} tokens: {share:.0%} of the scan is padding"
            yield Finding("s", message, suggest("s", neighbours(s, chunk)))
