"""A whole model, and its parameters: every tensor, by name and shape, as one device holds it.

``ModelShape`` is everything about an architecture that decides which GEMMs run and how many parameters it has.

Totals, a shard's count, weights, gradients and optimizer states in memory, the gradients that data parallelism
reduces and the search's count are sums over these tensors. Tensor parallelism (t) cuts matrices as Megatron does
(``Linear.on_shard``) and leaves norms, routers and row-parallel biases whole; expert parallelism (e) gives each rank
experts/e whole experts. ``shapes.model.stages`` says which layers and ends a pipeline stage holds. ``OPTIMIZERS`` has
an optimizer's bytes for each parameter, ``PRECISIONS`` those of weights and gradients.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil, prod
from typing import Literal

from shapes.dtypes import QUANTISED
from shapes.errors import one_of, positive_int, refuse
from shapes.frozen import Ints, Values, first_of, frozen, replace
from shapes.recipes import WeightFormat
from shapes.toml_table import DATA, content
from shapes.workload import Workload

from .layers import Attention, Augment, Block, MlpShape, MoeShape, Stack, Tower, run_lengths
from .mixers import (
    DELTA_CHUNK,
    AttentionShape,
    Compressor,
    Gate,
    Indexer,
    Linear,
    Linears,
    MlaShape,
    QkNorm,
    RecurrentShape,
    SharedKeyShape,
    Streams,
    Vectors,
    vectors,
)

Role = Literal["block", "embedding", "head", "other"]


@frozen
class ParameterTensor:
    """``copies`` parameters of one ``shape`` on one device.

    ``expert``: of a mixture's expert, which only d/e of the d data-parallel ranks hold: its gradients are reduced and
    its states sharded over those. ``weights``: the format of a quantised release's matrix.
    """

    name: str
    shape: Ints
    copies: int
    role: Role
    expert: bool = False
    weights: WeightFormat | None = None

    def stored_bytes(self, otherwise: float) -> int:
        """Bytes of all copies as the release has them; ``otherwise``: an element's where it is not quantised."""
        each = self.weights.stored_bytes(*self.shape) if self.weights else ceil(otherwise * self.elements)
        return self.copies * each

    @property
    def elements(self) -> int:
        """Elements of one copy."""
        return prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        return len(self.shape) > 1


#: Tensors one by one, and all of a device's.
EachTensor = Iterator[ParameterTensor]
Tensors = tuple[ParameterTensor, ...]


def parameter_count(tensors: Iterable[ParameterTensor]) -> int:
    """Parameters of all copies of ``tensors``."""
    return sum(tensor.copies * prod(tensor.shape) for tensor in tensors)


def linear_tensors(
    linears: Linears, t: int = 1, copies: int = 1, role: Role = "other", *, expert: bool = False
) -> EachTensor:
    """Linear layers' matrices [out, in] and biases on one of ``t`` ranks."""
    for own in (linear.on_shard(t) for linear in linears if not linear.shared):
        yield ParameterTensor(own.name, (own.out_features, own.in_features), copies, role, expert, own.weights)
        if own.bias:
            yield ParameterTensor(f"{own.name}.bias", (own.out_features,), copies, role, expert)


def named_vectors(extra: Vectors, copies: int = 1, role: Role = "other") -> EachTensor:
    """Vectors given as (name, elements)."""
    return (ParameterTensor(name, (number,), copies, role) for name, number in extra)


def block_tensors(
    block: Block, hidden: int, t: int = 1, e: int = 1, etp: int | None = None, *, active: bool = False
) -> EachTensor:
    """All tensors of ``block.count`` layers on one of ``t`` x ``e`` ranks; ``etp`` (None: t) ranks share an expert.

    ``active``: of its experts only top_k.
    """
    layers, mlp = block.count, block.mlp
    yield from linear_tensors(block.linears(hidden), t, layers, "block")
    if isinstance(mlp, MoeShape):
        experts = mlp.top_k if active else mlp.experts // e
        yield from linear_tensors(block.expert_linears(hidden), etp or t, layers * experts, "block", expert=True)
    yield from named_vectors(vectors(block, t, hidden=hidden) + block.extra * (not block.shared), layers, "block")


def stack_front(stack: Stack, t: int = 1) -> EachTensor:
    """Parameters before a stack's first layer: patch embeddings, learned positions, the embedding's norm."""
    yield from linear_tensors(stack.front, t)
    if stack.positions:
        yield ParameterTensor("positions", (stack.positions, stack.hidden), 1, "embedding")
    if stack.embedding_norm:
        yield ParameterTensor("embedding_norm", (stack.hidden,), stack.embedding_norm, "other")
    yield from named_vectors(stack.extra)


def stack_end(stack: Stack) -> EachTensor:
    """Parameters that collapse the streams after a stack's last layer, and of the norm there."""
    if stack.streams:
        yield from linear_tensors((stack.streams.head(stack.hidden),))
        yield ParameterTensor("streams.head.scale", (stack.streams.number + 1,), 1, "other")
    if stack.final_norm:
        yield ParameterTensor("final_norm", (stack.hidden,), stack.final_norm, "other")


