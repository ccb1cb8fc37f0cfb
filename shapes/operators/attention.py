"""The attention core: one fused operator (flash), or scores and values as batched products (eager)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from shapes.model import AttentionShape, MlaShape
from shapes.operators.types import Attention, Gemm, Layout, Operator, Phase
from shapes.workload import Workload


def attention_operators(
    attention: AttentionShape | MlaShape, workload: Workload, q_len: int, kv_len: int, name: str, count: int
) -> Iterator[Operator]:
    """softmax(Q K^T) V of ``count`` layers, forward and backward, without its projections and elementwise parts."""
    core = _flash if workload.attention == "flash" else _eager
    yield from core(attention, workload, q_len, kv_len, name, count)


def _flash(
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
            name=f"{name}.core", phase=phase, batch=workload.b, heads=heads, kv_heads=kv_heads, q_len=queries,
            kv_len=keys, head_dim=attention.head_dim, v_head_dim=attention.v_dim,
            causal=causal, window=attention.window,
            dtype=_core_dtype(workload), count=times,
        )  # fmt: skip


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
    heads, _ = attention.on_shard(workload.t)
    d, dv = attention.head_dim, attention.v_dim
    forwards = count * (2 if workload.train and workload.checkpointing != "none" else 1)
    # scores S = Q K^T, values O = P V; then dQ = dS K, dK = dS^T Q, dP = dO V^T, dV = P^T dO.
    products: list[tuple[str, Phase, int, int, int, Layout, int]] = [
        ("scores", "forward", q_len, kv_len, d, "tn", forwards),
        ("values", "forward", q_len, dv, kv_len, "nn", forwards),
    ]
    if workload.train:
        products += [
            ("scores", "dgrad", q_len, d, kv_len, "nn", count),
            ("scores", "dgrad", kv_len, d, q_len, "nt", count),
            ("values", "dgrad", q_len, kv_len, dv, "tn", count),
            ("values", "dgrad", kv_len, dv, q_len, "nt", count),
        ]
    for part, phase, m, n, k, layout, times in products:
        yield Gemm(
            name=f"{name}.{part}", phase=phase, m=m, n=n, k=k, batch=workload.b * heads, dtype=_core_dtype(workload),
            layout=layout, count=times, kind="bmm",
        )  # fmt: skip


def _core_dtype(workload: Workload) -> str:
    # fp8 and int8 recipes quantise the linear layers; the attention core stays in 16 bits.
    return "bf16" if workload.dtype in ("fp8", "int8") else workload.dtype
