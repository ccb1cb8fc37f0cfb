"""What sparse attention runs between a layer's projections: an indexer, its choice, and attention over what it chose.

A query sees the keys before it, an entry of several tokens once all of them are. Where a sequence is no longer than
what an indexer keeps, everything is chosen and attention is dense; the indexer runs all the same, since a cache needs
its keys and a longer context follows. Beyond, latent attention runs in the latent space as in decoding (the MQA mode of
DeepSeek-V3.2, arXiv 2512.02556): a query's keys are its own, and expanding them for each would take more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shapes.model import Compressor, Indexer, MlaShape, SharedKeyShape
from shapes.model.layers import Attention as Shape
from shapes.operators.cores import (
    ONCE,
    Lowering,
    absorbed_operators,
    chunks,
    core_sizes,
)
from shapes.operators.types import Elementwise, IndexScores, Operator, SparseAttention, TopK


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


def is_sparse(attention: Shape, kv_len: int) -> bool:
    """Whether a query of ``kv_len`` tokens attends to less than all before it, by another kernel than a window's."""
    indexer = attention.indexer
    return isinstance(attention, SharedKeyShape) or (indexer is not None and kv_len > indexer.kept)


def sparse_operators(attention: Shape, run: Lowering, q_len: int, kv_len: int) -> Iterator[Operator]:
    """The core of an attention that `is_sparse`, forward and backward."""
    workload, heads = run.workload, attention.on_shard(run.workload.t)[0]
    kv_heads, head_dim, v_dim, latent = core_sizes(attention, workload.t)
    for queries, length in chunks(q_len, kv_len, workload.cp, causal=True):
        if isinstance(attention, MlaShape):
            yield from absorbed_operators(attention, run, workload.b * queries)
        sizes = (workload.b, heads, kv_heads, queries, *attended(attention, queries, length), head_dim, v_dim, latent)
        for phase, count in run.runs("forward", "dgrad"):
            yield SparseAttention(f"{run.prefix}.core", phase, *sizes, run.core_dtype(), count)


def attended(attention: Shape, q_len: int, kv_len: int) -> tuple[int, int, int]:
    """(keys in all, keys that one query walks, pairs) of the last ``q_len`` of ``kv_len`` tokens of a sequence."""
    indexer = attention.indexer
    if not isinstance(attention, SharedKeyShape):
        assert indexer is not None, "dense"
        kept = min(indexer.kept, kv_len)
        return kv_len, kept, seen_pairs(q_len, kv_len, most=kept)
    window = min(attention.window or kv_len, kv_len)
    near = seen_pairs(q_len, kv_len, most=window)
    if attention.compressor is None:
        return kv_len, window, near
    rate = attention.compressor.rate
    entries = kv_len // rate
    kept = entries if indexer is None else min(indexer.kept, entries)
    return kv_len + entries, window + kept, near + seen_pairs(q_len, kv_len, rate, kept)


def index_operators(attention: Shape, run: Lowering, q_len: int, kv_len: int) -> Iterator[Operator]:
    """What makes compressed entries, and what an indexer runs behind its projections, forward alone.

    Engines score in fp8 (DeepGEMM's fp8_mqa_logits), training in its own type.
    """
    workload, indexer = run.workload, attention.indexer
    tokens = workload.own_tokens(q_len)
    if isinstance(attention, SharedKeyShape) and attention.compressor:
        yield from _compressed(attention.compressor, "compressor", tokens, run)
    if indexer is None or indexer.reused:
        return
    forward, heads = replace(run, prefix=f"{run.prefix}.indexer"), indexer.on_shard(workload.t)
    if indexer.compressor:
        yield from _compressed(indexer.compressor, "indexer.compressor", tokens, run, learns=False)
    width = (heads + (indexer.compressor is None)) * indexer.head_dim
    yield from _forward_only(forward.moves(".rotary", "rotary", tokens * width, ONCE))
    dtype = run.core_dtype() if workload.train else "fp8"
    pieces = chunks(q_len, kv_len, workload.cp, causal=True)
    for queries, length in pieces:
        entries, pairs = length // indexer.rate, seen_pairs(queries, length, indexer.rate)
        if not entries:
            continue
        sizes, count = (workload.b, heads, queries, entries, pairs), run.count
        yield IndexScores(f"{forward.prefix}.scores", *sizes, indexer.head_dim, dtype, workload.decode, count)
        each = heads if indexer.grouped else 1  # every head's choice, or one of them all
        chosen = (entries // indexer.block, pairs // indexer.block, min(indexer.top_k, entries))
        yield TopK(f"{forward.prefix}.top_k", workload.b * each, queries, *chosen, count=count)


def _forward_only(moved: Iterator[Elementwise]) -> Iterator[Elementwise]:
    return (one for one in moved if one.phase == "forward")


def _compressed(
    compressor: Compressor, name: str, tokens: int, run: Lowering, *, learns: bool = True
) -> Iterator[Elementwise]:
    """The softmax over the gates of each entry's tokens, their sum, its norm and rotation: one kernel."""
    own = replace(run, prefix=f"{run.prefix}.{name}")
    moved = own.moves("", "norm", tokens * compressor.channels, (2, 0, 2, 2))
    yield from moved if learns else _forward_only(moved)


def cached_numbers(attention: Shape, t: int, length: int) -> tuple[int, str]:
    """Numbers that a layer's cache keeps of one sequence of ``length`` tokens on one of ``t`` ranks, and how."""
    if isinstance(attention, SharedKeyShape):
        kept = min(attention.window or length, length)
        entries = length // attention.compressor.rate if attention.compressor else 0
        numbers, text = (kept + entries) * attention.head_dim, f"{kept + entries} keys x {attention.head_dim}"
    elif isinstance(attention, MlaShape):
        width = attention.kv_lora_rank + attention.qk_rope_head_dim
        numbers, text = length * width, f"{length} tokens x {width} (latent)"
    else:
        _, kv = attention.on_shard(t)
        width = kv * (attention.head_dim + attention.v_dim)
        numbers, text = length * width, f"{length} tokens x {width} ({kv} kv heads)"
    return numbers + index_numbers(attention.indexer, length), text + (
        " and the indexer's keys" if attention.indexer else ""
    )


def passed_numbers(attention: Shape, t: int, length: int) -> int:
    """Numbers of a sequence's keys and values that ranks of context parallelism give each other: as they are cached,

    but latent attention that is not sparse expands them first, and a window does not end where a chunk does.
    """
    if isinstance(attention, SharedKeyShape):
        attention = replace(attention, window=None)
    elif not is_sparse(attention, length):
        kv_heads = attention.on_shard(t)[1]
        own = length * kv_heads * (attention.head_dim + attention.v_dim)
        return own + index_numbers(attention.indexer, length)
    return cached_numbers(attention, t, length)[0]


def index_numbers(indexer: Indexer | None, length: int) -> int:
    """Numbers of an indexer's keys of one sequence."""
    return 0 if indexer is None or indexer.reused else length // indexer.rate * indexer.head_dim
