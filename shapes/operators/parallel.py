"""Collectives of tensor, sequence, context, expert, pipeline and data parallelism, by message size.

Ranks are numbered as Megatron-LM numbers them, tensor parallelism's first: ``stride`` is the distance between two
neighbours of a group.
`split_problems` says whether a model divides over its devices at all, `nearest_split` the nearest split that does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain

from shapes.errors import InputError
from shapes.model import AttentionShape, Block, MlaShape, ModelShape, MoeShape, RecurrentShape
from shapes.model.stages import ShardParameters
from shapes.operators.types import Collective, CollectiveName, Phase
from shapes.workload import Workload

#: What was expected, of which degree, and its value.
Problem = tuple[str, str, int]


def split_problems(model: ModelShape, workload: Workload) -> tuple[InputError, ...]:
    """What does not divide: layers by p, heads by t, experts by e, d by e and replicas; each an InputError."""
    degrees = (workload.t, workload.p, workload.e, workload.cp, workload.vpp, workload.replicas)
    if all(degree == 1 for degree in degrees):
        return ()
    found = chain(_of_layers(model, workload), _of_heads(model, workload.t), _of_experts(model, workload))
    return tuple(InputError(expected, key=key, value=value) for expected, key, value in dict.fromkeys(found))


def _of_layers(model: ModelShape, workload: Workload) -> Iterator[Problem]:
    p, ranks = workload.p, workload.d * workload.cp
    if p > model.layers:
        yield f"expected at most the {model.layers} layers there are", "p", p
    if p > 1 and workload.vpp > (chunks := most_chunks(model, p)):
        yield f"expected at most {chunks} chunks of the {model.layers} layers over p = {p}", "vpp", workload.vpp
    if workload.zero == 3 and ranks % workload.replicas:
        yield f"expected a divisor of the {ranks} data-parallel ranks", "replicas", workload.replicas


def _of_heads(model: ModelShape, t: int) -> Iterator[Problem]:
    for attention in _attentions(model):
        if attention.heads % t:
            yield f"expected a divisor of the {attention.heads} attention heads", "t", t
        elif not _whole(kv_heads := attention.kv_heads, t):
            yield f"expected a divisor or a multiple of the {kv_heads} key/value heads, which are not cut", "t", t
    for mixer in _mixers(model):
        if mixer.heads % t:
            yield f"expected a divisor of the {mixer.heads} heads of the recurrent layers", "t", t
        elif not _whole(mixer.groups, t):
            yield f"expected a divisor or a multiple of the {mixer.groups} groups of recurrent heads", "t", t


def _of_experts(model: ModelShape, workload: Workload) -> Iterator[Problem]:
    d, e = workload.d, workload.e
    for experts in expert_counts(model):
        if experts % e:
            yield f"expected a divisor of the {experts} experts", "e", e
    if workload.cp > 1 and workload.attention == "eager":
        yield "expected 1: eager attention does not share a sequence", "cp", workload.cp
    if e > 1 and model.moe is None:
        yield "expected 1: the model has no experts to spread", "e", e
    elif d > 1 and d % e:
        yield f"expected a divisor of d = {d}: experts are spread over data-parallel ranks", "e", e


def check_split(model: ModelShape, workload: Workload) -> None:
    """Raise InputError if the model does not divide over the workload's devices."""
    for problem in split_problems(model, workload):
        raise problem


def nearest_split(model: ModelShape, workload: Workload) -> Workload:
    """``workload`` with the largest degrees, at most those asked for, that the model divides over."""
    p, cp = min(workload.p, model.layers), 1 if workload.attention == "eager" else workload.cp
    replicas = largest_divisor(workload.d * cp, workload.replicas) if workload.zero == 3 else workload.replicas
    return replace(
        workload,
        p=p,
        t=nearest_t(model, workload.t),
        e=nearest_e(model, workload.e, workload.d),
        cp=cp,
        vpp=min(workload.vpp, most_chunks(model, p)),
        replicas=replicas,
    )


