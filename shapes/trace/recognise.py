"""A graph of products read as a ``ModelShape``: attention, MLPs, experts, recurrences, norms, embeddings, heads.

Parts are told by edges: who reads whom, and at what sizes. Every parameter is claimed by one part; what no part claims
is named in ``Recogniser.left``, and a model with anything left over is not recognised.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import chain, pairwise
from math import inf
from operator import or_
from typing import Any

from torch import nn

from shapes.errors import InputError
from shapes.frozen import Ints, Names, Pair, Texts, Values, first_of, frozen, replace
from shapes.model import (
    DELTA_CHUNK,
    AttentionShape,
    Block,
    Gate,
    Linear,
    Linears,
    MlaShape,
    MlpShape,
    ModelShape,
    MoeShape,
    QkNorm,
    RecurrentShape,
    Stack,
    Vectors,
    run_lengths,
)
from shapes.toml_table import DATA, content

from .graph import INPUTS, MIXED, TRIGONOMETRY, Graph, Index, Node, Scaled, newest
from .repeats import repeated_children

#: Products and cores, in the order in which they ran.
Nodes = Sequence[Node]

#: Learned vectors of recurrences, which go by these names in every implementation.
_STATE_VECTORS = re.compile(r"(^|\.)(A_log|A|D|dt_bias)$")

#: How implementations group the parts of a delta net's input.
_IN_PROJECTIONS = [tuple(map(tuple, groups)) for groups in content(DATA / "recurrences.toml")["inputs"]["grouped"]]


#: A likely cause where the heads of one product for all do not add up: torch's own layers have the sequence first.
_SEQUENCE_FIRST = "; if its first dimension is the sequence, build it with batch_first=True"


#: Kinds of products that mix tokens or experts.
MIXING = {"attention", "grouped", "depthwise", "bmm"}


class Misfit(Exception):  # noqa: N818 # named for what it is
    """A part of a layer whose sizes or edges fit no known form."""


class _Layer:
    """One layer's nodes and vectors, and those that parts have claimed."""

    def __init__(self, path: str, whole: "Recogniser") -> None:
        self.path, self.whole, self.graph = path, whole, whole.graph
        self.nodes = list[Node]()
        self.scaled = list[Scaled]()
        self.claimed = set[int]()
        #: The products that attention and recurrences end in.
        self.written = list[int]()
        self.vectors = set[str]()
        #: Learned vectors of parts that have none elsewhere: (name, elements).
        self.extra = list[tuple[str, int]]()
        #: Tokens of another sequence, which cross attention reads.
        self.context = 0

    @property
    def free(self) -> list[Scaled]:
        """Vectors without a role, as they were used."""
        return [one for one in self.scaled if one.parameter not in self.vectors]

    def between(self, least: int, most: float = inf, *sizes: int) -> Texts:
        """The vectors without a role of these sizes, of all if none is given, whose last use is then; claimed."""
        used = {one.parameter: newest(one.reads) for one in self.free}
        found = [one for one in used if least <= used[one] <= most and (not sizes or self.graph.size(one) in sizes)]
        self.vectors.update(found)
        return found

    def open(self, *kinds: str) -> Nodes:
        return [node for node in self.nodes if node.kind in kinds and node.number not in self.claimed]

    def products(self, of: int = -1, within: int = -1, **exactly: int) -> Nodes:
        """The open products that read any ``of`` a set and are ``within`` another.

        Those whose other figures (n, k, reads) are ``exactly`` these.
        """
        return [
            node
            for node in self.open("gemm")
            if node.reads & of
            and node.bit & within
            and all(getattr(node, name) == size for name, size in exactly.items())
        ]

    def need(self, holds: bool, otherwise: str) -> None:
        """Misfit where what a known form needs does not hold."""
        if not holds:
            raise Misfit(f"{self.path}: {otherwise}" if self.path else otherwise)

    def one(self, found: Nodes, what: str) -> Node:
        """The only one that was found, claimed."""
        self.need(len(found) == 1, f"{len(found)} {what}")
        self.claim(*found)
        return found[0]

    def claim(self, *nodes: Node) -> None:
        for node in nodes:
            self.claimed.add(node.number)
            self.vectors.update(path for path in (node.weight, node.bias, *node.again) if path is not None)

    def block(self, hidden: int, *, alone: bool) -> Block:
        """The layer; ``alone``: no other stack has run, whose tokens cross attention would read."""
        self.whole.learns |= any(node.m > 1 and node.reads & ~TRIGONOMETRY == INPUTS for node in self.open("gemm"))
        # Biases by distance, which scores are given, and the one kind of a sequence.
        tables = [node for node in self.open("lookup") if node.index == "positions" or node.m == 1]
        self.claim(*tables)
        self._keep(*{node.path for node in tables})
        attention, cross = self._attentions()
        mixer = self._mixer(hidden)
        mixing = {*self.claimed}
        moe = self._experts(hidden)
        dense = self._mlps(hidden)
        # An adapter is a further narrow MLP; its matrices belong to the layer.
        adapters = [] if moe else sorted(dense, key=lambda one: one.width)
        mlp = self._with_shared(moe, dense) if moe else adapters.pop() if dense else None
        # Of one vector a sequence, as what modulates a diffusion model's layers.
        single = self.products(m=1)
        self.claim(*single)
        self._inner([node for node in self.graph.nodes if node.m == 1])
        norms, weights = self._norms(hidden)
        # Next to each other the two read one norm's output.
        self.need(norms == len(dense) + 1 or not (attention and mixer), "attention, then a recurrence")
        # A recurrence's reference loop is products of activations, which its kernels run in another form.
        inside = ("bmm", "depthwise", "scores") if mixer else ("scores",)
        for node in self.nodes:
            if not mixer and node.reads & MIXED:
                self.whole.left[node.path] = "reads what a running sum made of several tokens"
            elif node.number not in self.claimed and node.kind not in inside:
                self.whole.left[node.path] = f"{node.kind} {node.m} x {node.n} x {node.k} without a known role"
        self.whole.claimed |= self.vectors
        dropped = (share for where, share in self.graph.dropped if self.whole.place(where) == self.path)
        return Block(
            attention,
            mlp,
            cross,
            norms=norms,
            norm_weights=weights,
            parallel=self._parallel(self.claimed - mixing),
            dropout=max(dropped, default=0),
            extra=tuple(sorted(self.extra)),
            mixer=mixer,
            context=self.context * (alone and self.context != self.whole.sequence),
            before=(
                *self.whole.linears("modulation", single),
                *chain.from_iterable(replace(one, prefix="adapter").linears(hidden) for one in adapters),
            ),
        )

    def _sources(self, mask: int) -> Nodes:
        """The products with weights that a set consists of; Misfit where one is another layer's."""
        found = [node for node in self.graph.of(mask) if node.kind in ("gemm", "conv", "grouped")]
        for node in found:
            self.need(self.whole.layer_of[node.number] is self, f"reads {node.weight} of another layer")
        return found

    def _attentions(self) -> tuple[AttentionShape | MlaShape | None, AttentionShape | None]:
        """A layer's attention, and its attention to another stack, whose keys and values its queries do not read."""
        alike = dict[Ints, list[Node]]()
        for core in self.open("attention"):
            alike.setdefault(core.operands, []).append(core)
        parts = dict[bool, Any]()
        for core, *again in alike.values():
            found = self._attention(core, *again)
            crosses = isinstance(found, AttentionShape) and self._is_cross(core, after=bool(parts))
            self.need(crosses not in parts, f"{len(alike)} attention cores in one layer")
            parts[crosses] = replace(found, cross=True) if crosses else found
            if crosses:
                self.context = core.run.kv_len
        return parts.get(False), parts.get(True)

    def _is_cross(self, core: Node, *, after: bool) -> bool:
        """Whether queries read nothing that keys do; of a layer's first core, nothing of the layer itself either."""
        queries, keys = (reduce(or_, (node.reads for node in self.graph.of(mask)), 0) for mask in core.operands[:2])
        made = queries & ~(TRIGONOMETRY | INPUTS)
        return made > 0 and not keys & made and (after or not made & sum(node.bit for node in self.nodes))

    def _attention(self, core: Node, *again: Node) -> AttentionShape | MlaShape:
        """``again``: further cores on the same queries, keys and values."""
        self.claim(core, *again)
        readers = self.products(core.bit)
        nearest = [node for node in readers if not node.reads & sum(one.bit for one in readers)]
        out = self.one(nearest, "products read the attention core")
        sources = tuple(self._sources(mask) for mask in core.operands)
        self.written.append(out.number)
        _, k, v = sources
        if len(k) == 2 and len(v) == 1 and v[0] in k:
            return self._latent(core, out, sources)
        numbers = tuple(map(len, sources))
        self.need(
            numbers == (1, 1, 1), f"queries, keys and values of {numbers[0]}, {numbers[1]} and {numbers[2]} products"
        )
        return self._plain((core, *again), out, [*chain.from_iterable(sources)])

    def _plain(self, cores: Nodes, out: Node, sources: Nodes) -> AttentionShape:
        query, key, value = sources
        core = cores[0]
        fused, one = query is key is value, key is value is not query
        self.need(fused or query is not key, "queries and keys of one product")
        run = core.run
        heads, wide = run.heads, run.head_dim
        v_wide = out.k // heads
        both = wide + v_wide
        # Where they are repeated, what was read of them tells halves from the whole.
        half = key.bit, wide, key.m * key.n * wide // both
        pair = one and (half in self.graph.parts or key.n == run.kv_heads * both)
        kv_heads = key.n // both if pair else (query.n // wide - heads) // 2 if fused else key.n // wide
        if run.kv_heads == heads and 0 < kv_heads < heads:
            # The class repeats keys and values for a core that does not.
            self.graph.shared.update((again.where, kv_heads) for again in cores)
            self.graph.written.add("repeats-kv")
        gate = self._gate_apart(out, query, (heads * v_wide, heads))
        if not fused and query.n == 2 * heads * wide and out.reads & query.bit:
            gate = "queries"
        expected = heads * wide * (1 + (gate == "queries")), kv_heads * wide, kv_heads * v_wide
        sizes = (sum(expected),) * 3 if fused else (expected[0], *[sum(expected[1:])] * 2) if pair else expected
        found = tuple(node.n for node in sources)
        self.need(
            found == sizes and run.q_len >= min(run.batch, 2),
            f"projections of {found} for {heads} heads of {wide}{_SEQUENCE_FIRST * fused}",
        )
        self.need(
            fused or gate == "queries" or not out.reads_any(sources),
            "the output projection reads queries, keys or values",
        )
        self.claim(*sources)
        bias, k_bias = self._biased(query, value), key.biased
        kind, weights = self._qk_norm(sources[: 2 - fused], (heads, kv_heads), wide)
        sinks = [one for one in self.scaled if one.operator == "sinks" and one.reads == core.bit]
        self.vectors.update(one.parameter for one in sinks)
        gates = [node for node in self.graph.of(out.reads) if node.number in self.claimed and node not in sources]
        self._inner([*cores, *sources, *gates])
        return AttentionShape(
            heads,
            kv_heads,
            wide,
            v_head_dim=v_wide if v_wide != wide else None,
            qkv_bias=bias,
            k_bias=k_bias if k_bias != bias else None,
            o_bias=out.biased,
            fused_qkv=fused,
            causal=run.causal,
            window=run.window,
            # Each channel is multiplied by a cosine and by a sine; one product may hold queries and keys.
            rotary_dim=min(self.graph.rotated[query.bit] // (4 if fused else 2), wide),
            qk_norm=kind,
            qk_norm_weights=weights,
            sinks=bool(sinks),
            gate=gate,
            keys_values="pair" if pair else "one" if one else "apart",
            # Queries and keys of the values' product have norms on it of their own.
            v_norm=self._norms_on(value, v_wide) > sources[:2].count(value) * (kind == "head"),
            cores=len(cores),
            tiles=(run.batch, None, None),
        )

    def _gate_apart(self, out: Node, query: Node, widths: Pair) -> Gate:
        """A product that the output projection reads and that gates it: of its width, or one number a head."""
        alike = self.products(within=out.reads, reads=query.reads, k=query.k)
        found = [node for node in alike if node.n in widths and node is not query]
        if len(found) != 1:
            return "none"
        self.claim(*found)
        self._keep(*(node.bias for node in found if node.bias))
        return "apart" if found[0].n == widths[0] else "heads"

    def _latent(self, core: Node, out: Node, sources: Sequence[Nodes]) -> MlaShape:
        """DeepSeek's: keys of the latent and of a rotated part that all heads share, values of the latent alone."""
        (up,) = sources[2]
        down = next(node for node in sources[1] if node is not up)
        query = self.one(sources[0], "products of queries")
        run = core.run
        heads, wide = run.heads, run.head_dim
        rope, v_wide = down.n - up.k, out.k // heads
        expected = heads * (wide - rope + v_wide), heads * wide
        found = up.n, query.n
        self.need(rope > 0 and found == expected, f"latent projections of {found} for {heads} heads of {wide}")
        first = self.products(n=query.k, bit=query.reads & ~TRIGONOMETRY)
        self.claim(up, down, *first)
        norms = 0
        for node, width in ((down, up.k), *((node, query.k) for node in first)):
            own = [path for path in self._on(node) if self.graph.size(path) == width]
            self.vectors.update(own)
            norms = len(own)
        return MlaShape(
            heads,
            up.k,
            wide - rope,
            rope,
            v_wide,
            q_lora_rank=query.k if first else None,
            bias=down.biased,
            causal=run.causal,
            window=run.window,
            latent_norm=norms,
        )

    def _on(self, node: Node) -> Texts:
        """The free vectors of norms on exactly this product's output; those that are added alone are biases."""
        found = [one for one in self.free if one.reads == node.bit]
        return [one.parameter for one in found] * any(one.operator.strip("_") != "add" for one in found)

    def _norms_on(self, node: Node, wide: int) -> int:
        """How many norms of this width run on exactly this product's output, with weights or without."""
        return sum((width, reads) == (wide, node.bit) for _, width, reads in self.graph.normed)

    def _qk_norm(self, projections: Nodes, heads: Pair, wide: int) -> tuple[QkNorm, int]:
        """Norms on queries and keys: weights of a head's width or of all heads', and how many each has."""
        # What one of them has more is no norm.
        vectors = [*chain.from_iterable(zip(*map(self._on, projections)))]  # noqa: B905 - the shorter ends it
        if not vectors and all(self._norms_on(one, wide) for one in projections):
            return "head", 0
        sizes = {*map(self.graph.size, vectors)}
        kind: QkNorm = "head" if sizes == {wide} else "full"
        known = kind == "head" or sizes <= {number * wide for number in heads}
        if not vectors or len(vectors) % 2 or not known:
            return "none", 1
        self.vectors.update(vectors)
        return kind, len(vectors) // 2

    def _take(self, reads: int, sizes: Iterable[int], most: int | None = None) -> Texts:
        """The vectors without a role, of these sizes, on what ``reads`` has, at ``most`` so many; they are claimed."""
        found = dict.fromkeys(
            one.parameter for one in self.free if one.reads & reads and self.graph.size(one.parameter) in sizes
        )
        taken = [*found][:most]
        self.vectors.update(taken)
        return taken

    def _mlps(self, hidden: int) -> list[MlpShape]:
        """Every product that reads one or two others' outputs alone, which read the residual stream."""
        found = []
        for down in self.products(n=hidden):
            inward = self.products(within=down.reads, k=hidden)
            if inward and inward == self.graph.of(down.reads) and (shape := self._mlp(inward, down)):
                self.claim(down, *inward)
                self._inner(inward)
                found.append(shape)
        return found

    def _inner(self, first: Nodes) -> None:
        """Learned vectors on what is between a part's first products and its last: norms and activations there."""
        inside = sum({node.bit for node in first})
        self._keep(*dict.fromkeys(one.parameter for one in self.free if one.reads and not one.reads & ~inside))

    def _keep(self, *parameters: str) -> None:
        """Keep parameters of a layer for which no part has a field."""
        self.vectors.update(parameters)
        self.extra += [(one.removeprefix(f"{self.path}."), self.graph.size(one)) for one in parameters]

    def _biased(self, *nodes: Node) -> bool:
        """Whether all of a part's products have a bias; biases of some alone are vectors of their own."""
        biases = [node.bias for node in nodes if node.bias]
        if len(biases) == len(nodes):
            return True
        self._keep(*biases)
        return False

    def _mlp(self, first: Nodes, down: Node) -> MlpShape | None:
        widths = [node.n for node in first]
        plain, fused = widths == [down.k], widths == [2 * down.k]
        apart = widths == [down.k, down.k] and first[0].reads == first[1].reads
        if not (plain or fused or apart):
            return None
        return MlpShape(down.k, not plain, self._biased(*first, down), fused_gate_up=fused)

    def _with_shared(self, moe: MoeShape, dense: list[MlpShape]) -> MoeShape:
        if not dense:
            return moe
        gates = self.products(n=1)
        self.claim(*gates[:1])
        return replace(moe, shared=dense[0], shared_gate=bool(gates))

    def _experts(self, hidden: int) -> MoeShape | None:
        grouped = self.open("grouped")
        if not grouped:
            return None
        down = self.one([node for node in grouped if node.reads_any(grouped)], "grouped products out")
        first = self.open("grouped")
        experts, rows, form = down.batch, first[0].m, self._mlp(first, down)
        if not form:
            raise Misfit(f"{self.path}: experts of {[node.n for node in first]} and {down.k} columns")
        # In a loop each expert gets as many rows, rounded up, which is exact if experts are fewer than tokens.
        self.need(
            rows % self.whole.sequence == 0 and (len(down.again) < 2 or experts <= self.whole.sequence),
            f"{rows} rows of {experts} experts for {self.whole.sequence} tokens",
        )
        self.claim(*first)
        around = self._around_experts(first[0], down, hidden)
        router = self._router(first[0], hidden)
        # An expert's bias is picked for a row by the number of the expert.
        biases = [one.bias or self._take(one.bit | router.bit, [one.batch * one.n], most=1) for one in (*first, down)]
        # A correction bias, one an expert.
        scalars = self._take(router.bit, [router.n])
        self._inner([*around[:1], *first, down])
        return MoeShape(
            experts,
            rows // self.whole.sequence,
            form.width,
            gated=form.gated,
            bias=all(biases),
            fused_gate_up=form.fused_gate_up or not form.gated,
            router_bias=router.biased,
            router_dtype=router.dtype if router.dtype != down.dtype else None,
            router_parameters=len(scalars) * router.n,
            latent=first[0].k if around else None,
            latent_bias=bool(around) and self._biased(*around),
        )

    def _router(self, first: Node, hidden: int) -> Node:
        """The product with a column for each expert, of several that which decides the rows of the experts' first."""
        found = self.products(n=first.batch, k=hidden)
        return self.one([node for node in found if first.reads & node.bit] or found, "routers")

    def _around_experts(self, first: Node, down: Node, hidden: int) -> Nodes:
        """The projections of routed tokens from the hidden size to another width before the experts, and back."""
        if first.k == hidden:
            return ()
        what = f"projections of experts of width {first.k} in a model of {hidden}"
        into = self.products(within=first.reads, n=first.k)
        return self.one(into, what), self.one(self.products(down.bit, k=first.k), what)

    def _parallel(self, mlp: set[int]) -> bool:
        """Whether the MLP of these nodes does not read this layer's attention or recurrence."""
        first = min(self.written, default=inf)
        return any(not node.reads_any(self.nodes) for node in self.nodes if node.number in mlp and node.number > first)

    def _norms(self, hidden: int) -> Pair:
        """Norms of hidden size in a layer, and the weights of each."""
        owners = Counter(path.rpartition(".")[0] for path in self._take(-1, {hidden}))
        # Biases that a class adds itself, to a product's output, belong to no norm.
        norms = {one.parameter.rpartition(".")[0] for one in self.scaled if one.operator.strip("_") != "add"}
        self.extra += _some(added=sum(map(owners.pop, owners.keys() - norms)) * hidden)
        if not owners:
            return sum(
                wide == hidden and self.whole.place(where) == self.path for where, wide, _ in self.graph.normed
            ), 0
        # Some have a bias more; what scales a part's output (DINOv2) reads and writes as much as a norm.
        least = min(owners.values())
        self.extra += _some(biases=(owners.total() - least * len(owners)) * hidden)
        return len(owners), least

    def _mixer(self, hidden: int) -> RecurrentShape | None:
        convolutions = self.open("depthwise")
        vectors = {one.parameter for one in self.scaled if _STATE_VECTORS.search(one.parameter)}
        if not convolutions:
            return None
        conv = self.one(convolutions, "convolutions")
        out = self.one(self.products(conv.bit, n=hidden), "products read the convolution")
        into = list[Node]()
        for readers in ([out], into, [conv]):
            read = [node for node in self.open("gemm") if any(one.reads & node.bit for one in readers)]
            into += [node for node in read if node not in into]
        bias = self._biased(*(node for node in into if node.k == hidden))
        self.claim(*into)
        self.written.append(out.number)
        self.vectors |= vectors
        shape = replace(
            self._recurrence(conv, out.k, vectors, into),
            conv=conv.k,
            bias=bias,
            conv_bias=conv.biased,
            out_bias=None if out.biased == bias else out.biased,
        )
        sizes = sorted((node.n, node.k) for node in into)
        low = ("decay", "gate") if shape.kind == "kda" else ()
        for parts in ((), *_IN_PROJECTIONS):
            form = replace(shape, in_proj=parts, low_rank=low)
            linears = form.linears(hidden)[:-1] if {*chain.from_iterable(parts)} <= {*form.form.parts} else ()
            if sorted((one.out_features, one.in_features) for one in linears) == sizes:
                return form
        raise Misfit(f"{self.path}: in-projections of {sizes} for {out.k} channels of a recurrence")

    def _recurrence(self, conv: Node, inner: int, vectors: set[str], into: Nodes) -> RecurrentShape:
        """The recurrence's kind by the sizes of its vectors: a number for every head, or for channels or states too."""
        if not vectors:
            return RecurrentShape("short_conv", inner, 1, 1, 0, 1)
        sizes = sorted(map(self.graph.size, vectors))
        heads, alike = sizes[0], sizes[0] == sizes[-1]
        dim, module = inner // heads, self.whole.module.get_submodule(min(vectors).rpartition(".")[0])
        delta = not any(path.endswith(".D") for path in vectors)
        if not delta and not alike:
            rank = min(node.k for node in into)
            norms = {path for node in into if node.k == inner for path in self._on(node)}
            self.vectors |= norms
            return RecurrentShape("mamba", heads, 1, 1, sizes[-1] // heads, 1, rank=rank, step_norms=bool(norms))
        # On what a scan wrote: weights for all heads, or each channel's own.
        norm = sum(map(self.graph.size, self._take(conv.bit, (inner, inner // heads))))
        if not alike:
            return RecurrentShape("kda", heads, dim, heads, dim, DELTA_CHUNK, norm=norm, rank=dim)
        state = _attribute(module, "head_k_dim" if delta else "ssm_state_size")
        chunk = DELTA_CHUNK if delta else _attribute(module, "chunk_size")
        groups = (conv.n - inner) // (2 * state)
        return RecurrentShape("gated_delta" if delta else "mamba2", heads, dim, groups, state, chunk, norm=norm)


#: Container -> path -> layer.
_Stacks = dict[str, dict[str, _Layer]]


@frozen
class _Span:
    """A stack's layers, and the numbers of the first and the last product in them."""

    first: int
    last: int
    layers: list[_Layer]


class Recogniser:
    """Reads one ``Graph``.

    ``sequence``: tokens of the one sequence that was run. ``left``: what no part claims, path -> why.
    """

    def __init__(self, graph: Graph, module: nn.Module, model_type: str, sequence: int) -> None:
        self.graph, self.module, self.model_type, self.sequence = graph, module, model_type, sequence
        self._parts = [f"{path}.{name}".lstrip(".") for path, parts in repeated_children(module) for name, _ in parts]
        self.layer_of = dict[int, _Layer]()
        self.left = dict[str, str]()
        self.claimed = set[str]()
        #: Whether layers read inputs as they are, which then have a gradient, as behind some other model.
        self.learns = False

    def read(self) -> ModelShape | None:
        """The ``ModelShape`` that the graph shows; None where not even the layers were understood."""
        self.left |= self.graph.problems
        try:
            model = self._model(*self._layers())
        except (Misfit, InputError) as error:
            self.left = self.left or {"": str(error)}
            return None
        for path in sorted(self.graph.used - self.claimed):
            self.left.setdefault(path, "parameter without a known role")
        return model

    def held(self) -> Names:
        """The outermost modules none of whose parameters was used."""
        # By identity: a tied head's matrix is used under the embedding's path.
        used = {id(self.module.get_parameter(path)) for path in self.graph.used}
        found = Texts()
        for path, child in self.module.named_modules():
            own = {*map(id, child.parameters())}
            if own and not used & own and not any(path.startswith(f"{one}.") for one in found):
                found.append(path)
        return tuple(found)

    def place(self, path: str) -> str:
        """The outermost layer that ``path`` is in; empty where it is in none."""
        return next((one for one in self._parts if f"{path}.".startswith(f"{one}.")), "")

    def _layers(self) -> tuple[_Stacks, _Layer]:
        """Container -> its layers in the order in which they ran; and what is outside of all."""
        stacks: _Stacks = {}
        outside = _Layer("", self)

        def layer(path: str) -> _Layer:
            name = self.place(path)
            if not name:
                return outside
            return stacks.setdefault(name.rpartition(".")[0], {}).setdefault(name, _Layer(name, self))

        for node in self.graph.nodes:
            found = layer(node.path)
            if found is outside and node.operands:
                # It ran in the model's own forward: it is its queries' layer's.
                found = self.layer_of.get(newest(node.operands[0]), outside)
            found.nodes.append(node)
            self.layer_of[node.number] = found
        for scaled in self.graph.scaled:
            layer(scaled.parameter).scaled.append(scaled)
        return stacks, outside

    # -- the whole ---------------------------------------------------------------------------------------------------

    def _model(self, stacks: _Stacks, outside: _Layer) -> ModelShape:
        *_, main = found = self._main(stacks, outside)
        tables = [*dict.fromkeys(node.path for node in self._tables(outside, "tokens"))]
        rows, width = self.graph.parameters[tables[0]] if tables else (0, 0)
        for path in tables:
            if self.graph.parameters[path] != (rows, width):
                self.left[path] = f"token embeddings of another size than {rows} x {width}"
        heads, before = self._heads(outside, main, rows)
        outside.need(
            all(node.m > 1 for node in heads),
            "a head of the last token alone: call the module as it is trained, with targets",
        )
        head = heads[0] if heads else None
        read = [self._stack(span, found[:index], outside) for index, span in enumerate(found)]
        hidden = read[-1].hidden
        norms = outside.between(main.last + 1)
        self.claimed |= outside.vectors
        others = (node for node in outside.open(*MIXING, "gemm", "conv") if node.n > 1)  # one number compares towers
        self.left |= {node.path: f"{node.kind} outside the layers" for node in others}
        vocab = head.n if head else rows
        of_head = Values(head=False)
        if head:
            own = head.k if head.k not in (width, hidden) else None
            of_head = {"tied": head.weight in tables, "head_bias": head.biased, "heads": len(heads), "head_inputs": own}
        return ModelShape(
            self.model_type,
            tuple(read),
            vocab=vocab,
            embedding_dim=width if width not in (0, hidden) else None,
            before_head=self.linears("head_transform", before, read[-1].length or self.sequence),
            max_positions=first_of(stack.positions for stack in reversed(read) if stack.positions),
            extra=_some(
                head_norm=sum(map(self.graph.size, norms)), embedding_rows=len(tables) * (rows - vocab) * width
            ),
            embedding_tables=len(tables),
            written=" ".join(sorted(self.graph.written)),
            **of_head,
        )

    def linears(self, name: str, nodes: Nodes, length: int = 0) -> Linears:
        """Matrices in or around a stack of ``length`` tokens: of them all, or of as many as they read."""
        return tuple(
            Linear(
                name,
                node.n,
                node.k,
                node.biased,
                kind=node.kind,  # type: ignore[arg-type] # one of two
                rows=None if node.m == length else node.m,
                grad_input=node.reads & ~(TRIGONOMETRY | INPUTS) > 0
                or any(one.reads == node.reads for one in self.graph.scaled),
                shared=node.weight in {one.weight for one in nodes[:place]},
            )
            for place, node in enumerate(nodes)
        )

    def _main(self, stacks: _Stacks, outside: _Layer) -> list[_Span]:
        """The stacks of layers that mix tokens or have experts, as they ran; other repetitions are outside of them."""
        main = []
        for stack in stacks.values():
            layers = [*stack.values()]
            nodes = [node for layer in layers for node in layer.nodes]
            if MIXING & {node.kind for node in nodes}:
                numbers = [node.number for node in nodes]
                main.append(_Span(min(numbers), max(numbers), layers))
            else:
                for layer in layers:
                    outside.nodes += layer.nodes
                    outside.scaled += layer.scaled
        main.sort(key=lambda span: span.first)
        # One layer may be by itself.
        main = main or [_Span(0, 10**9, [outside])] * bool(outside.open(*MIXING))
        outside.need(bool(main), "no layers with attention, a convolution or experts")
        for one, following in pairwise(main):
            outside.need(one.last < following.first, "stacks of layers that run in turns")
        return main

    def _stack(self, span: _Span, earlier: Sequence[_Span], outside: _Layer) -> Stack:
        hidden = self._hidden(span.layers)
        blocks = []
        for layer in span.layers:
            try:
                blocks.append(layer.block(hidden, alone=not earlier))
            except Misfit as error:
                self.left[layer.path] = str(error)
        outside.need(bool(blocks), next(iter(self.left.values()), "no layer was recognised"))
        started = earlier[-1].last + 1 if earlier else 0
        entry = [node for node in outside.open("gemm", "conv") if started <= node.number < span.first]
        outside.claim(*entry)

        def tables(index: Index) -> dict[str, int]:
            return {node.path: node.n for node in self._tables(outside, index) if started <= node.number < span.first}

        # Where they are not a sequence's, tokens are as many as an image, or a series, is cut into.
        own = {node.run.batch * node.run.q_len for layer in span.layers for node in layer.nodes if node.core}
        length = max(own, default=None)
        if self.sequence in own or (self.sequence > 1 and tables("tokens")):
            length = None
        positions = tables("positions")
        return Stack(
            "decoder"
            if any(one.cross or one.mixer or (one.attention and one.attention.causal) for one in blocks)
            else "encoder",
            hidden,
            run_lengths(blocks),
            length=length,
            front=self.linears("entry", entry, length or self.sequence),
            positions=sum(self.graph.parameters[path][0] for path in positions if positions[path] == hidden),
            embedding_norm=len(outside.between(started, span.first - 1, hidden)),
            final_norm=len(outside.between(span.first, span.last, hidden)),
            extra=_some(
                token_type_embeddings=sum(map(self.graph.size, tables("types"))),
                positions=sum(self.graph.size(path) for path in positions if positions[path] != hidden),
                vectors=sum(map(self.graph.size, outside.between(started, span.last))),
            ),
        )

    def _heads(self, outside: _Layer, main: _Span, rows: int) -> tuple[list[Node], list[Node]]:
        """Products with a column for each token (of each row of the embedding, or of all but a few), and others."""
        after = [node for node in outside.open("gemm") if node.number > main.last]
        few = [node for node in after if 0 < rows - node.n < 64 and node.m > 1]
        heads = [node for node in after if node.n == rows] or few
        outside.need(len({(node.n, node.k, node.biased) for node in heads}) < 2, f"{len(heads)} different heads")
        outside.claim(*after)
        return heads, [node for node in after if node not in heads]

    def _tables(self, outside: _Layer, index: Index) -> Nodes:
        """Tables that were looked up by tokens' numbers, by positions, or by the one type of all tokens."""
        found = [node for node in outside.open("lookup") if node.index == index]
        outside.vectors.update(node.path for node in found)
        return found

    def _hidden(self, layers: Iterable[_Layer]) -> int:
        """The hidden size: columns of most products' inputs that are the layer's own, and of others' outputs."""
        widths = Counter(
            node.n if node.reads_any(one.nodes) else node.k
            for one in layers
            for node in one.nodes
            if node.kind == "gemm"
        )
        if not widths:
            raise Misfit("no product reads the residual stream")
        return widths.most_common(1)[0][0]


def _some(**elements: int) -> Vectors:
    return tuple((name, number) for name, number in elements.items() if number)


def _attribute(module: nn.Module, name: str) -> int:
    value = getattr(module, name, None)
    if isinstance(value, int) and value > 0:
        return value
    raise Misfit(f"{type(module).__name__} says nothing of {name}")
