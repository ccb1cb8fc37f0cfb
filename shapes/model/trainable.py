"""The parameters that train: all of them, the head's, or the adapters beside frozen matrices."""

from __future__ import annotations

from collections.abc import Iterator

from shapes.errors import InputError
from shapes.model.adapters import adapters, has_adapters, layers_train
from shapes.model.layers import Block
from shapes.model.parameters import ParameterTensor, block_tensors, linear_tensors, parameter_count
from shapes.model.shape import ModelShape
from shapes.model.stages import ShardParameters, Stage, counted, parameter_tensors, stage_kinds
from shapes.workload import Workload


def check_finetune(model: ModelShape, workload: Workload) -> None:
    """InputError where no matrix is a target, and where the head that alone should train is the embedding."""
    if workload.finetune == "frozen-base" and (model.tied or not model.head):
        raise InputError("expected a model with a head of its own", key="finetune", value=workload.finetune)
    if not has_adapters(workload):
        return
    linears = [linear for stack, block in model.all_blocks() for linear in block.linears(stack.hidden)]
    if not any(adapters(linear, workload) for linear in linears):
        known = sorted({linear.name.rsplit(".", 1)[-1] for linear in linears if "router" not in linear.name})
        raise InputError(
            f"expected some of {', '.join(known)} or all-linear: no matrix is called so",
            key="lora_targets",
            value=workload.lora_targets,
        )


def trained_block(block: Block, hidden: int, workload: Workload) -> Iterator[ParameterTensor]:
    """What trains of ``block.count`` layers on one tensor- and expert-parallel rank."""
    if layers_train(workload):
        yield from block_tensors(block, hidden, workload.t, workload.e)
        return
    for linear in block.linears(hidden):
        for adapter in adapters(linear, workload):
            yield from linear_tensors(adapter, workload.t, block.count, "block")


def trained_tensors(model: ModelShape, workload: Workload, stage: Stage = "last") -> tuple[ParameterTensor, ...]:
    """Every parameter of a stage on one rank that has a gradient (ZeRO not applied)."""
    if layers_train(workload):
        return parameter_tensors(model, workload, stage)
    found = [
        tensor
        for stack, blocks in stage_kinds(model, workload.p, stage)
        for block in blocks
        for tensor in trained_block(block, stack.hidden, workload)
    ]
    return (*found, *trained_ends(model, workload, stage))


def trained_ends(model: ModelShape, workload: Workload, stage: Stage = "last") -> tuple[ParameterTensor, ...]:
    """What trains behind the layers."""
    if stage == "first" and workload.p > 1:
        return ()
    if layers_train(workload):
        return tuple(model.end_tensors(workload.t))
    if workload.finetune != "frozen-base" or model.head_linear is None:
        return ()
    return tuple(linear_tensors(model.head_linear, workload.t, role="head"))


def trained_shard(model: ModelShape, workload: Workload, stage: Stage = "last") -> ShardParameters:
    """As ``shard_parameters``, of what trains."""
    return counted(trained_tensors(model, workload, stage))


def trained_parameters(model: ModelShape, workload: Workload) -> int:
    """Parameters of the whole model that train.

    Source: as peft counts ``requires_grad`` parameters.
    """
    whole = Workload(
        finetune=workload.finetune,
        lora_rank=workload.lora_rank,
        lora_targets=workload.lora_targets,
        base=workload.base,
    )
    return parameter_count(trained_tensors(model, whole))
