"""Which layers and parameters a pipeline stage holds: the embedding is on the first stage, the head on the last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from shapes.frozen import frozen
from shapes.model.layers import Block, Stack, kinds_of
from shapes.model.parameters import ParameterTensor, block_tensors, stack_end, stack_front
from shapes.model.shape import ModelShape
from shapes.workload import Workload

#: The two stages that can hold most: the first has the embedding and most microbatches in flight, the last the head.
Stage = Literal["first", "last"]


def layers_of_stages(layers: int, p: int) -> tuple[int, ...]:
    """Layers of each of ``p`` stages, as even as can be: the first ones hold one more where p does not divide."""
    least, more = divmod(layers, p)
    return tuple(least + (stage < more) for stage in range(p))


def blocks_between(model: ModelShape, start: int, stop: int) -> tuple[tuple[Stack, tuple[Block, ...]], ...]:
    """Layers ``start`` to ``stop`` (exclusive) of all stacks in order, as the blocks of each stack that has some."""
    found: list[tuple[Stack, tuple[Block, ...]]] = []
    at = 0
    for stack in model.stacks:
        blocks: list[Block] = []
        for block in stack.blocks:
            own = min(at + block.count, stop) - max(at, start)
            if own > 0:
                blocks.append(block if own == block.count else replace(block, count=own))
            at += block.count
        if blocks:
            found.append((stack, tuple(blocks)))
    return tuple(found)


def stage_kinds(model: ModelShape, p: int, stage: Stage = "last") -> tuple[tuple[Stack, tuple[Block, ...]], ...]:
    """As ``stage_blocks``, equal blocks of a stack merged: for what the layers' order is nothing to."""
    if p == 1:
        return tuple((stack, stack.kinds) for stack in model.stacks)
    return _stage_kinds(model, p, stage)


# A plan asks for the same split at every microbatch and way of checkpointing.
@lru_cache(maxsize=256)
def _stage_kinds(model: ModelShape, p: int, stage: Stage) -> tuple[tuple[Stack, tuple[Block, ...]], ...]:
    return tuple((stack, kinds_of(blocks)) for stack, blocks in stage_blocks(model, p, stage))


@lru_cache(maxsize=256)
def stage_blocks(model: ModelShape, p: int, stage: Stage = "last") -> tuple[tuple[Stack, tuple[Block, ...]], ...]:
    """The first or last of ``p`` stages' blocks, in order.

    Either has ceil(L/p) layers: where p does not divide the layers, the last stage's is the bound of the fullest one.
    """
    most = max(layers_of_stages(model.layers, p))
    return (
        blocks_between(model, 0, most) if stage == "first" else blocks_between(model, model.layers - most, model.layers)
    )


@lru_cache(maxsize=256)
def stage_runs(
    model: ModelShape, p: int, stage: Stage = "last"
) -> tuple[tuple[tuple[Stack, Block], ...], tuple[tuple[int, int], ...]]:
    """A stage's kinds of blocks with all their layers, and its runs in order: (which kind, so many layers)."""
    places: dict[tuple[str, Block], int] = {}
    runs = []
    stacks: list[Stack] = []
    for stack, blocks in stage_blocks(model, p, stage):
        for block in blocks:
            place = places.setdefault((stack.name, block), len(places))
            if place == len(stacks):
                stacks.append(stack)
            runs.append((place, block.count))
    layers = [0] * len(places)
    for place, count in runs:
        layers[place] += count
    kinds = (replace(block, count=layers[place]) for (_, block), place in places.items())
    return tuple(zip(stacks, kinds, strict=True)), tuple(runs)


def parameter_tensors(model: ModelShape, workload: Workload, stage: Stage = "last") -> tuple[ParameterTensor, ...]:
    """Every parameter of a stage on one tensor- and expert-parallel rank (ZeRO not applied).

    A tied embedding is counted once, or on both ends of a pipeline, where each needs its copy.
    """
    return _tensors(model, workload.t, workload.e, workload.p, stage)


@lru_cache(maxsize=256)
def _tensors(model: ModelShape, t: int, e: int, p: int, stage: Stage) -> tuple[ParameterTensor, ...]:
    first, last = stage == "first" or p == 1, stage == "last" or p == 1
    found: list[ParameterTensor] = []
    for stack, blocks in stage_kinds(model, p, stage):
        for block in blocks:
            found += block_tensors(block, stack.hidden, t, e)
        # A stage of an encoder-decoder may hold the end of one stack and the front of the next.
        own = sum(block.count for block in blocks)
        if first or own == stack.layers:
            found += stack_front(stack, t)
        if last or own == stack.layers:
            found += stack_end(stack)
    if first:
        found += model.front_tensors(t)
    elif model.tied and model.head:
        found += model.embedding_tensors(t)
    if last:
        found += model.end_tensors(t)
    return tuple(found)


@frozen
class ShardParameters:
    """Parameters of one tensor- and expert-parallel rank: ``experts`` are held by d/e data-parallel ranks, ``dense``,

    everything else, by all d.
    """

    dense: int = 0
    experts: int = 0

    def __add__(self, other: ShardParameters) -> ShardParameters:
        return ShardParameters(self.dense + other.dense, self.experts + other.experts)

    def __sub__(self, other: ShardParameters) -> ShardParameters:
        return self + other.times(-1)

    def times(self, number: int) -> ShardParameters:
        return ShardParameters(self.dense * number, self.experts * number)

    @property
    def total(self) -> int:
        return self.dense + self.experts

    def updated(self, workload: Workload) -> int:
        """Those whose optimizer states one rank holds: all of them, or its share under ZeRO."""
        if not workload.zero:
            return self.total
        return -(-self.dense // workload.d) + -(-self.experts // workload.expert_d)


def counted(tensors: Iterable[ParameterTensor]) -> ShardParameters:
    """``tensors``' elements, ZeRO not applied."""
    dense = experts = 0
    for tensor in tensors:
        if tensor.expert:
            experts += tensor.copies * tensor.elements
        else:
            dense += tensor.copies * tensor.elements
    return ShardParameters(dense, experts)


def shard_parameters(model: ModelShape, workload: Workload, stage: Stage = "last") -> ShardParameters:
    """A stage's parameters on one rank, counted."""
    return counted(parameter_tensors(model, workload, stage))
