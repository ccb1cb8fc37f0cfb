"""Parts of a model run whole, as plain torch modules: its MLP, attention, a layer, or the last norm, head and loss.

The modules are what Hugging Face's eager classes run, without their names: projections are nn.Linear as the shape lists
them, attention is torch's SDPA or, eager, written out, norms are RMSNorm (LayerNorm where they carry a bias), rotary
embedding, silu for gated MLPs and gelu for the others, residual additions as the block says. No dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shapes.measure.backend import Call
from shapes.measure.jobs import Part
from shapes.measure.kernels.common import (
    ERROR_BOUNDS,
    Plan,
    UnsupportedError,
    fp32_products,
    in_precision,
    normal,
    relative_error,
    torch_dtype,
)
from shapes.measure.kernels.functions import forced, sdpa_name
from shapes.model import AttentionShape, Block, MlpShape

#: Errors of a few products in a row add up, and gradients cancel: several times one product's bound.
CHAIN_SLACK = 5.0
#: Gradients this much smaller than the largest are not compared.
NEGLIGIBLE = 1e-3
#: Rows of the input that the check runs: whole sequences of at most this length.
CHECKED_ROWS = 512
#: Input sets: weights are the bulk of what a step reads and are the same in each.
MOST_SETS = 4

#: softmax(q k^T / sqrt(d)) v of [b, heads, s, d].
Core = Callable[[Any, Any, Any], Any]


def part(subject: Part, kernel: str, source: Any) -> Plan:
    """``subject`` forward, or forward and backward with gradients of weights and input, as one training step makes."""
    import torch

    workload = subject.workload
    dtype = workload.dtype
    if dtype not in ("bf16", "fp16", "fp32", "tf32"):
        raise UnsupportedError(f"whole parts run in bf16, fp16, fp32 or tf32, not {dtype}")
    if workload.t * workload.e > 1:
        raise UnsupportedError("a part split over devices cannot run on one")
    torch.manual_seed(source.initial_seed())
    with torch.device(source.device):
        module = module_of(subject).to(torch_dtype(dtype))
    run = torch.compile(module, dynamic=False) if subject.compiled else module
    train = subject.direction != "forward"
    shape = (workload.b, workload.s, subject.model.hidden)
    weights = list(module.parameters())
    moved = [*(parameter.numel() for parameter in weights), 2 * shape[0] * shape[1] * shape[2]]

    def call(x: Any, gradient: Any) -> Call:
        def forward() -> object:
            with torch.no_grad():
                return run(x)

        def step() -> object:
            out = run(x)
            return torch.autograd.grad(out, [x, *weights], gradient if out.shape == gradient.shape else None)

        x.requires_grad_(train)
        return in_precision(dtype, step if train else forward)

    return Plan(
        f"{subject.part} {subject.direction} {dtype}",
        lambda: (normal(shape, dtype, source), normal(shape, dtype, source)),
        call,
        lambda x, gradient: _check(module, run, x[:1, :CHECKED_ROWS], gradient[:1, :CHECKED_ROWS], dtype, train),
        CHAIN_SLACK * ERROR_BOUNDS[dtype],
        sum(moved) * weights[0].element_size(),
        capturable=False,
        check_each=True,
        most_sets=MOST_SETS,
    )


def _check(module: Any, run: Any, x: Any, gradient: Any, dtype: str, train: bool) -> float:
    """Relative error of output and gradients against an fp32 copy, on one sequence of at most 512 rows."""
    import copy

    import torch

    x = x.detach().clone().requires_grad_(train)
    wide = copy.deepcopy(module).to(torch.float32)
    wide_x = x.detach().to(torch.float32).requires_grad_(train)
    with torch.set_grad_enabled(train):
        out: Any = in_precision(dtype, lambda: run(x))()
        with fp32_products(allow_tf32=False):
            want = wide(wide_x)
    errors = [relative_error(out.detach(), want.detach())]
    if train:
        gradient = torch.ones_like(want) if want.dim() == 0 else gradient
        mine = torch.autograd.grad(out, [x, *module.parameters()], gradient.to(out.dtype))
        with fp32_products(allow_tf32=False):
            wanted = torch.autograd.grad(want, [wide_x, *wide.parameters()], gradient.to(torch.float32))
        # Some gradients are zero but for rounding (a key bias shifts all scores alike): nothing to compare.
        largest = max(float(two.norm()) for two in wanted)
        pairs = zip(mine, wanted, strict=True)
        errors += [relative_error(one, two) for one, two in pairs if float(two.norm()) > NEGLIGIBLE * largest]
    return max(errors)


def module_of(subject: Part) -> Any:
    """The module of ``subject``, taking and giving [b, s, hidden] (a head gives its mean loss, a scalar).

    UnsupportedError for what is not built here: latent attention, mixtures of experts, cross attention, fused windows.
    """
    from torch import nn

    hidden = subject.model.hidden
    if subject.part == "head":
        return _head(hidden, subject.model.vocab, subject.model.main.final_norm > 1)
    block = subject.block
    if subject.part == "self_attention":
        return _attention_of(subject)
    if not isinstance(block.mlp, MlpShape):
        raise UnsupportedError("only dense MLPs are built as modules; experts are timed as grouped products")
    mlp = _mlp(hidden, block.mlp)
    if subject.part == "mlp":
        return mlp
    norms = nn.ModuleList(_norm(hidden, block) for _ in range(max(1, min(2, block.norms))))
    return _layer(_attention_of(subject), mlp, norms, parallel=block.parallel)


def _attention_of(subject: Part) -> Any:
    block, workload = subject.block, subject.workload
    attention, eager = block.attention, workload.attention == "eager"
    if not isinstance(attention, AttentionShape) or block.cross is not None:
        raise UnsupportedError("only plain self-attention is built as a module")
    windowed = attention.window is not None and attention.window < workload.s
    if windowed and not (eager and attention.causal):
        raise UnsupportedError("torch's fused attention has no sliding window")
    core = _eager(attention) if eager else _fused(attention)
    chosen = sdpa_name(workload.attention)
    return _attention(subject.model.hidden, attention, forced(core, chosen) if chosen and not eager else core)


def _norm(hidden: int, block: Block) -> Any:
    from torch import nn

    return nn.LayerNorm(hidden) if block.norm_weights == 2 else nn.RMSNorm(hidden)


def _mlp(hidden: int, shape: MlpShape) -> Any:
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812  # torch's own convention

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fused = shape.gated and shape.fused_gate_up
            wide = 2 * shape.width if self.fused else shape.width
            self.up = nn.Linear(hidden, wide, bias=shape.bias)
            self.gate = nn.Linear(hidden, shape.width, bias=shape.bias) if shape.gated and not self.fused else None
            self.down = nn.Linear(shape.width, hidden, bias=shape.bias)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.fused:
                gate, up = self.up(x).chunk(2, dim=-1)
                inner = F.silu(gate) * up
            elif self.gate is not None:
                inner = F.silu(self.gate(x)) * self.up(x)
            else:
                inner = F.gelu(self.up(x))
            out: torch.Tensor = self.down(inner)
            return out

    return Mlp()


def _attention(hidden: int, shape: AttentionShape, core: Core) -> Any:
    import torch
    from torch import nn

    linears = shape.linears(hidden)
    widths = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.kv_heads * shape.v_dim)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inputs = nn.ModuleList(nn.Linear(one.in_features, one.out_features, one.bias) for one in linears[:-1])
            self.out = nn.Linear(linears[-1].in_features, hidden, linears[-1].bias)
            # Of a head's channels, or of all heads' ("full"); nothing to learn where there is none.
            normed = {"head": (shape.head_dim, shape.head_dim), "full": widths[:2], "none": None}[shape.qk_norm]
            self.norms = nn.ModuleList(map(nn.RMSNorm, normed) if normed else ())

        def normed(self, which: int, x: torch.Tensor, heads: int) -> torch.Tensor:
            """[b, s, heads * d] -> [b, s, heads, d], normed before or after the split."""
            if shape.qk_norm == "full":
                x = self.norms[which](x)
            x = x.view(*x.shape[:2], heads, shape.head_dim)
            return self.norms[which](x) if shape.qk_norm == "head" else x

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, s, _ = x.shape
            q, k, v = self.inputs[0](x).split(widths, -1) if len(self.inputs) == 1 else [f(x) for f in self.inputs]
            q = _rotated(self.normed(0, q, shape.heads), shape.rotary_dim).transpose(1, 2)
            k = _rotated(self.normed(1, k, shape.kv_heads), shape.rotary_dim).transpose(1, 2)
            v = v.view(b, s, shape.kv_heads, shape.v_dim).transpose(1, 2)
            rows = core(q, k, v).transpose(1, 2).reshape(b, s, shape.heads * shape.v_dim)
            out: torch.Tensor = self.out(rows)
            return out

    return Attention()


def _fused(shape: AttentionShape) -> Core:
    from torch.nn import functional as F  # noqa: N812  # torch's own convention

    grouped = shape.heads != shape.kv_heads
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=shape.causal, enable_gqa=grouped)


def _eager(shape: AttentionShape) -> Core:
    """Scores, mask, softmax in fp32 and values, one after the other through memory: transformers' eager attention."""
    import torch

    group = shape.heads // shape.kv_heads
    masks: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def mask(s: int, like: torch.Tensor) -> torch.Tensor:
        # A model makes it once for all its layers: no part of a layer's time.
        if (s, like.dtype) not in masks:
            hidden = torch.full((s, s), float("-inf"), dtype=like.dtype, device=like.device)
            window = hidden.tril(-shape.window) if shape.window is not None else 0.0
            masks[s, like.dtype] = hidden.triu(1) + window
        return masks[s, like.dtype]

    def core(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if group > 1:
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = q @ k.transpose(-1, -2) * shape.head_dim**-0.5
        if shape.causal:
            scores = scores + mask(q.shape[2], scores)
        return torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype) @ v

    return core


