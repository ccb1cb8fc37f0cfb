"""Operators of a step: one type for the formula path and the trace path alike.

BLAS order everywhere: C[m,n] = A[m,k] B[k,n], ``batch`` times. For a linear layer

=======  =============  ==============  =======  ======
phase    m              n               k        layout
=======  =============  ==============  =======  ======
forward  tokens         out_features    in       tn
dgrad    tokens         in_features     out      nn
wgrad    out_features   in_features     tokens   nt
=======  =============  ==============  =======  ======

``layout`` is cuBLAS's (column-major) name, so its first letter speaks of B and its second of A:

====== ====================== ======================
layout A[m,k] is contiguous   B[k,n] is contiguous
====== ====================== ======================
tn     along k (ld = k)       along k (ld = k)
nn     along k (ld = k)       along n (ld = n)
nt     along m (ld = m)       along n (ld = n)
tt     along m (ld = m)       along k (ld = k)
====== ====================== ======================

C is always contiguous along n (ld = n).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, Literal, get_args

from shapes.dtypes import BYTES
from shapes.errors import InputError
from shapes.frozen import Ints, Pair, frozen
from shapes.model.mixers import RecurrenceKind, recurrences
from shapes.toml_table import DATA, content

#: ``dgrad`` is every gradient of an activation (attention's whole backward too), ``wgrad`` of a weight.
Phase = Literal["forward", "dgrad", "wgrad", "optimizer"]
Layout = Literal["tn", "nn", "nt", "tt"]
CollectiveName = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
LAYOUT_OF_PHASE: dict[str, Layout] = {"forward": "tn", "dgrad": "nn", "wgrad": "nt"}


def weights_read(elements: int, quantised: float | None, size: int) -> int:
    """Bytes of so many weights, quantised or of ``size`` bytes each."""
    return elements * size if quantised is None else round(elements * quantised)


def seen_pairs(q_len: int, kv_len: int, rate: int = 1, most: int | None = None) -> int:
    """Pairs of the last ``q_len`` of ``kv_len`` tokens and the entries of ``rate`` tokens before each (``most``).

    >>> seen_pairs(4, 4), seen_pairs(4, 4, most=2), seen_pairs(8, 8, 4), seen_pairs(2, 10, most=3)
    (10, 7, 6, 6)
    """
    first, last = kv_len - q_len + 1, kv_len
    if most is not None and first >= most * rate:
        return q_len * most

    def before(tokens: int) -> int:
        # The sum over 1 to `tokens` of how many whole entries that many tokens have.
        whole, over = divmod(tokens + 1, rate)
        return rate * whole * (whole - 1) // 2 + whole * over

    capped = 0 if most is None else max(0, last - most * rate)
    return before(last - capped) - before(first - 1) + capped * (most or 0)


@frozen
class Gemm:
    """``batch`` products C[m,n] = A[m,k] B[k,n], run ``count`` times a step on one device.

    ``kind`` is "gemm" for a plain product, "bmm" for a batched one, "conv" for a convolution's implicit GEMM.
    ``out_dtype`` is C's element type where it differs (fp8 in, bf16 out); ``recipe``: the low-precision recipe (of
    shapes.recipes) whose kernels run it, None: that of the element type alone. ``pads``: torch.compile
    may pad its operands to aligned ones. ``weight_bytes``: an element of B, with its share of scales, where that is not
    the element type's (quantised weights).
    """

    name: str
    phase: Phase
    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "bf16"
    layout: Layout = "tn"
    count: int = 1
    kind: Literal["gemm", "bmm", "conv"] = "gemm"
    out_dtype: str | None = None
    recipe: str | None = None
    pads: bool = False
    weight_bytes: float | None = None

    @property
    def flops(self) -> int:
        """Floating-point operations of one run: 2 batch m n k (a multiply and an add)."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Least bytes one run moves: A and B read once, C written once."""
        size, out = BYTES[self.dtype], BYTES[self.out_dtype or self.dtype]
        weights = weights_read(self.k * self.n, self.weight_bytes, size)
        return self.batch * (self.m * self.k * size + weights + self.m * self.n * out)


