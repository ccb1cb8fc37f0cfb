"""What a step runs: one operator type for the formula path and the trace path alike.

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

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

from shapes.dtypes import BYTES
from shapes.errors import InputError
from shapes.frozen import frozen

#: ``dgrad`` is every gradient of an activation (attention's whole backward too), ``wgrad`` of a weight.
Phase = Literal["forward", "dgrad", "wgrad", "optimizer"]
Layout = Literal["tn", "nn", "nt", "tt"]
CollectiveName = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
LAYOUT_OF_PHASE: dict[str, Layout] = {"forward": "tn", "dgrad": "nn", "wgrad": "nt"}


@frozen
class Gemm:
    """``batch`` products C[m,n] = A[m,k] B[k,n], run ``count`` times a step on one device.

    ``kind`` is "gemm" for a plain product, "bmm" for a batched one, "conv" for a convolution's implicit GEMM.
    ``out_dtype`` is C's element type where it differs (fp8 in, bf16 out); ``recipe``: the low-precision recipe (of
    shapes.recipes) whose kernels run it, None: what the element type alone stands for. ``pads``: torch.compile
    may pad its operands to aligned ones.
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

    @property
    def flops(self) -> int:
        """Floating-point operations of one run: 2 batch m n k (a multiply and an add)."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Least bytes one run moves: A and B read once, C written once."""
        size, out = BYTES[self.dtype], BYTES[self.out_dtype or self.dtype]
        return self.batch * ((self.m * self.k + self.k * self.n) * size + self.m * self.n * out)


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
        if self.ragged == "m":
            b *= self.groups
        else:
            c *= self.groups
        return (a + b + c) * BYTES[self.dtype]


@frozen
class Attention:
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
    def trains(self) -> bool:
        """Whether a backward follows, or is this one."""
        return self.training or self.phase != "forward"

    @property
    def visible_flops(self) -> float:
        """FLOPs of the pairs that the mask leaves: what a fused kernel does of `flops`."""
        return self.flops * self.visible_share

    @property
    def flops(self) -> int:
        """As torch's FlopCounterMode counts: the full square, causal or not.

        Forward: Q K^T and P V. Backward: the scores again, dP = dO V^T, dV = P^T dO, dQ = dS K, dK = dS^T Q.
        """
        qk, pv = self.head_dim, self.v_head_dim
        per_pair = 2 * qk + 2 * pv if self.phase == "forward" else 6 * qk + 4 * pv
        return self.batch * self.heads * self.q_len * self.kv_len * per_pair

    @property
    def needed_flops(self) -> int:
        """`flops` without the scores that a fused kernel's backward computes again: what MFU counts of them."""
        again = 0 if self.phase == "forward" else 2 * self.head_dim
        return self.flops - self.batch * self.heads * self.q_len * self.kv_len * again

    @property
    def visible_share(self) -> float:
        """Share of the q_len x kv_len square that the mask leaves (a causal square: a half and a diagonal)."""
        q, kv = self.q_len, self.kv_len
        if not self.causal:
            return 1.0 if self.window is None else min(1.0, self.window / kv)
        # Bottom-right aligned: query i sees kv - q + i + 1 keys, at most `window` of them.
        window = kv if self.window is None else min(self.window, kv)
        first = max(kv - q + 1, 0)  # keys the first query sees
        last = min(kv, window)
        if first >= window:
            return window / kv
        ramp = min(window - first, q)
        seen = ramp * first + ramp * (ramp - 1) / 2 + (q - ramp) * last
        return seen / (q * kv)

    @property
    def bytes(self) -> int:
        q = self.batch * self.heads * self.q_len
        kv = self.batch * self.kv_heads * self.kv_len
        forward = q * (self.head_dim + self.v_head_dim) + kv * (self.head_dim + self.v_head_dim)
        # Backward reads Q, K, V, O and dO and writes dQ, dK, dV: the forward's four tensors and the gradient of each.
        return (1 if self.phase == "forward" else 2) * forward * BYTES[self.dtype]


