"""Plain torch modules from a ModelShape's block: what Hugging Face's eager classes run, without their names.

Projections are nn.Linear as the shape lists them, attention is torch's SDPA, norms are RMSNorm (LayerNorm where they
carry a bias), rotary embedding, silu for gated MLPs and gelu for the others, residual additions as the block says.
"""

from __future__ import annotations

from typing import Any

from shapes.measure.jobs import Part
from shapes.measure.kernels.common import UnsupportedError
from shapes.model import AttentionShape, Block, MlpShape


def module_of(subject: Part) -> Any:
    """The module of ``subject``, taking and giving [b, s, hidden] (a head gives its mean loss, a scalar).

    UnsupportedError for what is not built here: latent attention, mixtures of experts, cross attention, windows.
    """
    from torch import nn

    hidden = subject.model.hidden
    if subject.part == "head":
        return _head(hidden, subject.model.vocab, subject.model.main.final_norm > 1)
    block = subject.block
    if not isinstance(block.mlp, MlpShape):
        raise UnsupportedError("only dense MLPs are built as modules; experts are timed as grouped products")
    mlp = _mlp(hidden, block.mlp)
    if subject.part == "mlp":
        return mlp
    attention = block.attention
    if not isinstance(attention, AttentionShape) or block.cross is not None or block.mlp is None:
        raise UnsupportedError("only layers of plain self-attention and an MLP are built as modules")
    if attention.window is not None and attention.window < subject.workload.s:
        raise UnsupportedError("torch's fused attention has no sliding window")
    if subject.workload.attention != "flash":
        raise UnsupportedError("layers run fused attention; eager attention is timed operator by operator")
    norms = nn.ModuleList(_norm(hidden, block) for _ in range(max(1, min(2, block.norms))))
    return _layer(_attention(hidden, attention), mlp, norms, parallel=block.parallel)


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


def _attention(hidden: int, shape: AttentionShape) -> Any:
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812  # torch's own convention

    linears = shape.linears(hidden)
    widths = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.kv_heads * shape.v_dim)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inputs = nn.ModuleList(nn.Linear(one.in_features, one.out_features, one.bias) for one in linears[:-1])
            self.out = nn.Linear(linears[-1].in_features, hidden, linears[-1].bias)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, s, _ = x.shape
            q, k, v = self.inputs[0](x).split(widths, -1) if len(self.inputs) == 1 else [f(x) for f in self.inputs]
            q = _rotated(q.view(b, s, shape.heads, shape.head_dim), shape.rotary_dim).transpose(1, 2)
            k = _rotated(k.view(b, s, shape.kv_heads, shape.head_dim), shape.rotary_dim).transpose(1, 2)
            v = v.view(b, s, shape.kv_heads, shape.v_dim).transpose(1, 2)
            grouped = shape.heads != shape.kv_heads
            core = F.scaled_dot_product_attention(q, k, v, is_causal=shape.causal, enable_gqa=grouped)
            out: torch.Tensor = self.out(core.transpose(1, 2).reshape(b, s, shape.heads * shape.v_dim))
            return out

    return Attention()


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
