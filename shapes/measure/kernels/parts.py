"""Parts of a model run whole, as plain torch modules: MLP or experts, attention, a layer, or last norm, head and loss.

The modules are what Hugging Face's eager classes run, without their names: projections are nn.Linear as the shape lists
them, attention is torch's SDPA or flash-attn, norms are RMSNorm (LayerNorm where they carry a bias), rotary embedding,
silu for gated MLPs and gelu for the others, residual additions as the block says. No dropout. Experts are dealt tokens
evenly, by torch's grouped product or a loop. A recurrence is its library's own module.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # torch's own convention

from shapes.measure.backend import Call
from shapes.measure.jobs import ATTENTION, EXPERTS, Part
from shapes.model import AttentionShape, MlpShape, MoeShape
from shapes.model.mixers import Linear, MlaShape, RecurrentShape
from shapes.toml_table import DATA, content

from .common import Plan, UnsupportedError, error_bound, fp32_products, in_precision, largest_error, normal, torch_dtype
from .functions import named_core, ran
from .products import grouped_product

#: Errors of a few products in a row add up, and gradients cancel: several times one product's bound.
CHAIN_SLACK = 5.0
#: Rows of the input that the check runs: whole sequences of at most this length.
CHECKED_ROWS = 512
#: Input sets: weights are the bulk of what a step reads and are the same in each.
MOST_SETS = 4

#: softmax(q k^T / sqrt(d)) v of [b, heads, s, d].
Core = Callable[[Any, Any, Any], Any]


def part(subject: Part, kernel: str, source: Any) -> Plan:
    """``subject`` forward, or with gradients of weights, input or both (``Direction``).

    ``kernel``: see `chosen_kernels`. Of "dgrad" and "wgrad" alone the forward ran before.
    """
    workload, direction = subject.workload, subject.direction
    dtype = "bf16" if workload.dtype == "fp8" else workload.dtype
    if dtype not in ("bf16", "fp16", "fp32", "tf32"):
        raise UnsupportedError(f"whole parts run in bf16, fp16, fp32, tf32 or fp8, not {dtype}")
    if workload.t * workload.e > 1:
        raise UnsupportedError("a part split over devices cannot run on one")
    torch.manual_seed(source.initial_seed())
    with torch.device(source.device):
        module = module_of(subject, kernel).to(torch_dtype(dtype))
    if workload.low_precision:
        quantised(module, workload.low_precision.name)
    run = _compiled(module) if subject.compiled else module
    shape = workload.b, workload.s, subject.model.hidden
    weights = list(module.parameters())
    moved = sum(parameter.numel() for parameter in weights) + 2 * workload.tokens * subject.model.hidden

    def call(x: Any, gradient: Any) -> Call:
        def forward() -> Any:
            with torch.set_grad_enabled(direction != "forward"):
                return run(x)

        def gradients(out: Any, **keep: bool) -> object:
            wanted = {"dgrad": [x], "wgrad": weights}.get(direction, [x, *weights])
            return torch.autograd.grad(out, wanted, gradient if out.shape == gradient.shape else None, **keep)

        x.requires_grad_(direction != "forward")
        if direction in ("dgrad", "wgrad"):
            out = in_precision(dtype, forward)()
            return in_precision(dtype, lambda: gradients(out, retain_graph=True))
        return in_precision(dtype, forward if direction == "forward" else lambda: gradients(forward()))

    def check(x: Any, gradient: Any) -> float:
        x, gradient = x[:1, :CHECKED_ROWS], gradient[:1, :CHECKED_ROWS]
        attention, _ = chosen_kernels(subject, kernel)
        if attention and not x.is_cpu:  # its kernels' names tell; a processor has no others
            ran(attention, lambda: run(x))
        return _check(module, run, x, gradient, dtype, direction != "forward")

    return Plan(
        f"{subject.part} {direction} {workload.dtype} {kernel}",
        lambda: (normal(shape, dtype, source), normal(shape, dtype, source)),
        call,
        check,
        CHAIN_SLACK * (FP8_ERROR_BOUND if workload.dtype == "fp8" else error_bound(dtype)),
        moved * weights[0].element_size(),
        capturable=False,
        most_sets=MOST_SETS,
    )


def _compiled(module: Any) -> Any:
    import torch._dynamo.config as dynamo

    # All modules here are of one class: after eight shapes the rest would run uncompiled, with a warning alone.
    dynamo.recompile_limit = dynamo.accumulated_recompile_limit = 10**6
    dynamo.fail_on_recompile_limit_hit = True
    return torch.compile(module, dynamic=False)


def _check(module: Any, run: Any, x: Any, gradient: Any, dtype: str, train: bool) -> float:
    """Relative error of output and gradients against an fp32 copy, on one sequence of at most 512 rows."""
    x = x.detach().clone().requires_grad_(train)
    wide = plain(copy.deepcopy(module).to(torch.float32))
    wide_x = x.detach().to(torch.float32).requires_grad_(train)
    with torch.set_grad_enabled(train):
        out: Any = in_precision(dtype, lambda: run(x))()
        with fp32_products(allow_tf32=False):
            want = wide(wide_x)
        gradient = torch.ones_like(want) if want.dim() == 0 else gradient
    got, wanted = (out, gradient.to(out.dtype)), (want, gradient.to(torch.float32))
    leaves, wide_leaves = ([x, *module.parameters()], [wide_x, *wide.parameters()]) if train else ([], [])
    return largest_error(got, wanted, leaves, wide_leaves)


def chosen_kernels(subject: Part, kernel: str) -> tuple[str, str]:
    """(attention's by our name, the experts'): ``kernel`` is of either, and the workload has attention's too.

    "" leaves the choice to torch.
    """
    experts = kernel if kernel in EXPERTS else ""
    attention = subject.workload.attention if kernel == experts else kernel
    return ("" if subject.part in ("mlp", "head") else ATTENTION["names"].get(attention, attention)), experts


def module_of(subject: Part, kernel: str = "") -> Any:
    """The module of ``subject``, taking and giving [b, s, hidden] (a head gives its mean loss, a scalar).

    UnsupportedError for what is not built here: cross attention, sparse attention, fused windows, gates.
    """
    hidden, block = subject.model.hidden, subject.block
    attention, experts = chosen_kernels(subject, kernel)
    if subject.part == "head":
        return _head(hidden, subject.model.vocab, subject.model.main.final_norm)
    if subject.part == "self_attention":
        return _attention_of(subject, attention)
    mlp = _experts(hidden, block.mlp, experts) if isinstance(block.mlp, MoeShape) else _mlp(hidden, block.mlp)
    if subject.part == "mlp":
        return mlp
    norms = [_norm(hidden, block.norm_weights) for _ in range(max(1, min(2, block.norms)))]
    return _layer(_attention_of(subject, attention), mlp, norms, parallel=block.parallel)


class _Built(nn.Module):
    """Runs ``run(itself, x)`` over ``children``: modules, parameters, lists of modules or None."""

    def __init__(self, run: Callable[[Any, Any], Any], **children: Any) -> None:
        super().__init__()
        self.run = run
        for name, child in children.items():
            setattr(self, name, nn.ModuleList(child) if isinstance(child, list) else child)

    def forward(self, x: Any) -> Any:
        return self.run(self, x)


def _linears(shapes: Sequence[Linear]) -> list[Any]:
    return [nn.Linear(one.in_features, one.out_features, one.bias) for one in shapes]


def _norm(hidden: int, weights: int) -> Any:
    return nn.LayerNorm(hidden) if weights > 1 else nn.RMSNorm(hidden)


def _activated(gate: Any, up: Any) -> Any:
    return F.silu(gate) * up if gate is not None else F.gelu(up)


def _mlp(hidden: int, shape: MlpShape | None) -> Any:
    if not shape:
        raise UnsupportedError("a block without an MLP: nothing runs")

    def forward(self: Any, x: Any) -> Any:
        *inner, down = self.linears
        gate, up = inner[0](x).chunk(2, dim=-1) if fused else (None, *(one(x) for one in inner))[-2:]
        return down(_activated(gate, up))

    fused = shape.gated and shape.fused_gate_up
    return _Built(forward, linears=_linears(shape.linears(hidden)))


def _grouped(native: Any, rows: Any, weights: Any, sizes: Any) -> Any:
    if native is not None:
        return native(rows, weights, offs=sizes.cumsum(0).to(torch.int32))
    return torch.cat([one @ weight for one, weight in zip(rows.split(sizes.tolist()), weights, strict=True)])


def _experts(hidden: int, shape: MoeShape, kernel: str) -> Any:
    """The router, its choice of experts, their products in the order of experts, what each token gets of them.

    Each expert gets as many rows as the next (``GroupedGemm.load`` 1), whatever the scores, so that runs are alike.
    """
    if shape.latent is not None or shape.bias:
        raise UnsupportedError("experts with biases or a latent width are not built as a module")
    experts, top_k = shape.experts, shape.top_k

    def forward(self: Any, x: Any) -> Any:
        rows = x.flatten(0, 1)
        scores = self.router(rows).float().softmax(-1)
        slots = torch.arange(len(rows) * top_k, device=x.device).view(-1, top_k)
        dealt = torch.zeros_like(scores).scatter_(1, slots % experts, 1.0)
        chosen = (scores.detach() + dealt).topk(top_k).indices
        order = chosen.flatten().argsort(stable=True)
        sizes = dealt.sum(0).long()  # bincount would wait for the device
        up = _grouped(self.native, rows[order // top_k], self.up, sizes)
        gate, up = up.chunk(2, dim=-1) if shape.gated else (None, up)
        weights = scores.gather(1, chosen).flatten()[order, None].to(x.dtype)
        out = _grouped(self.native, _activated(gate, up), self.down, sizes) * weights
        mixed = torch.zeros_like(rows).index_add(0, order // top_k, out).view_as(x)
        if self.shared is None:
            return mixed
        shared = self.shared(x)
        return mixed + (self.gate(x).sigmoid() * shared if self.gate is not None else shared)

    wide = shape.width * (2 if shape.gated else 1)
    return _Built(
        forward,
        router=nn.Linear(hidden, experts, shape.router_bias),
        up=nn.Parameter(torch.randn(experts, hidden, wide) * hidden**-0.5),
        down=nn.Parameter(torch.randn(experts, shape.width, hidden) * shape.width**-0.5),
        shared=_mlp(hidden, shape.shared) if shape.shared else None,
        gate=nn.Linear(hidden, 1, bias=False) if shape.shared_gate else None,
        native=grouped_product(kernel),
    )


def _attention_of(subject: Part, kernel: str) -> Any:
    block, hidden, shape = subject.block, subject.model.hidden, subject.block.attention
    if block.mixer:
        return _recurrence(hidden, block.mixer)
    if not isinstance(shape, AttentionShape | MlaShape) or shape.indexer or shape.gate != "none" or block.cross:
        raise UnsupportedError("only plain and latent self-attention are built as modules")
    if subject.workload.attention == "eager":
        raise UnsupportedError("refused: layers of eager attention are not built, and no other is timed in their place")
    window = shape.window if shape.window is not None and shape.window < subject.workload.s else None
    core, _ = named_core(kernel, causal=shape.causal, window=window)
    # Cosines and sines, [2, s, 1, half], in fp32: a model's layers share them, so they are in no time.
    half = shape.rotary_dim // 2
    turned = torch.arange(subject.workload.s, dtype=torch.float32)[:, None, None]
    turned = turned * 10000.0 ** (-torch.arange(half) / max(1, half))
    angles = nn.Buffer(torch.stack((turned.cos(), turned.sin())), persistent=False)
    return (_latent if isinstance(shape, MlaShape) else _attention)(hidden, shape, core, angles)


def _attention(hidden: int, shape: Any, core: Core, angles: Any) -> Any:
    widths = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.kv_heads * shape.v_dim

    def normed(self: Any, which: int, x: Any, heads: int) -> Any:
        """[b, s, heads * d] -> [b, heads, s, d], normed before or after the split, and rotated."""
        if shape.qk_norm == "full":
            x = self.norms[which](x)
        x = x.view(*x.shape[:2], heads, shape.head_dim)
        return _rotated(self.norms[which](x) if shape.qk_norm == "head" else x, self.angles).transpose(1, 2)

    def forward(self: Any, x: Any) -> Any:
        q, k, v = self.inputs[0](x).split(widths, -1) if len(self.inputs) == 1 else [one(x) for one in self.inputs]
        q, k = normed(self, 0, q, shape.heads), normed(self, 1, k, shape.kv_heads)
        v = v.view(*x.shape[:2], shape.kv_heads, shape.v_dim).transpose(1, 2)
        return self.out(core(q, k, v).transpose(1, 2).flatten(2))

    # Of a head's channels, or of all heads' ("full"); nothing to learn where there is none.
    normed_widths = {"head": (shape.head_dim, shape.head_dim), "full": widths[:2], "none": ()}[shape.qk_norm]
    *inputs, out = _linears(shape.linears(hidden))
    return _Built(forward, inputs=inputs, out=out, norms=[*map(nn.RMSNorm, normed_widths)], angles=angles)


def _latent(hidden: int, shape: Any, core: Core, angles: Any) -> Any:
    """DeepSeek's: queries, keys and values through low ranks, a part of each head rotated, that of the keys shared."""
    heads, ranks = shape.heads, ([shape.q_lora_rank] if shape.q_lora_rank else []) + [shape.kv_lora_rank]
    parts = shape.qk_nope_head_dim, shape.qk_rope_head_dim

    def forward(self: Any, x: Any) -> Any:
        lead = x.shape[:2]
        *q_proj, kv_a, kv_b, out = self.linears
        q = q_proj[0](x)
        if len(q_proj) > 1:
            q = q_proj[1](self.norms[0](q))
        q, q_rope = q.view(*lead, heads, -1).split(parts, -1)
        latent, k_rope = kv_a(x).split((shape.kv_lora_rank, parts[1]), -1)
        k, v = kv_b(self.norms[-1](latent)).view(*lead, heads, -1).split((parts[0], shape.v_dim), -1)
        q_rope, k_rope = _rotated(q_rope, self.angles), _rotated(k_rope[:, :, None], self.angles)
        q, k = torch.cat((q, q_rope), -1), torch.cat((k, k_rope.expand(-1, -1, heads, -1)), -1)
        return out(core(*(one.transpose(1, 2) for one in (q, k, v))).transpose(1, 2).flatten(2))

    norms = [nn.RMSNorm(rank) if shape.latent_norm else nn.Identity() for rank in ranks]
    return _Built(forward, linears=_linears(shape.linears(hidden)), norms=norms, angles=angles)