@frozen
class GroupedGemm:
    """One launch of ``groups`` products that share two dimensions: a layer's experts.

    The ragged dimension holds the *total* over the groups, so FLOPs are 2 m n k whatever the routing:
    ``ragged="m"`` (forward, dgrad: m = all routed tokens) or ``ragged="k"`` (wgrad: k = all routed tokens).
    ``load`` is the fullest group's share over the mean (1.0: even routing).
    """

    name: str
    phase: Phase
    groups: int
    m: int
    n: int
    k: int
    ragged: Literal["m", "k"] = "m"
    dtype: str = "bf16"
    layout: Layout = "tn"
    count: int = 1
    load: float = 1.0
    recipe: str | None = None
    weight_bytes: float | None = None
    kind: Literal["grouped_gemm"] = "grouped_gemm"

    @property
    def batch(self) -> int:
        return self.groups

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        a, b, c = self.m * self.k, self.k * self.n, self.m * self.n
        size = BYTES[self.dtype]
        if self.ragged == "m":
            return (a + c) * size + weights_read(b * self.groups, self.weight_bytes, size)
        return (a + b + c * self.groups) * size


@frozen
class RoutedGemm(GroupedGemm):
    """A grouped product of a serving engine's fused experts: its kernels are others than training's.

    ``held``: experts on this device, those without rows too. ``choices``: experts that its router chooses among.
    ``recipe`` is MXFP4's too where weights alone are in it: engines have kernels of their own for those.
    """

    held: int = 0
    choices: int = 0


class _Fused:
    """FLOPs of a fused attention by its ``pairs`` of a query and a key in each of ``batch`` sequences."""

    __slots__ = ()

    @property
    def flops(self: Any) -> Any:
        """As torch's FlopCounterMode counts: of dense attention the full square, causal or not.

        Forward: Q K^T and P V. Backward: the scores again, dP = dO V^T, dV = P^T dO, dQ = dS K, dK = dS^T Q.
        """
        qk, pv = self.head_dim, self.v_head_dim
        return self.batch * self.heads * self.pairs * (2 * qk + 2 * pv if self.phase == "forward" else 6 * qk + 4 * pv)

    @property
    def needed_flops(self: Any) -> Any:
        """`flops` without the scores that the backward computes again: what MFU counts of them."""
        again = 0 if self.phase == "forward" else 2 * self.head_dim
        return self.flops - self.batch * self.heads * self.pairs * again


@frozen
class Attention(_Fused):
    """One fused attention operator: softmax(Q K^T) V for ``batch`` sequences.

    Q is [batch, heads, q_len, head_dim], K [batch, kv_heads, kv_len, head_dim], V [batch, kv_heads, kv_len,
    v_head_dim]. ``window`` keys are seen by each query (None: all). ``phase="dgrad"`` is the whole backward.
    ``kernel`` is asked for ("auto": what the device's usual stack runs; shapes.kernels knows them). ``training``:
    whether a backward follows, for which kernels are built for fewer head dimensions; ``deterministic``: it is asked
    to be reproducible.
    """

    name: str
    phase: Phase
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    v_head_dim: int
    causal: bool = True
    window: int | None = None
    dtype: str = "bf16"
    count: int = 1
    kind: Literal["attention"] = "attention"
    kernel: str = "auto"
    training: bool = False
    deterministic: bool = False

    @property
    def sizes(self) -> Ints:
        """Sequences, heads, those of keys, queries and keys a sequence, dimensions of a key's and a value's head."""
        return self.batch, self.heads, self.kv_heads, self.q_len, self.kv_len, self.head_dim, self.v_head_dim

    @property
    def trains(self) -> bool:
        """Whether a backward follows, or is this one."""
        return self.training or self.phase != "forward"

    @property
    def visible_flops(self) -> Any:
        """FLOPs of the pairs that the mask leaves: what a fused kernel does of `flops`."""
        return self.flops * self.visible_share

    @property
    def pairs(self) -> int:
        """Pairs of the full square."""
        return self.q_len * self.kv_len

    @property
    def visible_share(self) -> float:
        """Share of the q_len x kv_len square that the mask leaves (a causal square: a half and a diagonal)."""
        kv = self.kv_len
        most = kv if self.window is None else min(self.window, kv)
        if not self.causal:
            return most / kv
        # Bottom-right aligned: query i sees kv - q + i + 1 keys, at most `window` of them.
        return seen_pairs(min(self.q_len, kv), kv, most=most) / self.pairs

    @property
    def bytes(self) -> int:
        rows = self.batch * (self.heads * self.q_len + self.kv_heads * self.kv_len)
        # Backward reads Q, K, V, O and dO and writes dQ, dK, dV: the forward's four tensors and the gradient of each.
        passes = 1 if self.phase == "forward" else 2
        return passes * rows * (self.head_dim + self.v_head_dim) * BYTES[self.dtype]


