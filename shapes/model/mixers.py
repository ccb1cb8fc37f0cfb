"""A weight matrix, and what a layer mixes its tokens with: attention of every kind, or a recurrent state.

Shapes are per model, before any parallel split; ``Linear.on_shard`` says what one tensor-parallel rank holds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from shapes.errors import InputError, positive_int
from shapes.frozen import frozen

Shard = Literal["column", "row", "none"]


@frozen
class Linear:
    """One weight matrix [out_features, in_features], and how tensor parallelism splits it.

    ``units``: a column-parallel matrix's outputs in parts that are cut each by itself, as (whole units, size of one):
    heads are not cut, and a fused projection's queries, keys and values each go to every rank. ``rows`` is the rows a
    sequence feeds it where that is not the stack's length (convolutions in front of a tower). ``grad_input`` is False
    where the input needs no gradient (pixels), so no dgrad runs.
    """

    name: str
    out_features: int
    in_features: int
    bias: bool = False
    shard: Shard = "none"
    kind: Literal["gemm", "conv"] = "gemm"
    rows: int | None = None
    grad_input: bool = True
    dtype: str | None = None
    units: tuple[tuple[int, int], ...] = ()

    def on_shard(self, t: int) -> Linear:
        """The fullest of ``t`` ranks' share, itself not split further.

        The bias follows the outputs: cut with them if column-parallel, whole on each rank if row-parallel (Megatron's
        RowParallelLinear adds it once, after the reduction). With fewer units than ranks each rank holds a whole one.
        """
        if t == 1 or self.shard == "none":
            return self
        out, inner = self.out_features, self.in_features
        if self.shard == "row":
            inner = -(-inner // t)
        elif self.units:
            out = sum(-(-number // t) * size for number, size in self.units)
        else:
            out = -(-out // t)
        return replace(self, out_features=out, in_features=inner, shard="none", units=())


#: Tokens of a chunk of a gated delta rule, in transformers' ``chunk_gated_delta_rule`` and in fla's.
DELTA_CHUNK = 64

QkNorm = Literal["none", "head", "full"]


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
        positive(self, "heads", "kv_heads", "head_dim")
        if self.heads % self.kv_heads:
            raise InputError(
                f"expected a divisor of the {self.heads} attention heads", key="kv_heads", value=self.kv_heads
            )

    @property
    def v_dim(self) -> int:
        return self.v_head_dim or self.head_dim

    def linears(self, hidden: int, *, fused: bool | None = None) -> tuple[Linear, ...]:
        k_bias = self.qkv_bias if self.k_bias is None else self.k_bias
        parts = (
            ("q", self.heads, self.head_dim * (2 if self.gated else 1), self.qkv_bias),
            ("k", self.kv_heads, self.head_dim, k_bias),
            ("v", self.kv_heads, self.v_dim, self.qkv_bias),
        )
        # Keys and values of cross attention come from another sequence, so the three cannot be one product.
        if (self.fused_qkv if fused is None else fused) and not self.cross and k_bias == self.qkv_bias:
            units = tuple((number, size) for _, number, size, _ in parts)
            rows = sum(number * size for number, size in units)
            inward: tuple[Linear, ...] = (
                Linear("attention.qkv_proj", rows, hidden, self.qkv_bias, "column", units=units),
            )
        else:
            inward = tuple(
                Linear(f"attention.{name}_proj", number * size, hidden, bias, "column", units=((number, size),))
                for name, number, size, bias in parts
            )
        return (*inward, Linear("attention.o_proj", hidden, self.heads * self.v_dim, self.o_bias, "row"))

    def on_shard(self, t: int) -> tuple[int, int]:
        """(query heads, key/value heads) of one of ``t`` ranks: at least one whole key/value head each."""
        return self.heads // t, -(-self.kv_heads // t)

    def vectors(self, t: int = 1) -> tuple[tuple[str, int], ...]:
        """Learned vectors on one of ``t`` ranks: (name, elements)."""
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
        positive(self, "heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")

    cross = False
    sinks = False
    gated = False
    qk_norm: ClassVar[QkNorm] = "none"

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


def positive(shape: object, *keys: str) -> None:
    """InputError where one of a shape's fields is no positive integer."""
    for key in keys:
        positive_int(getattr(shape, key), key)