def _recurrence(hidden: int, shape: RecurrentShape) -> Any:
    """The module of the library that has the kernels."""
    known = content(DATA / "recurrences.toml")["modules"]
    if shape.kind not in known:
        raise UnsupportedError(f"refused: no library's {shape.kind} layer is known here")
    library, name, fields = known[shape.kind]
    own = {"hidden": hidden, "expand": shape.inner / hidden, "expand_v": shape.head_dim / max(1, shape.state)}
    arguments = {key: own[field] if field in own else getattr(shape, field) for key, field in fields.items()}
    try:
        made = getattr(import_module(library), name)(**arguments)
    except ImportError:
        raise UnsupportedError(f"refused: {library.partition('.')[0]}, which has {name}, is not installed") from None

    def forward(self: Any, x: Any) -> Any:
        out = self.mixer(x)
        return out[0] if isinstance(out, tuple) else out

    return _Built(forward, mixer=made)


def _rotated(x: Any, angles: Any) -> Any:
    """Rotary embedding of the first channels of [b, s, heads, d]: twice as many as there are ``angles``."""
    half = angles.shape[-1]
    if not half:
        return x
    cosine, sine = angles[:, : x.shape[1]]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine, rest), dim=-1)


def _layer(attention: Any, mlp: Any, norms: list[Any], *, parallel: bool) -> Any:
    def forward(self: Any, x: Any) -> Any:
        between = x + self.attention(self.norms[0](x))
        return between + self.mlp(self.norms[-1](x if parallel else between))

    return _Built(forward, attention=attention, mlp=mlp, norms=norms)


