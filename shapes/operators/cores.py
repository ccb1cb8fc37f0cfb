"""Operators between a layer's projections: memory-bound kernels, attention's core, a recurrence's convolution and scan.

Memory-bound operators and the bytes they move: each input read once, each output written once.

Norms, activations, rotary embedding and residual additions are counted as one fused kernel each, as Megatron and
Liger run them; plain eager PyTorch moves more (an fp32 RMSNorm written out makes about four passes).

Attention is one fused operator, or scores and values as batched products (eager). A recurrence's scan is one operator.

Sparse attention is an indexer, its choice, and attention over what it chose. A query sees the keys before it, an entry
of several tokens once all of them are. Where a sequence is no longer than what an indexer keeps, everything is chosen
and attention is dense; the indexer runs all the same, since a cache needs its keys and a longer context follows.
Beyond, latent attention runs in the latent space as in decoding (the MQA mode of DeepSeek-V3.2, arXiv 2512.02556): a
query's keys are its own, and expanding them for each would take more.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shapes.dtypes import BYTES, QUANTISED
from shapes.frozen import Pair, Triple, frozen, replace
from shapes.model import (
    PRECISIONS,
    Block,
    Compressor,
    Indexer,
    MlaShape,
    ModelShape,
    MoeShape,
    RecurrentShape,
    SharedKeyShape,
    Tensors,
)
from shapes.model.layers import Attention as Attentions
from shapes.model.mixers import reading, vectors
from shapes.model.stages import ShardParameters
from shapes.toml_table import DATA, content
from shapes.workload import Workload

from .types import (
    Attention,
    CachedAttention,
    Collective,
    CollectiveName,
    Convolution,
    Elementwise,
    Gemm,
    IndexScores,
    Listed,
    Operators,
    Phase,
    Scan,
    SparseAttention,
    StateUpdate,
    TopK,
    seen_pairs,
)

_FACTS = content(DATA / "operators.toml")
#: Which collectives run in which phases, in order, by what runs them.
RUNS: Mapping[str, Sequence[tuple[Phase, CollectiveName]]] = _FACTS["collectives"]
#: Tensors that a memory-bound kernel reads and writes: forward, then backward.
Passes = Sequence[int]


@frozen
class Lowering:
    """Settings that the operators of a part of a model share; ``prefix``: the start of their names."""

    workload: Workload
    prefix: str = ""

    def runs(self, *phases: Phase) -> Iterator[Phase]:
        """The ``phases`` (none: forward and dgrad) that the workload runs: inference has the forward alone."""
        return (one for one in phases or ("forward", "dgrad") if one == "forward" or self.workload.train)

    def core_dtype(self) -> str:
        """Element type of attention's cores and scans: low-precision recipes quantise the linear layers alone."""
        return "bf16" if self.workload.dtype in QUANTISED else self.workload.dtype

    def of_experts(self) -> "Lowering":
        """These settings for a mixture, whose grouped products autocast leaves in their weights' fp32."""
        uncast = self.workload.precision == "amp" and not self.workload.adapted
        return replace(self, workload=replace(self.workload, dtype="fp32")) if uncast else self

    def moves(
        self, name: str, what: str, elements: int, passes: Passes, times: int = 1, size: int | None = None
    ) -> Listed:
        """A memory-bound kernel, ``times`` of it, on tensors of ``elements`` of ``size`` bytes (None: activations')."""
        whole = elements * (size or self.workload.activation_bytes)
        runs = self.runs() if times else ()
        for phase, read, written in zip(runs, passes[::2], passes[1::2]):  # noqa: B905 - the shorter ends it
            yield Elementwise(
                self.prefix + name, phase, what, read * whole, written * whole, self.workload.dtype, times
            )

    def sends(
        self,
        name: str,
        buffer: int,
        ranks: int,
        runs: str,
        times: int = 1,
        stride: int = 1,
        copies: int = 1,
        groups: Pair = (1, 1),
    ) -> Listed:
        """Collectives of RUNS[``runs``], of ``buffer`` bytes over ``ranks``: none of one rank alone."""
        for asked, what in RUNS[runs] if times and ranks > 1 else ():
            for phase in self.runs(asked):
                yield Collective(
                    f"{self.prefix}{name}.{what}",
                    phase,
                    what,
                    buffer,
                    ranks,
                    self.workload.dtype,
                    times,
                    stride=stride,
                    copies=copies,
                    groups=groups,
                    direct=self.workload.decode,
                )


