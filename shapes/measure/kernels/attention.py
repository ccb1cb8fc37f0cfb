"""The attention core, forward and backward, through each of torch's SDPA kernels and flash-attn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shapes.measure.backend import Backend
from shapes.measure.kernels.common import (
    ERROR_BOUNDS,
    UnsupportedError,
    generator,
    normal,
    relative_error,
    rotation,
)
from shapes.measure.timer import Kernel
from shapes.operators import Attention

#: Our names -> torch.nn.attention.SDPBackend's.
SDPA_KERNELS = {
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
}
KERNELS = (*SDPA_KERNELS, "flash_attn")

#: Gradients sum over a whole row of rounded probabilities: twice the forward's bound.
BACKWARD_SLACK = 2.0

Core = Callable[[Any, Any, Any], Any]


def attention(operator: Attention, kernel: str, backend: Backend, seed: int) -> Kernel:
    """softmax(Q K^T / sqrt(d)) V, its tensors stored as projections leave them: [batch, s, heads, d].

    ``operator.phase`` "dgrad" is the whole backward, of a forward that ran before. ``kernel`` "" is torch's choice.
    """
    if operator.dtype not in ("bf16", "fp16", "fp32"):
        raise UnsupportedError(f"no attention kernel for {operator.dtype}")
    core = _core(operator, kernel)
    source = generator(backend, seed)
    sets, flush = rotation(operator.bytes, backend)
    tensors = [_inputs(operator, source) for _ in range(sets)]
    if operator.phase == "forward":
        calls = tuple(_forward_call(core, each) for each in tensors)
    else:
        calls = tuple(_backward_call(core, each) for each in tensors)
    slack = 1.0 if operator.phase == "forward" else BACKWARD_SLACK
    return Kernel(
        calls=calls,
        check=lambda: _check(operator, core, tensors[0]),
        bound=slack * ERROR_BOUNDS[operator.dtype],
        set_bytes=operator.bytes,
        name=f"attention {kernel or 'default'} {operator.phase} {operator.dtype}",
        capturable=operator.phase == "forward",
        needs_flush=flush,
        holds=(tensors,),
    )


def _inputs(operator: Attention, source: Any) -> tuple[Any, Any, Any, Any]:
    """Q, K, V and the output's gradient, as [batch, heads, s, d] views of [batch, s, heads, d]."""
    b, d, dv = operator.batch, operator.head_dim, operator.v_head_dim
    shapes = (
        (b, operator.q_len, operator.heads, d),
        (b, operator.kv_len, operator.kv_heads, d),
        (b, operator.kv_len, operator.kv_heads, dv),
        (b, operator.q_len, operator.heads, dv),
    )
    q, k, v, gradient = (normal(shape, operator.dtype, source).transpose(1, 2) for shape in shapes)
    if operator.phase != "forward":
        for tensor in (q, k, v):
            tensor.requires_grad_(True)
    return q, k, v, gradient


def _core(operator: Attention, kernel: str) -> Core:
    windowed = operator.window is not None and operator.window < operator.kv_len
    if kernel == "flash_attn":
        return _flash_attn(operator, operator.window if windowed else None)
    if kernel and kernel not in SDPA_KERNELS:
        raise UnsupportedError(f"no attention kernel {kernel!r}: expected one of {', '.join(KERNELS)}")
    if windowed:
        raise UnsupportedError("torch's fused attention has no sliding window; flash_attn has")
    if operator.causal and operator.q_len != operator.kv_len:
        raise UnsupportedError("torch aligns a causal mask to the first key, a cache needs the last")
    from torch.nn import functional as F  # noqa: N812  # torch's own convention
    from torch.nn.attention import SDPBackend, sdpa_kernel

    grouped = operator.heads != operator.kv_heads

    def run(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=operator.causal, enable_gqa=grouped)

    if not kernel:
        return run
    wanted = getattr(SDPBackend, SDPA_KERNELS[kernel])

    def chosen(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(wanted):
            return run(q, k, v)

    return chosen


def _flash_attn(operator: Attention, window: int | None) -> Core:
    try:
        from flash_attn import flash_attn_func
    except ImportError:
        raise UnsupportedError("flash-attn is not installed") from None
    # flash-attn counts the keys beside the query's own: a window of w holds w - 1 before it.
    sides = (-1, -1) if window is None else (window - 1, 0 if operator.causal else window - 1)

    def run(q: Any, k: Any, v: Any) -> Any:
        out = flash_attn_func(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=operator.causal, window_size=sides
        )
        return out.transpose(1, 2)

    return run


def _forward_call(core: Core, tensors: tuple[Any, Any, Any, Any]) -> Callable[[], object]:
    q, k, v, _ = tensors
    return lambda: core(q, k, v)


def _backward_call(core: Core, tensors: tuple[Any, Any, Any, Any]) -> Callable[[], object]:
    import torch

    q, k, v, gradient = tensors
    out = core(q, k, v)
    return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


def _check(operator: Attention, core: Core, tensors: tuple[Any, Any, Any, Any]) -> float:
    """Relative error of the first sequence's first key/value head and its query heads against plain fp32 products."""
    import torch

    group = operator.heads // operator.kv_heads
    q, k, v, gradient = tensors
    out = core(q, k, v)
    backward = operator.phase != "forward"
    got = torch.autograd.grad(out, (q, k, v), gradient) if backward else (out,)
    wide = [
        tensor.detach()[:1, :heads].to(torch.float32).requires_grad_(backward)
        for tensor, heads in ((q, group), (k, 1), (v, 1))
    ]
    reference = _plain(operator, *wide)
    want: tuple[Any, ...] = (reference,)
    if backward:
        want = torch.autograd.grad(reference, wide, gradient[:1, :group].to(torch.float32))
    return max(
        relative_error(mine[:1, : ours.shape[1]].detach(), ours.detach()) for mine, ours in zip(got, want, strict=True)
    )


def _plain(operator: Attention, q: Any, k: Any, v: Any) -> Any:
    """softmax(Q K^T / sqrt(d)) V written out, for one key/value head."""
    import torch

    scores = q @ k.transpose(-1, -2) * operator.head_dim**-0.5
    rows = torch.arange(operator.q_len, device=q.device)[:, None] + operator.kv_len - operator.q_len
    columns = torch.arange(operator.kv_len, device=q.device)
    seen = torch.ones_like(scores[0, 0], dtype=torch.bool)
    if operator.causal:
        seen &= columns <= rows
    if operator.window is not None:
        seen &= columns > rows - operator.window
        if not operator.causal:
            seen &= columns < rows + operator.window
    return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v
