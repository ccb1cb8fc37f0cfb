"""A recurrent layer's convolution, scan and gated norm: the scan as the batched products that its chunks consist of.

Fused scan kernels do these products in three or four launches and keep a part of what lies between them on chip; no
such kernel was measured for it, and none is priced as one.
"""

from __future__ import annotations

from collections.abc import Iterator

from shapes.dtypes import QUANTISED
from shapes.model.recurrent import RecurrentShape
from shapes.operators.elementwise import emit
from shapes.operators.types import Collective, Elementwise, Gemm, Phase
from shapes.workload import Workload


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
    phases: list[tuple[Phase, int]] = [("forward", forwards), *([("dgrad", 1)] if workload.train else ())]
    for phase, times in phases:
        yield Collective(
            f"{name}.context_parallel.all_to_all",
            phase,
            "all_to_all",
            tokens * width * workload.activation_bytes,
            workload.cp,
            workload.dtype,
            count * times,
            stride=workload.t,
        )
