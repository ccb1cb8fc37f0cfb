"""The attention core: one fused operator, or scores and values as batched products (eager)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from shapes.dtypes import BYTES, QUANTISED
from shapes.model import AttentionShape, MlaShape
from shapes.operators.types import Attention, CachedAttention, Elementwise, Gemm, Layout, Operator, Phase
from shapes.workload import Workload


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


def _fused(
    attention: AttentionShape | MlaShape, workload: Workload, q_len: int, kv_len: int, name: str, count: int
) -> Iterator[Operator]:
    heads, kv_heads = attention.on_shard(workload.t)
    forwards = count * (2 if workload.train and workload.checkpointing != "none" else 1)
    phases: list[tuple[Phase, int]] = [("forward", forwards)]
    if workload.train:
        phases.append(("dgrad", count))
    causal = attention.causal and not attention.cross
    for (queries, keys), (phase, times) in product(chunks(q_len, kv_len, workload.cp, causal), phases):
        yield Attention(
            name=f"{name}.core",
            phase=phase,
            batch=workload.b,
            heads=heads,
            kv_heads=kv_heads,
            q_len=queries,
            kv_len=keys,
            head_dim=attention.head_dim,
            v_head_dim=attention.v_dim,
            causal=causal,
            window=attention.window,
            dtype=_core_dtype(workload),
            count=times,
            kernel="auto" if workload.attention == "flash" else workload.attention,
            training=workload.train,
        )


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
    heads, kv_heads = attention.on_shard(workload.t)
    forwards = count * (2 if workload.train and workload.checkpointing != "none" else 1)
    core = Attention(
        name=name,
        phase="forward",
        batch=workload.b,
        heads=heads,
        kv_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=attention.head_dim,
        v_head_dim=attention.v_dim,
        dtype=_core_dtype(workload),
        count=forwards,
    )
    yield from _products(core)
    if workload.train:
        yield from _products(replace(core, phase="dgrad", count=count))


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
