"""ModelShape: everything about an architecture that decides which GEMMs run and how many parameters it has."""

from __future__ import annotations

from collections.abc import Iterator

from shapes.errors import InputError, positive_int
from shapes.frozen import frozen
from shapes.model.layers import Block, MlpShape, MoeShape, Stack
from shapes.model.mixers import AttentionShape, Linear, MlaShape, RecurrentShape
from shapes.model.parameters import (
    ParameterTensor,
    block_tensors,
    linear_tensors,
    named_vectors,
    parameter_count,
    stack_end,
    stack_front,
)


@frozen
class ModelShape:
    """A whole model. The last stack is the main one: it reads the vocabulary and feeds the head.

    ``embedding_dim``: width of the token embedding where it is not the hidden size (opt-350m). ``before_head``:
    matrices between the last norm and the head (BERT's transform), ``head`` False: no LM-head. ``max_positions``: the
    longest sequence (None: unlimited). ``extra`` names further parameters. ``part``: what of a larger model this is.
    ``embedding_tables``: token embeddings of their own (an untied bart has three). ``pooling``: attention of one
    learned query over the main stack's tokens (siglip), its projections being in ``before_head``. ``head_passes``:
    times that training runs the head and its loss (multi-token prediction does at each depth).
    """

    model_type: str
    stacks: tuple[Stack, ...]
    vocab: int = 0
    tied: bool = False
    head: bool = True
    head_bias: bool = False
    embedding_dim: int | None = None
    after_embedding: tuple[Linear, ...] = ()
    before_head: tuple[Linear, ...] = ()
    max_positions: int | None = None
    extra: tuple[tuple[str, int], ...] = ()
    part: str | None = None
    embedding_tables: int = 1
    pooling: AttentionShape | None = None
    head_passes: int = 1

    def __post_init__(self) -> None:
        if not self.stacks:
            raise InputError("expected at least one stack of layers", key="stacks", value=0)
        if self.head or self.vocab:
            positive_int(self.vocab, "vocab")

    @property
    def main(self) -> Stack:
        return self.stacks[-1]

    @property
    def hidden(self) -> int:
        return self.main.hidden

    @property
    def layers(self) -> int:
        return sum(stack.layers for stack in self.stacks)

    @property
    def attention(self) -> AttentionShape | MlaShape | None:
        """The main stack's first self-attention."""
        return next((block.attention for block in self.main.blocks if block.attention), None)

    @property
    def mixer(self) -> RecurrentShape | None:
        """The main stack's first recurrent layer."""
        return next((block.mixer for block in self.main.blocks if block.mixer), None)

    @property
    def dense_mlp(self) -> MlpShape | None:
        return next((block.mlp for block in self.main.blocks if isinstance(block.mlp, MlpShape)), None)

    @property
    def moe(self) -> MoeShape | None:
        return next((block.mlp for block in self.main.blocks if isinstance(block.mlp, MoeShape)), None)

    @property
    def head_linear(self) -> Linear | None:
        if not self.head:
            return None
        return Linear("lm_head", self.vocab, self.embedding_dim or self.hidden, self.head_bias, "column")

    def front_tensors(self, t: int = 1) -> Iterator[ParameterTensor]:
        """What the first pipeline stage holds beside its layers and its stacks' fronts, on one of ``t`` ranks."""
        yield from self.embedding_tensors(t)
        for linear in self.after_embedding:
            yield from linear_tensors(linear, t)

    def embedding_tensors(self, t: int = 1) -> Iterator[ParameterTensor]:
        """The token embedding, of which each of ``t`` ranks holds a share of the vocabulary."""
        if self.vocab:
            shape = (-(-self.vocab // t), self.embedding_dim or self.hidden)
            yield ParameterTensor("embedding", shape, self.embedding_tables, "embedding")

    def end_tensors(self, t: int = 1) -> Iterator[ParameterTensor]:
        """What the last pipeline stage holds after its stacks' ends, on one of ``t`` ranks; a tied head no matrix."""
        for linear in self.before_head:
            yield from linear_tensors(linear, t)
        yield from named_vectors(self.extra)
        if self.head_linear is not None:
            found = linear_tensors(self.head_linear, t, role="head")
            yield from (tensor for tensor in found if not (self.tied and tensor.is_matrix))

    def tensors(self, *, active: bool = False) -> Iterator[ParameterTensor]:
        """Every parameter tensor of the whole model, tied ones once; ``active``: those that one token meets."""
        yield from self.front_tensors()
        for stack in self.stacks:
            yield from stack_front(stack)
            for block in stack.kinds:
                yield from block_tensors(block, stack.hidden, active=active)
            yield from stack_end(stack)
        yield from self.end_tensors()

    @property
    def parameters(self) -> int:
        """Every learned scalar, tied embeddings counted once."""
        return parameter_count(self.tensors())

    @property
    def active_parameters(self) -> int:
        """Parameters one token meets: of each mixture its top_k experts."""
        return parameter_count(self.tensors(active=True))

    def all_blocks(self) -> Iterator[tuple[Stack, Block]]:
        """Every kind of block of every stack."""
        for stack in self.stacks:
            for block in stack.kinds:
                yield stack, block
