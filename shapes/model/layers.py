"""The parts of a model: ``Stack``s of ``Block``s (attention kind x MLP kind) over one hidden size.

Every weight matrix is a ``Linear``, from which parameters and operators both follow, so the two cannot disagree.
Shapes are per model, before any parallel split; ``Linear.on_shard`` says what one tensor-parallel rank holds.
"""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar

from shapes.errors import positive_int, refuse
from shapes.frozen import Count, HashedOnce, Pair, Triple, frozen, replace
from shapes.recipes import WeightFormat

from .mixers import (
    AttentionShape,
    Linears,
    Listed,
    MlaShape,
    RecurrentShape,
    SharedKeyShape,
    Streams,
    Vectors,
    matrices,
)

#: Attention of every kind.
Attention = AttentionShape | MlaShape | SharedKeyShape

#: Layers of a stack: a thousand times the deepest that was trained; degrees and layers are gone through one by one.
MOST_LAYERS = 2**17


@frozen
class MlpShape:
    """A dense MLP: down(act(gate(x)) * up(x)) if ``gated``, else down(act(up(x))). ``width`` is d_ff."""

    width: Count
    gated: bool = True
    bias: bool = False
    fused_gate_up: bool = False
    prefix: str = "mlp"

    def linears(self, hidden: int, *, fused: bool | None = None) -> Linears:
        return matrices(self, hidden=hidden, together=self.gated and (self.fused_gate_up if fused is None else fused))


@frozen
class MoeShape(Listed):
    """A mixture of ``experts`` gated MLPs of ``width``, ``top_k`` a token, and an optional shared MLP.

    ``shared_gate``: a linear to one sigmoid that scales the shared MLP (qwen2_moe). ``router_parameters``: learned
    scalars of the router but its matrix (a correction bias). ``latent``: the width that routed tokens are projected
    down to before the experts and up from behind them (None: the hidden size, no projection). ``empty``: choices of the
    router behind which there is no expert. ``groups`` that the experts are in, and how many of them a
    token chooses from.
    """

    experts: Count
    top_k: Count
    width: Count
    gated: bool = True
    bias: bool = False
    fused_gate_up: bool = True
    router_bias: bool = False
    router_dtype: str | None = None
    router_parameters: int = 0
    shared: MlpShape | None = None
    shared_gate: bool = False
    latent: int | None = None
    latent_bias: bool = False
    empty: int = 0
    groups: Pair = (1, 1)

    def __post_init__(self) -> None:
        expected = f"expected at most the {self.experts} experts there are"
        refuse(self.top_k > self.experts, expected, "top_k", self.top_k)

    def routed_width(self, hidden: int) -> int:
        """Channels of a token as the experts see it."""
        return self.latent or hidden

    def expert_linears(self, hidden: int, *, fused: bool | None = None) -> Linears:
        """One expert's matrices."""
        one = MlpShape(self.width, self.gated, self.bias, self.fused_gate_up, prefix="moe.experts")
        return one.linears(self.routed_width(hidden), fused=fused)


@frozen
class Augment(Listed):
    """What gemma3n and gemma4 add to a layer.

    ``inputs``: channels of the layer's own embedding of each token, gated by the hidden state and added to it.
    ``laurel``: rank of a low-rank path parallel to attention (LAuReL; 0: none). ``streams``: hidden states, each of
    which a layer predicts and corrects from the one that it ran on (AltUp; 1: none).
    """

    inputs: Count
    laurel: int = 0
    streams: Count = 1
    #: AltUp's router runs twice, with the same weights.
    again: ClassVar[bool] = True


