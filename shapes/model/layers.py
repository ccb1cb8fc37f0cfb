"""What a model is made of: ``Stack``s of ``Block``s (attention kind x MLP kind) over one hidden size.

Every weight matrix is a ``Linear``, from which parameters and operators both follow, so the two cannot disagree.
Shapes are per model, before any parallel split; ``Linear.on_shard`` says what one tensor-parallel rank holds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from shapes.errors import InputError, positive_int
from shapes.frozen import frozen
from shapes.model.linear import Linear
from shapes.model.recurrent import RecurrentShape

QkNorm = Literal["none", "head", "full"]


#: Layers of a stack: a thousand times the deepest that was trained; degrees and layers are gone through one by one.
MOST_LAYERS = 2**17


@frozen
class AttentionShape:
    """Multi-head, grouped-query or multi-query attention; ``cross`` reads keys and values from the encoder.

    ``head_dim`` is what the configuration declares, never h / a. ``window`` keys a query sees (None: all).
    ``qk_norm`` "head": one weight of head_dim shared by all heads; "full": a weight for every head's every channel.
    ``sinks``: one learned logit a head (gpt-oss). ``rotary_dim`` channels are rotated (0: none). ``gated``: a sigmoid
    gate on the output, as wide as the queries and projected with them (qwen3_next).
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int | None = None
    qkv_bias: bool = False
    k_bias: bool | None = None
    o_bias: bool = False
    fused_qkv: bool = False
    causal: bool = True
    window: int | None = None
    cross: bool = False
    rotary_dim: int = 0
    qk_norm: QkNorm = "none"
    qk_norm_weights: int = 1
    sinks: bool = False
    dropout: float = 0.0
    gated: bool = False

    def __post_init__(self) -> None:
        _positive(self, "heads", "kv_heads", "head_dim")
        if self.heads % self.kv_heads:
            raise InputError(
                f"expected a divisor of the {self.heads} attention heads", key="kv_heads", value=self.kv_heads
            )

    @property
    def v_dim(self) -> int:
        return self.v_head_dim or self.head_dim

    def linears(self, hidden: int, *, fused: bool | None = None) -> tuple[Linear, ...]:
        wide = self.head_dim * (2 if self.gated else 1)
        q, k, v = self.heads * wide, self.kv_heads * self.head_dim, self.kv_heads * self.v_dim
        out = Linear("attention.o_proj", hidden, self.heads * self.v_dim, self.o_bias, "row")
        k_bias = self.qkv_bias if self.k_bias is None else self.k_bias
        # Keys and values of cross attention come from another sequence, so the three cannot be one product.
        if (self.fused_qkv if fused is None else fused) and not self.cross and k_bias == self.qkv_bias:
            units = ((self.heads, wide), (self.kv_heads, self.head_dim), (self.kv_heads, self.v_dim))
            return (Linear("attention.qkv_proj", q + k + v, hidden, self.qkv_bias, "column", units=units), out)
        return (
            Linear("attention.q_proj", q, hidden, self.qkv_bias, "column", units=((self.heads, wide),)),
            Linear("attention.k_proj", k, hidden, k_bias, "column", units=((self.kv_heads, self.head_dim),)),
            Linear("attention.v_proj", v, hidden, self.qkv_bias, "column", units=((self.kv_heads, self.v_dim),)),
            out,
        )

    def on_shard(self, t: int) -> tuple[int, int]:
        """(query heads, key/value heads) of one of ``t`` ranks: at least one whole key/value head each."""
        return self.heads // t, -(-self.kv_heads // t)

    def vectors(self, t: int = 1) -> tuple[tuple[str, int], ...]:
        """Learned vectors beside the matrices on one of ``t`` ranks: (name, elements)."""
        heads, kv_heads = (1, 1) if self.qk_norm == "head" else (self.heads, self.kv_heads)
        norms = (("attention.q_norm", heads * self.head_dim), ("attention.k_norm", kv_heads * self.head_dim))
        found = norms * (self.qk_norm_weights if self.qk_norm != "none" else 0)
        return (*found, ("attention.sinks", self.on_shard(t)[0])) if self.sinks else found


