"""A graph of products read as a ``ModelShape``: attention, MLPs, experts, recurrences, norms, embeddings, heads.

Parts are told by edges: who reads whom, and of which sizes. Every parameter is claimed by one part; what no part claims
is named in ``Recognised.left_over``, and a model with anything left over is not recognised.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from torch import nn

from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.model import AttentionShape, Block, MlaShape, MlpShape, ModelShape, MoeShape, RecurrentShape, Stack
from shapes.model.linear import Linear
from shapes.trace.graph import TRIGONOMETRY, Graph, Node, Scaled
from shapes.trace.names import repeated_children

#: Learned vectors of recurrences, which go by these names in every implementation.
_STATE_VECTORS = re.compile(r"(^|\.)(A_log|A|D|dt_bias)$")
#: Chunk of a gated delta rule in transformers' and flash-linear-attention's kernels.
DELTA_CHUNK = 64


@frozen
class Recognised:
    """``model``: what was understood (None: not even the layers were). ``left_over``: what was not, path -> why.

    ``held``: modules with parameters that did not run (towers for images, cross attention).
    """

    model: ModelShape | None
    left_over: Mapping[str, str]
    held: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        return self.model is not None and not self.left_over


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
    problems: dict[str, str] = field(default_factory=dict)

    def open(self, *kinds: str) -> list[Node]:
        return [node for node in self.nodes if node.kind in kinds and node.number not in self.claimed]

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
        used = self.graph.used
        found: list[str] = []
        for path, child in self.module.named_modules():
            own = [f"{path}.{name}" if path else name for name, _ in child.named_parameters()]
            if own and not used.intersection(own) and not any(path.startswith(f"{one}.") for one in found):
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
        mlp: MlpShape | MoeShape | None = None
        if moe is not None:
            mlp = self._with_shared(layer, moe, dense)
        elif len(dense) > 1:
            raise Misfit(f"{layer.path}: {len(dense)} MLPs in one layer")
        elif dense:
            mlp = dense[0][0]
        parallel = self._parallel(layer)
        norms, weights = self._norms(layer, hidden)
        for node in layer.nodes:
            if node.number not in layer.claimed and node.kind not in ("bmm", "attention", "depthwise"):
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
        if len(cores) > 1:
            raise Misfit(f"{layer.path}: {len(cores)} attention cores in one layer")
        core = cores[0]
        layer.claimed.add(core.number)
        out = [node for node in layer.open("gemm") if node.reads & core.bit]
        if len(out) != 1:
            raise Misfit(f"{layer.path}: {len(out)} products read the attention core")
        q, k, v = (self._sources(mask, layer) for mask in (core.query, core.key, core.value))
        layer.claim(*out)
        if len(k) == 2 and len(v) == 1 and v[0] in k:
            return self._latent(layer, core, out[0], q, k, v)
        return self._plain(layer, core, out[0], q, k, v)

    def _plain(
        self, layer: _Layer, core: Node, out: Node, q: list[Node], k: list[Node], v: list[Node]
    ) -> AttentionShape:
        if not len(q) == len(k) == len(v) == 1:
            raise Misfit(f"{layer.path}: queries, keys, values of {len(q)}, {len(k)}, {len(v)} products")
        (query,), (key,), (value,) = q, k, v
        heads, wide = core.core["heads"], core.core["head_dim"]
        fused = query is key is value
        gated = False
        if fused:
            kv_heads = (query.n // wide - heads) // 2
            v_wide = out.k // heads
            if heads * wide + kv_heads * (wide + v_wide) != query.n:
                raise Misfit(f"{layer.path}: {query.n} columns for {heads} heads of {wide}")
        else:
            if key is value or query is key:
                raise Misfit(f"{layer.path}: keys and values of one product")
            kv_heads = key.n // wide
            v_wide = value.n // kv_heads
            gated = query.n == 2 * heads * wide and bool(out.reads & query.bit)
            sizes = (query.n, key.n, value.n, out.k)
            if sizes != (heads * wide * (1 + gated), kv_heads * wide, kv_heads * v_wide, heads * v_wide):
                raise Misfit(f"{layer.path}: projections of {sizes} for {heads} and {kv_heads} heads of {wide}")
        if not fused and not gated and out.reads & (query.bit | key.bit | value.bit):
            raise Misfit(f"{layer.path}: the output projection reads queries, keys or values")
        projections = (query,) if fused else (query, key, value)
        layer.claim(*projections)
        kind, weights = self._qk_norm(layer, projections, heads, kv_heads, wide)
        k_bias = key.bias is not None
        if (value.bias is not None) != (query.bias is not None):
            raise Misfit(f"{layer.path}: a bias on some of queries and values")
        sinks = [one for one in layer.scaled if one.operator == "sinks" and one.reads == core.bit]
        layer.vectors.update(one.parameter for one in sinks)
        return AttentionShape(
            heads,
            kv_heads,
            wide,
            v_head_dim=v_wide if v_wide != wide else None,
            qkv_bias=query.bias is not None,
            k_bias=k_bias if k_bias != (query.bias is not None) else None,
            o_bias=out.bias is not None,
            fused_qkv=fused,
            causal=core.core["causal"],
            window=core.core["window"],
            rotary_dim=self._rotary(query, wide, 2 if fused else 1),
            qk_norm=kind,  # type: ignore[arg-type] # of QkNorm
            qk_norm_weights=weights,
            sinks=bool(sinks),
            gated=gated,
        )

    def _latent(self, layer: _Layer, core: Node, out: Node, q: list[Node], k: list[Node], v: list[Node]) -> MlaShape:
        up = v[0]
        down = next(node for node in k if node is not up)
        heads, wide = core.core["heads"], core.core["head_dim"]
        rank, rope = up.k, down.n - up.k
        v_wide = out.k // heads
        nope = wide - rope
        if len(q) != 1 or up.n != heads * (nope + v_wide) or rope < 1 or q[0].n != heads * wide:
            raise Misfit(f"{layer.path}: latent projections of {up.n} and {down.n} for {heads} heads of {wide}")
        layer.claim(up, down, q[0])
        q_rank = None
        first = [node for node in self.graph.of(q[0].reads) if node.kind == "gemm" and node.n == q[0].k]
        if len(first) == 1 and q[0].reads & ~TRIGONOMETRY == first[0].bit:
            q_rank = q[0].k
            layer.claim(first[0])
        latents = (down, *(first[:1] if q_rank else ()))
        norms = 0
        for node, width in zip(latents, (rank, q_rank), strict=False):
            own = [one for one in self._on(layer, node) if self._size(one.parameter) == width]
            layer.vectors.update(one.parameter for one in own)
            norms = len(own)
        return MlaShape(
            heads,
            rank,
            nope,
            rope,
            v_wide,
            q_lora_rank=q_rank,
            bias=down.bias is not None,
            causal=core.core["causal"],
            window=core.core["window"],
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
        self, layer: _Layer, projections: Sequence[Node], heads: int, kv_heads: int, wide: int
    ) -> tuple[str, int]:
        """Norms on queries and keys: one weight of a head's width, or one of all heads'."""
        found = [self._on(layer, node) for node in projections[:2]]
        vectors = [one for own in found for one in own]
        sizes = [self._size(one.parameter) for one in vectors]
        each = len(vectors) // 2
        layer_wide = (heads * wide, kv_heads * wide)
        if vectors and all(size == wide for size in sizes):
            kind = "head"
        elif vectors and all(size in layer_wide for size in sizes):
            kind = "full"
        else:
            return "none", 1
        if len(vectors) % 2:
            return "none", 1
        layer.vectors.update(one.parameter for one in vectors)
        return kind, each

    def _size(self, parameter: str) -> int:
        return prod(self.graph.parameters[parameter])

    def _mlps(self, layer: _Layer, hidden: int) -> list[tuple[MlpShape, Node, Node]]:
        """Every product that reads one or two others' outputs alone: (shape, a product in, the product out)."""
        found = []
        for down in layer.open("gemm"):
            first = [node for node in self.graph.of(down.reads & ~TRIGONOMETRY) if node.kind != "lookup"]
            first = [node for node in first if node.number not in layer.claimed]
            bits = 0
            for node in first:
                bits |= node.bit
            alone = first and bits == down.reads & ~TRIGONOMETRY and all(node in layer.nodes for node in first)
            if not alone or down.n != hidden or any(node.k != hidden for node in first):
                continue
            if any(node.kind != "gemm" for node in first):
                continue
            shape = self._mlp(first, down)
            if shape is None:
                continue
            layer.claim(down, *first)
            found.append((shape, first[0], down))
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
        downs = [node for node in grouped if any(node.reads & one.bit for one in grouped)]
        if len(downs) != 1:
            raise Misfit(f"{layer.path}: grouped products that are no gated MLP")
        down = downs[0]
        first = [node for node in grouped if node is not down]
        if len(first) not in (1, 2):
            raise Misfit(f"{layer.path}: {len(grouped)} grouped products")
        width, experts = down.k, down.batch
        fused = len(first) == 1 and first[0].n == 2 * width
        if not fused and any(node.n != width for node in first):
            raise Misfit(f"{layer.path}: experts of {first[0].n} and {width} columns")
        rows = first[0].m
        if rows % self.sequence:
            raise Misfit(f"{layer.path}: {rows} rows of experts for {self.sequence} tokens")
        layer.claim(down, *first)
        latent = None
        if first[0].k != hidden:
            latent = first[0].k
            into = [node for node in layer.open("gemm") if node.n == latent and first[0].reads & node.bit]
            back = [node for node in layer.open("gemm") if node.k == latent and node.reads & down.bit]
            if len(into) != 1 or len(back) != 1:
                raise Misfit(f"{layer.path}: experts of width {latent} in a model of {hidden}")
            layer.claim(into[0], back[0])
        routers = [node for node in layer.open("gemm") if node.n == experts and node.k == hidden]
        routers = [node for node in routers if first[0].reads & node.bit] or routers
        if len(routers) != 1:
            raise Misfit(f"{layer.path}: {len(routers)} routers")
        router = routers[0]
        layer.claim(router)
        biased = self._expert_biases(layer, (*first, down), router)
        extra = 0
        for one in layer.scaled:
            if one.parameter not in layer.vectors and self._size(one.parameter) == experts and one.reads & router.bit:
                layer.vectors.add(one.parameter)
                extra += experts
        return MoeShape(
            experts,
            rows // self.sequence,
            width,
            gated=fused or len(first) == 2,
            bias=biased,
            fused_gate_up=fused or len(first) == 1,
            router_bias=router.bias is not None,
            router_dtype=router.dtype if router.dtype != down.dtype else None,
            router_parameters=extra,
            latent=latent,
        )

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

    def _with_shared(self, layer: _Layer, moe: MoeShape, dense: Sequence[tuple[MlpShape, Node, Node]]) -> MoeShape:
        if len(dense) > 1:
            raise Misfit(f"{layer.path}: {len(dense)} MLPs beside the experts")
        gates = [node for node in layer.open("gemm") if node.n == 1]
        if dense and len(gates) == 1:
            layer.claim(gates[0])
        return replace(moe, shared=dense[0][0] if dense else None, shared_gate=bool(dense and gates))

    def _parallel(self, layer: _Layer) -> bool:
        """Whether the MLP does not read what this layer's attention wrote."""
        written = [
            node
            for node in layer.nodes
            if node.kind == "gemm" and any(self.graph.of(node.reads & ~TRIGONOMETRY)) and self._reads_core(node)
        ]
        others = [
            node
            for node in layer.nodes
            if node.kind in ("gemm", "grouped") and node.number in layer.claimed and node not in written
        ]
        if not written:
            return False
        after = [node for node in others if node.number > written[0].number]
        entering = [node for node in after if not any(one in layer.nodes for one in self.graph.of(node.reads))]
        return bool(entering) and bool(after)

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
            masks = [one for one in self.graph.normed if one.width == hidden]
            return (2 if masks else 0), 0
        weights = set(owners.values())
        if len(weights) != 1:
            raise Misfit(f"{layer.path}: norms of {sorted(weights)} weights")
        return len(owners), weights.pop()

    def _mixer(self, layer: _Layer, hidden: int) -> RecurrentShape | None:
        convolutions = layer.open("depthwise")
        vectors = {one.parameter for one in layer.scaled if _STATE_VECTORS.search(one.parameter)}
        if not convolutions or not vectors:
            return None
        if len(convolutions) != 1:
            raise Misfit(f"{layer.path}: {len(convolutions)} convolutions")
        conv = convolutions[0]
        heads = min(self._size(path) for path in vectors)
        outs = [node for node in layer.open("gemm") if node.n == hidden and node.reads & conv.bit]
        if len(outs) != 1:
            raise Misfit(f"{layer.path}: {len(outs)} products read the convolution")
        out = outs[0]
        into = [node for node in layer.open("gemm") if node.k == hidden and out.reads & node.bit and node is not out]
        inner, shared = out.k, conv.n - out.k
        owner = next(iter(sorted(vectors))).rpartition(".")[0]
        module = self.module.get_submodule(owner)
        delta = not any(path.endswith(".D") for path in vectors)
        gates = heads * (2 if delta else 1)
        if sum(node.n for node in into) != inner + conv.n + gates:
            raise Misfit(f"{layer.path}: in-projections of {[node.n for node in into]} for {inner} channels")
        state = _attribute(module, "head_k_dim" if delta else "ssm_state_size", "ssm_state_size", "head_k_dim")
        groups = shared // (2 * state)
        chunk = DELTA_CHUNK if delta else _attribute(module, "chunk_size")
        layer.claim(conv, out, *into)
        layer.vectors |= vectors
        norm = [one for one in layer.scaled if one.reads & conv.bit and one.parameter not in layer.vectors]
        norm = [one for one in norm if self._size(one.parameter) in (inner, inner // heads)]
        layer.vectors.update(one.parameter for one in norm)
        biased = {node.bias is not None for node in (*into, out)}
        apart = len(into) == 2 and into[1].n == gates
        if len(biased) != 1 or not (apart or len(into) == 1):
            raise Misfit(f"{layer.path}: {len(into)} in-projections of a recurrence")
        return RecurrentShape(
            "gated_delta" if delta else "mamba2",
            heads,
            inner // heads,
            groups,
            state,
            chunk,
            conv=conv.k,
            bias=biased.pop(),
            conv_bias=conv.bias is not None,
            norm=self._size(norm[0].parameter) if norm else 0,
            gates_apart=apart,
        )

    # -- the whole ---------------------------------------------------------------------------------------------------

    def _model(self, stacks: Mapping[str, Mapping[str, _Layer]], outside: _Layer) -> ModelShape:
        main = {
            container: layers
            for container, layers in stacks.items()
            if any(
                node.kind in ("attention", "grouped", "depthwise", "bmm")
                for one in layers.values()
                for node in one.nodes
            )
        }
        if len(main) != 1:
            raise Misfit(f"{len(main)} stacks of layers")
        ((container, layers),) = main.items()
        for other, some in stacks.items():
            if other != container:
                for layer in some.values():
                    outside.nodes += layer.nodes
                    outside.scaled += layer.scaled
        token, positions, tables = self._tables(outside)
        head = [node for node in outside.nodes if node.kind == "gemm" and node.n == token.shape[0]]
        hidden = self._hidden(layers)
        if len(head) > 1:
            raise Misfit(f"{len(head)} heads")
        tied = bool(head) and head[0].weight == token.path
        blocks = []
        for layer in layers.values():
            try:
                blocks.append(self._block(layer, hidden))
            except Misfit as error:
                self.left[layer.path] = str(error)
        if not blocks:
            raise Misfit(next(iter(self.left.values()), "no layer was recognised"))
        first = min(node.number for layer in layers.values() for node in layer.nodes)
        outside.claim(*head)
        before, after = self._ends(outside, first, hidden)
        self.claimed |= outside.vectors | tables
        rest = outside.open("gemm", "grouped", "conv", "depthwise")
        for node in rest:
            self.left[node.weight or node.where] = f"{node.kind} outside the layers"
        stack = Stack("decoder", hidden, _runs(blocks), positions=positions, embedding_norm=before, final_norm=after)
        return ModelShape(
            self.model_type,
            (stack,),
            vocab=token.shape[0],
            tied=tied,
            head=bool(head),
            head_bias=bool(head) and head[0].bias is not None,
            embedding_dim=token.shape[1] if token.shape[1] != hidden else None,
            max_positions=positions or None,
        )

    def _tables(self, outside: _Layer) -> tuple[_Table, int, set[str]]:
        """The token embedding, rows of learned positions, and the paths of both."""
        lookups = [node for node in outside.nodes if node.kind == "lookup"]
        tokens = dict.fromkeys(node.weight for node in lookups if node.reads)
        others = dict.fromkeys(node.weight for node in lookups if not node.reads)
        if len(tokens) != 1:
            raise Misfit(f"{len(tokens)} token embeddings")
        path = next(iter(tokens))
        assert path is not None
        rows = sum(self.graph.parameters[one][0] for one in others if one is not None)
        return _Table(path, self.graph.parameters[path]), rows, {path, *(one for one in others if one is not None)}

    def _hidden(self, layers: Mapping[str, _Layer]) -> int:
        """Columns of what most products of the layers read."""
        widths: Counter[int] = Counter()
        for layer in layers.values():
            for node in layer.nodes:
                outward = node.kind == "gemm" and not any(one in layer.nodes for one in self.graph.of(node.reads))
                widths[node.k] += outward
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


@frozen
class _Table:
    path: str
    shape: tuple[int, ...]


def _attribute(module: nn.Module, *names: str) -> int:
    for name in names:
        value = getattr(module, name, None)
        if isinstance(value, int) and value > 0:
            return value
    raise Misfit(f"{type(module).__name__} says nothing of {names[0]}")


def _runs(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Neighbours that are alike joined into one block with their count."""
    return tuple(replace(block, count=count) for block, count in _joined(blocks))


def _joined(blocks: Sequence[Block]) -> Iterator[tuple[Block, int]]:
    at = 0
    while at < len(blocks):
        end = at
        while end < len(blocks) and blocks[end] == blocks[at]:
            end += 1
        yield blocks[at], end - at
        at = end


def recognise(graph: Graph, module: nn.Module, model_type: str, sequence: int) -> Recognised:
    """The ``ModelShape`` that a graph of one sequence of ``sequence`` tokens shows."""
    return Recogniser(graph, module, model_type, sequence).read()


__all__ = ["Linear", "Recognised", "recognise"]
