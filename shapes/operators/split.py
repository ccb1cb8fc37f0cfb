"""Whether a model divides over the devices it is asked to run on, and the nearest split that does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shapes.errors import InputError
from shapes.model import AttentionShape, MlaShape, ModelShape, MoeShape, RecurrentShape
from shapes.workload import Workload


def split_problems(model: ModelShape, workload: Workload) -> tuple[InputError, ...]:
    """What does not divide: layers by p, heads by t, experts by e, d by e and replicas; each an InputError."""
    t, p, d, e = workload.t, workload.p, workload.d, workload.e
    if t == p == e == workload.cp == workload.vpp == workload.replicas == 1:
        return ()
    found: dict[str, InputError] = {}

    def problem(expected: str, key: str, value: int) -> None:
        found.setdefault(f"{key}: {expected}", InputError(expected, key=key, value=value))

    if p > model.layers:
        problem(f"expected at most the {model.layers} layers there are", "p", p)
    if p > 1 and workload.vpp > (chunks := most_chunks(model, p)):
        problem(f"expected at most {chunks} chunks of the {model.layers} layers over p = {p}", "vpp", workload.vpp)
    if workload.zero == 3 and (d * workload.cp) % workload.replicas:
        problem(f"expected a divisor of the {d * workload.cp} data-parallel ranks", "replicas", workload.replicas)
    for attention in _attentions(model):
        if attention.heads % t:
            problem(f"expected a divisor of the {attention.heads} attention heads", "t", t)
        elif not _whole(kv_heads := attention.kv_heads, t):
            problem(f"expected a divisor or a multiple of the {kv_heads} key/value heads, which are not cut", "t", t)
    for mixer in _mixers(model):
        if mixer.heads % t:
            problem(f"expected a divisor of the {mixer.heads} heads of the recurrent layers", "t", t)
        elif not _whole(mixer.groups, t):
            problem(f"expected a divisor or a multiple of the {mixer.groups} groups of recurrent heads", "t", t)
    for experts in expert_counts(model):
        if experts % e:
            problem(f"expected a divisor of the {experts} experts", "e", e)
    if workload.cp > 1 and workload.attention == "eager":
        problem("expected 1: eager attention does not share a sequence", "cp", workload.cp)
    if e > 1 and model.moe is None:
        problem("expected 1: the model has no experts to spread", "e", e)
    elif d > 1 and d % e:
        problem(f"expected a divisor of d = {d}: experts are spread over data-parallel ranks", "e", e)
    return tuple(found.values())


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