def whole_tokens(tokens: int, workload: Workload) -> int:
    """Tokens of the parts that tensor parallelism leaves whole: sequence parallelism splits exactly those."""
    return -(-tokens // workload.t) if workload.sequence_parallel else tokens


def _moved(part: object, run: Lowering, **own: Any) -> Listed:
    """A part's memory-bound kernels, as models.toml lists them; ``own``: what its lines name and is no field."""
    size, lines = reading("elementwise", part, own)
    for name, elements, what, passes, times in lines:
        yield from run.moves(name, what, size(elements), [*map(size, passes.split())], size(times or "1"))


def block_elementwise(block: Block, hidden: int, s: int, run: Lowering) -> Listed:
    """One layer's norms, residual additions, rotary embedding, softmax, activation and dropout."""
    tokens = run.workload.own_tokens(s)
    whole = whole_tokens(tokens, run.workload) * hidden
    for index in range(block.norms):
        yield from run.moves(f"norm.{index}" if block.norms > 1 else "norm", "norm", whole, (1, 1, 2, 1))
    for part in (block.attention, block.cross):
        yield from _attention_elementwise(part, s, run)
    additions = 1 if block.parallel else len(block.parts)
    gates = sum(linear.name == "norm_gate.up" for linear in block.before)
    yield from _moved(
        block, run, whole=whole, hidden=hidden, gates=gates, additions=additions, drops=min(2, len(block.parts))
    )
    if block.streams:
        yield from _moved(block.streams, run, whole=whole, additions=additions)
    t, mlp = run.workload.t, block.mlp
    if isinstance(mlp, MoeShape):
        routed, trains = -(-tokens * mlp.top_k // t) * mlp.routed_width(hidden), run.workload.train
        yield from _moved(
            mlp, run.of_experts(), routed=routed, made=-(-tokens * mlp.top_k * mlp.width // t), trains=trains
        )
        mlp = mlp.shared
    if mlp:
        yield from _moved(mlp, run, made=-(-tokens * mlp.width // t))
    if block.augment:
        yield from _moved(block.augment, run, tokens=tokens, whole=whole)


def _attention_elementwise(attention: Attentions | None, s: int, run: Lowering) -> Listed:
    if not attention:
        return
    workload = run.workload
    heads, kv_heads = attention.on_shard(workload.t)
    tokens = workload.own_tokens(s)
    windows, _, keys = tiled(attention, s, s)
    # Keys of another layer are normed and rotated there.
    turned = heads + (kv_heads if attention.keys_values != "borrowed" else 0)
    yield from _moved(
        attention,
        run,
        heads=heads,
        kv_heads=kv_heads,
        turned=turned,
        latents=sum(number for name, number in vectors(attention, hidden=0) if "_norm" in name),
        tokens=tokens,
        square=tokens * keys // windows * heads * attention.cores,
        eager=workload.attention == "eager",
    )


def model_elementwise(model: ModelShape, workload: Workload, s: int) -> Listed:
    """Token embedding, last norm and cross-entropy over fp32 logits."""
    run, tokens = Lowering(workload), workload.own_tokens(s)
    yield from _moved(
        model,
        run,
        tokens=tokens,
        embedded=model.embedding_dim or model.hidden,
        first=workload.p == 1,
        learns=not workload.adapted,
        streams=model.main.residuals if model.main.streams else 0,
        normed=whole_tokens(tokens, workload) * model.hidden,
        ends=model.main.final_norm,
    )
    if workload.train and model.head:
        logits, size = tokens * -(-model.vocab // workload.t), workload.activation_bytes
        # Forward: 16-bit logits in, an fp32 copy out, read again by log-softmax. Backward: the copy in, 16 bits out.
        passes = size + 4, 4, 4, size
        yield from run.moves("cross_entropy", "cross_entropy", logits, passes, model.heads * model.head_passes, size=1)


def optimizer_update(held: ShardParameters, workload: Workload, states: float | None) -> Elementwise:
    """The optimizer on this device's share of parameters.

    AdamW in mixed precision: fp32 gradient, master weight and two moments in (16 bytes a parameter); the latter three
    and the 16-bit weight out (14). ``states``: bytes of moments a parameter, of another optimizer.
    The host updates what was offloaded.
    """
    share, kept = (1 - workload.offload) * held.updated(workload), PRECISIONS[workload.precision or "mixed"]
    always = kept.master + (2 * kept.moments if states is None else states)
    read = always + kept.gradients + (0 if kept.master else kept.weights)
    return Elementwise(
        "optimizer", "optimizer", "optimizer", round(share * read), round(share * (always + kept.weights)), "fp32"
    )


#: Newton-Schulz iterations of Muon's usual implementations, and an iteration's products of r x c matrices, r <= c.
ITERATIONS, PRODUCTS = 5, _FACTS["newton_schulz"]


def newton_schulz(tensors: Tensors, workload: Workload) -> Listed:
    """Products that make each layer's matrix, or a rank's shard of it, orthogonal, where Muon trains it.

    ZeRO gives each data-parallel rank matrices of its own (Megatron-LM, core/optimizer/muon.py).
    """
    dtype = Lowering(workload).core_dtype()
    for one in tensors if workload.optimizer == "muon" else ():
        if one.role == "block" and len(one.shape) == 2:  # embeddings and the head are AdamW's
            sides = {True: min(one.shape), False: max(one.shape)}
            ranks = (workload.expert_d if one.expert else workload.d * workload.cp) if workload.zero else 1
            count = -(-one.copies * ITERATIONS // ranks)
            for name, (n, k) in PRODUCTS.items():
                named = f"optimizer.{one.name}.{name}"
                yield Gemm(named, "optimizer", sides[True], sides[n], sides[k], dtype=dtype, count=count)


def parameter_copies(held: ShardParameters, workload: Workload) -> Listed:
    """Copies of a microbatch's gradients and gathered weights in kernels of their own.

    For each parameter: sums in fp32 (DeepSpeed's BF16_Optimizer, update_hp_grads) take a cast (2 bytes in, 4 out), the
    sum (8 in, 4 out) and zeros (2 out). ZeRO 3 by parameter (FSDP2) takes a copy out of both gathers and one into the
    reduction's buffer. Autocast takes the gradient's cast and sum, and the weight's cast (4 in, 2 out); for an expert
    the sum alone.
    """
    sharded, autocast = workload.regathers, workload.precision == "amp"
    read, written = (6, 4 + workload.sent_bytes(workload.reduces)) if sharded else (10 + 4 * autocast, 10)
    if sharded or autocast or workload.reduces == "fp32":
        uncast = 6 * held.experts * (autocast and not sharded)
        moved = read * held.total - uncast, written * held.total - uncast
        yield Elementwise("copies", "wgrad", "accumulate", *moved, "fp32")


def tiled(attention: Attentions, q_len: int, kv_len: int) -> Triple:
    """(windows, rows of queries, rows of keys) of a sequence of so many tokens."""
    windows, queries, keys = attention.tiles
    return windows, queries or q_len, keys or kv_len


def attention_operators(attention: Attentions, run: Lowering, q_len: int, kv_len: int) -> Listed:
    """softmax(Q K^T) V, forward and backward, without its projections and elementwise parts."""
    workload = run.workload
    shared = workload.cp if workload.cp_comm == "a2a" else 1
    heads, kv_heads = (-(-one // shared) for one in attention.on_shard(workload.t))  # the fullest rank's
    narrow, causal = workload.attention_dtype, attention.causal and not attention.cross
    eager = not narrow and workload.attention == "eager"
    # Written out, scores of other documents are masked and computed all the same.
    pieces, q_len, kv_len = tiled(attention, q_len, kv_len)
    if workload.document and causal and not eager:
        pieces = -(-q_len // workload.document)
    core = Attention(
        name=run.prefix if eager else f"{run.prefix}.core",
        phase="forward",
        batch=workload.b * pieces,
        heads=heads,
        kv_heads=kv_heads,
        q_len=-(-q_len // pieces),
        kv_len=-(-kv_len // pieces),
        head_dim=attention.head_dim,
        v_head_dim=attention.v_dim,
        causal=causal,
        window=attention.window,
        dtype=narrow or run.core_dtype(),
        # Transformer Engine's 8-bit attention is cuDNN's.
        kernel="cudnn" if narrow else workload.attention,
        training=workload.train,
    )
    # Q, K and V go from 16 bits to 8 and the output back; backward its gradient, and theirs.
    ring = workload.cp // shared
    yield from run.moves(".core.quantise", "quantise", core.bytes // ring, (2, 1, 2, 1), bool(narrow), 1)
    yield from run.sends(".context_parallel", core.bytes, shared, "all_to_alls", stride=workload.t)
    for one in seen(core, ring):
        for phase in run.runs():
            own = replace(one, phase=phase, count=one.count * attention.cores)
            yield from _products(own) if eager else (own,)
    if ring > 1 and core.window is None:
        # Outputs are scaled and added up, backward the queries' gradients.
        merged = workload.own_tokens(q_len) * heads * attention.v_dim
        yield from run.moves(".core.merge", "residual", merged, (2, 1, 2, 1), ring * attention.cores)


def seen(core: Attention, cp: int) -> Iterator[Attention]:
    """The parts of ``core`` that one of a ring's ``cp`` ranks runs: half of its own square, and half of each other's.

    With a window it takes all keys at once (Transformer Engine).
    """
    if cp == 1:
        yield core
    elif core.window is not None:
        for queries, keys in chunks(core.q_len, core.kv_len, cp, core.causal):
            yield replace(core, q_len=queries, kv_len=keys)
    else:
        own = replace(core, q_len=-(-core.q_len // cp), kv_len=-(-core.kv_len // cp))
        yield own
        yield replace(own, kv_len=-(-own.kv_len // (1 + own.causal)), causal=False, count=cp - 1)


def chunks(q_len: int, kv_len: int, cp: int, causal: bool) -> tuple[Pair, ...]:
    """(queries, keys) of each chunk that one of ``cp`` ranks attends to.

    Causal sequences are cut into 2 cp chunks; each rank holds one from either end, so that all ranks have as many keys.

    >>> chunks(4096, 4096, 2, True)
    ((1024, 1024), (1024, 4096))
    """
    if cp == 1 or not causal:
        return ((-(-q_len // cp), kv_len),)
    own = -(-q_len // (2 * cp))
    return (own, own), (own, kv_len)


def core_sizes(attention: Attentions, t: int) -> tuple[int, int, int, bool]:
    """(key heads, head_dim, v_head_dim, whether values are a part of the keys) of one of ``t`` ranks' cached keys."""
    if isinstance(attention, MlaShape):
        return 1, attention.kv_lora_rank + attention.qk_rope_head_dim, attention.kv_lora_rank, True
    return attention.on_shard(t)[1], attention.head_dim, attention.v_dim, isinstance(attention, SharedKeyShape)


def absorbed_operators(attention: MlaShape, run: Lowering, tokens: int) -> Listed:
    """Latent attention's kv_b_proj, absorbed into the queries and the output of ``tokens``: a product for each head.

    All heads share the one latent key, whose first part is the value (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).
    """
    heads, rank = attention.on_shard(run.workload.t)[0], attention.kv_lora_rank
    last = ("wgrad",) if not run.workload.adapted else ()
    yield from _batched(".absorbed_queries", run, heads, (tokens, rank, attention.qk_nope_head_dim), *last)
    yield from _batched(".absorbed_values", run, heads, (tokens, attention.v_dim, rank), *last)


def predicted_streams(streams: int, hidden: int, run: Lowering, tokens: int) -> Listed:
    """AltUp's products: each token's streams by a matrix of its own, which has a gradient as they have."""
    yield from _batched("altup.predicted", run, tokens, (hidden, streams, streams), "dgrad")


def _batched(name: str, run: Lowering, batch: int, sizes: Triple, *last: Phase) -> Listed:
    """``batch`` products [m, n, k], the gradients of the first operand and, in the phase ``last``, of the second."""
    m, n, k = sizes
    three = (m, n, k), (m, k, n), (n, k, m)
    for asked, own in zip(("forward", "dgrad", *last), three):  # noqa: B905 - the shorter ends it
        for phase in run.runs(asked):
            yield Gemm(run.prefix + name, phase, *own, batch, run.core_dtype(), kind="bmm")


def decode_operators(attention: Attentions, run: Lowering, kv_len: int | None) -> Listed:
    """A decode step's attention over ``kv_len`` keys of the cache (None: all it holds); MLA's in the latent space."""
    workload = run.workload
    kv_heads, head_dim, v_dim, latent = core_sizes(attention, workload.t)
    if isinstance(attention, MlaShape):
        yield from absorbed_operators(attention, run, workload.tokens)
    yield CachedAttention(
        name=f"{run.prefix}.core",
        batch=workload.b,
        heads=attention.on_shard(workload.t)[0],
        kv_heads=kv_heads,
        q_len=workload.s,
        kv_len=kv_len or workload.cached(workload.s, attention.window),
        head_dim=head_dim,
        v_head_dim=v_dim,
        latent=latent,
        dtype=run.core_dtype(),
        kv_dtype=workload.cache_dtype,
        count=attention.cores,
        windowed=attention.window is not None,
    )


def _products(core: Attention) -> Listed:
    """The batched products of an attention that is not fused, over the whole square."""
    for part, *sizes, layout in _FACTS["written_out"][core.phase]:
        m, n, k = (getattr(core, size) for size in sizes)
        name, batch = f"{core.name}.{part}", core.batch * core.heads
        yield Gemm(name, core.phase, m, n, k, batch, core.dtype, layout, core.count, "bmm")


def written_out(core: Attention) -> Operators:
    """Operators where no fused kernel takes ``core``: its products, and the softmax over the whole square."""
    square = core.batch * core.heads * core.pairs * BYTES[core.dtype]
    read = 1 if core.phase == "forward" else 2
    softmax = Elementwise(f"{core.name}.softmax", core.phase, "softmax", read * square, square, core.dtype, core.count)
    return *_products(core), softmax


def recurrent_operators(mixer: RecurrentShape, run: Lowering, s: int) -> Listed:
    """Operators of recurrent layers between their projections, of sequences of ``s`` tokens.

    Context parallelism gives each rank whole sequences of its share of the heads (Megatron-Core's exchange before the
    convolution and behind the scan). A decode step reads and writes the state.
    """
    workload = run.workload
    heads, groups = mixer.on_shard(workload.t)
    tokens, channels, width = workload.own_tokens(s), mixer.conv_channels(workload.t), heads * mixer.head_dim
    if workload.decode:
        moved = workload.b * state_bytes(mixer, workload)
        yield StateUpdate(run.prefix + ".state", "forward", mixer.kind, moved, moved, workload.dtype)
        return
    gated = "gate" in mixer.form.parts and mixer.kind != "mamba"
    for one in _moved(mixer, run, convolved=tokens * channels, width=tokens * width, tokens=tokens, gated=gated):
        if workload.train or not isinstance(one, Elementwise) or one.what != "conv":
            yield one
        else:
            rows, both = tokens * channels // s, (one.bytes_read, one.bytes_written)
            yield Convolution(one.name, one.phase, "conv", *both, one.dtype, rows=rows, tokens=s)
    if mixer.form.products:
        own = -(-heads // workload.cp), -(-groups // workload.cp), mixer.head_dim, mixer.state, mixer.chunk
        for phase in run.runs():
            sizes, dtype = (workload.b, s, *own), run.core_dtype()
            yield Scan(f"{run.prefix}.scan", phase, mixer.kind, *sizes, dtype, training=workload.train)
    yield from _recurrent_collectives(mixer, run, tokens)


def _recurrent_collectives(mixer: RecurrentShape, run: Lowering, tokens: int) -> Listed:
    """Sums of Mamba-1's time steps over tensor-parallel ranks; context parallelism's exchange of tokens for heads."""
    workload, size = run.workload, tokens * run.workload.activation_bytes
    if mixer.kind == "mamba":
        buffer = size * (mixer.rank + 2 * mixer.state)
        yield from run.sends(".tensor_parallel", buffer, workload.t, "tensor_parallel")
    width = mixer.width(*mixer.form.parts, t=workload.t) + mixer.inner // workload.t
    yield from run.sends(".context_parallel", size * width, workload.cp, "all_to_alls", stride=workload.t)


#: Bytes of an element of a state, which serving software keeps in fp32 (vLLM's and SGLang's mamba_ssm_dtype of
#: released configurations).
STATE_BYTES = 4


def state_bytes(mixer: RecurrentShape, workload: Workload) -> int:
    """Bytes of one sequence's state and of its convolution's last inputs on one tensor-parallel rank."""
    heads, _ = mixer.on_shard(workload.t)
    kept = mixer.conv_channels(workload.t) * max(0, mixer.conv - 1)
    return heads * mixer.head_dim * mixer.state * STATE_BYTES + kept * workload.activation_bytes


def is_sparse(attention: Attentions, kv_len: int) -> bool:
    """Whether a query of ``kv_len`` tokens attends to less than all before it, by another kernel than a window's."""
    indexer = attention.indexer
    return isinstance(attention, SharedKeyShape) or (indexer is not None and kv_len > indexer.kept)


def sparse_operators(attention: Attentions, run: Lowering, q_len: int, kv_len: int) -> Listed:
    """The core of an attention that `is_sparse`, forward and backward."""
    workload, heads = run.workload, attention.on_shard(run.workload.t)[0]
    kv_heads, head_dim, v_dim, latent = core_sizes(attention, workload.t)
    for queries, length in chunks(q_len, kv_len, workload.cp, causal=True):
        if isinstance(attention, MlaShape):
            yield from absorbed_operators(attention, run, workload.b * queries)
        sizes = workload.b, heads, kv_heads, queries, *attended(attention, queries, length), head_dim, v_dim, latent
        for phase in run.runs():
            yield SparseAttention(f"{run.prefix}.core", phase, *sizes, run.core_dtype())


def attended(attention: Attentions, q_len: int, kv_len: int) -> Triple:
    """(keys in all, keys that one query walks, pairs) of the last ``q_len`` of ``kv_len`` tokens of a sequence."""
    indexer = attention.indexer
    if not isinstance(attention, SharedKeyShape):
        assert indexer, "dense"
        kept = min(indexer.kept, kv_len)
        return kv_len, kept, seen_pairs(q_len, kv_len, most=kept)
    window = min(attention.window or kv_len, kv_len)
    near = seen_pairs(q_len, kv_len, most=window)
    if not attention.compressor:
        return kv_len, window, near
    rate = attention.compressor.rate
    entries = kv_len // rate
    kept = min(indexer.kept, entries) if indexer else entries
    return kv_len + entries, window + kept, near + seen_pairs(q_len, kv_len, rate, kept)


def index_operators(attention: Attentions, run: Lowering, q_len: int, kv_len: int) -> Listed:
    """Operators that make compressed entries, and those of an indexer behind its projections, forward alone.

    Engines score in fp8 (DeepGEMM's fp8_mqa_logits), training in its own type.
    """
    workload, indexer = run.workload, attention.indexer
    tokens = workload.own_tokens(q_len)
    if isinstance(attention, SharedKeyShape) and attention.compressor:
        yield from _compressed(attention.compressor, "compressor", tokens, run)
    if not indexer or indexer.reused:
        return
    forward, heads = replace(run, prefix=f"{run.prefix}.indexer"), indexer.on_shard(workload.t)
    if indexer.compressor:
        yield from _compressed(indexer.compressor, "indexer.compressor", tokens, run, learns=False)
    width = (heads + (indexer.compressor is None)) * indexer.head_dim
    yield from forward.moves(".rotary", "rotary", tokens * width, (1, 1))
    dtype = run.core_dtype() if workload.train else "fp8"
    for queries, length in chunks(q_len, kv_len, workload.cp, causal=True):
        entries, pairs = length // indexer.rate, seen_pairs(queries, length, indexer.rate)
        if not entries:
            continue
        sizes = workload.b, heads, queries, entries, pairs
        yield IndexScores(f"{forward.prefix}.scores", *sizes, indexer.head_dim, dtype, workload.decode)
        each = heads if indexer.grouped else 1  # every head's choice, or one of them all
        chosen = entries // indexer.block, pairs // indexer.block, min(indexer.top_k, entries)
        yield TopK(f"{forward.prefix}.top_k", workload.b * each, queries, *chosen)


def _compressed(compressor: Compressor, name: str, tokens: int, run: Lowering, *, learns: bool = True) -> Listed:
    """The softmax over the gates of each entry's tokens, their sum, its norm and rotation: one kernel."""
    own = replace(run, prefix=f"{run.prefix}.{name}")
    yield from own.moves("", "norm", tokens * compressor.channels, (2, 0, 2, 2) if learns else (2, 0))


def cached_numbers(attention: Attentions, t: int, length: int) -> tuple[int, str]:
    """Numbers that a layer's cache keeps of one sequence of ``length`` tokens on one of ``t`` ranks, and how."""
    kv, head_dim, v_dim, latent = core_sizes(attention, t)
    width = head_dim if latent else kv * (head_dim + v_dim)
    if isinstance(attention, SharedKeyShape):
        kept = min(attention.window or length, length)
        kept += length // attention.compressor.rate if attention.compressor else 0
        text = f"{kept} keys x {width}"
    else:
        kept, text = length, f"{length} tokens x {width} ({'latent' if latent else f'{kv} kv heads'})"
    text += " and the indexer's keys" * (attention.indexer is not None)
    return kept * width + index_numbers(attention.indexer, length), text


def passed_numbers(attention: Attentions, t: int, length: int) -> int:
    """Numbers of a sequence's keys and values that ranks of context parallelism give each other.

    They go as they are cached, but latent attention that is not sparse expands them first, and a window does not end
    where a chunk does.
    """
    if isinstance(attention, SharedKeyShape):
        attention = replace(attention, window=None)
    elif not is_sparse(attention, length):
        own = length * attention.on_shard(t)[1] * (attention.head_dim + attention.v_dim)
        return own + index_numbers(attention.indexer, length)
    return cached_numbers(attention, t, length)[0]


def index_numbers(indexer: Indexer | None, length: int) -> int:
    """Numbers of an indexer's keys of one sequence."""
    return 0 if not indexer or indexer.reused else length // indexer.rate * indexer.head_dim
