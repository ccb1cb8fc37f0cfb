"""A graph of products read as a ``ModelShape``: attention, MLPs, experts, recurrences, norms, embeddings, heads.

Parts are told by edges: who reads whom, and of which sizes. Every parameter is claimed by one part; what no part claims
is named in ``Recognised.left_over``, and a model with anything left over is not recognised.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from torch import nn

from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.model import (
    DELTA_CHUNK,
    AttentionShape,
    Block,
    MlaShape,
    MlpShape,
    ModelShape,
    MoeShape,
    QkNorm,
    RecurrentShape,
    Stack,
    run_lengths,
)
from shapes.operators.types import Attention
from shapes.trace.graph import TRIGONOMETRY, Graph, Node, Scaled
from shapes.trace.repeats import repeated_children

#: Learned vectors of recurrences, which go by these names in every implementation.
_STATE_VECTORS = re.compile(r"(^|\.)(A_log|A|D|dt_bias)$")


@frozen
class Recognised:
    """``model``: what was understood (None: not even the layers were). ``left_over``: what was not, path -> why.

    ``held``: modules with parameters that did not run (towers for images, cross attention).
    """

    model: ModelShape | None
    left_over: Mapping[str, str]
    held: tuple[str, ...] = ()


class Misfit(Exception):  # noqa: N818 # named for what it is
    """A part of a layer whose sizes or edges fit no known form."""


@dataclass(slots=True)
class _Layer:
    """One layer's nodes and vectors, and what of them has been claimed."""

    path: str
    nodes: list[Node] = field(default_factory=list)
    scaled: list[Scaled] = field(default_factory=list)
    claimed: set[int] = field(default_factory=set)
    vectors: set[str] = field(default_factory=set)

    def open(self, *kinds: str) -> list[Node]:
        return [node for node in self.nodes if node.kind in kinds and node.number not in self.claimed]

    def need(self, holds: bool, otherwise: str) -> None:
        """Misfit where what a known form needs does not hold."""
        if not holds:
            raise Misfit(f"{self.path}: {otherwise}" if self.path else otherwise)

    def one(self, found: Sequence[Node], what: str) -> Node:
        self.need(len(found) == 1, f"{len(found)} {what}")
        return found[0]

    def claim(self, *nodes: Node) -> None:
        for node in nodes:
            self.claimed.add(node.number)
            self.vectors.update(path for path in (node.weight, node.bias) if path is not None)


