"""Layers that carry a state of fixed size along the sequence where attention keeps keys and values."""

from __future__ import annotations

from typing import Literal

from shapes.errors import InputError, positive_int
from shapes.frozen import frozen
from shapes.model.linear import Linear


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
        for key in ("heads", "head_dim", "groups", "state", "chunk", "conv"):
            positive_int(getattr(self, key), key)
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
        """What rules call the sizes that its kernels and its split are judged by."""
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
        """What is learned beside the matrices, on one of ``t`` ranks: (name, elements)."""
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
