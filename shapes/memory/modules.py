"""The operators of a layer, the head and the loss on autograd's tape, by kind of module.

How a family's modelling code is written, and what each operator saves, is declared in modules.toml; checked against
torch's MemTracker over whole training steps in tests/test_memory_tracker.py.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import compress
from operator import attrgetter

from shapes.frozen import Counts, replace
from shapes.model import (
    AttentionShape,
    Augment,
    Block,
    Indexer,
    Linear,
    MlaShape,
    MlpShape,
    ModelShape,
    MoeShape,
    RecurrentShape,
    Streams,
)
from shapes.model.layers import Attention
from shapes.model.mixers import Linears
from shapes.model.stages import adapters, base_of, is_quantised, widened
from shapes.operators.cores import attended, core_sizes, is_sparse, tiled
from shapes.toml_table import hold
from shapes.workload import Implementation, Loss, Workload

from .tape import DECLARED, ByName, Runs, Tape, Tensor, play

#: Words of modules.toml for how a family or implementation is written.
Style = frozenset[str]
#: Most bytes of an indexer's scores at once: engines score a long prompt's queries in turns
#: (VLLM_SPARSE_INDEXER_MAX_LOGITS_MB of vLLM, 512).
INDEX_SCORES_BYTES = 512 * 2**20
#: Families that were compared with MemTracker and whose totals are within 1% (tests/test_memory_tracker.py).
CHECKED = frozenset(DECLARED["checked"]["families"])
IMPLEMENTATIONS = DECLARED["implementations"]


@cache
def style_of(model: ModelShape, implementation: Implementation) -> Style:
    """The style of the model's family, or as it was seen to be written; where neither says it, llama's."""
    own = "" if implementation == "megatron" else DECLARED["families"].get(model.model_type, model.written)
    words = frozenset(f"{IMPLEMENTATIONS[implementation]['words']} {own}".split())
    return words | {usual for usual, others in DECLARED["usual"].items() if words.isdisjoint(others)}


def words_of(kind: str, shape: object) -> dict[str, bool]:
    """Words of a ``kind`` of parts, and whether each holds of the fields of ``shape``."""
    return {word: hold(when, partial(getattr, shape)) for word, when in DECLARED["words"][kind].items()}


def buffer_bytes(model: ModelShape, style: Style, layers: int) -> int:
    """Bytes of the class's buffers, of a device's ``layers``."""
    positions, attention = model.max_positions or 0, model.attention
    if "buffer-mask" in style:
        return positions**2
    return 4 * layers * positions * attention.rotary_dim if attention and "buffer-table" in style else 0


def masked(style: Style, attention: Attention, length: int) -> bool:
    """Whether transformers gives torch's fused core a mask: for a window shorter than the sequence (falcon: always)."""
    if "megatron" in style or is_sparse(attention, length):
        return False
    return "expands-kv" in style or (attention.window is not None and attention.window < length)


def base_in_fp32(workload: Workload, style: Style) -> bool:
    """Whether what is not quantised of a frozen base is in fp32, and hidden states with it: peft's, not litgpt's."""
    return widened(workload) and (base_of(workload) == "fp32" or "lightning" not in style)


def alibi_in_fp32(style: Style, attention: Attention) -> bool:
    """Falcon without rotary positions: a bias in fp32, and for the fused core in a mask of every head's own."""
    return "joint-dropout" in style and not attention.rotary_dim


