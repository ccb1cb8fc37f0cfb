"""What runs between a layer's projections: memory-bound kernels, attention's core, a recurrence's convolution and scan.

Memory-bound operators and the bytes they move: each input read once, each output written once.

Norms, activations, rotary embedding and residual additions are counted as one fused kernel each, as Megatron and
Liger run them; plain eager PyTorch moves more (an fp32 RMSNorm written out makes about four passes).

Attention is one fused operator, or scores and values as batched products (eager). A recurrence's scan is the batched
products that its chunks consist of: fused scan kernels do these in three or four launches and keep a part of what lies
between them on chip; no such kernel was measured for it, and none is priced as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shapes.dtypes import BYTES, QUANTISED
from shapes.model import AttentionShape, Block, MlaShape, ModelShape, MoeShape
from shapes.model.mixers import RecurrentShape
from shapes.model.parameters import PRECISIONS
from shapes.model.stages import ShardParameters
from shapes.model.trainable import layers_train
from shapes.operators.parallel import sent
from shapes.operators.types import Attention, CachedAttention, Collective, Elementwise, Gemm, Layout, Operator, Phase
from shapes.workload import Workload


def emit(
    name: str,
    what: str,
    elements: int,
    counts: tuple[int, int, int, int],
    workload: Workload,
    times: int,
    forwards: int,
) -> Iterator[Elementwise]:
    """A memory-bound kernel; ``counts``: tensors of ``elements`` read and written, forward, then backward."""
    size = workload.activation_bytes
    phases: list[tuple[Phase, int, int, int]] = [("forward", counts[0], counts[1], times * forwards)]
    if workload.train:
        phases.append(("dgrad", counts[2], counts[3], times))
    for phase, read, written, count in phases:
        yield Elementwise(
            name=name,
            phase=phase,
            what=what,
            bytes_read=read * elements * size,
            bytes_written=written * elements * size,
            dtype=workload.dtype,
            count=count,
        )


def block_elementwise(
    block: Block, hidden: int, s: int, workload: Workload, prefix: str, forwards: int
) -> Iterator[Elementwise]:
    """One layer's norms, residual additions, rotary embedding, softmax, activation and dropout, x ``block.count``."""
    tokens, count = workload.own_tokens(s), block.count
    # Sequence parallelism splits exactly the parts that tensor parallelism leaves whole.
    whole = -(-tokens // workload.t) if workload.sequence_parallel else tokens
    for index in range(block.norms):
        name = f"{prefix}norm.{index}" if block.norms > 1 else f"{prefix}norm"
        yield from emit(name, "norm", whole * hidden, (1, 1, 2, 1), workload, count, forwards)
    for part in (block.attention, block.cross):
        if part is not None:
            yield from _attention_elementwise(part, s, workload, prefix, count, forwards)
    additions = 1 if block.parallel else len(block.parts)
    if additions:
        yield from emit(
            f"{prefix}residual", "residual", whole * hidden, (2, 1, 2, 1), workload, count * additions, forwards
        )
    if block.dropout:
        yield from emit(
            f"{prefix}dropout",
            "dropout",
            whole * hidden,
            (1, 2, 2, 1),
            workload,
            min(2, len(block.parts)) * count,
            forwards,
        )
    yield from _mlp_elementwise(block, hidden, tokens, workload, prefix, forwards)


def _mlp_elementwise(
    block: Block, hidden: int, tokens: int, workload: Workload, prefix: str, forwards: int
) -> Iterator[Elementwise]:
    mlps = []
    if isinstance(block.mlp, MoeShape):
        mlps.append(("moe.activation", tokens * block.mlp.top_k * block.mlp.width, block.mlp.gated))
        # Tokens are sorted by expert before the products and put back behind them, a row for each of top_k experts.
        rows = -(-tokens * block.mlp.top_k // workload.t)
        yield from emit(
            f"{prefix}moe.permute",
            "moe",
            rows * block.mlp.routed_width(hidden),
            (2, 2, 2, 2),
            workload,
            block.count,
            forwards,
        )
        if block.mlp.shared:
            mlps.append(("mlp.activation", tokens * block.mlp.shared.width, block.mlp.shared.gated))
    elif block.mlp is not None:
        mlps.append(("mlp.activation", tokens * block.mlp.width, block.mlp.gated))
    for name, elements, gated in mlps:
        counts = (2, 1, 3, 2) if gated else (1, 1, 2, 1)
        yield from emit(
            prefix + name, "activation", -(-elements // workload.t), counts, workload, block.count, forwards
        )


def _attention_elementwise(
    attention: AttentionShape | MlaShape, s: int, workload: Workload, prefix: str, count: int, forwards: int
) -> Iterator[Elementwise]:
    heads, kv_heads = attention.on_shard(workload.t)
    tokens = workload.own_tokens(s)
    if attention.rotary_dim:
        elements = tokens * (heads + kv_heads) * attention.rotary_dim
        yield from emit(f"{prefix}attention.rotary", "rotary", elements, (1, 1, 1, 1), workload, count, forwards)
    if isinstance(attention, AttentionShape) and attention.qk_norm != "none":
        elements = tokens * (heads + kv_heads) * attention.head_dim
        yield from emit(f"{prefix}attention.qk_norm", "norm", elements, (1, 1, 2, 1), workload, count, forwards)
    if isinstance(attention, AttentionShape) and attention.gated:
        elements = tokens * heads * attention.v_dim
        yield from emit(f"{prefix}attention.gate", "activation", elements, (2, 1, 3, 2), workload, count, forwards)
    if isinstance(attention, MlaShape):
        elements = tokens * sum(number for _, number in attention.vectors())
        yield from emit(f"{prefix}attention.latent_norm", "norm", elements, (1, 1, 2, 1), workload, count, forwards)
    if workload.attention == "eager":
        square = tokens * s * heads
        again = 2 if workload.train and workload.checkpointing != "none" else 1
        yield from emit(f"{prefix}attention.softmax", "softmax", square, (1, 1, 2, 1), workload, count, again)
        if attention.dropout:
            yield from emit(f"{prefix}attention.dropout", "dropout", square, (1, 2, 2, 1), workload, count, again)


def model_elementwise(model: ModelShape, workload: Workload, s: int) -> Iterator[Elementwise]:
    """Token embedding, last norm and cross-entropy over fp32 logits."""
    tokens = workload.own_tokens(s)
    width = model.embedding_dim or model.hidden
    if model.vocab and workload.p == 1:
        frozen = workload
        if workload.train:
            frozen = replace(workload, phase="infer", finetune=None, lora_targets=None, base=None)
        learned = workload if layers_train(workload) else frozen
        yield from emit("embedding", "embedding", tokens * width, (1, 1, 2, 1), learned, 1, 1)
    if model.main.final_norm:
        whole = -(-tokens // workload.t) if workload.sequence_parallel else tokens
        yield from emit("final_norm", "norm", whole * model.hidden, (1, 1, 2, 1), workload, 1, 1)
    if workload.train and model.head:
        logits, size = tokens * -(-model.vocab // workload.t), workload.activation_bytes
        # Forward: 16-bit logits in, an fp32 copy out, read again by log-softmax. Backward: the copy in, 16 bits out.
        moved: tuple[tuple[Phase, int, int], ...] = (("forward", size + 4, 4), ("dgrad", 4, size))
        for phase, read, written in moved:
            yield Elementwise(
                "cross_entropy",
                phase,
                "cross_entropy",
                logits * read,
                logits * written,
                workload.dtype,
                model.head_passes,
            )


def optimizer_update(held: ShardParameters, workload: Workload, states: float | None = None) -> Elementwise:
    """The optimizer on this device's share of parameters.

    AdamW in mixed precision: fp32 gradient, master weight and two moments in (16 bytes a parameter); the latter three
    and the 16-bit weight out (14). ``states``: bytes of moments a parameter, of another optimizer.
    """
    share, kept = held.updated(workload), PRECISIONS[workload.precision or "mixed"]
    always = kept.master + (2 * kept.moments if states is None else states)
    read = always + kept.gradients + (0 if kept.master else kept.weights)
    return Elementwise(
        "optimizer", "optimizer", "optimizer", round(share * read), round(share * (always + kept.weights)), "fp32"
    )


def attention_operators(
    attention: AttentionShape | MlaShape, workload: Workload, q_len: int, kv_len: int, name: str, count: int
) -> Iterator[Operator]:
    """softmax(Q K^T) V of ``count`` layers, forward and backward, without its projections and elementwise parts."""
    core = _eager if workload.attention == "eager" else _fused
    yield from core(attention, workload, q_len, kv_len, name, count)


def decode_operators(
    attention: AttentionShape | MlaShape, workload: Workload, name: str, count: int
) -> Iterator[CachedAttention | Gemm]:
    """A decode step's attention of ``count`` layers over the KV cache.

    MLA's runs in the latent space, as serving software does (DeepSeek-V2, arXiv 2405.04434, section 2.1.2): kv_b_proj
    is absorbed in the queries and the output, all heads share the one latent key, whose first part is the value.
    """
    heads, kv_heads = attention.on_shard(workload.t)
    dtype, kv_len = _core_dtype(workload), workload.cached(workload.s, attention.window)
    if isinstance(attention, AttentionShape):
        widths, latent = (attention.head_dim, attention.v_dim), False
    else:
        rank, tokens = attention.kv_lora_rank, workload.tokens
        for part, n, k in (("queries", rank, attention.qk_nope_head_dim), ("values", attention.v_dim, rank)):
            yield Gemm(
                name=f"{name}.absorbed_{part}",
                phase="forward",
                m=tokens,
                n=n,
                k=k,
                batch=heads,
                dtype=dtype,
                count=count,
                kind="bmm",
            )
        kv_heads, widths, latent = 1, (rank + attention.qk_rope_head_dim, rank), True
    yield CachedAttention(
        name=f"{name}.core",
        batch=workload.b,
        heads=heads,
        kv_heads=kv_heads,
        q_len=workload.s,
        kv_len=kv_len,
        head_dim=widths[0],
        v_head_dim=widths[1],
        latent=latent,
        dtype=dtype,
        kv_dtype=workload.cache_dtype,
        count=count,
    )


def _core(attention: AttentionShape | MlaShape, workload: Workload, q_len: int, kv_len: int, name: str) -> Attention:
    """One layer's whole attention, forward."""
    heads, kv_heads = attention.on_shard(workload.t)
    return Attention(
        name=name,
        phase="forward",
        batch=workload.b,
        heads=heads,
        kv_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=attention.head_dim,
        v_head_dim=attention.v_dim,
        causal=attention.causal and not attention.cross,
        window=attention.window,
        dtype=_core_dtype(workload),
        kernel="auto" if workload.attention == "flash" else workload.attention,
        training=workload.train,
    )


def _runs(core: Attention, workload: Workload, count: int) -> Iterator[Attention]:
    """``count`` layers' ``core``, forward (checkpointed: twice) and backward."""
    yield replace(core, count=count * (2 if workload.train and workload.checkpointing != "none" else 1))
    if workload.train:
        yield replace(core, phase="dgrad", count=count)


def _fused(
    attention: AttentionShape | MlaShape, workload: Workload, q_len: int, kv_len: int, name: str, count: int
) -> Iterator[Operator]:
    core = _core(attention, workload, q_len, kv_len, f"{name}.core")
    for queries, keys in chunks(q_len, kv_len, workload.cp, core.causal):
        yield from _runs(replace(core, q_len=queries, kv_len=keys), workload, count)


def chunks(q_len: int, kv_len: int, cp: int, causal: bool) -> tuple[tuple[int, int], ...]:
    """(queries, keys) of what one of ``cp`` ranks attends to.

    Causal sequences are cut in 2 cp chunks of which a rank holds one from each end: the first and the last chunk's keys
    together are as many as any other rank's two.

    >>> chunks(4096, 4096, 2, True)
    ((1024, 1024), (1024, 4096))
    """
    if cp == 1:
        return ((q_len, kv_len),)
    if not causal:
        return ((-(-q_len // cp), kv_len),)
    own = -(-q_len // (2 * cp))
    return (own, own), (own, kv_len)


def _eager(
    attention: AttentionShape | MlaShape, workload: Workload, q_len: int, kv_len: int, name: str, count: int
) -> Iterator[Operator]:
    for core in _runs(_core(attention, workload, q_len, kv_len, name), workload, count):
        yield from _products(core)


def _products(core: Attention) -> Iterator[Gemm]:
    """The batched products of an attention that is not fused, over the whole square."""
    q_len, kv_len, d, dv = core.q_len, core.kv_len, core.head_dim, core.v_head_dim
    # scores S = Q K^T, values O = P V; then dQ = dS K, dK = dS^T Q, dP = dO V^T, dV = P^T dO.
    products: list[tuple[str, int, int, int, Layout]] = (
        [
            ("scores", q_len, kv_len, d, "tn"),
            ("values", q_len, dv, kv_len, "nn"),
        ]
        if core.phase == "forward"
        else [
            ("scores", q_len, d, kv_len, "nn"),
            ("scores", kv_len, d, q_len, "nt"),
            ("values", q_len, kv_len, dv, "tn"),
            ("values", kv_len, dv, q_len, "nt"),
        ]
    )
    for part, m, n, k, layout in products:
        yield Gemm(
            name=f"{core.name}.{part}",
            phase=core.phase,
            m=m,
            n=n,
            k=k,
            batch=core.batch * core.heads,
            dtype=core.dtype,
            layout=layout,
            count=core.count,
            kind="bmm",
        )


def written_out(core: Attention) -> tuple[Gemm | Elementwise, ...]:
    """What runs where no fused kernel takes ``core``: its products, and the softmax over the whole square."""
    square = core.batch * core.heads * core.q_len * core.kv_len * BYTES[core.dtype]
    read = 1 if core.phase == "forward" else 2
    softmax = Elementwise(f"{core.name}.softmax", core.phase, "softmax", read * square, square, core.dtype, core.count)
    return (*_products(core), softmax)


def _core_dtype(workload: Workload) -> str:
    # Low-precision recipes quantise the linear layers; the attention core stays in 16 bits.
    return "bf16" if workload.dtype in QUANTISED else workload.dtype


def recurrent_operators(
    mixer: RecurrentShape, workload: Workload, s: int, name: str, count: int, forwards: int
) -> Iterator[Gemm | Elementwise | Collective]:
    """What ``count`` layers run between their two projections, of sequences of ``s`` tokens.

    Context parallelism gives each rank whole sequences of its share of the heads (Megatron-Core's exchange before the
    convolution and behind the scan). A decode step reads and writes the state.
    """
    heads, _ = mixer.on_shard(workload.t)
    tokens, channels = workload.own_tokens(s), mixer.conv_channels(workload.t)
    if workload.decode:
        yield _state_update(mixer, workload, name, count)
        return
    yield from emit(f"{name}.conv1d", "conv", tokens * channels, (1, 1, 2, 1), workload, count, forwards)
    yield from _chunks(mixer, workload, s, name, count, forwards)
    yield from emit(f"{name}.norm", "norm", tokens * heads * mixer.head_dim, (2, 1, 3, 2), workload, count, forwards)
    if workload.cp > 1:
        yield from _exchange(mixer, workload, tokens, name, count, forwards)


def chunk_products(mixer: RecurrentShape, workload: Workload, s: int) -> Iterator[tuple[str, int, int, int, int]]:
    """(name, batch, m, n, k) of the scan's products on one rank."""
    chunks = workload.b * -(-s // mixer.chunk)
    heads, groups = (-(-number // workload.cp) for number in mixer.on_shard(workload.t))
    for part, grouped, m, n, k in mixer.products():
        yield part, chunks * (groups if grouped else heads), m, n, k


def _chunks(
    mixer: RecurrentShape, workload: Workload, s: int, name: str, count: int, forwards: int
) -> Iterator[Gemm | Elementwise]:
    dtype = "bf16" if workload.dtype in QUANTISED else workload.dtype
    for part, batch, m, n, k in chunk_products(mixer, workload, s):
        # dA = dC B^T, dB = A^T dC
        runs: list[tuple[Phase, int, int, int, int]] = [("forward", m, n, k, count * forwards)]
        if workload.train:
            runs += [("dgrad", m, k, n, count), ("dgrad", k, n, m, count)]
        for phase, rows, columns, inner, times in runs:
            yield Gemm(
                name=f"{name}.scan.{part}",
                phase=phase,
                m=rows,
                n=columns,
                k=inner,
                batch=batch,
                dtype=dtype,
                count=times,
                kind="bmm",
            )
    # The states of all chunks are read and written once more to be carried from chunk to chunk.
    heads, _ = mixer.on_shard(workload.t)
    states = workload.b * -(-s // mixer.chunk) * -(-heads // workload.cp) * mixer.head_dim * mixer.state
    yield from emit(f"{name}.scan.carry", "scan", states, (1, 1, 2, 1), workload, count, forwards)


def state_elements(mixer: RecurrentShape, t: int) -> tuple[int, int]:
    """(elements of one sequence's state, of its convolution's last inputs) on one of ``t`` ranks."""
    heads, _ = mixer.on_shard(t)
    return heads * mixer.head_dim * mixer.state, mixer.conv_channels(t) * (mixer.conv - 1)


def _state_update(mixer: RecurrentShape, workload: Workload, name: str, count: int) -> Elementwise:
    moved = workload.b * sum(state_elements(mixer, workload.t)) * workload.activation_bytes
    return Elementwise(f"{name}.state", "forward", "scan", moved, moved, workload.dtype, count)


def _exchange(
    mixer: RecurrentShape, workload: Workload, tokens: int, name: str, count: int, forwards: int
) -> Iterator[Collective]:
    heads, _ = mixer.on_shard(workload.t)
    inner = heads * mixer.head_dim
    width = 2 * inner + mixer.conv_channels(workload.t) + mixer.gates * heads
    yield from sent(
        workload,
        f"{name}.context_parallel",
        tokens * width * workload.activation_bytes,
        workload.cp,
        (("forward", "all_to_all", count * forwards), ("dgrad", "all_to_all", count)),
        stride=workload.t,
    )
