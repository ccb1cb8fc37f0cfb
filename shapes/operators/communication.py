"""Collectives of tensor, sequence, context, expert, pipeline and data parallelism, by message size.

Ranks are numbered as Megatron-LM numbers them, tensor parallelism's first: ``stride`` is the distance between two
neighbours of a group.
"""

from __future__ import annotations

from collections.abc import Iterator

from shapes.model import AttentionShape, Block, MlaShape, ModelShape, MoeShape
from shapes.model.stages import ShardParameters
from shapes.operators.types import Collective, Phase
from shapes.workload import Workload


def block_collectives(
    block: Block, hidden: int, s: int, workload: Workload, prefix: str, forwards: int
) -> Iterator[Collective]:
    """One layer's collectives, x ``block.count``: of tensor, context and expert parallelism."""
    tokens = workload.own_tokens(s)
    parts = len(block.parts)
    yield from _tensor_parallel(
        f"{prefix}tensor_parallel", tokens * hidden, block.count * (1 if block.parallel else parts), workload, forwards
    )
    for attention in (block.attention, block.cross):
        if attention is not None and workload.cp > 1:
            yield from _context_parallel(attention, s, workload, prefix, block.count, forwards)
    if workload.e > 1 and isinstance(block.mlp, MoeShape):
        # A rank routes 1/t of the tokens: Megatron-LM asks for sequence parallelism where t and e meet.
        routed = -(-tokens // workload.t) * block.mlp.routed_width(hidden) * workload.activation_bytes * block.mlp.top_k
        phases: list[tuple[Phase, int]] = [("forward", forwards), *([("dgrad", 1)] if workload.train else ())]
        name = f"{prefix}{'overlapped_moe' if workload.ep_overlap else 'moe'}.all_to_all"
        copies = block.mlp.top_k if workload.dispatcher == "flex" else 1
        for phase, times in phases:
            yield Collective(
                name,
                phase,
                "all_to_all",
                routed,
                workload.e,
                workload.dtype,
                2 * block.count * times,
                stride=workload.t,
                copies=copies,
            )


def _tensor_parallel(name: str, elements: int, count: int, workload: Workload, forwards: int) -> Iterator[Collective]:
    """An all-reduce behind each row-parallel product and, backward, before each column-parallel one.

    Sequence parallelism splits it in a reduce-scatter and an all-gather, and gathers the input again for wgrad
    (Korthikanti et al. 2205.05198, section 4.2.2).
    """
    if workload.t == 1 or not count:
        return
    buffer = elements * workload.activation_bytes
    kinds = ("reduce_scatter", "all_gather") if workload.sequence_parallel else ("all_reduce",)
    phases: list[tuple[Phase, int, tuple[str, ...]]] = [("forward", forwards, kinds)]
    if workload.train:
        phases += [("dgrad", 1, kinds), *([("wgrad", 1, ("all_gather",))] if workload.sequence_parallel else ())]
    for phase, times, wanted in phases:
        for what in wanted:
            yield Collective(f"{name}.{what}", phase, what, buffer, workload.t, workload.dtype, count * times)  # type: ignore[arg-type]  # of kinds


def _context_parallel(
    attention: AttentionShape | MlaShape, s: int, workload: Workload, prefix: str, count: int, forwards: int
) -> Iterator[Collective]:
    """Every rank meets all keys and values: handed round a ring or gathered, the bytes are the same.

    Backward they go round again, and their gradients back to where they belong.
    """
    _, kv_heads = attention.on_shard(workload.t)
    width = kv_heads * (attention.head_dim + attention.v_dim)
    buffer = workload.b * s * width * workload.activation_bytes
    kinds: list[tuple[Phase, str, int]] = [("forward", "all_gather", count * forwards)]
    if workload.train:
        kinds += [("dgrad", "all_gather", count), ("dgrad", "reduce_scatter", count)]
    for phase, what, times in kinds:
        yield Collective(
            f"{prefix}context_parallel.{what}",
            phase,
            what,  # type: ignore[arg-type]  # of kinds
            buffer,
            workload.cp,
            workload.dtype,
            times,
            stride=workload.t,
        )


def end_collectives(model: ModelShape, workload: Workload, s: int, *, first: bool) -> Iterator[Collective]:
    """Tensor parallelism's of the vocabulary: behind the embedding (``first``), or around the head.

    The embedding's rows are added up over the ranks; the head is a column-parallel product as any other.
    """
    if workload.t == 1 or not (model.vocab if first else model.head):
        return
    elements = workload.own_tokens(s) * ((model.embedding_dim or model.hidden) if first else model.hidden)
    plain: tuple[tuple[Phase, str], ...] = (("forward", "all_reduce"),) if first else (("dgrad", "all_reduce"),)
    split: tuple[tuple[Phase, str], ...] = (("forward", "reduce_scatter"), ("dgrad", "all_gather"))
    if not first:
        split = (("forward", "all_gather"), ("dgrad", "reduce_scatter"), ("wgrad", "all_gather"))
    for phase, what in split if workload.sequence_parallel else plain:
        if workload.train or phase == "forward":
            yield Collective(
                f"{'embedding' if first else 'lm_head'}.tensor_parallel.{what}",
                phase,
                what,  # type: ignore[arg-type]  # of the four above
                elements * workload.activation_bytes,
                workload.t,
                workload.dtype,
                1 if first or not workload.train else model.head_passes,
            )


def pipeline_collectives(model: ModelShape, workload: Workload, s: int) -> Iterator[Collective]:
    """The activations that the last stage receives and the gradients that it sends back.

    Each tensor-parallel rank sends its share; where activations are not split anyway (sequence parallelism), the
    receiving ranks gather them (Narayanan et al. 2104.04473, section 4.1, the scatter-gather optimization).
    """
    if workload.p > 1:
        whole = workload.own_tokens(s) * model.hidden * workload.activation_bytes
        boundary = -(-whole // workload.t)
        if workload.t > 1 and not workload.sequence_parallel:
            for phase in ("forward", "dgrad") if workload.train else ("forward",):
                yield Collective("pipeline.all_gather", phase, "all_gather", whole, workload.t, workload.dtype)
        stride = workload.t * workload.cp * workload.d
        yield Collective("pipeline.receive", "forward", "send_recv", boundary, 2, workload.dtype, stride=stride)
        if workload.train:
            yield Collective("pipeline.send", "dgrad", "send_recv", boundary, 2, workload.dtype, stride=stride)


def frozen_collectives(
    frozen: ShardParameters, bytes_each: float, workload: Workload, layers: int
) -> Iterator[Collective]:
    """ZeRO 3's gathers of a frozen base, in the type it is kept in: each layer for the forward and for the backward."""
    pieces = max(1, layers)
    dense, experts = workload.d * workload.cp, workload.expert_d * workload.cp
    for name, parameters, ranks, apart in (
        ("frozen", frozen.dense, dense, 1),
        ("frozen.experts", frozen.experts, experts, workload.e),
    ):
        shard = ranks // workload.replicas if ranks % workload.replicas == 0 else ranks
        if workload.zero == 3 and shard > 1 and parameters:
            yield Collective(
                f"data_parallel.{name}.all_gather",
                "forward",
                "all_gather",
                round(parameters * bytes_each / pieces),
                shard,
                workload.dtype,
                2 * pieces,
                stride=workload.t * apart,
            )


def gradient_collectives(held: ShardParameters, workload: Workload, layers: int) -> Iterator[Collective]:
    """Data parallelism's gradient reduction and ZeRO's parameter gathers, once (ZeRO 3: in every microbatch).

    Over all d cp ranks, and for experts over the d cp / e ranks that hold the same ones: two collectives where e > 1.
    With ``replicas`` (HSDP) ZeRO 3 shards over a replica's ranks, and replicas add up their shards of the gradients. It
    sends each of the ``layers`` by itself (FSDP wraps blocks), the weights of embedding and head spread over them.
    """
    dense, experts = workload.d * workload.cp, workload.expert_d * workload.cp
    groups = [("data_parallel", held.dense, dense, 1), ("data_parallel.experts", held.experts, experts, workload.e)]
    if dense == experts:
        groups = [("data_parallel", held.total, dense, 1)]
    for name, parameters, ranks, apart in groups:
        stride = workload.t * apart
        if ranks == 1 or not parameters:
            continue
        weights, dtype = parameters * workload.activation_bytes, workload.dtype
        if workload.zero == 0:
            yield Collective(f"{name}.all_reduce", "wgrad", "all_reduce", weights, ranks, dtype, stride=stride)
            continue
        replicas = workload.replicas if workload.zero == 3 and ranks % workload.replicas == 0 else 1
        shard = ranks // replicas
        pieces = max(1, layers) if workload.zero == 3 else 1
        if shard > 1:
            piece = -(-weights // pieces)
            yield Collective(
                f"{name}.reduce_scatter", "wgrad", "reduce_scatter", piece, shard, dtype, pieces, stride=stride
            )
            # ZeRO-1 and -2 gather the updated weights once; ZeRO-3 gathers them for the forward and for the backward.
            gathers = pieces * (2 if workload.zero == 3 else 1)
            yield Collective(f"{name}.all_gather", "forward", "all_gather", piece, shard, dtype, gathers, stride=stride)
        if replicas > 1:
            yield Collective(
                f"{name}.all_reduce",
                "wgrad",
                "all_reduce",
                -(-weights // shard),
                replicas,
                dtype,
                stride=stride * shard,
            )