@frozen
class Block(HashedOnce):
    """``count`` layers in a row that are alike.

    ``norms`` of hidden size each hold ``norm_weights`` x h parameters (1: RMSNorm or LayerNorm without bias; 2: with
    bias; 0: no learned weight). ``parallel``: attention and MLP read the same input and share one residual addition.
    ``mixer``: a recurrence in attention's place, or next to it, where both read one norm's output. ``before``: matrices
    in front of it all (multi-token prediction's). ``extra`` names further parameters of each layer. ``formats``: of a
    quantised release's matrices, by their names where nothing is fused. ``streams``: hyper-connections in place of the
    residual additions. ``augment``: what runs with and behind its parts. ``context``: tokens of another sequence (a
    diffusion model's text), which cross attention reads or else attention sees next to the stack's own. ``apart``: the
    parts' matrices are fed the stack's own tokens alone (those of ``before`` with as many rows are the others').
    ``joined``: what attention and the MLP make is one matrix's input. ``shared``: the weights of all but ``before`` and
    ``mixer`` are an earlier block's.
    """

    attention: Attention | None
    mlp: MlpShape | MoeShape | None
    cross: AttentionShape | None = None
    norms: int = 2
    norm_weights: int = 1
    parallel: bool = False
    count: Count = 1
    dropout: float = 0.0
    extra: Vectors = ()
    mixer: RecurrentShape | None = None
    before: Linears = ()
    formats: tuple[tuple[str, WeightFormat], ...] = ()
    streams: Streams | None = None
    augment: Augment | None = None
    context: int = 0
    apart: bool = False
    joined: bool = False
    shared: bool = False

    def __hash__(self) -> int:
        try:
            return self.known_hash
        except AttributeError:  # of a part, as a stack's: formats are long
            object.__setattr__(self, "known_hash", hash((self.attention, self.mlp, self.mixer, self.count)))
            return self.known_hash

    @property
    def crosses(self) -> bool:
        return self.cross is not None and self.cross.cross

    @property
    def joint_tokens(self) -> int:
        """Tokens of another sequence that attention sees next to the stack's own."""
        return 0 if self.crosses else self.context

    @property
    def parts(self) -> tuple[Attention | RecurrentShape | MlpShape | MoeShape, ...]:
        """The parts with a norm and a residual addition of their own, in order."""
        return tuple(part for part in (self.attention, self.mixer, self.cross, self.mlp) if part)

    def linears(
        self, hidden: int, *, fused_qkv: bool | str | None = None, fused_gate_up: bool | None = None
    ) -> Linears:
        """Matrices of one layer that every token meets.

        ``fused_qkv``: the phase too, as latents are projected by one matrix where engines decode alone.
        """
        out = self.before + _linears(self.attention, hidden, fused=fused_qkv) + _linears(self.mixer, hidden)
        out += tuple(replace(linear, name=f"cross_{linear.name}") for linear in _linears(self.cross, hidden))
        out += _linears(self.mlp, hidden, fused=fused_gate_up)
        if self.joined:
            out = tuple(one for one in out if one.name != "attention.o_proj")
            out = *out[:-1], replace(out[-1], in_features=out[-1].in_features + hidden)
        out += _linears(self.augment, hidden) + _linears(self.streams, hidden, len(self.parts))
        return self._kept(out)

    def expert_linears(self, hidden: int, *, fused: bool | None = None) -> Linears:
        """One expert's matrices, where there are experts."""
        return self._kept(self.mlp.expert_linears(hidden, fused=fused)) if isinstance(self.mlp, MoeShape) else ()

    def _kept(self, linears: Linears) -> Linears:
        if self.shared:
            linears = tuple(
                replace(one, shared=one.shared or not (one in self.before or one.name.startswith("mixer")))
                for one in linears
            )
        if not self.formats:
            return linears
        formats = dict(self.formats)
        # A fused matrix goes by its first part.
        first = (one.name.replace("qkv_", "q_").replace("gate_up_proj", "gate_proj") for one in linears)
        return tuple(replace(one, weights=formats.get(name)) for one, name in zip(linears, first, strict=True))


def _linears(part: Any, *sizes: int, **fused: bool | str | None) -> Linears:
    """Those of a part that a block may lack."""
    return part.linears(*sizes, **fused) if part else ()


Blocks = tuple[Block, ...]
#: All of a block but its count.
_ALIKE = attrgetter(*(name for name in Block.__match_args__ if name != "count"))