@frozen
class CachedAttention:
    """A decode step's attention: ``q_len`` new tokens of each sequence against ``kv_len`` keys of its KV cache.

    Sizes as in `Attention`. ``latent``: values are a part of the keys (MLA's compressed cache, read once for both).
    ``kv_dtype``: the cache's element type. ``windowed``: the kernel is told of a window (kv_len holds no more of it).
    """

    name: str
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    v_head_dim: int
    latent: bool = False
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    count: int = 1
    phase: Phase = "forward"
    kind: Literal["attention"] = "attention"
    windowed: bool = False

    @property
    def window(self) -> int | None:
        """Keys of the window that the kernel is told of; None without one."""
        return self.kv_len if self.windowed else None

    @property
    def flops(self) -> int:
        """Q K^T and P V over every cached key."""
        return 2 * self.batch * self.heads * self.q_len * self.kv_len * (self.head_dim + self.v_head_dim)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cache, which one run reads once."""
        width = self.head_dim + (0 if self.latent else self.v_head_dim)
        return self.batch * self.kv_heads * self.kv_len * width * BYTES[self.kv_dtype]

    @property
    def bytes(self) -> int:
        """The cache read, the queries read and the output written."""
        rows = self.batch * self.heads * self.q_len
        return self.cache_bytes + rows * (self.head_dim + self.v_head_dim) * BYTES[self.dtype]


@frozen
class IndexScores:
    """An indexer's scores: each query of ``batch`` sequences against the keys before it, in ``heads`` of ``head_dim``.

    ``pairs`` of a query and a key are scored in a sequence, and their sum over the heads written in fp32. ``kv_len``
    keys are read; ``cached``: from a decode step's cache.
    """

    name: str
    batch: int
    heads: int
    q_len: int
    kv_len: int
    pairs: int
    head_dim: int
    dtype: str = "fp8"
    cached: bool = False
    count: int = 1
    phase: Phase = "forward"
    kind: Literal["index_scores"] = "index_scores"

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.heads * self.pairs * self.head_dim

    @property
    def bytes(self) -> int:
        read = (self.heads * self.q_len + self.kv_len) * self.head_dim * BYTES[self.dtype]
        return self.batch * (read + 4 * self.pairs)


@frozen
class TopK:
    """The choice of ``top_k`` entries for each query of ``batch`` sequences, among ``pairs`` fp32 scores in each."""

    name: str
    batch: int
    q_len: int
    kv_len: int
    pairs: int
    top_k: int
    dtype: str = "fp32"
    count: int = 1
    phase: Phase = "forward"
    kind: Literal["top_k"] = "top_k"
    flops: ClassVar[int] = 0

    @property
    def bytes(self) -> int:
        return 4 * self.batch * (self.pairs + self.q_len * self.top_k)


@frozen
class SparseAttention(_Fused):
    """One fused attention of each query over keys of its own: those chosen, or a window and compressed ones.

    ``pairs`` of a query and a key are attended to in each of ``batch`` sequences, at most ``keys`` for one query, of
    ``kv_len`` in all. ``latent``: values are a part of the keys. ``phase="dgrad"`` is the whole backward.
    """

    name: str
    phase: Phase
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    keys: int
    pairs: int
    head_dim: int
    v_head_dim: int
    latent: bool = False
    dtype: str = "bf16"
    count: int = 1
    kind: Literal["sparse_attention"] = "sparse_attention"

    @property
    def bytes(self) -> int:
        """Queries, output and each key that any may choose once, and the chosen entries' numbers."""
        rows = self.heads * self.q_len * (self.head_dim + self.v_head_dim)
        kept = self.kv_heads * min(self.kv_len, self.q_len * self.keys)
        kept *= self.head_dim + (0 if self.latent else self.v_head_dim)
        passes = 1 if self.phase == "forward" else 2
        return self.batch * (passes * (rows + kept) * BYTES[self.dtype] + 4 * self.q_len * self.keys)


