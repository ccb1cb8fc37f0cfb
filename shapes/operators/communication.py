"""Collectives of tensor, sequence, expert, pipeline and data parallelism, by message size."""

from __future__ import annotations

from collections.abc import Iterator

from shapes.model import Block, ModelShape, MoeShape
from shapes.operators.elementwise import activation_bytes, parameters_per_device
from shapes.operators.types import Collective, Phase
from shapes.workload import Workload


def block_collectives(
    block: Block, hidden: int, tokens: int, workload: Workload, prefix: str, forwards: int
) -> Iterator[Collective]:
    """Tensor parallelism's all-reduce after each row-parallel product (and before each column-parallel one, backward),

    or reduce-scatter and all-gather under sequence parallelism; expert parallelism's two all-to-alls each way.
    """
    buffer = tokens * hidden * activation_bytes(workload)
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
            yield Collective(
                f"{prefix}moe.all_to_all", phase, "all_to_all", buffer * block.mlp.top_k, workload.e, workload.dtype,
                2 * count,
            )  # fmt: skip


def step_collectives(model: ModelShape, workload: Workload) -> Iterator[Collective]:
    """Once a step: data parallelism's gradient reduction, ZeRO's parameter gathers, the pipeline's hand-over."""
    if workload.p > 1:
        boundary = workload.tokens * model.hidden * activation_bytes(workload)
        yield Collective("pipeline.receive", "forward", "send_recv", boundary, 2, workload.dtype)
        if workload.train:
            yield Collective("pipeline.send", "dgrad", "send_recv", boundary, 2, workload.dtype)
    if workload.d == 1 or not workload.train:
        return
    weights = parameters_per_device(model, workload) * activation_bytes(workload)
    if workload.zero == 0:
        yield Collective("data_parallel.all_reduce", "wgrad", "all_reduce", weights, workload.d, workload.dtype)
        return
    yield Collective("data_parallel.reduce_scatter", "wgrad", "reduce_scatter", weights, workload.d, workload.dtype)
    # ZeRO-1 and -2 gather the updated weights once; ZeRO-3 gathers them for the forward and again for the backward.
    gathers = 2 if workload.zero == 3 else 1
    yield Collective("data_parallel.all_gather", "forward", "all_gather", weights, workload.d, workload.dtype, gathers)
