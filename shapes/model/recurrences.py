"""Recurrent mixers: what a layer keeps of a sequence in a state of fixed size, by their papers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Literal, NamedTuple

from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.model.mixers import Linear, positive
from shapes.toml_table import DATA, content

#: Tokens of a chunk of a delta rule, in transformers' ``chunk_gated_delta_rule`` and in fla's.
DELTA_CHUNK = 64

#: A product of one chunk: name, whether of each group rather than head, and the fields that are m, n and k.
ChunkProduct = tuple[str, bool, str, str, str]


class Recurrence(NamedTuple):
    """``parts``: what the input is projected to; ``convolved``: those that the short convolution runs over.

    ``vectors``: learned vectors but the convolution and the norm, with the fields whose product is their length.
    ``products``: those of one chunk (none: the scan is bound by memory, or there is none).
    """

    parts: Sequence[str]
    convolved: Sequence[str]
    vectors: Mapping[str, Sequence[str]]
    products: Sequence[ChunkProduct]


RecurrenceKind = Literal["mamba", "mamba2", "gated_delta", "kda", "lightning", "short_conv"]


@cache
def recurrences() -> Mapping[str, Recurrence]:
    """What each kind is made of, by its paper: shapes/data/recurrences.toml."""
    tables = content(DATA / "recurrences.toml")
    return {
        kind: Recurrence(**table, products=tables["products"].get(tables["scans"].get(kind), ()))
        for kind, table in tables["kinds"].items()
    }


@frozen
class RecurrentShape:
    """A mixer of one of ``recurrences``: the same shape under other names.

    Projections in, a short convolution of ``conv`` tokens (0: none), a scan in chunks of ``chunk`` tokens, a gated
    norm, one projection out. ``heads`` of ``head_dim`` channels each keep a state of ``state`` rows (0: none);
    ``groups`` of heads share the vectors that write to it and read from it (Mamba's B and C, a delta net's keys and
    queries, ``state`` wide). ``in_proj``: groups of parts, each one matrix (none: one of all parts). ``low_rank``:
    parts that are projected through ``rank`` channels; of Mamba-1 time steps are. ``norm``: weights of the gated norm
    (0: none); ``step_norms``: of Mamba-1's time steps, keys and queries. ``out_bias``: where it is not ``bias``.
    """

    kind: RecurrenceKind
    heads: int
    head_dim: int
    groups: int
    state: int
    chunk: int
    conv: int = 4
    bias: bool = False
    conv_bias: bool = False
    norm: int = 0
    in_proj: tuple[tuple[str, ...], ...] = ()
    rank: int = 0
    low_rank: tuple[str, ...] = ()
    step_norms: bool = False
    out_bias: bool | None = None

    def __post_init__(self) -> None:
        positive(self, "heads", "head_dim", "groups", "chunk")
        if self.heads % self.groups:
            raise InputError(f"expected a divisor of the {self.heads} heads", key="groups", value=self.groups)

    @property
    def form(self) -> Recurrence:
        return recurrences()[self.kind]

    @property
    def inner(self) -> int:
        """Channels that the scan reads and writes."""
        return self.heads * self.head_dim

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that rules judge its kernels and its split by, by the rules' names."""
        if self.kind in ("gated_delta", "kda"):
            return {
                "linear_value_heads": self.heads,
                "linear_key_heads": self.groups,
                "linear_key_dim": self.state,
                "chunk": self.chunk,
            }
        if self.form.products:
            return {"state_heads": self.heads, "state_groups": self.groups, "chunk": self.chunk}
        return {}

    def units(self, part: str) -> tuple[int, int]:
        """(whole units that tensor parallelism does not cut, channels of one) of a part of the projections."""
        if part in ("queries", "keys"):
            return self.groups, self.state
        if part == "beta" or (part == "decay" and self.kind != "kda"):
            return self.heads, 1
        return self.heads, self.state if part == "decay" else self.head_dim

    def width(self, *parts: str, t: int = 1) -> int:
        """Channels of these parts on the fullest of ``t`` ranks."""
        return sum(-(-number // t) * size for number, size in map(self.units, parts))

    @property
    def gates(self) -> int:
        """Numbers a token that decide what its states forget, of all heads."""
        return self.width(*(part for part in self.form.parts if part in ("beta", "decay")))

    def conv_channels(self, t: int = 1) -> int:
        """Channels of one of ``t`` ranks that the convolution runs over."""
        return self.width(*self.form.convolved, t=t) if self.conv else 0

    def on_shard(self, t: int) -> tuple[int, int]:
        """(heads, groups) of one of ``t`` ranks: at least one whole group."""
        return self.heads // t, -(-self.groups // t)

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        out_bias = self.bias if self.out_bias is None else self.out_bias
        inward = chain.from_iterable(linears for _, linears in self.projections(hidden))
        return (*inward, *self.steps(), Linear("mixer.out_proj", hidden, self.inner, out_bias, "row"))

    def projections(self, hidden: int) -> Iterator[tuple[Sequence[str], tuple[Linear, ...]]]:
        """Parts that are projected together, and by what: one matrix, or two of low rank."""
        groups = self.in_proj or (self.form.parts,)
        for parts in groups:
            name = "mixer.in_proj" if len(groups) == 1 else f"mixer.in_proj_{'_'.join(parts)}"
            units, low = tuple(self.units(part) for part in parts), set(parts) & set(self.low_rank)
            down = (Linear(f"{name}_down", self.rank, hidden, self.bias),) if low else ()
            inputs, width = self.rank if low else hidden, self.width(*parts)
            yield parts, (*down, Linear(name, width, inputs, self.bias, "column", units=units))

    def steps(self) -> tuple[Linear, ...]:
        """Of Mamba-1: the matrices of time steps, keys and queries, which read the convolved values."""
        if self.kind != "mamba":
            return ()
        both = Linear("mixer.x_proj", self.rank + 2 * self.state, self.inner, shard="row")
        return both, Linear("mixer.dt_proj", self.inner, self.rank, True, "column", units=((self.heads, 1),))

    def vectors(self, t: int = 1) -> tuple[tuple[str, int], ...]:
        """Learned vectors, on one of ``t`` ranks: (name, elements)."""
        heads, channels = self.heads // t, self.conv_channels(t)
        whole = self.norm == self.inner  # else one norm that all heads share
        found = {"mixer.conv1d": channels * (self.conv + self.conv_bias)}
        for name, (_, *more) in self.form.vectors.items():
            found[f"mixer.{name}"] = heads * (self.state if more else 1)
        found["mixer.norm"] = self.norm // t if whole else self.norm
        found["mixer.step_norms"] = (self.rank + 2 * self.state) * self.step_norms
        return tuple((name, number) for name, number in found.items() if number)

    def products(self) -> tuple[tuple[str, bool, int, int, int], ...]:
        """The matrix products of one chunk: (name, whether of each group rather than head, m, n, k)."""
        return tuple(
            (name, shared, *(getattr(self, size) for size in sizes)) for name, shared, *sizes in self.form.products
        )
