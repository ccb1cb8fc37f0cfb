"""What a layer, the head and the loss put on autograd's tape, by kind of module.

How a family's modelling code is written, and what each operator saves, is declared in modules.toml; checked against
torch's MemTracker over whole training steps in tests/test_memory_tracker.py.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Literal

from shapes.frozen import frozen
from shapes.memory.listing import declared, play
from shapes.memory.tape import Tape, Tensor
from shapes.model import (
    AttentionShape,
    Block,
    Linear,
    MlaShape,
    MlpShape,
    ModelShape,
    MoeShape,
    RecurrentShape,
)
from shapes.model.stages import adapters, base_of, has_adapters, layers_train
from shapes.workload import Implementation, Workload

#: What modules.toml says of how a family or implementation is written.
Style = frozenset[str]
Attention = AttentionShape | MlaShape
#: What the words of a style are if they say nothing else: llama's norm and activation.
_USUALLY = {"rms": ("gemma", "centred", "layer", "wide-layer"), "fused": ("gelu_new", "relu", "recomputed")}
#: Families that were compared with MemTracker and whose totals are within 1% (tests/test_memory_tracker.py).
CHECKED = frozenset(declared()["checked"]["families"])
#: Cross-entropy over the logits: the ways that modules.toml has.
Loss = Literal["fp32", "in-place", "fused"]
LOSSES: tuple[str, ...] = ("fp32", "in-place", "fused")


@cache
def _style(table: str, name: str) -> Style:
    words = frozenset(declared()[table].get(name, "").split())
    return words | {usual for usual, others in _USUALLY.items() if words.isdisjoint(others)}


def style_of(model: ModelShape, implementation: Implementation) -> Style:
    """The style of the model's family; llama's where the family is not listed (most later ones copy it)."""
    return (
        _style("implementations", implementation)
        if implementation == "megatron"
        else _style("families", model.model_type)
    )


def buffer_bytes(model: ModelShape, style: Style, layers: int) -> int:
    """Bytes of what the class holds beside parameters, of a device's ``layers``."""
    positions, attention = model.max_positions or 0, model.attention
    if attention is None:
        return 0
    table = 4 * layers * positions * attention.rotary_dim if "buffer-table" in style else 0
    return positions**2 if "buffer-mask" in style else table


def masked(style: Style, attention: Attention, length: int) -> bool:
    """Whether transformers gives torch's fused core a mask: for a window shorter than the sequence (falcon: always)."""
    if "megatron" in style:
        return False
    return "expands-kv" in style or (attention.window is not None and attention.window < length)


def alibi_in_fp32(style: Style, attention: Attention) -> bool:
    """Falcon without rotary positions: a bias in fp32, and for the fused core in a mask of every head's own."""
    return "joint-dropout" in style and not attention.rotary_dim


@frozen
class Sizes:
    """One device's sizes: ``rows`` of tokens, ``whole`` of them where tensor parallelism leaves tensors whole.

    ``s``: tokens of a sequence. ``element``: bytes of an activation; ``mask``: of a dropout mask's element; ``stored``:
    of a saved input of a matrix product (1 where an fp8 recipe saves the quantised one); ``adapter``: of an adapter's
    weight; ``product``: of what a matrix product reads and writes (autocast's, where hidden states are wider).
    """

    style: Style
    workload: Workload
    rows: int
    whole: int
    s: int
    element: int
    mask: int
    stored: int
    loss: Loss | None = None
    adapter: int = 4
    product: int = 2


def layer_tape(block: Block, hidden: int, sizes: Sizes) -> Tape:
    """One layer of ``block`` on one device."""
    run = _Forward(sizes, Tape())
    x = run.tape.tensor(sizes.whole * hidden * sizes.element)
    (run.parallel_layer if block.parallel else run.layer)(block, hidden, x)
    return run.tape


def tail_tape(model: ModelShape, sizes: Sizes, *, loss: bool) -> Tape:
    """Final norm, LM-head and, when training, the cross-entropy over fp32 logits."""
    run = _Forward(sizes, Tape())
    x = run.tape.tensor(sizes.whole * model.hidden * sizes.element)
    if model.main.final_norm or "wide-layer" in sizes.style:  # olmo's norms have no weights
        x = run.norm(x, sizes.whole * model.hidden)
    for linear in model.before_head:
        x = run.linear(linear, x)
    for _ in range(model.head_passes if loss else 1):
        if model.head_linear is not None:
            run.head(model.head_linear, x, loss=loss)
    return run.tape


