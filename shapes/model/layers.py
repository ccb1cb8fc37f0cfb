"""The parts of a model: ``Stack``s of ``Block``s (attention kind x MLP kind) over one hidden size.

Every weight matrix is a ``Linear``, from which parameters and operators both follow, so the two cannot disagree.
Shapes are per model, before any parallel split; ``Linear.on_shard`` says what one tensor-parallel rank holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from shapes.errors import InputError, positive_int
from shapes.frozen import frozen
from shapes.model.mixers import AttentionShape, Linear, MlaShape, RecurrentShape, positive

#: Layers of a stack: a thousand times the deepest that was trained; degrees and layers are gone through one by one.
MOST_LAYERS = 2**17


@frozen
class MlpShape:
    """A dense MLP: down(act(gate(x)) * up(x)) if ``gated``, else down(act(up(x))). ``width`` is d_ff."""

    width: int
    gated: bool = True
    bias: bool = False
    fused_gate_up: bool = False
    prefix: str = "mlp"

    def __post_init__(self) -> None:
        positive(self, "width")

    def linears(self, hidden: int, *, fused: bool | None = None) -> tuple[Linear, ...]:
        prefix, width = self.prefix, self.width
        down = Linear(f"{prefix}.down_proj", hidden, width, self.bias, "row")
        up = Linear(f"{prefix}.up_proj", width, hidden, self.bias, "column")
        if not self.gated:
            return (up, down)
        if self.fused_gate_up if fused is None else fused:
            units = ((width, 1), (width, 1))
            return (Linear(f"{prefix}.gate_up_proj", 2 * width, hidden, self.bias, "column", units=units), down)
        return (Linear(f"{prefix}.gate_proj", width, hidden, self.bias, "column"), up, down)


@frozen
class MoeShape:
    """A mixture of ``experts`` gated MLPs of ``width``, ``top_k`` a token, and an optional shared MLP.

    ``shared_gate``: a linear to one sigmoid that scales the shared MLP (qwen2_moe). ``router_parameters``: learned
    scalars of the router besides its matrix (a correction bias). ``latent``: the width that routed tokens are projected
    down to before the experts and up from behind them (None: the hidden size, no projection).
    """

    experts: int
    top_k: int
    width: int
    gated: bool = True
    bias: bool = False
    fused_gate_up: bool = True
    router_bias: bool = False
    router_dtype: str | None = None
    router_parameters: int = 0
    shared: MlpShape | None = None
    shared_gate: bool = False
    latent: int | None = None

    def __post_init__(self) -> None:
        positive(self, "experts", "top_k", "width")
        if self.top_k > self.experts:
            raise InputError(f"expected at most the {self.experts} experts there are", key="top_k", value=self.top_k)

    def linears(self, hidden: int, *, fused: bool | None = None) -> tuple[Linear, ...]:
        """The matrices every token meets; the experts' own are ``expert_linears``."""
        router = Linear("moe.router", self.experts, hidden, self.router_bias, dtype=self.router_dtype)
        shared = self.shared.linears(hidden, fused=fused) if self.shared else ()
        gate = (Linear("moe.shared_gate", 1, hidden),) if self.shared_gate else ()
        if self.latent is None:
            return (router, *shared, *gate)
        down = Linear("moe.latent_down_proj", self.latent, hidden, self.bias)
        return (router, down, Linear("moe.latent_up_proj", hidden, self.latent, self.bias), *shared, *gate)

    def routed_width(self, hidden: int) -> int:
        """Channels of a token as the experts see it."""
        return self.latent or hidden

    def expert_linears(self, hidden: int, *, fused: bool | None = None) -> tuple[Linear, ...]:
        """One expert's matrices."""
        one = MlpShape(self.width, self.gated, self.bias, self.fused_gate_up, prefix="moe.experts")
        return one.linears(self.routed_width(hidden), fused=fused)