@frozen
class Stack:
    """Blocks over one hidden size. ``length``: tokens a sequence has here (None: the workload's s).

    ``front``: matrices before the first block (patch embedding, whisper's convolutions). ``embedding_norm`` and
    ``final_norm`` are parameters per channel (0: none or not learned). ``positions``: rows of learned positions.
    """

    name: str
    hidden: Count
    blocks: Blocks
    length: int | None = None
    front: Linears = ()
    positions: int = 0
    embedding_norm: int = 0
    final_norm: int = 1
    extra: Vectors = ()

    def __post_init__(self) -> None:
        refuse(not self.blocks, "expected at least one layer", "layers", 0)
        positive_int(sum(block.count for block in self.blocks), "layers", MOST_LAYERS)
        if len(self.blocks) == 1:
            return
        once = dict[Block, Block]()  # equal layers are one object: those are told apart at no cost
        object.__setattr__(self, "blocks", tuple(once.setdefault(block, block) for block in self.blocks))

    def __hash__(self) -> int:
        # Of a part: a model is looked up for each of a plan's splits, and may have ten thousand different layers.
        return hash((self.hidden, self.blocks[-1], len(self.blocks)))

    @property
    def streams(self) -> Streams | None:
        """Hyper-connections, which all layers have or none."""
        return self.blocks[0].streams

    @property
    def residuals(self) -> int:
        """Residual streams, one without hyper-connections."""
        return self.streams.number if self.streams else 1

    @property
    def layers(self) -> int:
        return sum(block.count for block in self.blocks)

    @property
    def kinds(self) -> Blocks:
        """The different blocks, each once with the layers of all its runs: for what the layers' order is nothing to."""
        return self.blocks if len(self.blocks) == 1 else kinds_of(self.blocks)


@frozen
class Tower:
    """An encoder of images before a text tower: its ``stack``, then the matrices ``behind`` it, which read tokens.

    An image is cut in patches of ``patch`` pixels a side (0: the tower hears, and no step runs it); ``merge`` of them
    a side make a token. ``side``: pixels that every image is resized to (0: each keeps its size), or the tiles are that
    it is cut in (``tiled``), with one of the whole image in addition to several. ``special``: tokens of the tower's own
    (a class token). ``heads``: what tensor parallelism cuts, in a tower that Megatron-Bridge cuts (1: it is whole on
    every rank of the first stage).
    """

    stack: Stack
    behind: Linears
    patch: int
    merge: int = 1
    side: int = 0
    tiled: bool = False
    special: int = 0
    heads: int = 1

    def ranks(self, t: int) -> int:
        """How many of ``t`` ranks share its layers."""
        return 1 if self.heads % t else t

    def cut(self, height: int, width: int) -> Triple:
        """(pieces that an image is cut in, patches of each, tokens of all of them)."""
        pieces = 1
        if self.side:
            across = -(-height // self.side) * -(-width // self.side) if self.tiled else 1
            pieces, height, width = across + (across > 1), self.side, self.side
        step = self.patch * self.merge
        tokens = -(-height // step) * -(-width // step)
        return pieces, tokens * self.merge**2 + self.special, pieces * tokens


@lru_cache(2**8)
def kinds_of(blocks: Blocks) -> Blocks:
    """``blocks`` with equal ones merged, in the order in which each first comes."""
    times_of = Counter(map(id, blocks))
    counts = dict[Block, int]()
    for block in {id(block): block for block in blocks}.values():
        counts[block] = counts.get(block, 0) + times_of[id(block)]
    return tuple(block if times == 1 else replace(block, count=block.count * times) for block, times in counts.items())


def each_layer(blocks: Iterable[Block]) -> list[Block]:
    """A block for every layer."""
    return [
        one for block in blocks for one in [replace(block, count=1) if block.count > 1 else block] * int(block.count)
    ]


def run_lengths(blocks: Iterable[Block]) -> Blocks:
    """Neighbours that are alike joined into one block with their count."""
    runs = ([*run] for _, run in groupby(blocks, _ALIKE))
    return tuple(replace(run[0], count=sum(one.count for one in run)) if run[1:] else run[0] for run in runs)