def _head(hidden: int, vocab: int, norm_weights: int) -> Any:
    def forward(self: Any, x: Any) -> Any:
        logits = self.head(self.norm(x)).flatten(0, 1)
        # Targets spread over the vocabulary; the loss in fp32, as training recipes compute it.
        return F.cross_entropy(logits.float(), torch.arange(logits.shape[0], device=x.device) * 7919 % vocab)

    return _Built(forward, norm=_norm(hidden, norm_weights), head=nn.Linear(hidden, vocab, bias=False))


#: Relative error of one product of operands rounded to e4m3's 4 and e5m2's 3 significant bits.
FP8_ERROR_BOUND = 0.06


def quantised(module: Any, recipe: str) -> None:
    """Every linear of ``module`` runs in fp8 from now on; UnsupportedError for recipes and parts that are not built."""
    if recipe != "tensorwise":
        raise UnsupportedError(f"refused: no layer in {recipe} here, and no other is timed in its place: tensorwise is")
    if any(hasattr(one, name) for one in module.modules() for name in ("head", "router", "mixer")):
        raise UnsupportedError("refused: the recipe keeps the head in 16 bits, and experts in fp8 are not built")
    for one in module.modules():
        if isinstance(one, nn.Linear):
            vars(one)["forward"] = partial(_linear, one)