@dataclass
class Forward:
    """One device's modules as they run forward onto a tape.

    ``rows``: tokens; ``whole``: rows of tensors that tensor parallelism leaves whole. ``s``: tokens of a sequence.
    ``element``: bytes of an activation; ``mask``: of a dropout mask's element; ``stored``: of a saved input of a matrix
    product (1 where an fp8 recipe saves the quantised one); ``adapter``: of an adapter's weight; ``product``: of an
    operand of a matrix product (under autocast fewer than a hidden state's). ``mixture``: whether the layer has one.
    """

    style: Style
    workload: Workload
    rows: int
    whole: int
    s: int
    element: int
    mask: int
    stored: float
    loss: Loss | None
    adapter: int
    product: int
    mixture: bool = False
    tape: Tape = field(default_factory=Tape)

    def __post_init__(self) -> None:
        self.t, self.megatron = self.workload.t, "megatron" in self.style
        found = {
            "narrow": self.element < 4,
            "learned": not self.workload.adapted,
            "fp8-input": "fp8_act_input" in self.workload.saving.again,
        }
        self.words = self.style.union(compress(found, found.values()))
        self.numbers = {name: attrgetter(field)(self) for name, field in DECLARED["numbers"].items()}

    def layer_tape(self, block: Block, hidden: int) -> Tape:
        """The tape with one layer of ``block`` on it."""
        self.tape.part = self.tape.dropping = self.workload.saving.everything
        self.mixture = isinstance(block.mlp, MoeShape)
        x = self.tape.tensor(self.whole * hidden * self.element * (block.streams.number if block.streams else 1))
        (self.parallel_layer if block.parallel else self.layer)(block, hidden, x)
        return self.tape

    def tail_tape(self, model: ModelShape) -> Tape:
        """The tape with the final norm, LM-head and cross-entropy over fp32 logits on it."""
        streams = model.main.streams
        x = self.tape.tensor(self.whole * model.hidden * self.element * model.main.residuals)
        if streams:
            x = self.collapsed(streams, streams.head(model.hidden), x)
        if model.main.final_norm or "wide-layer" in self.style:  # olmo's norms have no weights
            x = self.norm(x, self.whole * model.hidden)
        for linear in model.before_head:
            x = self.linear(linear, x)
        for _ in range(model.heads * model.head_passes):
            if model.head_linear:
                self.head(model.head_linear, x)
        return self.tape

    def marked(self, name: str, *, product: bool = False) -> AbstractContextManager[None]:
        """A context that marks a module's operators, or a ``product``, by name as the policy runs them again or not."""
        policy, tape = self.workload.saving, self.tape
        own = policy.modules_of(f".{name}", mixture=self.mixture) if product else policy.again & {name}
        said = own or (product and not policy.everything)
        return tape.marked(again=bool(own), drops=policy.drops(own)) if said else nullcontext()

    def narrowed(self) -> "Forward":
        """The same tape where hidden states are as wide as products' results."""
        return self if self.product >= self.element else replace(self, element=self.product)

    @property
    def inside(self) -> "Forward":
        """Itself in a layer's parts: what products of trained weights make stays as autocast makes it."""
        return self.narrowed() if "autocast" in self.words else self

    def play(
        self,
        module: str,
        tensors: ByName,
        words: dict[str, bool] | None = None,
        runs: Runs | None = None,
        /,
        **numbers: int,
    ) -> Tensor:
        """A module's operators where ``words`` hold in addition to the style's; the last one's output."""
        holding = self.words.union(compress(words, words.values())) if words else self.words
        return play(self.tape, module, holding, {"norm": self.norm} | (runs or {}), self.numbers | numbers, tensors)

    def products(self, linears: Iterable[Linear]) -> Runs:
        """Matrix products by the last part of their names."""
        return {linear.name.rpartition(".")[2]: partial(self.linear, linear) for linear in linears}

    # Layers.

    def layer(self, block: Block, hidden: int, x: Tensor) -> None:
        tape, inside = self.tape, self.inside
        for linear in block.before:
            if linear.shared or linear.rows is not None:
                continue  # of another sequence, whose activations are among the rows, or of one vector a sequence
            if linear.in_features > hidden:
                x = tape.op("hidden state and the next embedding", (x,), 2 * x.bytes)
            x = self.linear(linear, x)
            if linear.name == "norm_gate.up":
                x = self.play("attention-gate", {"gate": x, "out": x})
        normed = x
        # Of three vectors a part the third scales what it makes, as vectors of all layers' own do.
        vectors = sum(one.out_features for one in block.before if one.name == "modulation") // hidden
        for part in (block.mixer, block.attention, block.cross, block.mlp):
            if not part:
                continue
            inner = x
            if block.streams:
                inner = self.collapsed(block.streams, block.streams.linears(hidden, 1)[0], x)
            modulates = ("modulated" in self.words or vectors) and part is not block.cross
            if not block.mixer or part is not block.attention:
                bare = "no-pre-norms" in self.words or ("modulated" in self.words and not modulates)
                with self.marked("layernorm"):
                    normed = inner if bare else self.norm(inner, self.whole * hidden)
                if modulates:
                    normed = self.play("modulation", {"x": normed})
            branch = self.part(part, hidden, normed)
            if not isinstance(part, RecurrentShape):
                tape.hold(normed)
            branch = inside.dropout(branch, block.dropout)
            if "post-norms" in self.words:
                branch = inside.norm(branch, self.whole * hidden)
            elif block.norms > len(block.parts) or (modulates and vectors % 3 == 0):
                branch = self.play("modulation", {"x": branch})
            if block.streams:
                x = tape.op("mixed streams", (x, branch), x.bytes, (x, branch))
            else:
                if branch.bytes < x.bytes:  # added to a wider tensor: only its gradient is a cast of its own
                    branch = tape.op("promoted", (branch,), 0)
                x = self.added(x, branch)
            tape.named = ()
        if block.augment:
            self.augmented(block.augment, hidden, x)

    def added(self, x: Tensor, branch: Tensor) -> Tensor:
        """The sum of ``x`` and ``branch``; its gradient is that of both."""
        return self.tape.op("residual", (x, branch), x.bytes, shares_gradient=True)

    def augmented(self, augment: Augment, hidden: int, x: Tensor) -> None:
        """Pairs of matrices through few channels, with an activation between; AltUp keeps the streams it reads."""
        tape, pairs = self.tape, augment.linears(hidden)[: 4 if augment.laurel else 2]
        for into, back in zip(pairs[::2], pairs[1::2], strict=True):
            inner = self.play("activation", {"x": self.linear(into, x)})
            branch = self.norm(self.linear(back, inner), self.whole * hidden)
            x = self.added(x, branch)
        if augment.streams > 1:
            for name in ("predicted", "corrected"):
                x = tape.op(f"{name} streams", (x,), x.bytes, saves_bytes=(augment.streams - 1) * x.bytes)

    def collapsed(self, streams: Streams, linear: Linear, x: Tensor) -> Tensor:
        """Residual streams as their weighted sum, by one kernel with the product that gives the weights."""
        weights = linear.out_features * linear.in_features
        return self.tape.op("collapsed streams", (x,), x.bytes // streams.number, (x,), weights=weights)

    def parallel_layer(self, block: Block, hidden: int, x: Tensor) -> None:
        """Attention and MLP read the same hidden state and are added together."""
        tape, inside, n = self.tape, self.inside, self.whole * hidden
        with self.marked("layernorm"):
            normed = self.norm(x, n)
        branch = self.part(block.attention, hidden, normed)
        tape.hold(normed)
        with self.marked("layernorm"):
            second = self.norm(x, n) if block.norms > 1 else normed
        other = self.part(block.mlp, hidden, second)
        tape.hold(second)
        joint = "joint-dropout" in self.words
        if not joint:
            branch, other = (inside.dropout(part, block.dropout) for part in (branch, other))
        inner = self.added(other, branch)
        if joint:
            inner = inside.dropout(inner, block.dropout)
        self.added(x, inner)

    def part(self, part: Attention | RecurrentShape | MlpShape | MoeShape | None, hidden: int, x: Tensor) -> Tensor:
        if isinstance(part, MoeShape):
            with self.marked("moe"):
                return self.experts(part, hidden, x)
        inside = self.inside
        if isinstance(part, MlpShape):
            with self.marked("shared_experts" if self.mixture else "mlp"):
                return inside.mlp(part, part.linears(hidden, fused=self.fused(self.workload.fused_gate_up)), x)
        if isinstance(part, RecurrentShape):
            return inside.recurrence(part, hidden, x)
        return inside.attention(part, hidden, x) if part else x

    def dropout(self, x: Tensor, probability: float) -> Tensor:
        return self.play("dropout", {"x": x}) if probability else x

    def norm(self, x: Tensor, n: int, width: int = 0) -> Tensor:
        """``n`` elements normed by rows of ``width`` (0: a row a token)."""
        module = next((f"{word}-norm" for word in ("layer", "wide-layer") if word in self.words), "written-norm")
        return self.play(module, {"x": x}, n=n, r=4 * (n // width if width else self.whole))

    # Matrix products.

    def linear(self, linear: Linear, x: Tensor, *, rows: int | None = None, matrices: int = 1) -> Tensor:
        """y = x W^T: saves x; its backward holds the weight's gradient until it is accumulated."""
        own = linear.on_shard(self.t if rows is None else self.workload.expert_t)
        at = rows if rows is not None else self.whole if linear.shard == "row" else self.rows
        weights = matrices * own.out_features * own.in_features
        if "learned" not in self.words:
            return self.frozen(linear, own, x, at, weights, cast=matrices == 1)
        if "autocast" in self.words and x.bytes > self.rows * own.in_features * self.product:
            # Each product casts for itself.
            x = self.tape.op("cast for its product", (x,), x.bytes * self.product // 4)
        # By operator what a product made is kept, in 16 bits, and what it reads is made again.
        quantised = self.stored != self.product and not self.workload.saving.alternate
        self.tape.products += rows is None
        with self.marked(linear.name, product=True):
            return self.tape.op(
                linear.name,
                (x,),
                at * own.out_features * self.product,
                () if quantised else (x,),
                saves_bytes=int(x.bytes * self.stored / self.product) if quantised else 0,
                kept=rows is None and self.numbers["by_operator"] * self.tape.products % 2,
                weights=weights,
                views_gradient=rows is None,
            )

    def frozen(self, linear: Linear, own: Linear, x: Tensor, rows: int, weights: int, *, cast: bool) -> Tensor:
        """A frozen matrix, of which autocast keeps what it ``cast``, and its adapter."""
        workload, e, product = self.workload, self.element, self.product
        quantised = is_quantised(linear, workload) and (linear.name != "lm_head" or "lightning" in self.words)
        wide, fp32 = x.bytes > rows * own.in_features * product, base_in_fp32(workload, self.words)
        narrowed = x.bytes * product // (4 if fp32 else e) if wide else x.bytes
        y = rows * own.out_features * product
        words = {"quantised": quantised, "wide": wide}
        copied = product * weights * (cast and not quantised and product < 4 and fp32)
        out = self.play(
            "frozen", {"x": x}, words, narrowed=narrowed, y=y, written=2 * weights * quantised, copied=copied
        )
        pair = [adapter.on_shard(self.t) for adapter in adapters(linear, workload)]
        if not pair:
            return out
        casts = not quantised and self.adapter > product and narrowed == x.bytes
        words |= {
            "casts": casts,
            "narrows": casts or narrowed < x.bytes,
            "adapter-dropout": workload.lora_dropout > 0,
        }
        a, b = pair
        return self.play(
            "adapter",
            {"x": x, "out": out},
            words,
            narrowed=narrowed,
            y=y,
            rows_here=rows,
            rank=a.out_features,
            in_features=a.in_features,
            out_features=b.out_features,
            cast_e=product * (self.adapter > product),
        )

    def fused(self, asked: bool | None) -> bool | None:
        """Whether projections of one input are one matrix (None: as the model class has them)."""
        return True if asked is None and self.megatron else asked

    # Attention.

    def attention(self, attention: Attention, hidden: int, x: Tensor) -> Tensor:
        tape, e, tensors = self.tape, self.element, {"x": x}
        linears = attention.linears(hidden, fused=self.fused(self.workload.fused_qkv))
        if attention.indexer:
            linears = tuple(linear for linear in linears if linear.learns)
            self.chosen(attention.indexer, x)
        run = self
        if is_sparse(attention, self.s):
            out = self.sparse(attention, linears, tensors)
        else:
            self.projected(attention, linears, tensors)
            run, core = self.narrowed(), {name: tensors[name] for name in "qkv"}
            eager = self.workload.attention == "eager"
            with self.marked("core_attn"):
                if eager:
                    tape.named = x, *core.values()  # names of the layer's own code, until its core is done
                if run is not self:
                    for name, one in core.items():
                        core[name] = tape.op("cast for its products", (one,), one.bytes * self.product // e)
                out = (run.eager if eager else run.flash)(attention, core)
        if attention.gate != "none":
            gate = tensors["gate"] if attention.gate == "queries" else self.linear(linears[-2], x)
            out = run.play("attention-gate", {"gate": gate, "out": out})
        for linear in linears:
            if linear.name in ("attention.o_a_proj", "attention.o_proj"):
                out = run.linear(linear, out)
        if "keeps-names" not in self.words:
            tape.named = ()
        return out

    def projected(self, attention: Attention, linears: Linears, tensors: ByName) -> None:
        """Add queries, keys and values, and a gate on the output, to ``tensors``."""
        runs, numbers = self.products(linears), self.core(attention)
        numbers["unit"] = attention.head_dim if attention.qk_norm == "head" else 0
        words = words_of("attention", attention)
        module = "one-product" if "qkv_proj" in runs else f"{attention.keys_values}-keys"
        words["at-once"] = module == "apart-keys" and "norms-at-once" in self.words
        if isinstance(attention, MlaShape):
            module, numbers["latent"] = "latent-up", attention.kv_lora_rank
            self.play("latent", tensors, words, runs, **numbers)
        with self.marked("mla_up_proj" if module == "latent-up" else ""):
            for name in (module, "positions"):
                self.play(name, tensors, words, runs, **numbers)

    def chosen(self, indexer: Indexer, x: Tensor) -> None:
        """An indexer's scores and choice, which nothing saves; queries take turns where their scores are many."""
        if not indexer.reused:
            scores, choice = (4 * self.rows * each for each in (self.s // indexer.rate, min(indexer.top_k, self.s)))
            self.play("indexer", {"x": x}, scores=min(scores, INDEX_SCORES_BYTES), choice=choice)

    def sparse(self, attention: Attention, linears: Linears, tensors: ByName) -> Tensor:
        """Attention whose queries have keys of their own, by one fused kernel (shapes.operators.cores)."""
        rows, e, s = self.rows, self.element, self.s
        heads, (_, head_dim, v_dim, latent) = attention.on_shard(self.t)[0], core_sizes(attention, self.t)
        entries, keys, _ = attended(attention, s, s)
        numbers = {"heads": heads, "kv_heads": 1, "head_dim": head_dim, "v_dim": v_dim, "out_dim": attention.v_dim}
        words = {"latent": latent, "absorbed": isinstance(attention, MlaShape), "compressed": entries > s}
        words |= words_of("attention", attention)
        runs = self.products(linears)
        if isinstance(attention, AttentionShape):
            self.projected(attention, linears, tensors)
        else:
            module, numbers["q_rank"] = "shared-key", attention.q_lora_rank or 0
            if isinstance(attention, MlaShape):
                module, numbers["latent"] = "absorbed-latent", attention.kv_lora_rank
                numbers["absorbed"] = heads * (attention.qk_nope_head_dim + attention.v_dim) * v_dim
            self.play(module, tensors, words, runs, keys=rows * entries // s * head_dim * e, **numbers)
            tensors.setdefault("v", tensors["k"])
        choice = 4 * rows * keys if attention.indexer else 0
        with self.marked("core_attn"):
            return self.play("sparse-core", tensors, words, choice=choice, **numbers)

    def flash(self, attention: Attention, core: ByName) -> Tensor:
        """The core by a fused kernel; ``core``: queries, keys and values (q, k, v)."""
        b, numbers = self.workload.b, self.core(attention)
        has_mask = masked(self.style, attention, self.s)
        repeated = (has_mask or "repeats-kv" in self.words) and core["k"].bytes < core["q"].bytes
        if repeated and "expands-kv" in self.words and numbers["kv_heads"] == 1:
            # The one head is copied for all of them where there are several sequences, and else a view of itself.
            return self.play("math", core, expanded=4 * self.rows * (numbers["heads"] if b > 1 else 1), **numbers)
        # The mask is cast to the queries' type; one with a bias in it has that type, and all layers save one.
        words = {"repeated": repeated, "masked": has_mask and not alibi_in_fp32(self.style, attention)}
        return self.play("flash", core, words, bias=b * self.s**2 * self.element, **numbers)

    def core(self, attention: Attention) -> Counts:
        heads, kv_heads = attention.on_shard(self.t)
        batch = self.workload.b * heads
        windows, queries, keys = tiled(attention, self.s, self.s)
        return {
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": attention.head_dim,
            "v_dim": attention.v_dim,
            "q_rank": attention.q_lora_rank or 0,
            "batch": batch,
            "square": batch * queries * keys // windows,
        }

    def eager(self, attention: Attention, core: ByName) -> Tensor:
        """As ``flash``, its products by themselves."""
        numbers = self.core(attention)
        several = self.workload.b > 1 or self.megatron
        sinks = attention.sinks and not self.megatron
        words = {
            "several": several,
            "copies": several or 1 < numbers["kv_heads"] < numbers["heads"],
            "alibi": alibi_in_fp32(self.style, attention),
            "sinks": sinks,
            # Autocast has CUDA's softmax in fp32.
            "softmax-fp32": "narrow" in self.words and ("autocast" in self.words or "softmax-narrow" not in self.words),
            "attention-dropout": attention.dropout > 0,
        }
        numbers["score_e"] = 4 if "scores-fp32" in self.words else self.element
        numbers["sinks"] = sinks * numbers["batch"] * self.s
        out = self.play("eager", core, words, **numbers)
        self.tape.returned = numbers["square"] * self.element if "returns-scores" in self.words else 0
        return out

    # Recurrent layers, MLPs and mixtures.

    def recurrence(self, mixer: RecurrentShape, hidden: int, x: Tensor) -> Tensor:
        rows, e, (heads, groups) = self.rows, self.element, mixer.on_shard(self.t)
        chunks, outward = -(-rows // mixer.chunk), mixer.linears(hidden)[-1]
        projected = ByName()
        for parts, linears in mixer.projections(hidden):
            y = x
            for linear in linears:
                y = self.linear(linear, y)
            projected |= dict.fromkeys(parts, y)

        def joined(*parts: str) -> Tensor:
            """The one tensor that holds these parts, or a copy of several."""
            own = tuple(dict.fromkeys(projected[part] for part in parts))
            return own[0] if len(own) == 1 else self.tape.op("joined", own, rows * mixer.width(*parts, t=self.t) * e)

        mixed = mixer.form.convolved or ("queries", "keys", "values")
        gates = tuple(part for part in mixer.form.parts if part in ("beta", "decay"))
        out = self.play(
            "recurrence",
            {"gate": projected["gate"], "values": joined(*mixed), "decay": joined(*(gates or mixed[:1]))},
            {mixer.kind: True, "gates": bool(gates), "conv": mixer.conv > 0, "delta-rule": "beta" in gates},
            self.products(mixer.steps()),
            inner=rows * heads * mixer.head_dim * e,
            channels=rows * mixer.width(*mixed, t=self.t) * e,
            gate_bytes=rows * mixer.width(*gates, t=self.t) * e,
            # States and scores inside the scan are fp32.
            states=4 * chunks * heads * mixer.head_dim * mixer.state,
            scores=4 * chunks * groups * mixer.chunk**2,
            triangles=rows * heads * mixer.chunk * e * (2 if mixer.kind == "kda" else 1),
        )
        return self.linear(outward, out)

    def mlp(
        self, mlp: MlpShape | MoeShape, linears: Linears, x: Tensor, *, rows: int | None = None, matrices: int = 1
    ) -> Tensor:
        """An MLP, or a mixture's experts by grouped products: ``rows`` in all of ``matrices``."""
        named = {"first": linears[0], "last": linears[-2], "down": linears[-1]}
        clamps = mlp.gated and "clamped-gate" in self.words
        words = {
            "gated": mlp.gated,
            "one": mlp.gated and len(linears) == 2,
            "clamps": clamps,
            "activates": not (clamps or (mlp.gated and "fused-gate" in self.words)),
        }
        runs: Runs = {
            name: partial(self.linear, linear, rows=rows, matrices=matrices) for name, linear in named.items()
        }
        runs["activation"] = lambda gate: self.play("activation", {"x": gate})
        width = (rows or self.rows) * -(-mlp.width // (self.workload.expert_t if rows else self.t)) * self.element
        with self.marked("moe_act" if rows else ""):
            return self.play("mlp", {"x": x}, words, runs, width=width)

    def experts(self, moe: MoeShape, hidden: int, x: Tensor) -> Tensor:
        """Tokens gathered by expert, two grouped products, and the weighted sum back in the tokens' order."""
        workload, channels = self.workload, moe.routed_width(hidden)
        # Routing is even over devices, so a device meets as many routed rows as it sends out; the fullest expert's load
        # is what a device must hold when it has only a few experts.
        routed = round(
            workload.expert_tokens(self.rows) * moe.top_k * (workload.expert_load if workload.e > 1 else 1.0)
        )
        own, local = moe.expert_linears(hidden, fused=workload.fused_gate_up), moe.experts // workload.e
        # transformers' grouped products are none of autocast's: they run in their weights' fp32.
        grouped = replace(self, product=self.element, stored=self.element) if "autocast" in self.words else self
        wide = {"router-wide", "narrow"} <= self.words
        back = routed * channels * self.element
        # Both fp32 products are alive when the first is narrowed. So are the node's saved tensors, unless checkpointing
        # made them again and has freed them by then.
        spare = 8 * routed * channels - (back if self.tape.part else 0) if wide else back
        return self.play(
            "experts",
            {"x": x},
            words_of("mixture", moe) | {"sum-wide": wide},
            self.products(moe.linears(hidden))
            | {
                "shared": lambda tokens: self.part(moe.shared, hidden, tokens),
                "experts": lambda rows: grouped.mlp(moe, own, rows, rows=routed, matrices=local),
            },
            experts=moe.experts,
            top_k=moe.top_k,
            hidden=hidden,
            routed=routed,
            channels=channels,
            spare=spare,
            sum_e=4 if wide else self.element,
        )

    # Behind the layers.

    def head(self, head: Linear, x: Tensor) -> None:
        run = self.narrowed()
        logits = run.play("logit-softcap", {"x": self.linear(head, x)})
        kind = self.loss or ("in-place" if "fused-loss" in self.words else "fp32")
        run.play(f"loss-{kind}", {"x": logits}, count=logits.bytes // self.product)