@frozen
class Scan:
    """The scan of a recurrence (``form``, of `shapes.model.mixers`) over ``batch`` sequences of ``tokens``.

    ``heads`` each keep a state of ``state`` x ``head_dim`` from one ``chunk`` of tokens to the next; ``groups`` of them
    share keys and queries. ``phase="dgrad"`` is the whole backward. ``training``: whether a backward follows.
    """

    name: str
    phase: Phase
    form: RecurrenceKind
    batch: int
    tokens: int
    heads: int
    groups: int
    head_dim: int
    state: int
    chunk: int
    dtype: str = "bf16"
    count: int = 1
    kind: Literal["scan"] = "scan"
    training: bool = False

    @property
    def chunks(self) -> int:
        """Chunks of one sequence, the last one whole."""
        return -(-self.tokens // self.chunk)

    @property
    def products(self) -> tuple[tuple[str, int, int, int, int], ...]:
        """The forward's matrix products: (name, batch, m, n, k)."""
        own = self.groups, self.heads
        return tuple(
            (name, self.batch * self.chunks * own[not shared], *(getattr(self, size) for size in sizes))
            for name, shared, *sizes in recurrences()[self.form].products
        )

    @property
    def flops(self) -> int:
        """FLOPs of its products; backward runs two for each: dA = dC B^T, dB = A^T dC."""
        forward = sum(2 * batch * m * n * k for _, batch, m, n, k in self.products)
        return forward if self.phase == "forward" else 2 * forward

    @property
    def bytes(self) -> int:
        """Queries, keys, values and gates read and the output written; backward also its gradient in and theirs out."""
        width = 2 * self.groups * self.state + 2 * self.heads * self.head_dim
        gates = self.heads * (self.state + 1 if self.form == "kda" else self.form != "lightning")
        rows = self.batch * self.tokens
        return (1 if self.phase == "forward" else 2) * rows * (width + gates) * BYTES[self.dtype]


@frozen
class Elementwise:
    """A memory-bound operator: its time is the bytes it moves. ``what`` says which (norm, softmax, …)."""

    name: str
    phase: Phase
    what: str
    bytes_read: int
    bytes_written: int
    dtype: str = "bf16"
    count: int = 1
    kind: Literal["elementwise"] = "elementwise"
    flops: ClassVar[int] = 0

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written


@frozen
class StateUpdate(Elementwise):
    """A decode step's recurrence (``what``): its state, and its convolution's window, are read and written."""


@frozen
class Cast(Elementwise):
    """A cast of a served product's input to fewer bits."""


@frozen
class Convolution(Elementwise):
    """A prompt's causal convolution over ``tokens``: a thread block walks each of ``rows`` (sequences x channels)."""

    rows: int = 0
    tokens: int = 0


@frozen
class Collective:
    """A communication operator over ``ranks`` devices; ``bytes`` is the buffer on each of them.

    For all_gather and reduce_scatter it is the full (gathered) buffer, as NCCL's tests count it. ``stride``: devices
    from one rank of the group to the next, which decides the links that are used. Tensor parallelism's ranks are
    neighbours, then context parallelism's, then data parallelism's, then the pipeline's (Megatron-LM's order).
    ``copies``: destinations for which each token is in an all_to_all's buffer (a mixture's top_k), if a dispatcher
    sends it to a rank or node once; 1: everything in the buffer is sent. ``groups``: MoeShape's groups of destinations.
    ``direct``: by a serving engine's own kernel, whose ranks read one another's buffers.
    """

    name: str
    phase: Phase
    what: CollectiveName
    bytes: int
    ranks: int
    dtype: str = "bf16"
    count: int = 1
    kind: Literal["collective"] = "collective"
    stride: int = 1
    copies: int = 1
    groups: Pair = (1, 1)
    direct: bool = False
    flops: ClassVar[int] = 0


@frozen
class OperatorKind:
    """The functions for operators of a ``type`` and ``kind``, each by its module and name.

    ``work_class``: their class in a software stack ("": the operator's own; None: they are communication or the
    update). ``lowered`` makes a rank's share of them, ``priced`` gives many costs on a device, ``explained`` a cost's
    terms, ``measured`` a callable that runs one (None: nothing here runs them). ``parts``, ``regime`` and ``form`` are
    for operators that mostly move bytes (shapes.cost.moving).
    """

    type: type
    kind: str
    lowered: str
    priced: str
    explained: str
    work_class: str | None = None
    measured: str | None = None
    parts: str = ""
    regime: str = ""
    form: str = ""


#: Matrix products: what has m, n, k and a layout.
Product = Gemm | GroupedGemm
Operator = (
    Product
    | RoutedGemm
    | Attention
    | CachedAttention
    | IndexScores
    | TopK
    | SparseAttention
    | Scan
    | Elementwise
    | StateUpdate
    | Cast
    | Convolution
    | Collective
)

#: Operators one by one, and all of a step.
Listed = Iterator[Operator]
Operators = tuple[Operator, ...]

_TYPES = {one.__name__: one for one in get_args(Operator)}
#: Every kind of operator, and who lowers, prices, explains and measures it.
KINDS = tuple(OperatorKind(**{**row, "type": _TYPES[row["type"]]}) for row in content(DATA / "operators.toml")["kinds"])
_KNOWN = {(one.type, one.kind): one for one in KINDS}


def kind_of(operator: Operator) -> OperatorKind:
    """The entry of KINDS; InputError for what has none."""
    known = _KNOWN.get((type(operator), getattr(operator, "kind", "")))
    if not known:
        expected = "expected an operator of a kind in KINDS of shapes/operators/types.py; no cost is known"
        raise InputError(expected, "kind", operator)
    return known


def needed_flops(listed: Iterable[Operator], *, causal: bool = False) -> float:
    """FLOPs that ``listed`` need: what MFU counts, a fused attention's own recomputation and an optimizer's left out.

    ``causal``: of attention's square only the part that the mask leaves, not all of it.
    """
    total = 0.0
    for operator in listed:
        flops = getattr(operator, "needed_flops", operator.flops)
        if causal and isinstance(operator, Attention):
            flops *= operator.visible_share
        total += flops * operator.count * (operator.phase != "optimizer")
    return total


def moved_bytes(listed: Iterable[Operator]) -> float:
    """Bytes that products and attention move of each operand, once: what MBU counts."""
    return sum(one.bytes * one.count for one in listed if not isinstance(one, Elementwise | Collective))


def possible_mfu(needed: Sequence[float], most: float) -> float:
    """MFU of a step that had time for ``most`` FLOPs.

    Attention's whole square counts, unless no kernel can have run it; then the part that the mask leaves. ``needed``:
    the step's FLOPs by either count.
    """
    return needed[needed[0] > most] / most


def work_key(operator: Operator) -> tuple[object, ...]:
    """All of an operator but its count: what equal work is known by."""
    kind: Any = operator.__class__
    return kind, *_work(kind)(operator)


@cache
def _work(kind: Any) -> Callable[[Operator], tuple[object, ...]]:
    return attrgetter(*(name for name in kind.__match_args__ if name != "count"))