@frozen
class RecurrentShape:
    """Mamba-2 (arXiv 2405.21060) or a gated delta net (arXiv 2412.06464): the same shape under other names.

    One product in, a short convolution along the sequence, a scan in chunks of ``chunk`` tokens, a gated norm, one
    product out. ``heads`` of ``head_dim`` channels each keep a state of ``state`` rows; ``groups`` of heads share the
    vectors that write to it and read from it (Mamba's B and C; a delta net's keys and queries, ``state`` wide).
    ``gates_apart``: the heads' gates come of a matrix of their own. ``norm``: weights of the gated norm (0: none).
    """

    kind: Literal["mamba2", "gated_delta"]
    heads: int
    head_dim: int
    groups: int
    state: int
    chunk: int
    conv: int = 4
    bias: bool = False
    conv_bias: bool = False
    norm: int = 0
    gates_apart: bool = False

    def __post_init__(self) -> None:
        positive(self, "heads", "head_dim", "groups", "state", "chunk", "conv")
        if self.heads % self.groups:
            raise InputError(f"expected a divisor of the {self.heads} heads", key="groups", value=self.groups)

    @property
    def inner(self) -> int:
        """Channels that the scan reads and writes."""
        return self.heads * self.head_dim

    @property
    def gates(self) -> int:
        """Numbers a head and token that decide what its state forgets: Mamba's dt; a delta net's decay and beta."""
        return 1 if self.kind == "mamba2" else 2

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that rules judge its kernels and its split by, by the rules' names."""
        if self.kind == "mamba2":
            return {"state_heads": self.heads, "state_groups": self.groups, "chunk": self.chunk}
        return {
            "linear_value_heads": self.heads,
            "linear_key_heads": self.groups,
            "linear_key_dim": self.state,
            "chunk": self.chunk,
        }

    def conv_channels(self, t: int = 1) -> int:
        """Channels of one of ``t`` ranks that the convolution runs over: the scan's input, and what groups share."""
        heads, groups = self.on_shard(t)
        return heads * self.head_dim + 2 * groups * self.state

    def on_shard(self, t: int) -> tuple[int, int]:
        """(heads, groups) of one of ``t`` ranks: at least one whole group."""
        return self.heads // t, -(-self.groups // t)

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        wide, shared = (self.heads, self.head_dim), (self.groups, self.state)
        gates = (self.gates * self.heads, 1)
        inside = (wide, wide, shared, shared, *(() if self.gates_apart else (gates,)))
        out = sum(number * size for number, size in inside)
        apart = (Linear("mixer.gates_proj", gates[0], hidden, False, "column", units=(gates,)),)
        return (
            Linear("mixer.in_proj", out, hidden, self.bias, "column", units=inside),
            *(apart if self.gates_apart else ()),
            Linear("mixer.out_proj", hidden, self.inner, self.bias, "row"),
        )

    def vectors(self, t: int = 1) -> tuple[tuple[str, int], ...]:
        """Learned vectors, on one of ``t`` ranks: (name, elements)."""
        heads, channels = self.heads // t, self.conv_channels(t)
        whole = self.norm == self.inner  # else one norm that all heads share
        found = (
            ("mixer.conv1d", channels * (self.conv + self.conv_bias)),
            ("mixer.A_log", heads),
            ("mixer.dt_bias", heads),
            ("mixer.D", heads if self.kind == "mamba2" else 0),
            ("mixer.norm", self.norm // t if whole else self.norm),
        )
        return tuple((name, number) for name, number in found if number)

    def products(self) -> tuple[tuple[str, bool, int, int, int], ...]:
        """The matrix products of one chunk: (name, whether of each group rather than head, m, n, k).

        Mamba-2: section 6 of its paper (the scores C B^T, then inside a chunk, the chunk's states, and across chunks).
        A gated delta net: section 3.3 of its paper, the triangular system solved for values and keys first.
        """
        q, p, n = self.chunk, self.head_dim, self.state
        inside = ("inside", False, q, p, q)
        states, across = ("states", False, n, p, q), ("across", False, q, p, n)
        if self.kind == "mamba2":
            return ("scores", True, q, q, n), inside, states, across
        return (
            ("keys_by_keys", False, q, q, n),
            ("solved_values", False, q, p, q),
            ("solved_keys", False, q, n, q),
            ("scores", False, q, q, n),
            ("read_by_keys", False, q, p, n),
            across,
            inside,
            states,
        )
