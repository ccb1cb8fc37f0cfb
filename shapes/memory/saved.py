"""What transformers 5's eager PyTorch modules put on autograd's tape, family by family.

The families are data (``STYLES``): how a norm, an activation function and the attention core are written decides what
is saved. Checked against torch's MemTracker over whole training steps in tests/test_memory_tracker.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from shapes.frozen import frozen
from shapes.memory.recurrent import recurrent
from shapes.memory.tape import Tape, Tensor
from shapes.model import AttentionShape, Block, Linear, MlaShape, MlpShape, ModelShape, MoeShape
from shapes.model.adapters import adapters, base_of, has_adapters, layers_train
from shapes.workload import Implementation, Workload


@frozen
class Style:
    """How one family's modelling code is written, where that decides what autograd saves.

    ``norm``: "rms" (x in fp32, scaled, cast back, times the weight), "gemma" (times the weight in fp32, then cast
    back), "centred" (LayerNorm written out in fp32), "layer" (one kernel that saves its input) or "wide-layer" (that
    kernel in fp32). ``activation``:
    "fused" (silu, gelu: one kernel that saves its input), "relu" (saves its output), "gelu_new" (tanh written out) or
    "recomputed" (bloom's own backward). ``pre_norms``, ``post_norms``: norms before and after attention and MLP.
    ``softmax_fp32``: the eager core's softmax runs in fp32 and is cast back; ``scores_fp32``: all of the core does.
    ``expands_kv``: the fused core is never told of grouped heads (enable_gqa): keys and values of several are copied
    for all of them, one alone makes torch take its math path. ``clamped_gate``: both halves clamped, a scaled sigmoid.
    ``contiguous_output``: the rotary embedding leaves queries head by head, and the fused
    core's output, which follows them, is copied to (b, s, heads). ``fused_gate``: silu and product in one
    kernel that saves gate and up. ``fused_loss``: cross-entropy in place. ``logit_softcap``, ``score_softcap``: tanh
    around the logits, and around the scores of the eager core. ``router``: "narrow" (its weights are cast back), "wide"
    (they stay in fp32, and with them the experts' outputs from the weighting to their sum) or "wide-product" (its
    product runs in fp32 too, so that its input is kept once more). ``shared_last``: the shared expert runs after the
    routed ones. ``holds_scores``: the eager core keeps a name for the scores before their mask until softmax has run;
    ``keeps_names``: for queries and keys by head too, until the residual is added. ``returns_scores``: a layer returns
    the probabilities, which stay until the next one has run. ``fills_mask``: scores are masked by masked_fill, which
    saves a mask of booleans. ``buffer``: what the class holds for all of its positions: a causal "mask" of booleans, or
    in every layer an fp32 "table" of sines and cosines. ``embedding_dropout``: dropout's layers include one behind the
    embedding; ``joint_dropout``: parallel branches are dropped once, as a sum.
    """

    norm: Literal["rms", "gemma", "layer", "wide-layer", "centred"] = "rms"
    activation: Literal["fused", "relu", "gelu_new", "recomputed"] = "fused"
    scores_fp32: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    softmax_fp32: bool = True
    expands_kv: bool = False
    clamped_gate: bool = False
    contiguous_output: bool = False
    fused_gate: bool = False
    fused_loss: bool = False
    logit_softcap: bool = False
    score_softcap: bool = False
    router: Literal["narrow", "wide", "wide-product"] = "narrow"
    shared_last: bool = False
    holds_scores: bool = False
    keeps_names: bool = False
    returns_scores: bool = False
    fills_mask: bool = False
    buffer: Literal["none", "mask", "table"] = "none"
    embedding_dropout: bool = True
    joint_dropout: bool = False


_LAYER = Style(norm="layer")
# Where only a part of each head is rotated, the parts are put together head by head, and the output follows.
_LAYER_PARTIAL = Style(norm="layer", contiguous_output=True)
STYLES: dict[str, Style] = {
    "gpt2": Style(norm="layer", activation="gelu_new", softmax_fp32=False),
    "gpt_neox": _LAYER_PARTIAL,
    "gemma": Style(norm="gemma"),
    "gemma2": Style(norm="gemma", post_norms=True, logit_softcap=True, score_softcap=True),
    "gemma3": Style(norm="gemma", post_norms=True),
    "gemma3_text": Style(norm="gemma", post_norms=True),
    "olmo2": Style(norm="gemma", pre_norms=False, post_norms=True),
    "glm4": Style(post_norms=True, contiguous_output=True),
    "mixtral": Style(router="wide"),
    "minimax_m2": Style(router="wide", contiguous_output=True),
    "olmo": Style(norm="wide-layer"),
    "gptj": Style(norm="layer", activation="gelu_new", scores_fp32=True, returns_scores=True, buffer="table"),
    "bloom": Style(
        norm="layer",
        activation="recomputed",
        holds_scores=True,
        keeps_names=True,
        returns_scores=True,
        embedding_dropout=False,
    ),
    "falcon": Style(
        norm="layer",
        softmax_fp32=False,
        expands_kv=True,
        holds_scores=True,
        returns_scores=True,
        embedding_dropout=False,
        joint_dropout=True,
    ),
    "gpt_bigcode": Style(norm="layer", buffer="mask"),
    "mpt": Style(norm="layer", returns_scores=True, fills_mask=True),
    "gpt_oss": Style(norm="gemma", softmax_fp32=False, clamped_gate=True, contiguous_output=True),
    **dict.fromkeys(("cohere", "cohere2"), Style(norm="centred")),
    "glm4_moe": Style(contiguous_output=True, router="wide-product", shared_last=True),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), Style(router="wide-product", shared_last=True)),
    "opt": Style(norm="layer", activation="relu", embedding_dropout=False),
    "starcoder2": Style(norm="layer", embedding_dropout=False),
    "phi": Style(norm="layer", activation="gelu_new", contiguous_output=True),
    "phi3": Style(contiguous_output=True),
    "stablelm": _LAYER_PARTIAL,
    **dict.fromkeys(("bert", "roberta", "bart", "whisper", "vit", "siglip"), _LAYER),
}
#: Families that were compared with MemTracker and whose totals are within 1% (tests/test_memory_tracker.py).
CHECKED = frozenset(
    (
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "mixtral",
        "gpt2",
        "gpt_bigcode",
        "gpt_neox",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm4",
        "olmo2",
        "qwen2_moe",
        "phi3",
        "starcoder2",
        "stablelm",
        "opt",
        "phi",
        "falcon",
        "gpt_oss",
        "gptj",
        "cohere",
        "cohere2",
        "bloom",
        "glm4_moe",
        "deepseek_v2",
        "deepseek_v3",
        "minimax_m2",
        "mpt",
        "olmo",
    ),
)
_DEFAULT = Style()
#: Megatron-LM's fused kernels: every norm saves its input only, softmax stays in 16 bits (Korthikanti 2205.05198).
MEGATRON = Style(norm="layer", softmax_fp32=False, fused_gate=True, fused_loss=True)


def style_of(model: ModelShape, implementation: Implementation) -> Style:
    """The style of the model's family; llama's where the family is not listed (most later ones copy it)."""
    if implementation == "megatron":
        return MEGATRON
    return STYLES.get(model.model_type, _DEFAULT)


def buffer_bytes(model: ModelShape, style: Style, layers: int) -> int:
    """Bytes of what the class holds beside parameters, of a device's ``layers``."""
    positions, attention = model.max_positions, model.attention
    if not positions or attention is None or style.buffer == "none":
        return 0
    return positions**2 if style.buffer == "mask" else 4 * layers * positions * attention.rotary_dim


#: Cross-entropy over the logits. fp32: transformers' own, over an fp32 copy, of which log-softmax and its gradient are
#: two more. in-place: Megatron's, whose fp32 copy becomes the softmax and the gradient. fused: one kernel over 16-bit
#: logits that makes a 16-bit gradient (flash-attn's, which llm-foundry runs; Transformer Engine's; Liger's).
Loss = Literal["fp32", "in-place", "fused"]
LOSSES: tuple[str, ...] = ("fp32", "in-place", "fused")


@frozen
class Sizes:
    """One device's sizes: ``rows`` of tokens, ``whole`` of them where tensor parallelism leaves tensors whole.

    ``element``: bytes of an activation; ``mask``: of a dropout mask's element; ``stored``: of a saved input of a
    matrix product (1 where an fp8 recipe saves the quantised one); ``adapter``: of an adapter's weight; ``product``: of
    what a matrix product reads and writes (autocast's, where hidden states are wider).
    """

    style: Style
    workload: Workload
    rows: int
    whole: int
    q_len: int
    kv_len: int
    element: int
    mask: int
    stored: int
    loss: Loss | None = None
    adapter: int = 4
    product: int = 2


def layer_tape(block: Block, hidden: int, sizes: Sizes) -> Tape:
    """One layer of ``block`` on one device."""
    tape = Tape()
    x = tape.tensor(sizes.whole * hidden * sizes.element, "layer input")
    if block.parallel:
        _parallel_layer(tape, block, hidden, x, sizes)
        return tape
    for linear in block.before:
        both = tape.op("hidden state beside the next embedding", (x,), 2 * x.bytes)
        x = _linear(tape, linear, both, sizes)
    if block.mixer is not None:
        mixer = block.mixer
        normed = _before(tape, x, hidden, sizes)
        branch = recurrent(
            tape,
            mixer,
            mixer.linears(hidden),
            lambda linear, of: _linear(tape, linear, of, sizes),
            normed,
            sizes.rows,
            sizes.element,
            sizes.workload.t,
        )
        x = _joined(tape, block, hidden, x, branch, sizes)
    for attention in (block.attention, block.cross):
        if attention is not None:
            normed = _before(tape, x, hidden, sizes)
            branch = _attention(tape, attention, hidden, normed, sizes)
            tape.hold(normed)
            x = _joined(tape, block, hidden, x, branch, sizes)
    if block.mlp is not None:
        normed = _before(tape, x, hidden, sizes)
        branch = _mlp(tape, block, hidden, normed, sizes)
        tape.hold(normed)
        _joined(tape, block, hidden, x, branch, sizes)
    return tape


def _parallel_layer(tape: Tape, block: Block, hidden: int, x: Tensor, sizes: Sizes) -> None:
    normed = _norm(tape, x, sizes.whole * hidden, sizes)
    branch = _attention(tape, block.attention, hidden, normed, sizes) if block.attention else normed
    tape.hold(normed)
    second = _norm(tape, x, sizes.whole * hidden, sizes) if block.norms > 1 else normed
    other = _mlp(tape, block, hidden, second, sizes)
    tape.hold(second)
    if not sizes.style.joint_dropout:
        branch, other = (_dropout(tape, part, block.dropout, sizes) for part in (branch, other))
    inner = tape.op("residual", (other, branch), x.bytes, shares_gradient=True)
    if sizes.style.joint_dropout:
        inner = _dropout(tape, inner, block.dropout, sizes)
    tape.op("residual", (inner, x), x.bytes, shares_gradient=True)


def _before(tape: Tape, x: Tensor, hidden: int, sizes: Sizes) -> Tensor:
    return _norm(tape, x, sizes.whole * hidden, sizes) if sizes.style.pre_norms else x


def _joined(tape: Tape, block: Block, hidden: int, x: Tensor, branch: Tensor, sizes: Sizes) -> Tensor:
    """The residual stream with a branch added to it, after its dropout and post-norm."""
    branch = _dropout(tape, branch, block.dropout, sizes)
    if sizes.style.post_norms:
        branch = _norm(tape, branch, sizes.whole * hidden, sizes)
    branch = _promoted(tape, branch, x)
    joined = tape.op("residual", (x, branch), x.bytes, shares_gradient=True)
    tape.named = ()
    return joined


def tail_tape(model: ModelShape, sizes: Sizes, *, loss: bool) -> Tape:
    """Final norm, LM-head and, when training, the cross-entropy over fp32 logits."""
    tape, hidden = Tape(), model.hidden
    x = tape.tensor(sizes.whole * hidden * sizes.element, "final hidden state")
    if model.main.final_norm or sizes.style.norm == "wide-layer":  # olmo's norms have no weights
        x = _norm(tape, x, sizes.whole * hidden, sizes)
    for linear in model.before_head:
        x = _linear(tape, linear, x, sizes)
    head = model.head_linear
    if head is None:
        return tape
    for _ in range(model.head_passes if loss else 1):
        _head(tape, head, x, sizes, loss=loss)
    return tape


def _head(tape: Tape, head: Linear, x: Tensor, sizes: Sizes, *, loss: bool) -> None:
    style, e = sizes.style, sizes.product
    if e < sizes.element:  # autocast's copy of the frozen matrix, which the backward reads
        weight = head.on_shard(sizes.workload.t)
        x = tape.op(
            "head's input", (x,), x.bytes * e // sizes.element, saves_bytes=weight.out_features * weight.in_features * e
        )
    logits = _linear(tape, head, x, sizes, trains=sizes.workload.finetune == "frozen-base")
    if style.logit_softcap:
        scaled = tape.op("logits / cap", (logits,), logits.bytes)
        capped = tape.op("tanh(logits)", (scaled,), logits.bytes, saves_output=True, work=logits.bytes)
        logits = tape.op("capped logits", (capped,), logits.bytes)
    if loss:
        count = logits.bytes // e
        kind = sizes.loss or ("in-place" if style.fused_loss else "fp32")
        if kind == "fused":
            tape.op("loss", (logits,), 4, (logits,))
            return
        if kind == "in-place":
            # The fp32 copy becomes the softmax, then the gradient, in place.
            wide = tape.op("logits in fp32", (logits,), 4 * count, work=4 * count)
            tape.op("loss", (tape.view(wide, 0),), 4, (wide,))
            return
        if e < 4:
            logits = tape.op("logits in fp32", (logits,), 4 * count)
        softmax = tape.op("log-softmax", (logits,), 4 * count, saves_output=True)
        tape.op("loss", (softmax,), 4)


def _norm(tape: Tape, x: Tensor, elements: int, sizes: Sizes, width: int = 0) -> Tensor:
    e, n, learned = sizes.element, elements, layers_train(sizes.workload)
    rows = 4 * (n // width if width else sizes.whole)
    if sizes.style.norm == "layer":
        return tape.op("norm", (x,), n * e, (x,), saves_bytes=2 * rows * e // 4)
    wide = tape.op("norm input in fp32", (x,), 4 * n) if e < 4 else x
    if sizes.style.norm == "wide-layer":
        wide = tape.op("norm", (wide,), 4 * n, (wide,), saves_bytes=2 * rows)
        return tape.op("norm cast back", (wide,), n * e) if e < 4 else wide
    if sizes.style.norm == "centred":
        # The difference from the mean is taken twice: for the variance and for what is scaled by it.
        wide, other = (tape.op("norm input - mean", (wide,), 4 * n) for _ in range(2))
        square = tape.op("norm square", (other,), 4 * n, (other,), work=8 * n)
    else:
        square = tape.op("norm square", (wide,), 4 * n, (wide,), work=8 * n)
    inverse = tape.op("norm 1/rms", (tape.op("norm mean", (square,), rows),), rows, saves_output=True, work=2 * rows)
    scaled = tape.op("norm scaled", (wide, inverse), 4 * n, (wide, inverse), work=4 * n)
    if sizes.style.norm in ("gemma", "centred"):
        weighted = tape.op("norm weighted", (scaled,), 4 * n, (scaled,) if learned else (), work=4 * n)
        return tape.op("norm", (weighted,), n * e) if e < 4 else weighted
    narrow = tape.op("norm cast back", (scaled,), n * e) if e < 4 else scaled
    return tape.op("norm", (narrow,), n * e, (narrow,) if learned else (), work=n * e)


def _linear(
    tape: Tape,
    linear: Linear,
    x: Tensor,
    sizes: Sizes,
    *,
    rows: int | None = None,
    matrices: int = 1,
    trains: bool = False,
) -> Tensor:
    """y = x W^T: saves x; its backward holds the weight's gradient until it is accumulated."""
    own = linear.on_shard(sizes.workload.t)
    out, inner = own.out_features, own.in_features
    at = sizes.rows if rows is None else rows
    if linear.shard == "row":
        at = sizes.whole if rows is None else rows
    y, weights = at * out * sizes.element, matrices * out * inner
    if not (trains or layers_train(sizes.workload)):
        return _frozen(tape, linear, x, sizes, (at, y, weights))
    saves = (x,) if sizes.stored == sizes.element else ()
    narrow = 0 if saves else x.bytes * sizes.stored // sizes.element
    return tape.op(linear.name, (x,), y, saves, saves_bytes=narrow, weights=weights, views_gradient=rows is None)


def _frozen(tape: Tape, linear: Linear, x: Tensor, sizes: Sizes, own: tuple[int, int, int]) -> Tensor:
    """A frozen matrix saves nothing; its adapter saves its input and the r numbers a row between A and B.

    fp32 adapters run under autocast, which casts their weights to 16 bits and saves those. 16-bit adapters save the
    input as it is, one for all that read it. Quantised (bitsandbytes' Linear4bit): the matrix is written out in 16 bits
    while its product runs, whose result is as wide as its input; peft copies it.
    """
    rows, y, weights = own
    e, product = sizes.element, sizes.product
    quantised = has_adapters(sizes.workload) and base_of(sizes.workload) != "bf16" and linear.name != "lm_head"
    pair = [adapter.on_shard(sizes.workload.t) for adapter in adapters(linear, sizes.workload)]
    y = y * product // e  # as the product makes it
    wide = x.bytes > rows * linear.on_shard(sizes.workload.t).in_features * product
    narrow = x.bytes * product // e if wide else x.bytes
    into = tape.op("cast for its product", (x,), narrow) if wide else x
    out = tape.op(linear.name, (into,), y, work=2 * weights if quantised else 0, views_gradient=True)
    if wide and quantised:
        out = tape.op("as wide as its input", (out,), y * e // product)
    if not pair:
        return out
    if quantised:
        out = tape.op("cloned", (out,), out.bytes, shares_gradient=True)
    inside, held = _adapters_input(tape, x, narrow, sizes, quantised=quantised)
    for adapter in pair:
        n = adapter.out_features * adapter.in_features
        inside = tape.op(
            adapter.name,
            (inside,),
            rows * adapter.out_features * product,
            (inside,),
            weights=n,
            saves_bytes=product * n if sizes.adapter > product else 0,
            views_gradient=True,
        )
        tape.hold(*held)
    scaled = tape.op("scaled", (inside,), y)
    tape.hold(*held)
    adapted = tape.op("with the adapter", (out, _promoted(tape, scaled, out)), out.bytes, shares_gradient=True)
    tape.hold(*held)
    return adapted


def _adapters_input(
    tape: Tape, x: Tensor, narrow: int, sizes: Sizes, *, quantised: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """What A reads, and what names keep while it does.

    Beside a plain matrix peft casts the input to fp32 for an fp32 adapter (LoraLayer._cast_input_dtype), and autocast
    casts that to 16 bits again; beside a quantised one peft leaves it to autocast.
    """
    if quantised or sizes.adapter <= sizes.product:
        return (tape.op("adapter's input", (x,), narrow) if narrow < x.bytes else x), (x,)
    wide = tape.op("adapter's input in fp32", (x,), narrow * sizes.adapter // sizes.product)
    inside = tape.op("adapter's input", (wide,), narrow)
    tape.hold(wide)
    return inside, (x, wide)


def _promoted(tape: Tape, part: Tensor, to: Tensor) -> Tensor:
    """``part`` as it is added to a wider tensor: only its gradient is a cast of its own."""
    return tape.op("promoted", (part,), 0) if part.bytes < to.bytes else part


def _dropout(tape: Tape, x: Tensor, probability: float, sizes: Sizes) -> Tensor:
    if not probability:
        return x
    return tape.op("dropout", (x,), x.bytes, saves_bytes=x.bytes // sizes.element * sizes.mask)


def _attention(tape: Tape, attention: AttentionShape | MlaShape, hidden: int, x: Tensor, sizes: Sizes) -> Tensor:
    heads, kv_heads = attention.on_shard(sizes.workload.t)
    e, rows = sizes.element, sizes.rows
    fused = sizes.workload.fused_qkv
    linears = attention.linears(hidden, fused=True if fused is None and sizes.style is MEGATRON else fused)
    q_bytes, k_bytes = rows * heads * attention.head_dim * e, rows * kv_heads * attention.head_dim * e
    gated = isinstance(attention, AttentionShape) and attention.gated
    v_bytes = rows * kv_heads * attention.v_dim * e
    if isinstance(attention, MlaShape):
        q, k, v = _latent(tape, attention, linears, x, sizes, (q_bytes, k_bytes, v_bytes))
    elif len(linears) == 2:
        qkv = _linear(tape, linears[0], x, sizes)
        # The three parts are put together again by one copy of the whole, charged to the first.
        part = tape.view(qkv, qkv.bytes, copies_gradient=True)
        q, k, v = (tape.view(part, size) for size in (q_bytes, k_bytes, v_bytes))
    else:
        q, k, v = (_linear(tape, linear, x, sizes) for linear in linears[:3])
    gate = None
    if gated:
        gate, q = (tape.view(q, q_bytes, copies_gradient=first) for first in (True, False))
    if isinstance(attention, AttentionShape) and attention.qk_norm != "none":
        width = attention.head_dim if attention.qk_norm == "head" else 0
        q = _norm(tape, q, q_bytes // e, sizes, width)
        k = _norm(tape, k, k_bytes // e, sizes, width)
    if attention.rotary_dim:
        q, k = (tape.op("rotary", (part,), part.bytes, work=2 * part.bytes) for part in (q, k))
        if sizes.style is MEGATRON:  # Transformer Engine asks for all three contiguous
            v = tape.op("values, contiguous", (v,), v.bytes)
    tape.recomputing, named = True, (x, q, k, v)
    if sizes.product < e:
        q, k, v = (tape.op("cast for its products", (one,), one.bytes * sizes.product // e) for one in (q, k, v))
        sizes = replace(sizes, element=sizes.product)
    if sizes.workload.attention == "eager":
        # The layer's own code has names for these until its core is done.
        tape.named = named
        out = _eager(tape, attention, q, k, v, sizes, heads)
    else:
        out = _flash(tape, attention, q, k, v, sizes, heads)
    tape.recomputing = False
    if gate is not None:
        sigmoid = tape.op("sigmoid of the gate", (gate,), q_bytes, saves_output=True)
        out = tape.op("gated output", (out, sigmoid), out.bytes, (out, sigmoid))
    out = _linear(tape, linears[-1], out, sizes)
    if not sizes.style.keeps_names:
        tape.named = ()
    return out


def _latent(
    tape: Tape,
    attention: MlaShape,
    linears: tuple[Linear, ...],
    x: Tensor,
    sizes: Sizes,
    part_bytes: tuple[int, int, int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Multi-head latent attention: queries, keys and values through their low-rank projections."""
    by_name = {linear.name.rsplit(".", 1)[-1]: linear for linear in linears}
    e, rows = sizes.element, sizes.rows
    if attention.q_lora_rank is None:
        q = _linear(tape, by_name["q_proj"], x, sizes)
    else:
        low = _linear(tape, by_name["q_a_proj"], x, sizes)
        q = _linear(tape, by_name["q_b_proj"], _norm(tape, low, rows * attention.q_lora_rank, sizes), sizes)
    low = _linear(tape, by_name["kv_a_proj"], x, sizes)
    latent = tape.view(low, rows * attention.kv_lora_rank * e, copies_gradient=True)
    normed = _norm(tape, latent, rows * attention.kv_lora_rank, sizes)
    both = _linear(tape, by_name["kv_b_proj"], normed, sizes)
    # Keys are copied beside the rotated part that all heads share; values stay a view of the projection.
    k = tape.op("keys with their rotated part", (both,), part_bytes[1])
    return q, k, tape.view(both, part_bytes[2], copies_gradient=True)


def _flash(
    tape: Tape,
    attention: AttentionShape | MlaShape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sizes: Sizes,
    heads: int,
) -> Tensor:
    """One fused kernel: saves queries, keys, values, output and the log-sum-exp of each row."""
    hidden = masked(sizes.style, attention, sizes.kv_len)
    if hidden and k.bytes < q.bytes:
        if sizes.style.expands_kv and attention.on_shard(sizes.workload.t)[1] == 1:
            return _math(tape, attention, q, k, v, sizes, heads)
        # Repeated for their group, since enable_gqa beside a mask would be the math path.
        k, v = _by_head(tape, attention, k, v, sizes, heads)
    # Each layer casts the mask to the queries' type; one with a bias in it has that type, and all layers save the one.
    cast = hidden and not alibi_in_fp32(sizes.style, attention)
    mask = sizes.workload.b * sizes.q_len * sizes.kv_len * sizes.element if cast else 0
    out = tape.op(
        "attention",
        (q, k, v),
        sizes.rows * heads * attention.v_dim * sizes.element,
        (q, k, v),
        saves_output=True,
        saves_bytes=4 * sizes.rows * heads + mask,
    )
    if sizes.style.contiguous_output:
        return tape.op("attention output, contiguous", (out,), out.bytes)
    return out


def masked(style: Style, attention: AttentionShape | MlaShape, length: int) -> bool:
    """Whether transformers gives torch's fused core a mask: for a window shorter than the sequence (falcon: always)."""
    if style is MEGATRON:
        return False
    return style.expands_kv or (attention.window is not None and attention.window < length)


def _by_head(
    tape: Tape, attention: AttentionShape | MlaShape, k: Tensor, v: Tensor, sizes: Sizes, heads: int
) -> tuple[Tensor, Tensor]:
    rows = sizes.rows * heads * sizes.element
    return tape.op("keys by head", (k,), rows * attention.head_dim), tape.op(
        "values by head", (v,), rows * attention.v_dim
    )


def _math(
    tape: Tape,
    attention: AttentionShape | MlaShape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sizes: Sizes,
    heads: int,
) -> Tensor:
    """torch's math path of scaled_dot_product_attention: everything in fp32, keys and values expanded to all heads.

    ``_scaled_dot_product_attention_math`` in aten/src/ATen/native/transformers/attention.cpp.
    """
    batch = sizes.workload.b * heads
    square, width = 4 * batch * sizes.q_len * sizes.kv_len, 4 * sizes.rows * heads
    q = tape.op("queries in fp32, scaled", (q,), width * attention.head_dim)
    # The one head is copied for all of them where there are several sequences, and else a view of itself.
    expanded = width if sizes.workload.b > 1 else 4 * sizes.rows
    k = tape.op("keys by head in fp32, scaled", (k,), expanded * attention.head_dim)
    # Gradients of expanded values are summed over the heads at once.
    v = tape.view(tape.op("values by head in fp32", (v,), expanded * attention.v_dim), 2 * v.bytes)
    scores = tape.op("scores", (q, k), square, (q, k))
    probabilities = tape.op("softmax", (scores,), square, saves_output=True)
    out = tape.op("values by probability", (probabilities, v), width * attention.v_dim, (probabilities, v))
    out = tape.op("attention output", (out,), out.bytes * sizes.element // 4)
    return tape.op("attention output, contiguous", (out,), out.bytes)


def _eager(
    tape: Tape,
    attention: AttentionShape | MlaShape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sizes: Sizes,
    heads: int,
) -> Tensor:
    """Scores, softmax and values written out: saves the probabilities, in fp32 and again in 16 bits."""
    style, e = sizes.style, sizes.element
    batch = sizes.workload.b * heads
    square, values = batch * sizes.q_len * sizes.kv_len, batch * sizes.kv_len * attention.v_dim * e
    # Heads of several sequences are copied next to each other for the batched product, keys and values repeated for
    # their group; one sequence's need no copy. Values that only that product expands are copied when it runs.
    several = sizes.workload.b > 1 or style is MEGATRON
    grouped = 1 < attention.on_shard(sizes.workload.t)[1] < heads
    if several and not style.contiguous_output:
        q = tape.op("queries by head", (q,), batch * sizes.q_len * attention.head_dim * e)
    if several or grouped:
        k = tape.op("keys by head", (k,), batch * sizes.kv_len * attention.head_dim * e)
    if (several or grouped) and not style.expands_kv:
        v = tape.op("values by head", (v,), values)
    if style.scores_fp32 and e < 4:
        q, k = (tape.op("in fp32", (part,), part.bytes * 4 // e) for part in (q, k))
    if style.keeps_names:
        tape.named += (q, k)
    names = tape.named
    scores = _masked_scores(tape, attention, q, k, square * (4 if style.scores_fp32 else e), sizes)
    probabilities = _softmax(tape, attention, scores, square, sizes)
    if not style.keeps_names:
        tape.named = names
    probabilities = _dropout(tape, probabilities, attention.dropout, sizes)
    if style.keeps_names:
        tape.named += (probabilities,)
    if (several or grouped) and style.expands_kv:
        v = tape.op("values by head", (v,), values)
    out = tape.op(
        "values by probability", (probabilities, v), batch * sizes.q_len * attention.v_dim * e, (probabilities, v)
    )
    tape.returned = square * e if style.returns_scores else 0
    out = tape.op("attention output, contiguous", (out,), out.bytes)
    if style.keeps_names:
        tape.named += (out,)
    return out


def _masked_scores(
    tape: Tape, attention: AttentionShape | MlaShape, q: Tensor, k: Tensor, size: int, sizes: Sizes
) -> Tensor:
    """Scores as softmax gets them; they and those before them that have a name stay until it has run."""
    style = sizes.style
    scores = tape.op("scores", (q, k), size, (q, k))
    if style.holds_scores:  # scaled by the product or in place
        tape.named += (scores,)
        if alibi_in_fp32(style, attention):
            wide = size * 4 // sizes.element
            scores = tape.op("scores in fp32", (scores,), wide)
            tape.named += (scores,)
            scores = tape.op("scores + alibi, scaled", (scores,), wide)
            tape.named += (scores,)
            size = wide
    else:
        scores = tape.op("scaled scores", (scores,), size)
    if style.score_softcap:
        scores = tape.op("scores / cap", (scores,), size)
        scores = tape.op("tanh(scores)", (scores,), size, saves_output=True)
        scores = tape.op("capped scores", (scores,), size)
    scores = tape.op("scores + mask", (scores,), size, shares_gradient=True)
    tape.named += (scores,)
    return scores


def alibi_in_fp32(style: Style, attention: AttentionShape | MlaShape) -> bool:
    """Falcon without rotary positions: a bias in fp32, and for the fused core in a mask of every head's own."""
    return style.joint_dropout and not attention.rotary_dim


def _softmax(tape: Tape, attention: AttentionShape | MlaShape, scores: Tensor, square: int, sizes: Sizes) -> Tensor:
    style, e = sizes.style, sizes.element
    sinks = attention.sinks and style is not MEGATRON
    if sinks:
        # A column for the sink; the largest score is subtracted, whose backward scatters its gradient: zeros, and
        # under a dispatch mode (torch's tracker) a second copy of them.
        rows = square // sizes.kv_len
        square += rows
        scores = tape.op("scores beside sinks", (scores,), square * e, shares_gradient=True)
        largest = tape.op("largest score", (scores,), rows * e, saves_bytes=8 * rows, work=square * e)
        scores = tape.op("scores - largest", (scores, largest), square * e, shares_gradient=True)
    if style.softmax_fp32 and e < 4:
        if not style.scores_fp32:
            scores = tape.op("scores in fp32", (scores,), square * 4)
        probabilities = tape.op("softmax", (scores,), square * 4, saves_output=True)
        return tape.op("probabilities", (probabilities,), square * e)
    if scores.bytes > square * e:
        scores = tape.op("scores cast back", (scores,), square * e)
    probabilities = tape.op("softmax", (scores,), square * e, saves_output=True)
    return tape.view(probabilities, (square - rows) * e, copies_gradient=True) if sinks else probabilities


def _mlp(tape: Tape, block: Block, hidden: int, x: Tensor, sizes: Sizes) -> Tensor:
    mlp = block.mlp
    if isinstance(mlp, MoeShape):
        return _mixture(tape, mlp, hidden, x, sizes)
    if mlp is None:
        return x
    return _dense(tape, mlp, hidden, x, sizes)


def _dense(tape: Tape, mlp: MlpShape, hidden: int, x: Tensor, sizes: Sizes) -> Tensor:
    fused = sizes.workload.fused_gate_up
    linears = mlp.linears(hidden, fused=True if fused is None and sizes.style is MEGATRON else fused)
    width = sizes.rows * -(-mlp.width // sizes.workload.t) * sizes.element
    if not mlp.gated:
        inner = _activation(tape, _linear(tape, linears[0], x, sizes), sizes)
    else:
        inner = _gated(tape, [_linear(tape, linear, x, sizes) for linear in linears[:-1]], width, sizes)
    return _linear(tape, linears[-1], inner, sizes)


def _gated(tape: Tape, projected: list[Tensor], width: int, sizes: Sizes) -> Tensor:
    if len(projected) == 1:
        both = tape.view(projected[0], 2 * width, copies_gradient=True)
        gate, up = tape.view(both, width), tape.view(both, width)
    else:
        gate, up = projected
    if sizes.style.fused_gate:
        return tape.op("gated", (gate, up), width, (gate, up))
    if sizes.style.clamped_gate:
        gate, up = (tape.op("clamped", (part,), width, (part,)) for part in (gate, up))
        sigmoid = tape.op("sigmoid", (tape.op("scaled gate", (gate,), width),), width, saves_output=True)
        active = tape.op("gate x sigmoid", (gate, sigmoid), width, (gate, sigmoid))
        up = tape.op("up + 1", (up,), width, shares_gradient=True)
        return tape.op("gated", (active, up), width, (active, up))
    active = _activation(tape, gate, sizes)
    return tape.op("gated", (active, up), width, (active, up))


def _activation(tape: Tape, x: Tensor, sizes: Sizes) -> Tensor:
    if sizes.style.activation == "fused":
        return tape.op("activation", (x,), x.bytes, (x,))
    if sizes.style.activation == "recomputed":
        return tape.op("activation", (x,), x.bytes, (x,), work=4 * x.bytes)
    if sizes.style.activation == "relu":
        return tape.op("activation", (x,), x.bytes, saves_output=True)
    # 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), every step a kernel.
    half = tape.op("x/2", (x,), x.bytes)
    cube = tape.op("x^3", (x,), x.bytes, (x,), work=2 * x.bytes)
    inner = tape.op("x + c x^3", (x, cube), x.bytes, shares_gradient=True)
    tanh = tape.op("tanh", (inner,), x.bytes, saves_output=True)
    one = tape.op("1 + tanh", (tanh,), x.bytes, shares_gradient=True)
    return tape.op("activation", (half, one), x.bytes, (half, one))


def _mixture(tape: Tape, moe: MoeShape, hidden: int, x: Tensor, sizes: Sizes) -> Tensor:
    """Tokens gathered by expert, two grouped products, and the weighted sum back in the tokens' order."""
    e, t = sizes.element, sizes.workload.t
    local = moe.experts // sizes.workload.e
    # Routing is even over devices, so a device meets as many routed rows as it sends out; the fullest expert's load is
    # what a device must hold when it has only a few experts.
    routed = round(sizes.rows * moe.top_k * (sizes.workload.expert_load if sizes.workload.e > 1 else 1.0))
    out = _router(tape, moe, hidden, x, sizes)
    shared = None if sizes.style.shared_last else _shared(tape, moe, hidden, x, sizes)
    tokens = x
    linears = {linear.name: linear for linear in moe.linears(hidden)}
    if moe.latent is not None:
        x = _linear(tape, linears["moe.latent_down_proj"], x, sizes)
    # The gradient of a gathering is scattered into zeros; a dispatch mode, as torch's tracker is, makes a second copy.
    gathered = tape.op("tokens by expert", (x,), routed * moe.routed_width(hidden) * e, work=x.bytes)
    width = routed * -(-moe.width // t) * e
    *inward, outward = moe.expert_linears(hidden, fused=sizes.workload.fused_gate_up)
    projected = [_linear(tape, linear, gathered, sizes, rows=routed, matrices=local) for linear in inward]
    inner = _gated(tape, projected, width, sizes) if moe.gated else _activation(tape, projected[0], sizes)
    back = _linear(tape, outward, inner, sizes, rows=routed, matrices=local)
    if sizes.style.router != "narrow" and e < 4:
        # Both fp32 products are alive when the first is narrowed. What the node saved is too, unless checkpointing made
        # it again, which has let go of it by then.
        wide = routed * moe.routed_width(hidden) * 4
        gone = back.bytes if sizes.workload.checkpointing == "full" else 0
        weighted = tape.op("weighted by router", (back, out), wide, (back, out), work=2 * wide - gone)
        ordered = tape.op("tokens in order", (weighted,), wide, work=wide)
        summed = tape.op("sum of experts", (ordered,), sizes.whole * moe.routed_width(hidden) * 4)
        summed = tape.op("experts' output", (summed,), sizes.whole * moe.routed_width(hidden) * e)
    else:
        weighted = tape.op("weighted by router", (back, out), back.bytes, (back, out), work=back.bytes)
        ordered = tape.op("tokens in order", (weighted,), back.bytes, work=back.bytes)
        summed = tape.op("sum of experts", (ordered,), sizes.whole * moe.routed_width(hidden) * e)
    if moe.latent is not None:
        summed = _linear(tape, linears["moe.latent_up_proj"], summed, sizes)
    if sizes.style.shared_last:
        shared = _shared(tape, moe, hidden, tokens, sizes)
    if shared is None:
        return summed
    if moe.shared_gate:
        # Its product runs after the experts, so its gradients are there while theirs are made.
        gate = tape.op("shared expert's gate", (tokens,), sizes.rows * e, (tokens,), saves_output=True)
        shared = tape.op("shared expert, gated", (shared, gate), shared.bytes, (shared, gate), work=shared.bytes)
    return tape.op("with the shared expert", (summed, shared), summed.bytes, shares_gradient=True)


def _shared(tape: Tape, moe: MoeShape, hidden: int, x: Tensor, sizes: Sizes) -> Tensor | None:
    if moe.shared is None:
        return None
    return _dense(tape, moe.shared, hidden, x, sizes)


def _router(tape: Tape, moe: MoeShape, hidden: int, x: Tensor, sizes: Sizes) -> Tensor:
    """fp32 probabilities over the experts and the indices and weights of the top_k, saved."""
    linear = Linear("moe.router", moe.experts, hidden, moe.router_bias)
    if sizes.style.router == "wide-product" and sizes.element < 4:
        # Its weight is cast as well, and kept.
        x = tape.op("router's input in fp32", (x,), 4 * sizes.rows * hidden, saves_bytes=4 * moe.experts * hidden)
    logits = _linear(tape, linear, x, sizes)
    probabilities = tape.op(
        "router probabilities",
        (logits,),
        4 * sizes.rows * moe.experts,
        saves_output=True,
        # Sorted expert ids, their inverse permutation and the gathered token ids, int64 each.
        saves_bytes=4 * 8 * sizes.rows * moe.top_k,
    )
    return tape.op("router weights", (probabilities,), 4 * sizes.rows * moe.top_k, saves_output=True)
