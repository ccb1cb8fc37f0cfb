"""Weights, gradients and optimizer states: bytes a parameter, and the tensors whose shape matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from shapes.errors import InputError
from shapes.model import Block, Linear, ModelShape, MoeShape, Stack
from shapes.operators.lower import stage_blocks
from shapes.workload import Workload

Stage = Literal["first", "last"]
Role = Literal["block", "embedding", "head", "other"]


@dataclass(frozen=True, slots=True)
class ParameterTensor:
    """``copies`` parameters of one ``shape`` on one device."""

    name: str
    shape: tuple[int, ...]
    copies: int
    role: Role

    @property
    def elements(self) -> int:
        """Elements of one copy."""
        return prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        return len(self.shape) > 1


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes a parameter. ``copies``: kept beside the weights in 16 or 8 bits; ``matrix_copies``: of matrices only."""

    weights: int
    master: int
    gradients: int
    moments: int
    note: str
    copies: int = 0
    matrix_copies: int = 0


#: The book's two conventions for mixed precision are "mixed" (6 + 4 + 8 = 18 with AdamW) and "mixed-16" (16).
PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(4, 0, 4, 4, "everything in fp32"),
    "mixed": Precision(2, 4, 4, 4, "16-bit weights, fp32 master weights and fp32 gradients (18 bytes with AdamW)"),
    "mixed-16": Precision(2, 4, 2, 4, "16-bit weights and gradients, fp32 master weights (16 bytes with AdamW)"),
    "amp": Precision(4, 0, 4, 4, "torch.autocast: fp32 weights, cached 16-bit copies (18 bytes with AdamW)", 2),
    "bf16": Precision(2, 0, 2, 2, "everything in bf16, optimizer states too"),
    "fp8": Precision(
        2, 4, 4, 4, "Transformer Engine: 16-bit weights, matrices cached in fp8 (and transposed)", 0, 2
    ),
    "fp8-weights": Precision(
        0, 4, 4, 4, "Transformer Engine's fp8_model_init: matrices only in fp8, twice; fp32 master weights", 0, 2
    ),
}  # fmt: skip

#: bitsandbytes: blocks of 256 share one fp32 absmax, and tensors under 4096 elements keep 32-bit states
#: (`block_wise`, `min_8bit_size` in bitsandbytes/optim/optimizer.py).
EIGHT_BIT_BLOCK, EIGHT_BIT_SMALLEST = 256, 4096