def most_chunks(model: ModelShape, p: int) -> int:
    """Chunks that each of ``p`` stages can hold: of a layer each, or of the embedding or the head alone.

    Megatron-Core's layouts place those as layers (``account_for_embedding_in_pipeline_split``).
    """
    return max(1, (model.layers + 2) // p)


def nearest_t(model: ModelShape, limit: int) -> int:
    """The largest t, at most ``limit``, that every attention's heads divide over."""
    sizes = [(one.heads, one.kv_heads) for one in _attentions(model)]
    sizes += [(one.heads, one.groups) for one in _mixers(model)]
    return _largest(limit, lambda t: all(heads % t == 0 and _whole(shared, t) for heads, shared in sizes))


def nearest_e(model: ModelShape, limit: int, d: int = 1) -> int:
    """The largest e, at most ``limit``, that divides the experts, and ``d`` where there is data parallelism."""
    counts = expert_counts(model) or (1,)
    return _largest(limit, lambda e: all(experts % e == 0 for experts in counts) and (d == 1 or d % e == 0))


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of ``number`` that is at most ``limit``.

    >>> largest_divisor(28, 8)
    7
    """
    return _largest(limit, lambda degree: number % degree == 0)


def expert_counts(model: ModelShape) -> tuple[int, ...]:
    """The different numbers of experts of the model's blocks."""
    return tuple(dict.fromkeys(block.mlp.experts for _, block in model.all_blocks() if isinstance(block.mlp, MoeShape)))


def head_counts(model: ModelShape) -> tuple[int, ...]:
    """The different numbers of attention heads: a vision tower's, an encoder's and the decoder's."""
    return tuple(dict.fromkeys(attention.heads for attention in _attentions(model)))


def _attentions(model: ModelShape) -> tuple[AttentionShape | MlaShape, ...]:
    found = (one for _, block in model.all_blocks() for one in (block.attention, block.cross) if one is not None)
    return tuple(dict.fromkeys(found))


def _mixers(model: ModelShape) -> tuple[RecurrentShape, ...]:
    return tuple(dict.fromkeys(block.mixer for _, block in model.all_blocks() if block.mixer is not None))


def _whole(shared: int, t: int) -> bool:
    """Whether every rank holds whole key/value heads (or groups): a share of them, or a copy of one."""
    return shared % t == 0 or t % shared == 0


def _largest(limit: int, divides: Callable[[int], bool]) -> int:
    return next(degree for degree in range(limit, 0, -1) if divides(degree))


def sent(
    workload: Workload,
    name: str,
    buffer: int,
    ranks: int,
    runs: Iterable[tuple[Phase, CollectiveName, int]],
    stride: int = 1,
    copies: int = 1,
) -> Iterator[Collective]:
    """A collective for each of ``runs`` (phase, which, times) that the workload has: inference runs forward alone."""
    for phase, what, times in runs:
        if workload.train or phase == "forward":
            yield Collective(
                f"{name}.{what}", phase, what, buffer, ranks, workload.dtype, times, stride=stride, copies=copies
            )


def block_collectives(
    block: Block, hidden: int, s: int, workload: Workload, prefix: str, forwards: int
) -> Iterator[Collective]:
    """One layer's collectives, x ``block.count``: of tensor, context and expert parallelism."""
    tokens = workload.own_tokens(s)
    times = block.count * (1 if block.parallel else len(block.parts))
    if workload.t > 1 and times:
        yield from _tensor_parallel(f"{prefix}tensor_parallel", tokens * hidden, times, workload, forwards)
    for attention in (block.attention, block.cross):
        if attention is not None and workload.cp > 1:
            yield from _context_parallel(attention, s, workload, prefix, block.count, forwards)
    if workload.e > 1 and isinstance(block.mlp, MoeShape):
        # A rank routes 1/t of the tokens: Megatron-LM asks for sequence parallelism where t and e meet.
        routed = -(-tokens // workload.t) * block.mlp.routed_width(hidden) * workload.activation_bytes * block.mlp.top_k
        yield from sent(
            workload,
            f"{prefix}{'overlapped_moe' if workload.ep_overlap else 'moe'}",
            routed,
            workload.e,
            (("forward", "all_to_all", 2 * block.count * forwards), ("dgrad", "all_to_all", 2 * block.count)),
            stride=workload.t,
            copies=block.mlp.top_k if workload.dispatcher == "flex" else 1,
        )


def _tensor_parallel(name: str, elements: int, count: int, workload: Workload, forwards: int) -> Iterator[Collective]:
    """An all-reduce behind each row-parallel product and, backward, before each column-parallel one.

    Sequence parallelism splits it in a reduce-scatter and an all-gather, and gathers the input again for wgrad
    (Korthikanti et al. 2205.05198, section 4.2.2).
    """
    split: tuple[CollectiveName, ...] = ("reduce_scatter", "all_gather")
    kinds = split if workload.sequence_parallel else ("all_reduce",)
    runs: list[tuple[Phase, CollectiveName, int]] = [("forward", what, count * forwards) for what in kinds]
    runs += [("dgrad", what, count) for what in kinds]
    if workload.sequence_parallel:
        runs.append(("wgrad", "all_gather", count))
    yield from sent(workload, name, elements * workload.activation_bytes, workload.t, runs)


def _context_parallel(
    attention: AttentionShape | MlaShape, s: int, workload: Workload, prefix: str, count: int, forwards: int
) -> Iterator[Collective]:
    """Every rank meets all keys and values: handed round a ring or gathered, the bytes are the same.

    Backward they go round again, and their gradients back to where they belong.
    """
    _, kv_heads = attention.on_shard(workload.t)
    buffer = workload.b * s * kv_heads * (attention.head_dim + attention.v_dim) * workload.activation_bytes
    yield from sent(
        workload,
        f"{prefix}context_parallel",
        buffer,
        workload.cp,
        (
            ("forward", "all_gather", count * forwards),
            ("dgrad", "all_gather", count),
            ("dgrad", "reduce_scatter", count),
        ),
        stride=workload.t,
    )


def end_collectives(model: ModelShape, workload: Workload, s: int, *, first: bool) -> Iterator[Collective]:
    """Tensor parallelism's of the vocabulary: behind the embedding (``first``), or around the head.

    The embedding's rows are added up over the ranks; the head is a column-parallel product as any other.
    """
    if workload.t == 1 or not (model.vocab if first else model.head):
        return
    width = (model.embedding_dim or model.hidden) if first else model.hidden
    times = 1 if first or not workload.train else model.head_passes
    runs: tuple[tuple[Phase, CollectiveName, int], ...]
    if not workload.sequence_parallel:
        runs = (("forward" if first else "dgrad", "all_reduce", times),)
    elif first:
        runs = (("forward", "reduce_scatter", times), ("dgrad", "all_gather", times))
    else:
        runs = (("forward", "all_gather", times), ("dgrad", "reduce_scatter", times), ("wgrad", "all_gather", times))
    buffer = workload.own_tokens(s) * width * workload.activation_bytes
    yield from sent(workload, f"{'embedding' if first else 'lm_head'}.tensor_parallel", buffer, workload.t, runs)


def pipeline_collectives(model: ModelShape, workload: Workload, s: int) -> Iterator[Collective]:
    """The activations that the last stage receives and the gradients that it sends back.

    Each tensor-parallel rank sends its share; where activations are not split anyway (sequence parallelism), the
    receiving ranks gather them (Narayanan et al. 2104.04473, section 4.1, the scatter-gather optimization).
    """
    if workload.p == 1:
        return
    whole = workload.own_tokens(s) * model.hidden * workload.activation_bytes
    if workload.t > 1 and not workload.sequence_parallel:
        runs: tuple[tuple[Phase, CollectiveName, int], ...] = (("forward", "all_gather", 1), ("dgrad", "all_gather", 1))
        yield from sent(workload, "pipeline", whole, workload.t, runs)
    boundary, stride = -(-whole // workload.t), workload.t * workload.cp * workload.d
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
            buffer, stride = round(parameters * bytes_each / pieces), workload.t * apart
            runs: tuple[tuple[Phase, CollectiveName, int], ...] = (("forward", "all_gather", 2 * pieces),)
            yield from sent(workload, f"data_parallel.{name}", buffer, shard, runs, stride)


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
        stride, weights = workload.t * apart, parameters * workload.activation_bytes
        if ranks == 1 or not parameters:
            continue
        # Without ZeRO every rank is a replica of all the weights.
        replicas = ranks if workload.zero == 0 else 1
        if workload.zero == 3 and ranks % workload.replicas == 0:
            replicas = workload.replicas
        shard = ranks // replicas
        pieces = max(1, layers) if workload.zero == 3 else 1
        # ZeRO-1 and -2 gather the updated weights once; ZeRO-3 gathers them for the forward and for the backward.
        gathers = pieces * (2 if workload.zero == 3 else 1)
        if shard > 1:
            runs: tuple[tuple[Phase, CollectiveName, int], ...] = (
                ("wgrad", "reduce_scatter", pieces),
                ("forward", "all_gather", gathers),
            )
            yield from sent(workload, name, -(-weights // pieces), shard, runs, stride)
        if replicas > 1:
            yield from sent(
                workload, name, -(-weights // shard), replicas, (("wgrad", "all_reduce", 1),), stride * shard
            )
