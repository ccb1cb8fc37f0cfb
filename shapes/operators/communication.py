"""Collectives of tensor, sequence, expert, pipeline and data parallelism, by message size."""

from __future__ import annotations

from collections.abc import Iterator

from shapes.model import Block, ModelShape, MoeShape
from shapes.model.stages import ShardParameters
from shapes.operators.types import Collective, Phase
from shapes.workload import Workload


def block_collectives(
    block: Block, hidden: int, tokens: int, workload: Workload, prefix: str, forwards: int
) -> Iterator[Collective]:
    """Tensor parallelism's all-reduce after each row-parallel product (and before each column-parallel one, backward),

    or reduce-scatter and all-gather under sequence parallelism; expert parallelism's two all-to-alls each way, of the
    1/t of the tokens that a rank routes (Megatron-LM asks for sequence parallelism where t and e meet).
    """
    buffer = tokens * hidden * workload.activation_bytes
    phases: list[tuple[Phase, int]] = [("forward", block.count * forwards)]
    if workload.train:
        phases.append(("dgrad", block.count))
    for phase, count in phases:
        if workload.t > 1:
            reductions = sum(part is not None for part in (block.attention, block.cross, block.mlp))
            reductions = 1 if block.parallel else reductions
            for what in ("reduce_scatter", "all_gather") if workload.sequence_parallel else ("all_reduce",):
                yield Collective(
                    f"{prefix}tensor_parallel.{what}", phase, what, buffer, workload.t, workload.dtype,
                    count * reductions,
                )  # fmt: skip
        if workload.e > 1 and isinstance(block.mlp, MoeShape):
            routed = -(-tokens // workload.t) * hidden * workload.activation_bytes * block.mlp.top_k
            yield Collective(
                f"{prefix}moe.all_to_all", phase, "all_to_all", routed, workload.e, workload.dtype, 2 * count
            )


def pipeline_collectives(model: ModelShape, workload: Workload) -> Iterator[Collective]:
    """The activations that the last stage receives and the gradients that it sends back."""
    if workload.p > 1:
        boundary = workload.tokens * model.hidden * workload.activation_bytes
        yield Collective("pipeline.receive", "forward", "send_recv", boundary, 2, workload.dtype)
        if workload.train:
            yield Collective("pipeline.send", "dgrad", "send_recv", boundary, 2, workload.dtype)


def gradient_collectives(held: ShardParameters, workload: Workload) -> Iterator[Collective]:
    """Data parallelism's gradient reduction and ZeRO's parameter gathers, once a step.

    Over all d ranks, and for experts over the d/e ranks that hold the same ones: two collectives where e > 1.
    """
    groups = [("data_parallel", held.dense, workload.d), ("data_parallel.experts", held.experts, workload.expert_d)]
    if workload.d == workload.expert_d:
        groups = [("data_parallel", held.total, workload.d)]
    for name, parameters, ranks in groups:
        if ranks == 1 or not parameters:
            continue
        weights, dtype = parameters * workload.activation_bytes, workload.dtype
        if workload.zero == 0:
            yield Collective(f"{name}.all_reduce", "wgrad", "all_reduce", weights, ranks, dtype)
            continue
        yield Collective(f"{name}.reduce_scatter", "wgrad", "reduce_scatter", weights, ranks, dtype)
        # ZeRO-1 and -2 gather the updated weights once; ZeRO-3 gathers them for the forward and for the backward.
        gathers = 2 if workload.zero == 3 else 1
        yield Collective(f"{name}.all_gather", "forward", "all_gather", weights, ranks, dtype, gathers)