def _eight_bit(tensor: ParameterTensor, moments: int) -> int:
    n = tensor.elements
    if n < EIGHT_BIT_SMALLEST:
        return 8 * n
    return 2 * n + 2 * 4 * -(-n // EIGHT_BIT_BLOCK)


def _factored(tensor: ParameterTensor, moments: int) -> int:
    # A mean over the last axis and one over the one before it, fp32; vectors keep their full second moment.
    if not tensor.is_matrix:
        return 4 * tensor.elements
    *lead, rows, columns = tensor.shape
    return 4 * prod(lead) * (rows + columns)


def _muon(tensor: ParameterTensor, moments: int) -> int:
    # Muon orthogonalises hidden matrices only; embeddings, head and vectors go to AdamW (K. Jordan, muon).
    return (1 if tensor.is_matrix and tensor.role == "block" else 2) * moments * tensor.elements


#: name -> bytes of state of one copy of a tensor; the second argument is the bytes of one moment's element.
OPTIMIZERS: dict[str, Callable[[ParameterTensor, int], int]] = {
    "adamw": lambda tensor, moments: 2 * moments * tensor.elements,
    "adamw-bf16": lambda tensor, moments: 4 * tensor.elements,
    "adamw-8bit": _eight_bit,
    "adamw-master": lambda tensor, moments: 12 * tensor.elements,
    "sgd": lambda tensor, moments: 0,
    "sgd-momentum": lambda tensor, moments: moments * tensor.elements,
    "lion": lambda tensor, moments: moments * tensor.elements,
    "adafactor": _factored,
    "adafactor-momentum": lambda tensor, moments: _factored(tensor, moments) + 4 * tensor.elements,
    "muon": _muon,
}
OPTIMIZER_NOTES: dict[str, str] = {
    "adamw": "two moments",
    "adamw-bf16": "two moments in bf16",
    "adamw-8bit": "two 8-bit moments, an fp32 constant per 256, fp32 for tensors under 4096 elements",
    "adamw-master": "two fp32 moments and an fp32 master weight",
    "sgd": "none",
    "sgd-momentum": "one moment",
    "lion": "one moment",
    "adafactor": "fp32 row and column means of matrices, fp32 second moment of vectors",
    "adafactor-momentum": "adafactor's and an fp32 moment",
    "muon": "one moment for hidden matrices, AdamW's two for the rest",
}


def precision_named(name: str) -> Precision:
    if name not in PRECISIONS:
        raise InputError(f"expected one of {', '.join(PRECISIONS)}", key="precision", value=name)
    return PRECISIONS[name]


def default_precision(workload: Workload) -> str:
    """fp32 trains in fp32, fp8 by Transformer Engine's recipe, 16 bits with fp32 master weights."""
    if workload.dtype in ("fp64", "fp32", "tf32"):
        return "fp32"
    return "fp8" if workload.dtype in ("fp8", "int8") else "mixed"


def optimizer_state_bytes(tensors: tuple[ParameterTensor, ...], optimizer: str, precision: Precision) -> int:
    """Bytes of the optimizer's states; InputError for an unknown optimizer."""
    if optimizer not in OPTIMIZERS:
        raise InputError(f"expected one of {', '.join(OPTIMIZERS)}", key="optimizer", value=optimizer)
    state = OPTIMIZERS[optimizer]
    return sum(tensor.copies * state(tensor, precision.moments) for tensor in tensors)


def stage_of(model: ModelShape, workload: Workload, stage: Stage) -> tuple[tuple[Stack, tuple[Block, ...]], ...]:
    """The first or last pipeline stage's blocks, ceil(L/p) layers either way."""
    if stage == "last" or workload.p == 1:
        return stage_blocks(model, workload)
    left = -(-model.layers // workload.p)
    found: list[tuple[Stack, tuple[Block, ...]]] = []
    for stack in model.stacks:
        blocks: list[Block] = []
        for block in stack.blocks:
            if left > 0:
                blocks.append(replace(block, count=min(block.count, left)))
                left -= blocks[-1].count
        if blocks:
            found.append((stack, tuple(blocks)))
    return tuple(found)


def parameter_tensors(model: ModelShape, workload: Workload, stage: Stage = "last") -> tuple[ParameterTensor, ...]:
    """Every parameter of a stage on one tensor- and expert-parallel shard (ZeRO not applied).

    A tied embedding is counted once, or on both ends of a pipeline, where each needs its copy.
    """
    return tuple(_tensors(model, workload, stage))


def _tensors(model: ModelShape, workload: Workload, stage: Stage) -> Iterator[ParameterTensor]:
    t, first = workload.t, stage == "first" or workload.p == 1
    last = stage == "last" or workload.p == 1
    for stack, blocks in stage_of(model, workload, stage):
        for block in blocks:
            yield from _block_tensors(block, stack.hidden, workload)
        if workload.p == 1 or first:
            for linear in stack.front:
                yield from _linear_tensors(linear, t, 1, "other")
            if stack.positions:
                yield ParameterTensor("positions", (stack.positions, stack.hidden), 1, "embedding")
            yield from _vectors("embedding_norm", stack.hidden, stack.embedding_norm, "other")
        if workload.p == 1 or last:
            yield from _vectors("final_norm", stack.hidden, stack.final_norm, "other")
        if workload.p == 1 or last:
            for name, number in stack.extra:
                yield ParameterTensor(name, (number,), 1, "other")
    width = model.embedding_dim or model.hidden
    if model.vocab and (first or (last and model.tied)):
        yield ParameterTensor("embedding", (-(-model.vocab // t), width), 1, "embedding")
    if first:
        for linear in model.after_embedding:
            yield from _linear_tensors(linear, t, 1, "other")
    if not last:
        return
    for linear in model.before_head:
        yield from _linear_tensors(linear, t, 1, "other")
    for name, number in model.extra:
        yield ParameterTensor(name, (number,), 1, "other")
    head = model.head_linear
    if head is not None and not model.tied:
        yield from _linear_tensors(head, t, 1, "head")
    elif head is not None and head.bias:
        yield ParameterTensor("lm_head.bias", (-(-model.vocab // t),), 1, "head")


def _block_tensors(block: Block, hidden: int, workload: Workload) -> Iterator[ParameterTensor]:
    count = block.count
    for linear in block.linears(hidden):
        yield from _linear_tensors(linear, workload.t, count, "block")
    if isinstance(block.mlp, MoeShape):
        for linear in block.mlp.expert_linears(hidden):
            yield from _linear_tensors(linear, workload.t, count * (block.mlp.experts // workload.e), "block")
        if block.mlp.router_parameters:
            yield ParameterTensor("router", (block.mlp.router_parameters,), count, "block")
    for part in (block.attention, block.cross):
        if part is not None and part.other_parameters:
            yield ParameterTensor("attention.other", (part.other_parameters,), count, "block")
    yield from _vectors("norm", hidden, block.norms * block.norm_weights * count, "block")
    for name, number in block.extra:
        yield ParameterTensor(name, (number,), count, "block")


def _vectors(name: str, hidden: int, copies: int, role: Role) -> Iterator[ParameterTensor]:
    if copies:
        yield ParameterTensor(name, (hidden,), copies, role)


def _linear_tensors(linear: Linear, t: int, copies: int, role: Role) -> Iterator[ParameterTensor]:
    out = -(-linear.out_features // t) if linear.shard == "column" else linear.out_features
    inner = -(-linear.in_features // t) if linear.shard == "row" else linear.in_features
    yield ParameterTensor(linear.name, (out, inner), copies, role)
    if linear.bias:
        yield ParameterTensor(f"{linear.name}.bias", (out,), copies, role)