class Recogniser:
    """Reads one ``Graph``. ``sequence``: tokens of the one sequence that was run."""

    def __init__(self, graph: Graph, module: nn.Module, model_type: str, sequence: int) -> None:
        self.graph, self.module, self.model_type, self.sequence = graph, module, model_type, sequence
        self._containers = sorted({path for path, _ in repeated_children(module)}, key=len)
        self._layer_of: dict[int, _Layer] = {}
        self.left: dict[str, str] = {}
        self.claimed: set[str] = set()

    def read(self) -> Recognised:
        self.left.update(self.graph.problems)
        stacks, ends = self._layers()
        try:
            model = self._model(stacks, ends)
        except (Misfit, InputError) as error:
            return Recognised(None, {"": str(error)}, self._held())
        for path in self.graph.used - self.claimed:
            self.left.setdefault(path, "parameter without a known role")
        return Recognised(model, dict(self.left), self._held())

    def _held(self) -> tuple[str, ...]:
        """The outermost modules none of whose parameters was used."""
        # By identity: a tied head's matrix is used under the embedding's path.
        used = {id(self.module.get_parameter(path)) for path in self.graph.used}
        found: list[str] = []
        for path, child in self.module.named_modules():
            own = {id(parameter) for parameter in child.parameters()}
            if own and not used & own and not any(path.startswith(f"{one}.") for one in found):
                found.append(path)
        return tuple(found)

    def _place(self, path: str) -> tuple[str, str] | None:
        """(container, layer) of the outermost repetition that ``path`` is in."""
        for container in self._containers:
            prefix = f"{container}." if container else ""
            if path.startswith(prefix):
                index = path[len(prefix) :].partition(".")[0]
                if index.isdigit():
                    return container, prefix + index
        return None

    def _layers(self) -> tuple[dict[str, dict[str, _Layer]], _Layer]:
        """Container -> its layers in the order in which they ran; and what is outside of all."""
        stacks: dict[str, dict[str, _Layer]] = {}
        outside = _Layer("")

        def layer(path: str) -> _Layer:
            place = self._place(path)
            if place is None:
                return outside
            container, name = place
            return stacks.setdefault(container, {}).setdefault(name, _Layer(name))

        for node in self.graph.nodes:
            found = layer(node.weight if node.weight is not None else node.where)
            found.nodes.append(node)
            self._layer_of[node.number] = found
        for scaled in self.graph.scaled:
            layer(scaled.parameter).scaled.append(scaled)
        return stacks, outside

    # -- one layer ---------------------------------------------------------------------------------------------------

    def _block(self, layer: _Layer, hidden: int) -> Block:
        attention = self._attention(layer)
        mixer = self._mixer(layer, hidden)
        moe = self._experts(layer, hidden)
        dense = self._mlps(layer, hidden)
        layer.need(attention is None or mixer is None, "attention next to a recurrence")
        layer.need(len(dense) < 2, f"{len(dense)} MLPs in one layer")
        mlp: MlpShape | MoeShape | None = dense[0] if dense else None
        if moe is not None:
            mlp = self._with_shared(layer, moe, dense)
        parallel = self._parallel(layer)
        norms, weights = self._norms(layer, hidden)
        # A recurrence's reference loop is products of activations, which its kernels run in another form.
        inside = ("bmm", "depthwise") if mixer is not None else ()
        for node in layer.nodes:
            if node.number not in layer.claimed and node.kind not in inside:
                self.left[node.weight or node.where] = (
                    f"{node.kind} {node.m} x {node.n} x {node.k} without a known role"
                )
        self.claimed |= layer.vectors
        return Block(attention, mlp, norms=norms, norm_weights=weights, parallel=parallel, mixer=mixer)

    def _sources(self, mask: int, layer: _Layer) -> list[Node]:
        """The products with weights that a set consists of; Misfit where one is another layer's."""
        found = [node for node in self.graph.of(mask) if node.kind in ("gemm", "conv", "grouped")]
        for node in found:
            if self._layer_of[node.number] is not layer:
                raise Misfit(f"{layer.path}: reads {node.weight} of another layer")
        return found

    def _attention(self, layer: _Layer) -> AttentionShape | MlaShape | None:
        cores = layer.open("attention")
        if not cores:
            return None
        core = layer.one(cores, "attention cores in one layer")
        layer.claimed.add(core.number)
        readers = [node for node in layer.open("gemm") if node.reads & core.bit]
        out = layer.one(readers, "products read the attention core")
        sources = tuple(self._sources(mask, layer) for mask in (core.query, core.key, core.value))
        layer.claim(out)
        _, k, v = sources
        if len(k) == 2 and len(v) == 1 and v[0] in k:
            return self._latent(layer, core, out, sources)
        layer.need(
            all(len(found) == 1 for found in sources),
            "queries, keys and values of {}, {} and {} products".format(*map(len, sources)),
        )
        return self._plain(layer, core, out, [found[0] for found in sources])

    def _plain(self, layer: _Layer, core: Node, out: Node, sources: Sequence[Node]) -> AttentionShape:
        query, key, value = sources
        fused = query is key is value
        layer.need(fused or (key is not value and query is not key), "keys and values of one product")
        run = _run_of(core)
        heads, wide = run.heads, run.head_dim
        v_wide = out.k // heads
        kv_heads = (query.n // wide - heads) // 2 if fused else key.n // wide
        gated = not fused and query.n == 2 * heads * wide and bool(out.reads & query.bit)
        expected = (heads * wide * (1 + gated), kv_heads * wide, kv_heads * v_wide)
        sizes = (sum(expected),) * 3 if fused else expected
        found = tuple(node.n for node in sources)
        layer.need(found == sizes, f"projections of {found} for {heads} and {kv_heads} heads of {wide}")
        passed = query.bit | key.bit | value.bit
        layer.need(fused or gated or not out.reads & passed, "the output projection reads queries, keys or values")
        projections = tuple(dict.fromkeys(node.number for node in sources))
        layer.claim(*sources)
        biases = [node.bias is not None for node in sources]
        layer.need(biases[0] == biases[2], "a bias on some of queries and values")
        kind, weights = self._qk_norm(layer, sources[: min(len(projections), 2)], (heads, kv_heads), wide)
        sinks = [one for one in layer.scaled if one.operator == "sinks" and one.reads == core.bit]
        layer.vectors.update(one.parameter for one in sinks)
        return AttentionShape(
            heads,
            kv_heads,
            wide,
            v_head_dim=v_wide if v_wide != wide else None,
            qkv_bias=biases[0],
            k_bias=biases[1] if biases[1] != biases[0] else None,
            o_bias=out.bias is not None,
            fused_qkv=fused,
            causal=run.causal,
            window=run.window,
            rotary_dim=self._rotary(query, wide, 2 if fused else 1),
            qk_norm=kind,
            qk_norm_weights=weights,
            sinks=bool(sinks),
            gated=gated,
        )

    def _latent(self, layer: _Layer, core: Node, out: Node, sources: Sequence[Sequence[Node]]) -> MlaShape:
        """DeepSeek's: keys of the latent and of a rotated part that all heads share, values of the latent alone."""
        (up,) = sources[2]
        down = next(node for node in sources[1] if node is not up)
        query = layer.one(sources[0], "products of queries")
        run = _run_of(core)
        heads, wide = run.heads, run.head_dim
        rope, v_wide = down.n - up.k, out.k // heads
        expected = (heads * (wide - rope + v_wide), heads * wide)
        found = (up.n, query.n)
        layer.need(rope > 0 and found == expected, f"latent projections of {found} for {heads} heads of {wide}")
        layer.claim(up, down, query)
        first = [node for node in self.graph.of(query.reads) if node.bit == query.reads & ~TRIGONOMETRY]
        first = [node for node in first if node.kind == "gemm" and node.n == query.k]
        layer.claim(*first)
        norms = 0
        for node, width in ((down, up.k), *((node, query.k) for node in first)):
            own = [one.parameter for one in self._on(layer, node) if self._size(one.parameter) == width]
            layer.vectors.update(own)
            norms = len(own)
        return MlaShape(
            heads,
            up.k,
            wide - rope,
            rope,
            v_wide,
            q_lora_rank=query.k if first else None,
            bias=down.bias is not None,
            causal=run.causal,
            window=run.window,
            latent_norm=norms,
        )

    def _rotary(self, query: Node, wide: int, shared: int) -> int:
        """Channels of a head that are rotated: each is multiplied by a cosine and by a sine."""
        total = sum(one.width for one in self.graph.rotated if one.reads & ~TRIGONOMETRY == query.bit)
        return min(total // (2 * shared), wide)

    def _on(self, layer: _Layer, node: Node) -> list[Scaled]:
        """Vectors that exactly this product's output is combined with."""
        return [
            one for one in layer.scaled if one.reads & ~TRIGONOMETRY == node.bit and one.parameter not in layer.vectors
        ]

    def _qk_norm(
        self, layer: _Layer, projections: Sequence[Node], heads: tuple[int, int], wide: int
    ) -> tuple[QkNorm, int]:
        """Norms on queries and keys: weights of a head's width or of all heads', and how many each has."""
        vectors = [one.parameter for node in projections for one in self._on(layer, node)]
        sizes = {self._size(path) for path in vectors}
        if not vectors or len(vectors) % 2:
            return "none", 1
        kind: QkNorm = "head" if sizes == {wide} else "full"
        if kind == "full" and not sizes <= {number * wide for number in heads}:
            return "none", 1
        layer.vectors.update(vectors)
        return kind, len(vectors) // 2

    def _size(self, parameter: str) -> int:
        return prod(self.graph.parameters[parameter])

    def _mlps(self, layer: _Layer, hidden: int) -> list[MlpShape]:
        """Every product that reads one or two others' outputs alone, which read the residual stream."""
        found = []
        for down in layer.open("gemm"):
            first = self.graph.of(down.reads & ~TRIGONOMETRY)
            inward = [node for node in first if node in layer.open("gemm") and node.k == hidden]
            if down.n != hidden or not first or len(inward) != len(first):
                continue
            shape = self._mlp(inward, down)
            if shape is not None:
                layer.claim(down, *inward)
                found.append(shape)
        return found

    def _mlp(self, first: Sequence[Node], down: Node) -> MlpShape | None:
        bias = down.bias is not None
        if any((node.bias is not None) != bias for node in first):
            return None
        widths = [node.n for node in first]
        if widths == [down.k]:
            return MlpShape(down.k, False, bias)
        if widths == [2 * down.k]:
            return MlpShape(down.k, True, bias, fused_gate_up=True)
        if widths == [down.k, down.k] and first[0].reads == first[1].reads:
            return MlpShape(down.k, True, bias)
        return None

    def _experts(self, layer: _Layer, hidden: int) -> MoeShape | None:
        grouped = layer.open("grouped")
        if not grouped:
            return None
        down = layer.one([node for node in grouped if self._reads_one_of(node, grouped)], "grouped products out")
        first = [node for node in grouped if node is not down]
        width, experts, rows = down.k, down.batch, first[0].m
        fused = [node.n for node in first] == [2 * width]
        sizes = [node.n for node in first]
        layer.need(fused or sizes in ([width], [width, width]), f"experts of {sizes} and {width} columns")
        layer.need(rows % self.sequence == 0, f"{rows} rows of experts for {self.sequence} tokens")
        layer.claim(down, *first)
        latent = self._routed_width(layer, first[0], down, hidden)
        router = self._router(layer, first[0], hidden)
        biased = self._expert_biases(layer, (*first, down), router)
        scalars = self._router_scalars(layer, router)
        return MoeShape(
            experts,
            rows // self.sequence,
            width,
            gated=fused or len(first) == 2,
            bias=biased,
            fused_gate_up=fused or len(first) == 1,
            router_bias=router.bias is not None,
            router_dtype=router.dtype if router.dtype != down.dtype else None,
            router_parameters=scalars,
            latent=latent,
        )

    def _router(self, layer: _Layer, first: Node, hidden: int) -> Node:
        """The product with a column for each expert, of several that which decides the rows of the experts' first."""
        found = [node for node in layer.open("gemm") if node.n == first.batch and node.k == hidden]
        router = layer.one([node for node in found if first.reads & node.bit] or found, "routers")
        layer.claim(router)
        return router

    def _router_scalars(self, layer: _Layer, router: Node) -> int:
        """Learned scalars of the router, one an expert (a correction bias)."""
        found = {one.parameter for one in layer.scaled if one.reads & router.bit} - layer.vectors
        found = {path for path in found if self._size(path) == router.n}
        layer.vectors |= found
        return len(found) * router.n

    def _reads_one_of(self, node: Node, others: Sequence[Node]) -> bool:
        return any(node.reads & one.bit for one in others)

    def _routed_width(self, layer: _Layer, first: Node, down: Node, hidden: int) -> int | None:
        """The width that routed tokens are projected to before the experts, where it is not the hidden size."""
        if first.k == hidden:
            return None
        what = f"projections of experts of width {first.k} in a model of {hidden}"
        into = [node for node in layer.open("gemm") if node.n == first.k and first.reads & node.bit]
        back = [node for node in layer.open("gemm") if node.k == first.k and node.reads & down.bit]
        layer.claim(layer.one(into, what), layer.one(back, what))
        return first.k

    def _expert_biases(self, layer: _Layer, products: Iterable[Node], router: Node) -> bool:
        """Whether each grouped product has a bias, which is picked for a row by the number of its expert."""
        found = []
        for node in products:
            own = [
                one
                for one in layer.scaled
                if one.parameter not in layer.vectors
                and one.reads & (node.bit | router.bit)
                and self._size(one.parameter) == node.batch * node.n
            ][:1]
            layer.vectors.update(one.parameter for one in own)
            found.append(bool(own))
        return all(found)

    def _with_shared(self, layer: _Layer, moe: MoeShape, dense: Sequence[MlpShape]) -> MoeShape:
        if not dense:
            return moe
        gates = [node for node in layer.open("gemm") if node.n == 1]
        layer.claim(*gates[:1])
        return replace(moe, shared=dense[0], shared_gate=bool(gates))

    def _parallel(self, layer: _Layer) -> bool:
        """Whether the MLP does not read what this layer's attention wrote."""
        products = [node for node in layer.nodes if node.kind in ("gemm", "grouped") and node.number in layer.claimed]
        written = [node for node in products if node.kind == "gemm" and self._reads_core(node)]
        if not written:
            return False
        after = [node for node in products if node.number > written[0].number and node not in written]
        return any(not self._reads_one_of(node, layer.nodes) for node in after)

    def _reads_core(self, node: Node) -> bool:
        return any(one.kind in ("attention", "depthwise") for one in self.graph.of(node.reads))

    def _norms(self, layer: _Layer, hidden: int) -> tuple[int, int]:
        """Norms of hidden size in a layer, and the weights of each."""
        owners: Counter[str] = Counter()
        for path in dict.fromkeys(one.parameter for one in layer.scaled):
            if path not in layer.vectors and self._size(path) == hidden:
                owners[path.rpartition(".")[0]] += 1
                layer.vectors.add(path)
        if not owners:
            return (2 if hidden in self.graph.normed else 0), 0
        weights = set(owners.values())
        if len(weights) != 1:
            raise Misfit(f"{layer.path}: norms of {sorted(weights)} weights")
        return len(owners), weights.pop()

    def _mixer(self, layer: _Layer, hidden: int) -> RecurrentShape | None:
        convolutions = layer.open("depthwise")
        vectors = {one.parameter for one in layer.scaled if _STATE_VECTORS.search(one.parameter)}
        if not convolutions or not vectors:
            return None
        conv = layer.one(convolutions, "convolutions")
        out = layer.one(
            [node for node in layer.open("gemm") if node.n == hidden and node.reads & conv.bit],
            "products read the convolution",
        )
        into = [node for node in layer.open("gemm") if node.k == hidden and out.reads & node.bit and node is not out]
        heads, inner = min(map(self._size, vectors)), out.k
        delta = not any(path.endswith(".D") for path in vectors)
        gates = heads * (2 if delta else 1)
        widths = [node.n for node in into]
        known = ([inner + conv.n + gates], [inner + conv.n, gates])
        layer.need(widths in known, f"in-projections of {widths} for {inner} channels of a recurrence")
        biases = {node.bias is not None for node in (*into, out)}
        layer.need(len(biases) == 1, "a bias on some projections of a recurrence")
        layer.claim(conv, out, *into)
        layer.vectors |= vectors
        norm = self._scan_norm(layer, conv, inner, heads)
        module = self.module.get_submodule(min(vectors).rpartition(".")[0])
        state = _attribute(module, "head_k_dim" if delta else "ssm_state_size")
        return RecurrentShape(
            "gated_delta" if delta else "mamba2",
            heads,
            inner // heads,
            (conv.n - inner) // (2 * state),
            state,
            DELTA_CHUNK if delta else _attribute(module, "chunk_size"),
            conv=conv.k,
            bias=biases.pop(),
            conv_bias=conv.bias is not None,
            norm=norm,
            gates_apart=len(into) == 2,
        )

    def _scan_norm(self, layer: _Layer, conv: Node, inner: int, heads: int) -> int:
        """Weights of the norm on what a scan wrote: one for all heads, or each channel's own."""
        found = {
            one.parameter
            for one in layer.scaled
            if one.reads & conv.bit
            and one.parameter not in layer.vectors
            and self._size(one.parameter) in (inner, inner // heads)
        }
        layer.vectors |= found
        return sum(map(self._size, found))

    # -- the whole ---------------------------------------------------------------------------------------------------

    def _model(self, stacks: Mapping[str, Mapping[str, _Layer]], outside: _Layer) -> ModelShape:
        layers = self._main(stacks, outside)
        token, positions = self._tables(outside)
        rows, width = self.graph.parameters[token]
        hidden = self._hidden(layers.values())
        heads = [node for node in outside.nodes if node.kind == "gemm" and node.n == rows]
        outside.need(len(heads) < 2, f"{len(heads)} heads")
        outside.claim(*heads)
        blocks = []
        for layer in layers.values():
            try:
                blocks.append(self._block(layer, hidden))
            except Misfit as error:
                self.left[layer.path] = str(error)
        outside.need(bool(blocks), next(iter(self.left.values()), "no layer was recognised"))
        before, after = self._ends(outside, min(node.number for one in layers.values() for node in one.nodes), hidden)
        self.claimed |= outside.vectors
        for node in outside.open("gemm", "grouped", "conv", "depthwise"):
            self.left[node.weight or node.where] = f"{node.kind} outside the layers"
        stack = Stack(
            "decoder", hidden, run_lengths(blocks), positions=positions, embedding_norm=before, final_norm=after
        )
        head = heads[0] if heads else None
        return ModelShape(
            self.model_type,
            (stack,),
            vocab=rows,
            tied=head is not None and head.weight == token,
            head=head is not None,
            head_bias=head is not None and head.bias is not None,
            embedding_dim=width if width != hidden else None,
            max_positions=positions or None,
        )

    def _main(self, stacks: Mapping[str, Mapping[str, _Layer]], outside: _Layer) -> Mapping[str, _Layer]:
        """The one stack of layers that mixes tokens or has experts; other repetitions are outside of it."""
        mixing = ("attention", "grouped", "depthwise", "bmm")
        main = [
            layers
            for layers in stacks.values()
            if any(node.kind in mixing for layer in layers.values() for node in layer.nodes)
        ]
        outside.need(len(main) == 1, f"{len(main)} stacks of layers")
        for layers in stacks.values():
            if layers is not main[0]:
                for layer in layers.values():
                    outside.nodes += layer.nodes
                    outside.scaled += layer.scaled
        return main[0]

    def _tables(self, outside: _Layer) -> tuple[str, int]:
        """The token embedding's path, and rows of learned positions."""
        tables = {node.weight: bool(node.reads) for node in outside.nodes if node.kind == "lookup" and node.weight}
        tokens = [path for path, of_tokens in tables.items() if of_tokens]
        outside.need(len(tokens) == 1, f"{len(tokens)} token embeddings")
        outside.vectors.update(tables)
        return tokens[0], sum(self.graph.parameters[path][0] for path, of_tokens in tables.items() if not of_tokens)

    def _hidden(self, layers: Iterable[_Layer]) -> int:
        """Columns of what most products of the layers read."""
        widths: Counter[int] = Counter()
        for layer in layers:
            products = [node for node in layer.nodes if node.kind == "gemm"]
            widths.update(node.k for node in products if not self._reads_one_of(node, layer.nodes))
        if not widths:
            raise Misfit("no product reads the residual stream")
        return widths.most_common(1)[0][0]

    def _ends(self, outside: _Layer, first: int, hidden: int) -> tuple[int, int]:
        """Weights of the norms before the first layer and after the last, in vectors of hidden size."""
        before = after = 0
        for path, reads in {one.parameter: one.reads for one in outside.scaled}.items():
            if path in outside.vectors or self._size(path) != hidden:
                continue
            outside.vectors.add(path)
            if reads >> first:
                after += 1
            else:
                before += 1
        return before, after


def _run_of(core: Node) -> Attention:
    assert core.core is not None
    return core.core


def _attribute(module: nn.Module, name: str) -> int:
    value = getattr(module, name, None)
    if isinstance(value, int) and value > 0:
        return value
    raise Misfit(f"{type(module).__name__} says nothing of {name}")


def recognise(graph: Graph, module: nn.Module, model_type: str, sequence: int) -> Recognised:
    """The ``ModelShape`` that a graph of one sequence of ``sequence`` tokens shows."""
    return Recogniser(graph, module, model_type, sequence).read()