@frozen
class ModelShape:
    """A whole model. The last stack is the main one: it reads the vocabulary and feeds the head.

    ``embedding_dim``: width of the token embedding where it is not the hidden size (opt-350m). ``before_head``:
    matrices between the last norm and the head (BERT's transform), ``head`` False: no LM-head. ``max_positions``: the
    longest sequence (None: unlimited). ``extra`` names further parameters. ``part``: what of a larger model this is.
    ``embedding_tables``: token embeddings of their own (an untied bart has three). ``pooling``: attention of one
    learned query over the main stack's tokens (siglip), its projections being in ``before_head``. ``head_passes``:
    times that training runs the head and its loss (multi-token prediction does at each depth). ``head_weights``: the
    head's format in a quantised release. ``towers``: encoders of images, on the first stage.
    ``layer_vocab``: rows of the table of layers' own embeddings (gemma3n, gemma4). ``heads``: of as many columns each
    (musicgen's codebooks). ``head_inputs``: channels that the head reads where the embedding is another's (rembert).
    ``head_dtype``: element type that the head's products always run in (hy_v4). ``written``: words of modules.toml on
    how the class was seen to be written.
    """

    model_type: str
    stacks: tuple[Stack, ...]
    vocab: int = 0
    tied: bool = False
    head: bool = True
    head_bias: bool = False
    embedding_dim: int | None = None
    after_embedding: Linears = ()
    before_head: Linears = ()
    max_positions: int | None = None
    extra: Vectors = ()
    part: str | None = None
    embedding_tables: int = 1
    pooling: AttentionShape | None = None
    head_passes: int = 1
    head_weights: WeightFormat | None = None
    towers: tuple[Tower, ...] = ()
    layer_vocab: int = 0
    heads: int = 1
    head_inputs: int | None = None
    head_dtype: str | None = None
    written: str = ""

    def __post_init__(self) -> None:
        refuse(not self.stacks, "expected at least one stack of layers", "stacks", 0)
        if self.head or self.vocab:
            positive_int(self.vocab, "vocab")

    def __hash__(self) -> int:
        return hash((self.stacks[-1], self.vocab))  # of a part, as a stack's

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
    def attention(self) -> Attention | None:
        """The main stack's first self-attention."""
        return first_of(block.attention for block in self.main.blocks if block.attention)

    @property
    def mixer(self) -> RecurrentShape | None:
        """The main stack's first recurrent layer."""
        return first_of(block.mixer for block in self.main.blocks if block.mixer)

    @property
    def dense_mlp(self) -> MlpShape | None:
        return first_of(block.mlp for block in self.main.blocks if isinstance(block.mlp, MlpShape))

    @property
    def moe(self) -> MoeShape | None:
        return first_of(block.mlp for block in self.main.blocks if isinstance(block.mlp, MoeShape))

    @property
    def head_linear(self) -> Linear | None:
        if not self.head:
            return None
        inner = self.head_inputs or self.embedding_dim or self.hidden
        return Linear(
            "lm_head", self.vocab, inner, self.head_bias, "column", dtype=self.head_dtype, weights=self.head_weights
        )

    def front_tensors(self, t: int = 1) -> EachTensor:
        """Parameters of the first pipeline stage before its stacks' fronts and layers, on one of ``t`` ranks."""
        yield from self.embedding_tensors(t)
        yield from linear_tensors(self.entry_linears, t)
        for tower in self.towers:
            yield from stack_front(tower.stack)
            for block in tower.stack.kinds:
                yield from block_tensors(block, tower.stack.hidden, tower.ranks(t))
            yield from linear_tensors(tower.behind, tower.ranks(t))
        if self.layer_channels:
            yield ParameterTensor("layer_embedding", (-(-self.layer_vocab // t), self.layer_channels), 1, "embedding")
            yield ParameterTensor("layer_input.norm", (self.layer_channels // self.main.layers,), 1, "other")

    @property
    def layer_channels(self) -> int:
        """Columns of the table of all layers' own embeddings."""
        augment = self.main.blocks[0].augment
        return self.main.layers * augment.inputs if augment else 0

    @property
    def entry_linears(self) -> Linears:
        """The matrices between the embedding and the first layer."""
        if not self.layer_channels:
            return self.after_embedding
        return *self.after_embedding, Linear("layer_input.entry", self.layer_channels, self.hidden)

    def embedding_tensors(self, t: int) -> EachTensor:
        """The token embedding: each of ``t`` ranks holds a share of the vocabulary."""
        if self.vocab:
            shape = -(-self.vocab // t), self.embedding_dim or self.hidden
            yield ParameterTensor("embedding", shape, self.embedding_tables, "embedding")

    def end_tensors(self, t: int = 1) -> EachTensor:
        """Parameters of the last stage after its stacks' ends, on one of ``t`` ranks; tied heads have no matrix."""
        yield from linear_tensors(self.before_head, t)
        yield from named_vectors(self.extra)
        if self.head_linear:
            found = linear_tensors((self.head_linear,), t, self.heads, role="head")
            yield from (tensor for tensor in found if not (self.tied and tensor.is_matrix))

    def tensors(self, *, active: bool = False) -> EachTensor:
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

    @property
    def formats(self) -> dict[WeightFormat, int]:
        """The formats of a quantised release -> parameters kept in each; none where it is not quantised."""
        held = dict[WeightFormat, int]()
        for tensor in self.tensors() if any(block.formats for _, block in self.all_blocks()) else ():
            if tensor.weights:
                held[tensor.weights] = held.get(tensor.weights, 0) + tensor.copies * tensor.elements
        return held

    def in_formats(self, change: Callable[[WeightFormat], WeightFormat | None]) -> "ModelShape":
        """The model with each format of a quantised release as ``change`` has it (None: 16 bits)."""

        def changed(block: Block) -> Block:
            formats = ((name, change(one)) for name, one in block.formats)
            return replace(block, formats=tuple((name, one) for name, one in formats if one))

        return replace(self.each(changed), head_weights=self.head_weights and change(self.head_weights))

    def each(self, changed: Callable[[Block], Block]) -> "ModelShape":
        """The model with every block as ``changed`` has it."""
        stacks = (replace(stack, blocks=tuple(map(changed, stack.blocks))) for stack in self.stacks)
        return replace(self, stacks=tuple(stacks))

    def all_blocks(self) -> Iterator[tuple[Stack, Block]]:
        """Every kind of block of every stack."""
        return ((stack, block) for stack in self.stacks for block in stack.kinds)


@frozen
class Precision:
    """Bytes a parameter. ``copies``: kept with the weights in 16 or 8 bits; ``matrix_copies``: of matrices only."""

    weights: int
    master: int
    gradients: int
    moments: int
    note: str
    copies: int = 0
    matrix_copies: int = 0


_TABLES = content(DATA / "models.toml")
#: The book's two conventions for mixed precision are "mixed" (6 + 4 + 8 = 18 with AdamW) and "mixed-16" (16).
PRECISIONS = {name: Precision(**row) for name, row in _TABLES["precisions"].items()}

#: bitsandbytes: blocks of 256 share one fp32 absmax, and tensors under 4096 elements keep 32-bit states
#: (`block_wise`, `min_8bit_size` in bitsandbytes/optim/optimizer.py).
EIGHT_BIT_BLOCK, EIGHT_BIT_SMALLEST = 256, 4096


#: name -> what is kept of a parameter; the file says what each key is.
OPTIMIZERS: dict[str, Values] = _TABLES["optimizers"]


def _state_bytes(tensor: ParameterTensor, kept: Values, moment: int) -> int:
    """Bytes of state of one copy of a tensor; ``moment``: bytes of one moment's element."""
    n, hidden = tensor.elements, tensor.is_matrix and tensor.role == "block"
    moments: int = kept.get("moments", 0)
    total: int = n * (moment * (kept.get("hidden_moments", moments) if hidden else moments) + kept.get("bytes", 0))
    if "eight_bit" in kept:
        if n < EIGHT_BIT_SMALLEST or tensor.role == kept["eight_bit"]:
            return 8 * n
        return 2 * n + 8 * -(-n // EIGHT_BIT_BLOCK)
    if "factored" in kept:
        *lead, rows, columns = (n, 1, 0) if not tensor.is_matrix else tensor.shape
        total += 4 * prod(lead) * (rows + columns)
    return total


def default_precision(workload: Workload) -> str:
    """fp32 trains in fp32, 16 bits with fp32 master weights, fp8 by Transformer Engine's recipe.

    Where updated weights are gathered in fp8, matrices are kept in nothing else.

    Adapters are kept in fp32 and run under autocast (peft's autocast_adapter_dtype).
    """
    if workload.adapted or workload.dtype in ("fp64", "fp32", "tf32"):
        return "fp32"
    if workload.dtype not in QUANTISED:
        return "mixed"
    return "fp8-weights" if workload.gathers == "fp8" and workload.zero < 3 else "fp8"


def optimizer_state_bytes(tensors: Iterable[ParameterTensor], optimizer: str, precision: Precision) -> int:
    """Bytes of the optimizer's states; InputError for an unknown optimizer."""
    one_of(optimizer, OPTIMIZERS, "optimizer")
    kept = OPTIMIZERS[optimizer]
    return sum(tensor.copies * _state_bytes(tensor, kept, precision.moments) for tensor in tensors)


@frozen
class Unproven:
    """A module that was not understood ("": the model as a whole), why, and its part of the forward pass's FLOPs."""

    module: str
    share: float
    reason: str

    @property
    def name(self) -> str:
        return self.module or "the model"


@frozen
class Unread:
    """A key of a model's file that was not read.

    ``changes``: what it changes; None for a key that nobody knows, which may be a typing error for ``meant``.
    """

    key: str
    value: str
    changes: str | None
    meant: str | None = None


def named(found: Sequence[Unproven], most: int = 3) -> str:
    """The modules that were not understood in one line, the largest first, with the reason of the first."""
    shown = ", ".join(f"{one.name} ({one.share:.1%} of FLOPs)" for one in found[:most])
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return f"not understood: {shown}{more}: {found[0].reason}"