@frozen
class MlaShape:
    """Multi-head latent attention (DeepSeek): queries and keys/values through low-rank projections.

    ``q_lora_rank`` None: one full query projection. The score's head dimension is nope + rope, the value's v_head_dim.
    ``latent_norm``: weights per channel of the norms on both latents (0: there are none).
    """

    heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    bias: bool = False
    causal: bool = True
    window: int | None = None
    dropout: float = 0.0
    latent_norm: int = 1

    def __post_init__(self) -> None:
        _positive(self, "heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")

    cross = False
    sinks = False

    @property
    def kv_heads(self) -> int:
        return self.heads

    @property
    def head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def v_dim(self) -> int:
        return self.v_head_dim

    @property
    def rotary_dim(self) -> int:
        return self.qk_rope_head_dim

    def linears(self, hidden: int, *, fused: bool | None = None) -> tuple[Linear, ...]:
        queries, rank = self.heads * self.head_dim, self.kv_lora_rank
        if self.q_lora_rank is None:
            q: tuple[Linear, ...] = (Linear("attention.q_proj", queries, hidden, False, "column"),)
        else:
            q = (
                Linear("attention.q_a_proj", self.q_lora_rank, hidden, self.bias),
                Linear("attention.q_b_proj", queries, self.q_lora_rank, False, "column"),
            )
        return (
            *q,
            Linear("attention.kv_a_proj", rank + self.qk_rope_head_dim, hidden, self.bias),
            Linear("attention.kv_b_proj", self.heads * (self.qk_nope_head_dim + self.v_dim), rank, False, "column"),
            Linear("attention.o_proj", hidden, self.heads * self.v_dim, self.bias, "row"),
        )

    def on_shard(self, t: int) -> tuple[int, int]:
        """(query heads, key/value heads) of one of ``t`` ranks."""
        return self.heads // t, self.heads // t

    def vectors(self, t: int = 1) -> tuple[tuple[str, int], ...]:
        """The latent norms, whole on every rank: (name, elements)."""
        if not self.latent_norm:
            return ()
        query = (("attention.q_a_norm", self.latent_norm * self.q_lora_rank),) if self.q_lora_rank else ()
        return (*query, ("attention.kv_a_norm", self.latent_norm * self.kv_lora_rank))


@frozen
class MlpShape:
    """A dense MLP: down(act(gate(x)) * up(x)) if ``gated``, else down(act(up(x))). ``width`` is d_ff."""

    width: int
    gated: bool = True
    bias: bool = False
    fused_gate_up: bool = False
    prefix: str = "mlp"

    def __post_init__(self) -> None:
        _positive(self, "width")

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
    """A mixture of ``experts`` gated MLPs of ``width``, ``top_k`` a token, beside an optional shared MLP.

    ``shared_gate``: a linear to one sigmoid that scales the shared MLP (qwen2_moe). ``router_parameters``: learned
    scalars of the router beside its matrix (a correction bias). ``latent``: the width that routed tokens are projected
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
        _positive(self, "experts", "top_k", "width")
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
        _positive(self, "count")

    @property
    def parts(self) -> tuple[AttentionShape | MlaShape | RecurrentShape | MlpShape | MoeShape, ...]:
        """What has a norm and a residual addition of its own, in order."""
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
            out += tuple(_prefixed(linear, "cross_") for linear in self.cross.linears(hidden))
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
        _positive(self, "hidden")
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


@lru_cache(maxsize=256)
def _layers(stack: Stack) -> int:
    return sum(block.count for block in stack.blocks)


@lru_cache(maxsize=256)
def _kinds(stack: Stack) -> tuple[Block, ...]:
    return kinds_of(stack.blocks)


def _prefixed(linear: Linear, prefix: str) -> Linear:
    return replace(linear, name=prefix + linear.name)


def _positive(shape: object, *keys: str) -> None:
    for key in keys:
        positive_int(getattr(shape, key), key)
