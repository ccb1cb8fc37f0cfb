"""The one description of a model's parameters: every tensor, by name and shape, as one device holds it.

Totals, a shard's count, weights, gradients and optimizer states in memory, the gradients that data parallelism
reduces and the search's count are sums over these tensors. Tensor parallelism (t) cuts matrices as Megatron does
(``Linear.on_shard``) and leaves norms, routers and row-parallel biases whole; expert parallelism (e) gives each rank
experts/e whole experts. Which layers and ends a pipeline stage holds is ``shapes.model.stages``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Literal

from shapes.frozen import frozen
from shapes.model.layers import Block, MoeShape, Stack
from shapes.model.linear import Linear

Role = Literal["block", "embedding", "head", "other"]


@frozen
class ParameterTensor:
    """``copies`` parameters of one ``shape`` on one device. ``expert``: of a mixture's expert, which only d/e of the d

    data-parallel ranks hold: its gradients are reduced and its states sharded over those.
    """

    name: str
    shape: tuple[int, ...]
    copies: int
    role: Role
    expert: bool = False

    @property
    def elements(self) -> int:
        """Elements of one copy."""
        return prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        return len(self.shape) > 1


def parameter_count(tensors: Iterable[ParameterTensor]) -> int:
    """Parameters of all copies of ``tensors``."""
    return sum(tensor.copies * prod(tensor.shape) for tensor in tensors)


def linear_tensors(
    linear: Linear, t: int = 1, copies: int = 1, role: Role = "other", *, expert: bool = False
) -> Iterator[ParameterTensor]:
    """A linear layer's matrix [out, in] and bias on one of ``t`` ranks."""
    own = linear.on_shard(t)
    yield ParameterTensor(own.name, (own.out_features, own.in_features), copies, role, expert)
    if own.bias:
        yield ParameterTensor(f"{own.name}.bias", (own.out_features,), copies, role, expert)


def named_vectors(
    extra: tuple[tuple[str, int], ...], copies: int = 1, role: Role = "other"
) -> Iterator[ParameterTensor]:
    """Vectors given as (name, elements)."""
    return (ParameterTensor(name, (number,), copies, role) for name, number in extra)


def block_tensors(
    block: Block, hidden: int, t: int = 1, e: int = 1, *, active: bool = False
) -> Iterator[ParameterTensor]:
    """All of ``block.count`` layers' tensors on one of ``t`` x ``e`` ranks; ``active``: of its experts only top_k."""
    layers, mlp = block.count, block.mlp
    for linear in block.linears(hidden):
        yield from linear_tensors(linear, t, layers, "block")
    if isinstance(mlp, MoeShape):
        experts = mlp.top_k if active else mlp.experts // e
        for linear in mlp.expert_linears(hidden):
            yield from linear_tensors(linear, t, layers * experts, "block", expert=True)
        if mlp.router_parameters:
            yield ParameterTensor("moe.router.other", (mlp.router_parameters,), layers, "block")
    for part in (block.attention, block.cross, block.mixer):
        if part is not None:
            yield from named_vectors(part.vectors(t), layers, "block")
    if block.norms * block.norm_weights:
        yield ParameterTensor("norm", (hidden,), block.norms * block.norm_weights * layers, "block")
    yield from named_vectors(block.extra, layers, "block")


def stack_front(stack: Stack, t: int = 1) -> Iterator[ParameterTensor]:
    """What is before a stack's first layer: patch embeddings, learned positions, the embedding's norm."""
    for linear in stack.front:
        yield from linear_tensors(linear, t)
    if stack.positions:
        yield ParameterTensor("positions", (stack.positions, stack.hidden), 1, "embedding")
    if stack.embedding_norm:
        yield ParameterTensor("embedding_norm", (stack.hidden,), stack.embedding_norm, "other")
    yield from named_vectors(stack.extra)


def stack_end(stack: Stack) -> Iterator[ParameterTensor]:
    """The norm after a stack's last layer."""
    if stack.final_norm:
        yield ParameterTensor("final_norm", (stack.hidden,), stack.final_norm, "other")