class _Forward:
    """Modules of one device as they run forward onto a tape."""

    def __init__(self, sizes: Sizes, tape: Tape) -> None:
        self.sizes, self.tape, self.workload, self.t = sizes, tape, sizes.workload, sizes.workload.t
        self.megatron = "megatron" in sizes.style
        found = {"narrow": sizes.element < 4, "learned": layers_train(sizes.workload)}
        self.words = sizes.style | {word for word, holds in found.items() if holds}
        self.numbers = {
            "e": sizes.element,
            "product_e": sizes.product,
            "adapter_e": sizes.adapter,
            "mask": sizes.mask,
            "rows": sizes.rows,
            "whole": sizes.whole,
            "s": sizes.s,
        }

    def narrowed(self) -> _Forward:
        """The same tape where hidden states are as wide as products' results."""
        sizes = self.sizes
        return self if sizes.product >= sizes.element else _Forward(replace(sizes, element=sizes.product), self.tape)

    def play(
        self, module: str, tensors: dict[str, Tensor], words: dict[str, bool] | None = None, /, **numbers: int
    ) -> Tensor:
        """A module's operators where ``words`` hold beside the style's; the last one's output."""
        holding = self.words | {word for word, holds in words.items() if holds} if words else self.words
        return play(self.tape, module, holding, {**self.numbers, **numbers}, tensors)

    # Layers.

    def layer(self, block: Block, hidden: int, x: Tensor) -> None:
        tape = self.tape
        for linear in block.before:
            x = self.linear(linear, tape.op("hidden state beside the next embedding", (x,), 2 * x.bytes))
        for part in (block.mixer, block.attention, block.cross, block.mlp):
            if part is None:
                continue
            normed = x if "no-pre-norms" in self.words else self.norm(x, self.sizes.whole * hidden)
            branch = self.part(part, hidden, normed)
            if not isinstance(part, RecurrentShape):
                tape.hold(normed)
            branch = self.dropout(branch, block.dropout)
            if "post-norms" in self.words:
                branch = self.norm(branch, self.sizes.whole * hidden)
            if branch.bytes < x.bytes:  # added to a wider tensor: only its gradient is a cast of its own
                branch = tape.op("promoted", (branch,), 0)
            x = tape.op("residual", (x, branch), x.bytes, shares_gradient=True)
            tape.named = ()

    def parallel_layer(self, block: Block, hidden: int, x: Tensor) -> None:
        """Attention and MLP read the same hidden state and are added together."""
        tape, n = self.tape, self.sizes.whole * hidden
        normed = self.norm(x, n)
        branch = self.attention(block.attention, hidden, normed) if block.attention else normed
        tape.hold(normed)
        second = self.norm(x, n) if block.norms > 1 else normed
        other = self.part(block.mlp, hidden, second)
        tape.hold(second)
        joint = "joint-dropout" in self.words
        if not joint:
            branch, other = (self.dropout(part, block.dropout) for part in (branch, other))
        inner = tape.op("residual", (other, branch), x.bytes, shares_gradient=True)
        if joint:
            inner = self.dropout(inner, block.dropout)
        tape.op("residual", (inner, x), x.bytes, shares_gradient=True)

    def part(self, part: Attention | RecurrentShape | MlpShape | MoeShape | None, hidden: int, x: Tensor) -> Tensor:
        if isinstance(part, MlpShape):
            return self.mlp(part, hidden, x)
        if isinstance(part, MoeShape):
            return self.experts(part, hidden, x)
        if isinstance(part, RecurrentShape):
            return self.recurrence(part, hidden, x)
        return x if part is None else self.attention(part, hidden, x)

    def dropout(self, x: Tensor, probability: float) -> Tensor:
        return self.play("dropout", {"x": x}) if probability else x

    def norm(self, x: Tensor, n: int, width: int = 0) -> Tensor:
        """``n`` elements normed by rows of ``width`` (0: a row a token)."""
        kernels = {"layer": "norm", "wide-layer": "wide-norm"}
        module = next((kernels[word] for word in kernels if word in self.words), "written-norm")
        return self.play(module, {"x": x}, n=n, r=4 * (n // width if width else self.sizes.whole))

    # Matrix products.

    def linear(
        self, linear: Linear, x: Tensor, *, rows: int | None = None, matrices: int = 1, trains: bool = False
    ) -> Tensor:
        """y = x W^T: saves x; its backward holds the weight's gradient until it is accumulated."""
        sizes, own = self.sizes, linear.on_shard(self.t)
        at = rows if rows is not None else sizes.whole if linear.shard == "row" else sizes.rows
        weights = matrices * own.out_features * own.in_features
        if not (trains or "learned" in self.words):
            return self.frozen(linear, own, x, at, weights)
        quantised = sizes.stored != sizes.element
        return self.tape.op(
            linear.name,
            (x,),
            at * own.out_features * sizes.element,
            () if quantised else (x,),
            saves_bytes=x.bytes * sizes.stored // sizes.element if quantised else 0,
            weights=weights,
            views_gradient=rows is None,
        )

    def frozen(self, linear: Linear, own: Linear, x: Tensor, rows: int, weights: int) -> Tensor:
        """A frozen matrix, which saves nothing, and its adapter."""
        workload, e, product = self.workload, self.sizes.element, self.sizes.product
        quantised = has_adapters(workload) and base_of(workload) != "bf16" and linear.name != "lm_head"
        wide = x.bytes > rows * own.in_features * product
        narrowed, y = x.bytes * product // e if wide else x.bytes, rows * own.out_features * product
        words = {"quantised": quantised, "wide": wide}
        written = 2 * weights if quantised else 0
        out = self.play("frozen", {"x": x}, words, narrowed=narrowed, y=y, written=written)
        pair = [adapter.on_shard(self.t) for adapter in adapters(linear, workload)]
        if not pair:
            return out
        casts = not quantised and self.sizes.adapter > product
        words |= {
            "casts": casts,
            "narrows": casts or narrowed < x.bytes,
            "promotes": wide and quantised and e > product,
        }
        a, b = (adapter.out_features * adapter.in_features for adapter in pair)
        return self.play(
            "adapter",
            {"x": x, "out": out},
            words,
            narrowed=narrowed,
            y=y,
            rows_here=rows,
            rank=pair[0].out_features,
            out_features=pair[1].out_features,
            a=a,
            b=b,
            cast_e=product if self.sizes.adapter > product else 0,
        )

    def fused(self, asked: bool | None) -> bool | None:
        """Whether projections of one input are one matrix (None: as the model class has them)."""
        return True if asked is None and self.megatron else asked

    # Attention.

    def attention(self, attention: Attention, hidden: int, x: Tensor) -> Tensor:
        tape, rows, e = self.tape, self.sizes.rows, self.sizes.element
        heads, kv_heads = attention.on_shard(self.t)
        linears = attention.linears(hidden, fused=self.fused(self.workload.fused_qkv))
        q_bytes = rows * heads * attention.head_dim * e
        k_bytes, v_bytes = (rows * kv_heads * dim * e for dim in (attention.head_dim, attention.v_dim))
        gate = None
        q, k, v = self.projected(attention, linears, x, (q_bytes, k_bytes, v_bytes))
        if isinstance(attention, AttentionShape):
            if attention.gated:
                gate, q = (tape.view(q, q_bytes, copies_gradient=first) for first in (True, False))
            if attention.qk_norm != "none":
                width = attention.head_dim if attention.qk_norm == "head" else 0
                q, k = (self.norm(part, part_bytes // e, width) for part, part_bytes in ((q, q_bytes), (k, k_bytes)))
        if attention.rotary_dim:
            q, k = (tape.op("rotary", (part,), part.bytes, work=2 * part.bytes) for part in (q, k))
            if self.megatron:  # Transformer Engine asks for all three contiguous
                v = tape.op("values, contiguous", (v,), v.bytes)
        run, names = self.narrowed(), (x, q, k, v)
        tape.recomputing = True  # by selective checkpointing
        if run is not self:
            product = self.sizes.product
            q, k, v = (tape.op("cast for its products", (one,), one.bytes * product // e) for one in (q, k, v))
        if self.workload.attention == "eager":
            tape.named = names  # the layer's own code has names for these until its core is done
            out = run.eager(attention, q, k, v)
        else:
            out = run.flash(attention, q, k, v)
        tape.recomputing = False
        if gate is not None:
            out = run.play("attention-gate", {"gate": gate, "out": out})
        out = run.linear(linears[-1], out)
        if "keeps-names" not in self.words:
            tape.named = ()
        return out

    def projected(
        self, attention: Attention, linears: tuple[Linear, ...], x: Tensor, part_bytes: tuple[int, int, int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, of ``part_bytes`` each."""
        if isinstance(attention, MlaShape):
            return self.latent(attention, linears, x, *part_bytes[1:])
        if len(linears) > 2:
            q, k, v = (self.linear(linear, x) for linear in linears[:3])
            return q, k, v
        qkv = self.linear(linears[0], x)
        # The three parts are put together again by one copy of the whole, charged to the first.
        part = self.tape.view(qkv, qkv.bytes, copies_gradient=True)
        q, k, v = (self.tape.view(part, size) for size in part_bytes)
        return q, k, v

    def latent(
        self, attention: MlaShape, linears: tuple[Linear, ...], x: Tensor, k_bytes: int, v_bytes: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Multi-head latent attention: queries, keys and values through their low-rank projections."""
        rows, (*queries, inward, outward, _) = self.sizes.rows, linears
        q = self.linear(queries[0], x)
        if attention.q_lora_rank is not None:
            q = self.linear(queries[1], self.norm(q, rows * attention.q_lora_rank))
        low = self.linear(inward, x)
        n = rows * attention.kv_lora_rank
        latent = self.tape.view(low, n * self.sizes.element, copies_gradient=True)
        both = self.linear(outward, self.norm(latent, n))
        # Keys are copied beside the rotated part that all heads share; values stay a view of the projection.
        k = self.tape.op("keys with their rotated part", (both,), k_bytes)
        return q, k, self.tape.view(both, v_bytes, copies_gradient=True)

    def flash(self, attention: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sizes, (heads, kv_heads) = self.sizes, attention.on_shard(self.t)
        batch = self.workload.b * heads
        has_mask = masked(sizes.style, attention, sizes.s)
        repeated = has_mask and k.bytes < q.bytes
        numbers = {"heads": heads, "head_dim": attention.head_dim, "v_dim": attention.v_dim}
        if repeated and "expands-kv" in self.words and kv_heads == 1:
            # The one head is copied for all of them where there are several sequences, and else a view of itself.
            expanded = 4 * sizes.rows * (heads if self.workload.b > 1 else 1)
            square = batch * sizes.s**2
            return self.play("math", {"q": q, "k": k, "v": v}, expanded=expanded, square=square, **numbers)
        # Each layer casts the mask to the queries' type; one with a bias in it has that type, and all layers save one.
        cast = has_mask and not alibi_in_fp32(sizes.style, attention)
        bias = self.workload.b * sizes.s**2 * sizes.element if cast else 0
        return self.play("flash", {"q": q, "k": k, "v": v}, {"repeated": repeated}, bias=bias, **numbers)

    def eager(self, attention: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sizes, (heads, kv_heads) = self.sizes, attention.on_shard(self.t)
        batch, narrow = self.workload.b * heads, "narrow" in self.words
        several, square = self.workload.b > 1 or self.megatron, batch * sizes.s**2
        sinks = attention.sinks and not self.megatron
        words = {
            "several": several,
            "copies": several or 1 < kv_heads < heads,
            "alibi": alibi_in_fp32(sizes.style, attention),
            "sinks": sinks,
            "softmax-fp32": narrow and "softmax-narrow" not in self.words,
            "attention-dropout": attention.dropout > 0,
        }
        out = self.play(
            "eager",
            {"q": q, "k": k, "v": v},
            words,
            batch=batch,
            head_dim=attention.head_dim,
            v_dim=attention.v_dim,
            square=square,
            score_e=4 if "scores-fp32" in self.words else sizes.element,
            sinks=batch * sizes.s if sinks else 0,
        )
        self.tape.returned = square * sizes.element if "returns-scores" in self.words else 0
        return out

    # What is in attention's place, and behind it.

    def recurrence(self, mixer: RecurrentShape, hidden: int, x: Tensor) -> Tensor:
        rows, e, (heads, groups) = self.sizes.rows, self.sizes.element, mixer.on_shard(self.t)
        chunks = -(-rows // mixer.chunk)
        *inward, outward = mixer.linears(hidden)
        projected = [self.linear(linear, x) for linear in inward]
        out = self.play(
            "recurrence",
            {"first": projected[0], "last": projected[-1]},
            {mixer.kind: True},
            inner=rows * heads * mixer.head_dim * e,
            channels=rows * mixer.conv_channels(self.t) * e,
            gate_bytes=rows * mixer.gates * heads * e,
            # States and scores inside the scan are fp32.
            states=4 * chunks * heads * mixer.head_dim * mixer.state,
            scores=4 * chunks * groups * mixer.chunk**2,
            triangles=rows * heads * mixer.chunk * e,
        )
        return self.linear(outward, out)

    def activation(self, x: Tensor) -> Tensor:
        return self.play("gelu_new" if "gelu_new" in self.words else "activation", {"x": x})

    def gated(self, projected: list[Tensor], width: int) -> Tensor:
        """Gate times up, of ``width`` bytes, from one projection or two."""
        if len(projected) == 1:
            both = self.tape.view(projected[0], 2 * width, copies_gradient=True)
            projected = [self.tape.view(both, width) for _ in range(2)]
        gate, up = projected
        clamped, fused = ("clamped-gate" in self.words, "fused-gate" in self.words)
        gate = gate if clamped or fused else self.activation(gate)
        return self.play("clamped" if clamped else "gated", {"gate": gate, "up": up}, width=width)

    def mlp(self, mlp: MlpShape, hidden: int, x: Tensor) -> Tensor:
        *inward, outward = mlp.linears(hidden, fused=self.fused(self.workload.fused_gate_up))
        projected = [self.linear(linear, x) for linear in inward]
        width = self.sizes.rows * -(-mlp.width // self.t) * self.sizes.element
        inner = self.gated(projected, width) if mlp.gated else self.activation(projected[0])
        return self.linear(outward, inner)

    def experts(self, moe: MoeShape, hidden: int, x: Tensor) -> Tensor:
        """Tokens gathered by expert, two grouped products, and the weighted sum back in the tokens' order."""
        workload, words, tokens = self.workload, self.words, x
        # Routing is even over devices, so a device meets as many routed rows as it sends out; the fullest expert's load
        # is what a device must hold when it has only a few experts.
        routed = round(self.sizes.rows * moe.top_k * (workload.expert_load if workload.e > 1 else 1.0))
        linears = {linear.name: linear for linear in moe.linears(hidden)}
        router = self.router(moe, hidden, x)
        shared = self.mlp(moe.shared, hidden, x) if moe.shared and "shared-last" not in words else None
        if moe.latent is not None:
            x = self.linear(linears["moe.latent_down_proj"], x)
        x = self.play("gathered", {"x": x}, routed=routed, channels=moe.routed_width(hidden))
        x = self.combined(moe, hidden, self.routed(moe, hidden, x, routed), router, routed)
        if moe.latent is not None:
            x = self.linear(linears["moe.latent_up_proj"], x)
        if moe.shared is None:
            return x
        shared = shared or self.mlp(moe.shared, hidden, tokens)
        if moe.shared_gate:
            shared = self.play("shared-gate", {"tokens": tokens, "shared": shared})
        return self.tape.op("with the shared expert", (x, shared), x.bytes, shares_gradient=True)

    def router(self, moe: MoeShape, hidden: int, x: Tensor) -> Tensor:
        """The experts' weights for each token."""
        numbers = {"experts": moe.experts, "top_k": moe.top_k, "hidden": hidden}
        x = self.play("router-input", {"x": x}, **numbers)
        logits = self.linear(Linear("moe.router", moe.experts, hidden, moe.router_bias), x)
        return self.play("router", {"logits": logits}, **numbers)

    def routed(self, moe: MoeShape, hidden: int, x: Tensor, rows: int) -> Tensor:
        """The experts' own products."""
        local = moe.experts // self.workload.e
        *inward, outward = moe.expert_linears(hidden, fused=self.workload.fused_gate_up)
        projected = [self.linear(linear, x, rows=rows, matrices=local) for linear in inward]
        width = rows * -(-moe.width // self.t) * self.sizes.element
        inner = self.gated(projected, width) if moe.gated else self.activation(projected[0])
        return self.linear(outward, inner, rows=rows, matrices=local)

    def combined(self, moe: MoeShape, hidden: int, back: Tensor, router: Tensor, rows: int) -> Tensor:
        """What the experts made, weighted and added up a token."""
        size, channels, spare, wide = back.bytes, moe.routed_width(hidden), back.bytes, False
        if {"router-wide", "narrow"} <= self.words:
            # Both fp32 products are alive when the first is narrowed. What the node saved is too, unless checkpointing
            # made it again, which has let go of it by then.
            size, wide = rows * channels * 4, True
            spare = 2 * size - (back.bytes if self.workload.checkpointing == "full" else 0)
        return self.play(
            "combined",
            {"back": back, "router": router},
            {"sum-wide": wide},
            routed_bytes=size,
            channels=channels,
            spare=spare,
            sum_e=4 if wide else self.sizes.element,
        )

    # Behind the layers.

    def head(self, head: Linear, x: Tensor, *, loss: bool) -> None:
        run, product = self.narrowed(), self.sizes.product
        if run is not self:
            weight = head.on_shard(self.t)
            x = self.play("head-input", {"x": x}, weight=weight.out_features * weight.in_features * product)
        logits = run.linear(head, x, trains=self.workload.finetune == "frozen-base")
        if "logit-softcap" in self.words:
            logits = run.play("logit-softcap", {"x": logits})
        if loss:
            kind = self.sizes.loss or ("in-place" if "fused-loss" in self.words else "fp32")
            run.play(f"loss-{kind}", {"x": logits}, count=logits.bytes // product)