def plain(module: Any) -> Any:
    """``module`` as it was before it was `quantised`, its experts as a loop: what to compare with."""
    for one in module.modules():
        vars(one).pop("forward", None)
        if hasattr(one, "native"):
            one.native = None
    return module


def _cast(operand: Any, dtype: Any) -> tuple[Any, Any]:
    """``operand`` in ``dtype`` over its scale, and that."""
    scale = operand.abs().amax().float().clamp(min=1e-12) / torch.finfo(dtype).max
    return (operand / scale).to(dtype), scale


def _product(left: Any, right: Any, dtype: str, *, fast: bool = False) -> Any:
    (a, scale_a), (b, scale_b) = _cast(left, getattr(torch, dtype)), _cast(right, torch.float8_e4m3fn)
    b = b.t().contiguous().t()
    return torch._scaled_mm(a.contiguous(), b, scale_a, scale_b, out_dtype=left.dtype, use_fast_accum=fast)


class _Fp8(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Any, weight: Any) -> Any:
        ctx.save_for_backward(rows, weight)
        return _product(rows, weight.t(), "float8_e4m3fn", fast=True)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (rows, weight), wanted = ctx.saved_tensors, ctx.needs_input_grad
        dgrad = _product(gradient, weight, "float8_e5m2") if wanted[0] else None
        return dgrad, _product(gradient.t(), rows, "float8_e5m2") if wanted[1] else None


def _linear(linear: Any, x: Any) -> Any:
    out = _Fp8.apply(x.flatten(0, -2), linear.weight).unflatten(0, x.shape[:-1])  # type: ignore[no-untyped-call]
    return out if linear.bias is None else out + linear.bias