def _rotated(x: Any, channels: int) -> Any:
    """Rotary embedding of the first ``channels`` of [b, s, heads, d], angles in fp32."""
    import torch

    if not channels:
        return x
    half = channels // 2
    frequencies = 10000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)[:, None] * frequencies
    cosine, sine = angles.cos().to(x.dtype)[None, :, None], angles.sin().to(x.dtype)[None, :, None]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine, rest), dim=-1)


def _layer(attention: Any, mlp: Any, norms: Any, *, parallel: bool) -> Any:
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.mlp, self.norms = attention, mlp, norms

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if parallel:
                out: torch.Tensor = x + self.attention(self.norms[0](x)) + self.mlp(self.norms[-1](x))
                return out
            x = x + self.attention(self.norms[0](x))
            out = x + self.mlp(self.norms[-1](x))
            return out

    return Layer()


def _head(hidden: int, vocab: int, with_bias: bool) -> Any:
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812  # torch's own convention

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(hidden) if with_bias else nn.RMSNorm(hidden)
            self.head = nn.Linear(hidden, vocab, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits = self.head(self.norm(x)).flatten(0, 1)
            # Targets spread over the vocabulary; the loss in fp32, as training recipes compute it.
            targets = torch.arange(logits.shape[0], device=x.device) * 7919 % vocab
            return F.cross_entropy(logits.float(), targets)

    return Head()
