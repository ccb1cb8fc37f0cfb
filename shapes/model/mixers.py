"""A weight matrix, attention of every kind, recurrences, and residual streams.

Shapes are per model, before any parallel split; ``Linear.on_shard`` says what one tensor-parallel rank holds.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain, starmap
from operator import mul
from typing import Any, ClassVar, Literal, NamedTuple

from shapes.errors import positive_int, refuse
from shapes.frozen import Count, Counts, Function, Named, Names, Pair, Texts, Values, Words, frozen, replace
from shapes.recipes import WeightFormat
from shapes.toml_table import DATA, content, formula, hold

Shard = Literal["column", "row", "none"]
#: Learned vectors: their names and elements.
Vectors = tuple[tuple[str, int], ...]


@frozen
class Linear:
    """One weight matrix [out_features, in_features], and how tensor parallelism splits it.

    ``units``: a column-parallel matrix's outputs in parts that are cut each by itself, as (whole units, size of one):
    heads are not cut, and a fused projection's queries, keys and values each go to every rank. ``rows`` is the rows a
    sequence feeds it where that is not the stack's length (convolutions in front of a tower). ``grad_input`` is False
    where the input needs no gradient (pixels), so no dgrad runs. ``weights``: the format of a quantised release.
    ``groups``: matrices in one, each of its own share of the inputs (``in_features`` wide) and of the outputs.
    ``learns`` False: nothing of it runs backward. ``shared``: the parameters are another one's, which runs for itself.
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
    units: tuple[Pair, ...] = ()
    weights: WeightFormat | None = None
    groups: int = 1
    learns: bool = True
    shared: bool = False

    def on_shard(self, t: int) -> "Linear":
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
        groups = -(-self.groups // t)
        return replace(self, out_features=out, in_features=inner, shard="none", units=(), groups=groups)


Linears = tuple[Linear, ...]


@cache
def _listed(table: str, part: str) -> list[Texts]:
    """The lines of models.toml on a kind of part, each by its six columns."""
    lines = content(DATA / "models.toml")[table][part].strip().splitlines()
    return [[*map(str.strip, line.split("|")), *5 * [""]][:6] for line in lines]


class _Names(Values):
    """Values by name; what is none of them is a field of ``part``."""

    def __missing__(self, name: str) -> Any:
        return getattr(self["part"], name)


def reading(table: str, part: object, own: Named) -> tuple[Function, Iterator[Texts]]:
    """(what is of a name or a sum of products, the lines that hold) of models.toml on a ``part``.

    ``own``: what its lines name and is no field.
    """
    names = _Names(own, part=part)

    def size(text: str) -> Any:
        # Most are names; others are the table's own.
        return names[text] if text.isidentifier() else eval(formula(text), {}, names)

    return size, (columns for *columns, when in _listed(table, type(part).__name__) if hold(when, size))


# A plan and a search ask for the same parts' again and again.
@lru_cache(512)
def matrices(part: object, **own: Any) -> Linears:
    """The weight matrices of a ``part``, as models.toml lists them; ``own``: what its lines name and is no field."""
    size, lines = reading("matrices", part, own)
    found = []
    for name, outputs, inputs, shard, said in lines:
        if not outputs:
            found += size(name)
            continue
        units = tuple((size(whole), size(each)) for whole, each in re.findall("([^,]+) x ([^,]+)", outputs))
        rows = sum(starmap(mul, units)) if units else size(outputs)
        more = {key: size(field) for key, field in re.findall(r"([a-z]+):(\S+)", said)}
        title = name.replace("*", getattr(part, "prefix", ""))
        found.append(Linear(title, rows, size(inputs), shard=shard or "none", units=units, **more))  # type: ignore[arg-type] # one of three words
    return tuple(found)


@lru_cache(512)
def vectors(part: object, t: int = 1, **own: Any) -> Vectors:
    """Learned vectors of a ``part`` on one of ``t`` ranks, as models.toml lists them: (name, elements)."""
    size, lines = reading("vectors", part, {"t": t, **own})
    found = []
    for name, elements, times, *_ in lines:
        if elements:
            found += [(name.replace("*", own.get("prefix", "")), size(elements))] * size(times or "1")
        else:
            found += vectors(size(name), t, **own | {"prefix": times or name})
    return tuple(found)


QkNorm = Literal["none", "head", "full"]
Gate = Literal["none", "queries", "apart", "heads"]
KeysValues = Literal["apart", "pair", "one", "borrowed"]
#: Windows, and rows of queries and of keys.
Tiles = tuple[int, int | None, int | None]
WHOLE: Tiles = (1, None, None)


@frozen
class Compressor:
    """One entry of ``width`` channels for every ``rate`` tokens: their sum, weighted by a softmax over their gates.

    ``series`` 2: an entry also takes part of the tokens of the window before its own, so that each token is projected
    twice as wide.
    """

    rate: Count
    width: Count
    series: Count = 1

    @property
    def channels(self) -> int:
        """Numbers of a token that its entries are made from, gates aside."""
        return self.width * self.series

    def linears(self, name: str, hidden: int) -> Linears:
        return tuple(Linear(f"{name}.{part}_proj", self.channels, hidden) for part in ("entries", "gates"))


@frozen
class Indexer:
    """Chooses the keys that a query attends to: it scores each query against one key a token and keeps the best.

    ``heads`` of ``head_dim`` score; each query keeps ``top_k`` entries. ``block``: keys of an entry (MiniMax-M3 keeps
    whole blocks of keys). ``query_rank``: channels that its queries are projected from (None: the hidden size; if not
    ``grouped``, hidden states are then normed once more, and two numbers a head scale queries by their position, as in
    Mistral Large 4). ``grouped``: every head chooses for its own key/value head and is split with it; else a projection
    weighs the heads, their scores are added up, and each rank runs all of them. ``norm_weights``: weights of its norms,
    each head_dim wide. ``compressor`` makes its keys (None: a projection). ``reused``: the layer takes the choice of
    the layer before. ``weights_dtype``: element type in which the heads' weights are always projected.

    Nothing is differentiated: a choice has no gradient (transformers runs it without autograd).
    """

    heads: Count
    head_dim: Count
    top_k: Count
    block: Count = 1
    query_rank: int | None = None
    grouped: bool = False
    norm_weights: int = 2
    compressor: Compressor | None = None
    reused: bool = False
    weights_dtype: str | None = None

    @property
    def rate(self) -> int:
        """Tokens of one scored entry."""
        return self.compressor.rate if self.compressor else 1

    @property
    def kept(self) -> int:
        """Entries that a query attends to at most."""
        return self.top_k * self.block

    def linears(self, hidden: int) -> Linears:
        if self.reused:
            return ()
        found = matrices(self, hidden=hidden, queries=self.query_rank or hidden)
        return tuple(replace(one, learns=False) for one in found)

    def on_shard(self, t: int) -> int:
        """Heads of one of ``t`` ranks."""
        return -(-self.heads // t) if self.grouped else self.heads


@frozen
class AttentionShape:
    """Multi-head, grouped-query or multi-query attention; ``cross`` reads keys and values from the encoder.

    ``head_dim`` is what the configuration declares, never h / a. ``window`` keys a query sees (None: all).
    ``qk_norm`` "head": one weight of head_dim shared by all heads; "full": a weight for every head's every channel.
    ``sinks``: one learned logit a head (gpt-oss). ``rotary_dim`` channels are rotated (0: none; as many in other head
    dimensions if ``rotary_fixed``). ``gate`` on the output: as wide as the queries and projected with them
    (qwen3_next), as wide and of a matrix apart (afmoe), or one number a head (step3p7). ``keys_values``: of a matrix
    each, halves of one, values of the keys' matrix (gemma4), or an earlier layer's keys and values (gemma3n).
    ``v_norm``: values are normed, without a weight. ``inputs``: hidden sizes that the projections read (EAGLE-3's
    draft: 2). ``indexer`` chooses the keys. ``cores``: times that the core runs, on parts of the values (diffllama: 2).
    ``q_lora_rank``: of a normed latent that the queries come through (Step-3). ``reads``: channels that the projections
    read where that is another layer's hidden size (None: ``inputs`` of the layer's own). ``tiles``: windows of an image
    that see themselves alone, rows that queries and that keys have of a sequence (None: its tokens): more where windows
    are filled up, and fewer queries where these are pooled (Hiera).
    """

    heads: Count
    kv_heads: Count
    head_dim: Count
    v_head_dim: int | None = None
    qkv_bias: bool = False
    k_bias: bool | None = None
    o_bias: bool = False
    fused_qkv: bool = False
    causal: bool = True
    window: int | None = None
    cross: bool = False
    rotary_dim: int = 0
    rotary_fixed: bool = False
    qk_norm: QkNorm = "none"
    qk_norm_weights: int = 1
    sinks: bool = False
    dropout: float = 0.0
    gate: Gate = "none"
    keys_values: KeysValues = "apart"
    v_norm: bool = False
    inputs: int = 1
    indexer: Indexer | None = None
    cores: int = 1
    q_lora_rank: int | None = None
    reads: int | None = None
    tiles: Tiles = WHOLE

    def __post_init__(self) -> None:
        expected = f"expected a divisor of the {self.heads} attention heads"
        refuse(self.heads % self.kv_heads, expected, "kv_heads", self.kv_heads)

    @property
    def v_dim(self) -> int:
        return self.v_head_dim or self.head_dim

    def linears(self, hidden: int, *, fused: bool | None = None) -> Linears:
        k_bias = self.qkv_bias if self.k_bias is None else self.k_bias
        # Keys and values of cross attention come from another sequence, so the three cannot be one product.
        alone = self.keys_values in ("one", "borrowed") or self.cross or self.q_lora_rank is not None
        return matrices(
            self,
            hidden=hidden,
            keys_bias=k_bias,
            together=not alone and k_bias == self.qkv_bias and (self.fused_qkv if fused is None else fused),
        )

    def on_shard(self, t: int) -> Pair:
        """(query heads, key/value heads) of one of ``t`` ranks: at least one whole key/value head each."""
        return self.heads // t, -(-self.kv_heads // t)


class Listed:
    """A part whose matrices are all listed in models.toml."""

    __slots__ = ()

    def linears(self, hidden: int, *, fused: bool | None = None) -> Linears:
        """The matrices that every token meets; ``fused``: whether those of one input are one (None: as listed)."""
        return matrices(self, hidden=hidden, fused=fused)


class _Latent(Listed):
    """Traits that attention through a latent never has."""

    __slots__ = ()
    cross: ClassVar[bool] = False
    cores: ClassVar[int] = 1
    tiles: ClassVar[Tiles] = WHOLE
    v_norm: ClassVar[bool] = False
    keys_values: ClassVar[KeysValues] = "apart"
    qk_norm: ClassVar[QkNorm] = "none"


@frozen
class MlaShape(_Latent):
    """Multi-head latent attention (DeepSeek): queries and keys/values through low-rank projections.

    ``q_lora_rank`` None: one full query projection. The score's head dimension is nope + rope, the value's v_head_dim.
    A rope part of 0 channels is none (NoPE). ``latent_norm``: weights per channel of the norms on both latents (0:
    there are none). ``key_norm``: the keys' rope part has one, too. ``rotates``: whether the rope part is rotated (Kimi
    Linear: no). ``gate``: as attention's; "queries": with them from the queries' latent before and behind its norm
    (A.X-K2). ``indexer`` chooses the keys.
    """

    heads: Count
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: int
    v_head_dim: Count
    q_lora_rank: int | None = None
    bias: bool = False
    causal: bool = True
    window: int | None = None
    dropout: float = 0.0
    latent_norm: int = 1
    indexer: Indexer | None = None
    rotates: bool = True
    gate: Gate = "none"
    key_norm: bool = False
    sinks: bool = False

    def __post_init__(self) -> None:
        if self.qk_rope_head_dim != 0:
            positive_int(self.qk_rope_head_dim, "qk_rope_head_dim")

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
        return self.qk_rope_head_dim if self.rotates else 0

    def on_shard(self, t: int) -> Pair:
        """(query heads, key/value heads) of one of ``t`` ranks."""
        return self.heads // t, self.heads // t


@frozen
class SharedKeyShape(_Latent):
    """DeepSeek-V4's attention (transformers' deepseek_v4 class): one head of keys that are the values too.

    It runs over a window and over compressed entries. Queries come through a latent of ``q_lora_rank``; ``out_groups``
    of heads are projected by a matrix each to ``out_rank`` channels, which o_proj mixes. ``compressor`` None: the
    window alone. ``indexer`` chooses among the compressed entries (None: all of them are seen). A learned sink a head.
    """

    heads: Count
    head_dim: Count
    q_lora_rank: Count
    out_groups: Count
    out_rank: Count
    window: int | None = None
    rotary_dim: int = 0
    compressor: Compressor | None = None
    indexer: Indexer | None = None
    dropout: float = 0.0

    kv_heads: ClassVar[int] = 1
    causal: ClassVar[bool] = True
    sinks: ClassVar[bool] = True
    gate: ClassVar[Gate] = "none"

    @property
    def v_dim(self) -> int:
        return self.head_dim

    def on_shard(self, t: int) -> Pair:
        """(query heads, key heads) of one of ``t`` ranks: each has the one key head."""
        return self.heads // t, 1


@frozen
class Streams:
    """Hyper-connections (mHC): ``number`` residual streams, mixed in front of each part of a layer and behind it.

    In front, a product over all streams (in fp32) gives the weights to collapse them by, to spread the part's output
    over them and, where they are ``mixed`` (Hunyuan 4: no), to mix them with.
    """

    number: int
    mixed: bool = True

    @property
    def weights(self) -> int:
        """Numbers of a token that one part's mixing takes."""
        return (2 + self.number * self.mixed) * self.number

    def linears(self, hidden: int, parts: int) -> Linears:
        return tuple(
            Linear(f"streams.{part}", self.weights, self.number * hidden, dtype="fp32") for part in range(parts)
        )

    def head(self, hidden: int) -> Linear:
        """The matrix that collapses the streams behind the last layer; it has ``number`` + 1 vectors."""
        return Linear("streams.head", self.number, self.number * hidden, dtype="fp32")


#: Tokens of a chunk of a delta rule, in transformers' ``chunk_gated_delta_rule`` and in fla's.
DELTA_CHUNK = 64

#: A product of one chunk: name, whether of each group rather than head, and the fields that are m, n and k.
ChunkProduct = tuple[str, bool, str, str, str]


class Recurrence(NamedTuple):
    """``parts``: what the input is projected to; ``convolved``: those that the short convolution runs over.

    ``products``: those of one chunk (none: the scan is bound by memory, or there is none). ``named``: the sizes that
    rules judge, by their fields.
    """

    parts: Sequence[str]
    convolved: Sequence[str]
    products: Sequence[ChunkProduct]
    named: Words


RecurrenceKind = Literal["mamba", "mamba2", "gated_delta", "kda", "lightning", "short_conv", "rg_lru", "rwkv", "mlstm"]


@cache
def recurrences() -> Mapping[str, Recurrence]:
    """The parts of each kind of recurrence, by its paper: shapes/data/recurrences.toml."""
    tables = content(DATA / "recurrences.toml")
    forms, scans = tables["forms"], tables["scans"]
    return {kind: Recurrence(**table, **forms[scans[kind]]) for kind, table in tables["kinds"].items()}


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
    heads: Count
    head_dim: Count
    groups: Count
    state: int
    chunk: Count
    conv: int = 4
    bias: bool = False
    conv_bias: bool = False
    norm: int = 0
    in_proj: tuple[Names, ...] = ()
    rank: int = 0
    low_rank: Names = ()
    step_norms: bool = False
    out_bias: bool | None = None

    def __post_init__(self) -> None:
        refuse(self.heads % self.groups, f"expected a divisor of the {self.heads} heads", "groups", self.groups)

    @property
    def form(self) -> Recurrence:
        return recurrences()[self.kind]

    @property
    def inner(self) -> int:
        """Channels that the scan reads and writes."""
        return self.heads * self.head_dim

    @property
    def sizes(self) -> Counts:
        """Sizes that rules judge its kernels and its split by, by the rules' names."""
        return {name: getattr(self, field) for name, field in self.form.named.items()}

    def units(self, part: str) -> Pair:
        """(whole units that tensor parallelism does not cut, channels of one) of a part of the projections."""
        if part in ("queries", "keys"):
            return self.groups, self.state
        if part == "beta" or (part == "decay" and self.kind != "kda"):
            return self.heads, 1
        return self.heads, self.state if part == "decay" else self.head_dim

    def width(self, *parts: str, t: int = 1) -> int:
        """Channels of these parts on the fullest of ``t`` ranks."""
        return sum(-(-number // t) * size for number, size in map(self.units, parts))

    def conv_channels(self, t: int) -> int:
        """Channels of one of ``t`` ranks that the convolution runs over."""
        return self.width(*self.form.convolved, t=t) if self.conv else 0

    def on_shard(self, t: int) -> Pair:
        """(heads, groups) of one of ``t`` ranks: at least one whole group."""
        return self.heads // t, -(-self.groups // t)

    def linears(self, hidden: int) -> Linears:
        out_bias = self.bias if self.out_bias is None else self.out_bias
        inward = chain.from_iterable(linears for _, linears in self.projections(hidden))
        return *inward, *self.steps(), Linear("mixer.out_proj", hidden, self.inner, out_bias, "row")

    def projections(self, hidden: int) -> Iterator[tuple[Sequence[str], Linears]]:
        """Parts that are projected together, and by what: one matrix, or two of low rank."""
        groups = self.in_proj or (self.form.parts,)
        for parts in groups:
            name = "mixer.in_proj" if len(groups) == 1 else f"mixer.in_proj_{'_'.join(parts)}"
            units, low = tuple(map(self.units, parts)), set(parts) & set(self.low_rank)
            down = (Linear(f"{name}_down", self.rank, hidden, self.bias),) if low else ()
            inputs, width = self.rank if low else hidden, self.width(*parts)
            yield parts, (*down, Linear(name, width, inputs, self.bias, "column", units=units))

    def steps(self) -> Linears:
        """Mamba-1's matrices of time steps, keys and queries, which read the convolved values."""
        return matrices(self, biased=True)