@frozen
class CachedAttention:
    """A decode step's attention: ``q_len`` new tokens of each sequence against ``kv_len`` keys of its KV cache.

    Sizes as in `Attention`. ``latent``: values are a part of the keys (MLA's compressed cache, read once for both).
    ``kv_dtype``: the cache's element type.
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

    @property
    def flops(self) -> int:
        return 0

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written


@frozen
class Collective:
    """A communication operator over ``ranks`` devices; ``bytes`` is the buffer on each of them.

    For all_gather and reduce_scatter it is the full (gathered) buffer, as NCCL's tests count it. ``stride``: devices
    from one rank of the group to the next, where tensor parallelism's ranks are neighbours, then context
    parallelism's, then data parallelism's, then the pipeline's (Megatron-LM's order): it decides which links are used.
    ``copies``: of an all_to_all's buffer, how many destinations each token is in it for (a mixture's top_k) where a
    dispatcher sends it to a rank or node once; 1: everything in the buffer is sent.
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

    @property
    def flops(self) -> int:
        return 0


@frozen
class OperatorKind:
    """What is done with operators of a ``type`` and ``kind``; functions are named by module and name.

    ``work_class``: which of a software stack's classes they run as ("": what they say themselves; None: none, but
    communication or the update). ``lowered`` makes a rank's share of them, ``priced`` gives many costs on a device,
    ``explained`` a cost's terms, ``measured`` a callable that runs one (None: nothing here runs them).
    """

    type: type
    kind: str
    work_class: str | None
    lowered: str
    priced: str
    explained: str
    measured: str | None


#: Matrix products: what has m, n, k and a layout.
Product = Gemm | GroupedGemm
Operator = Product | Attention | CachedAttention | Elementwise | Collective

_PRODUCTS, _OF_PRODUCTS = "shapes.cost.predict:product_costs", "shapes.cost.explain:product_terms"
_MOVED = ("shapes.cost.predict:moved_costs", "shapes.cost.explain:moved_terms", None)
_LINEAR = ("shapes.operators.lower:linear_operators", _PRODUCTS, _OF_PRODUCTS, "shapes.measure.kernels.products:gemm")
_CORES = "shapes.operators.cores:attention_operators"
#: Every kind of operator, and who lowers, prices, explains and measures it.
KINDS = (
    OperatorKind(Gemm, "gemm", "gemm", *_LINEAR),
    OperatorKind(Gemm, "conv", "gemm", *_LINEAR),
    OperatorKind(Gemm, "bmm", "bmm", _CORES, *_LINEAR[1:]),
    OperatorKind(
        GroupedGemm,
        "grouped_gemm",
        "grouped",
        "shapes.operators.lower:expert_operators",
        _PRODUCTS,
        _OF_PRODUCTS,
        "shapes.measure.kernels.products:grouped_gemm",
    ),
    OperatorKind(
        Attention,
        "attention",
        "attention",
        _CORES,
        "shapes.cost.predict:attention_costs",
        "shapes.cost.explain:attention_terms",
        "shapes.measure.kernels.functions:attention",
    ),
    OperatorKind(CachedAttention, "attention", "attention", "shapes.operators.cores:decode_operators", *_MOVED),
    OperatorKind(Elementwise, "elementwise", "", "shapes.operators.cores:block_elementwise", *_MOVED),
    OperatorKind(Collective, "collective", None, "shapes.operators.parallel:block_collectives", *_MOVED),
)
_KNOWN = {(one.type, one.kind): one for one in KINDS}


def kind_of(operator: Operator) -> OperatorKind:
    """The entry of KINDS; InputError for what has none."""
    known = _KNOWN.get((type(operator), getattr(operator, "kind", "")))
    if known is None:
        expected = "expected an operator of a kind in KINDS of shapes/operators/types.py; no cost is known"
        raise InputError(expected, key="kind", value=operator)
    return known


@lru_cache(maxsize=64)
def named_function(path: str) -> Callable[..., Any]:
    """What "module:name" names."""
    module, _, name = path.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def needed_flops(listed: Iterable[Operator], *, causal: bool = False) -> float:
    """FLOPs that ``listed`` need: what MFU counts, a fused attention kernel's own recomputation left out.

    ``causal``: of attention's square only the part that the mask leaves, not all of it.
    """
    total = 0.0
    for operator in listed:
        flops: float = operator.flops
        if isinstance(operator, Attention):
            flops = operator.needed_flops * (operator.visible_share if causal else 1.0)
        total += flops * operator.count
    return total


def counted_once(operator: Operator) -> Operator:
    """The operator with a ``count`` of 1: what equal work is known by."""
    # Itself where it can be: a search prices a hundred thousand, and replacing took half of its time.
    return operator if operator.count == 1 else replace(operator, count=1)