@frozen
class Block:
    """``count`` layers in a row that are alike. ``norms`` of hidden size each hold ``norm_weights`` x h parameters

    (1: RMSNorm or LayerNorm without bias; 2: with bias; 0: no learned weight). ``parallel``: attention and MLP read
    the same input and share one residual addition. ``mixer``: a recurrent layer in attention's place. ``before``:
    matrices in front of it all (multi-token prediction's). ``extra`` names further parameters of each layer.
    """

    attention: AttentionShape | MlaShape | None
    mlp: MlpShape | MoeShape | None
    cross: AttentionShape | None = None
    norms: int = 2
    norm_weights: int = 1
    parallel: bool = False
    count: int = 1
    dropout: float = 0.0
    extra: tuple[tuple[str, int], ...] = ()
    mixer: RecurrentShape | None = None
    before: tuple[Linear, ...] = ()

    def __post_init__(self) -> None:
        positive(self, "count")

    @property
    def parts(self) -> tuple[AttentionShape | MlaShape | RecurrentShape | MlpShape | MoeShape, ...]:
        """The parts with a norm and a residual addition of their own, in order."""
        found = (self.attention, self.mixer, self.cross, self.mlp)
        return tuple(part for part in found if part is not None)

    def linears(
        self, hidden: int, *, fused_qkv: bool | None = None, fused_gate_up: bool | None = None
    ) -> tuple[Linear, ...]:
        """Matrices of one layer that every token meets (an expert's are in ``moe.expert_linears``)."""
        out = self.before + (self.attention.linears(hidden, fused=fused_qkv) if self.attention else ())
        if self.mixer:
            out += self.mixer.linears(hidden)
        if self.cross:
            out += tuple(replace(linear, name=f"cross_{linear.name}") for linear in self.cross.linears(hidden))
        return out + (self.mlp.linears(hidden, fused=fused_gate_up) if self.mlp else ())


@frozen
class Stack:
    """Blocks over one hidden size. ``length``: tokens a sequence has here (None: the workload's s).

    ``front``: matrices before the first block (patch embedding, whisper's convolutions). ``embedding_norm`` and
    ``final_norm`` are parameters per channel (0: none or not learned). ``positions``: rows of learned positions.
    """

    name: str
    hidden: int
    blocks: tuple[Block, ...]
    length: int | None = None
    front: tuple[Linear, ...] = ()
    positions: int = 0
    embedding_norm: int = 0
    final_norm: int = 1
    extra: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        positive(self, "hidden")
        if not self.blocks:
            raise InputError("expected at least one layer", key="layers", value=0)
        positive_int(sum(block.count for block in self.blocks), "layers", maximum=MOST_LAYERS)
        if len(self.blocks) == 1:
            return
        once: dict[Block, Block] = {}  # equal layers are one object: those are told apart at no cost
        object.__setattr__(self, "blocks", tuple(once.setdefault(block, block) for block in self.blocks))

    def __hash__(self) -> int:
        # Of a part: a model is looked up for each of a plan's splits, and may have ten thousand different layers.
        return hash((self.name, self.hidden, self.blocks[0], self.blocks[-1], len(self.blocks), self.length))

    @property
    def layers(self) -> int:
        return self.blocks[0].count if len(self.blocks) == 1 else _layers(self)

    @property
    def kinds(self) -> tuple[Block, ...]:
        """The different blocks, each once with the layers of all its runs: for what the layers' order is nothing to."""
        return self.blocks if len(self.blocks) == 1 else _kinds(self)


def kinds_of(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """``blocks`` with equal ones merged, in the order in which each first comes."""
    times_of: dict[int, int] = Counter(map(id, blocks))
    counts: dict[Block, int] = {}
    for block in {id(block): block for block in blocks}.values():
        counts[block] = counts.get(block, 0) + times_of[id(block)]
    return tuple(block if times == 1 else replace(block, count=block.count * times) for block, times in counts.items())


def run_lengths(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Neighbours that are alike joined into one block with their count."""
    runs: list[Block] = []
    for block in blocks:
        if runs and replace(runs[-1], count=block.count) == block:
            runs[-1] = replace(runs[-1], count=runs[-1].count + block.count)
        else:
            runs.append(block)
    return tuple(runs)


@lru_cache(maxsize=256)
def _layers(stack: Stack) -> int:
    return sum(block.count for block in stack.blocks)


@lru_cache(maxsize=256)
def _kinds(stack: Stack) -> tuple[Block, ...]:
    return kinds_of(stack.blocks)
