"""Functions of tensors, forward and backward: the attention core through torch's kernels and flash-attn.

Also norms, softmax, cross-entropy, activations and residual additions as torch runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shapes.measure.backend import Call
from shapes.measure.jobs import MemoryBound
from shapes.measure.kernels.common import ERROR_BOUNDS, Plan, UnsupportedError, normal, relative_error
from shapes.operators import Attention

#: Our names -> torch.nn.attention.SDPBackend's.
SDPA_KERNELS = {
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
}
KERNELS = (*SDPA_KERNELS, "flash_attn")

#: Attention's gradients sum over a whole row of rounded probabilities: twice the forward's bound.
BACKWARD_SLACK = 2.0

Function = Callable[..., Any]
Tensors = tuple[Any, ...]


def _call(function: Function, backward: bool, tensors: Tensors) -> Call:
    """The function, or the whole backward of a forward that ran before; the last of ``tensors`` is its gradient."""
    import torch

    *inputs, gradient = tensors
    if not backward:
        return lambda: function(*inputs)
    inputs = [tensor.requires_grad_(True) for tensor in inputs]
    out = function(*inputs)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def _check(function: Function, reference: Function, backward: bool, tensors: Tensors, narrow: Tensors) -> float:
    """Relative error of output or input gradients against ``reference`` in a wider type.

    ``narrow``: the part of ``tensors`` that the reference is asked for.
    """
    import torch

    *inputs, gradient = tensors  # those of a backward require gradients by now: its call was made
    dtype = torch.float32 if gradient.dtype.itemsize == 2 else torch.float64
    *wide, wide_gradient = (tensor.detach().to(dtype) for tensor in narrow)
    for tensor in wide:
        tensor.requires_grad_(backward)
    got: Tensors = (function(*inputs),)
    want: Tensors = (reference(*wide),)
    if backward:
        got = torch.autograd.grad(got[0], inputs, gradient)
        want = torch.autograd.grad(want[0], wide, wide_gradient)
    pairs = zip(got, want, strict=True)
    return max(relative_error(mine[tuple(map(slice, ours.shape))].detach(), ours.detach()) for mine, ours in pairs)


def attention(operator: Attention, kernel: str, source: Any) -> Plan:
    """softmax(Q K^T / sqrt(d)) V, its tensors stored as projections leave them: [batch, s, heads, d].

    ``operator.phase`` "dgrad" is the whole backward, of a forward that ran before. ``kernel`` "" is torch's choice.
    """
    if operator.dtype not in ("bf16", "fp16", "fp32"):
        raise UnsupportedError(f"no attention kernel for {operator.dtype}")
    core, backward = _core(operator, kernel), operator.phase != "forward"
    b, d, dv, group = operator.batch, operator.head_dim, operator.v_head_dim, operator.heads // operator.kv_heads
    shapes = (
        (b, operator.q_len, operator.heads, d),
        (b, operator.kv_len, operator.kv_heads, d),
        (b, operator.kv_len, operator.kv_heads, dv),
        (b, operator.q_len, operator.heads, dv),
    )

    def inputs() -> Tensors:
        """[batch, heads, s, d] views."""
        return tuple(normal(shape, operator.dtype, source).transpose(1, 2) for shape in shapes)

    def check(*tensors: Any) -> float:
        # The first sequence's first key/value head and its query heads.
        narrow = tuple(one[:1, :heads] for one, heads in zip(tensors, (group, 1, 1, group), strict=True))
        if kernel and not tensors[0].is_cpu:  # its kernels' names tell; a processor has no others
            ran(kernel, lambda: core(*tensors[:3]))
        return _check(core, lambda q, k, v: _plain(operator, q, k, v), backward, tensors, narrow)

    return Plan(
        f"attention {kernel or 'default'} {operator.phase} {operator.dtype}",
        inputs,
        lambda *tensors: _call(core, backward, tensors),
        check,
        ERROR_BOUNDS[operator.dtype] * (BACKWARD_SLACK if backward else 1.0),
        operator.bytes,
        capturable=not backward,
    )


def _core(operator: Attention, kernel: str) -> Function:
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

    grouped = operator.heads != operator.kv_heads

    def run(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=operator.causal, enable_gqa=grouped)

    if not kernel:
        return run
    return forced(run, kernel)


def forced(function: Function, kernel: str) -> Function:
    """``function`` with torch's attention ``kernel`` (of SDPA_KERNELS) and no other: it fails where that cannot run."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    wanted = getattr(SDPBackend, SDPA_KERNELS[kernel])

    def chosen(*tensors: Any) -> Any:
        with sdpa_kernel(wanted):
            return function(*tensors)

    return chosen


def sdpa_name(attention: str) -> str:
    """The kernel that runs what a workload or an operator calls ``attention``; "" leaves the choice to torch.

    UnsupportedError for those that no kernel here runs: a row must not name what did not run.
    """
    if attention in ("", "auto", "sdpa", "fused_sdpa", "eager"):
        return ""
    name = {"fa2": "flash"}.get(attention, attention)
    if name not in SDPA_KERNELS:
        raise UnsupportedError(f"refused: no {attention} kernel here, and no other is timed in its place")
    return name


def ran(kernel: str, function: Callable[[], object]) -> None:
    """Run ``function``; UnsupportedError unless torch's profiler saw ``kernel`` (of KERNELS) in it."""
    from torch.profiler import profile

    with profile() as seen:
        function()
    names = {event.key for event in seen.key_averages() if "attention" in event.key or "fmha" in event.key}
    if not any(kernel.removesuffix("_attn") in name for name in names):
        raise UnsupportedError(f"refused: {kernel} was asked for, {', '.join(sorted(names)) or 'another kernel'} ran")


def _flash_attn(operator: Attention, window: int | None) -> Function:
    try:
        from flash_attn import flash_attn_func
    except ImportError:
        raise UnsupportedError("flash-attn is not installed") from None
    # flash-attn counts the keys on each side of the query's own: a window of w holds w - 1 before it.
    sides = (-1, -1) if window is None else (window - 1, 0 if operator.causal else window - 1)

    def run(*tensors: Any) -> Any:
        turned = [tensor.transpose(1, 2) for tensor in tensors]
        return flash_attn_func(*turned, causal=operator.causal, window_size=sides).transpose(1, 2)

    return run


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


def memory_bound(subject: MemoryBound, kernel: str, source: Any) -> Plan:
    """``subject.what`` over [rows, columns]; "dgrad" is its backward, of a forward that ran before."""
    if subject.dtype not in ("bf16", "fp16", "fp32", "fp64"):
        raise UnsupportedError(f"no {subject.what} kernel for {subject.dtype}")
    backward = subject.phase != "forward"
    if subject.what == "residual" and backward:
        raise UnsupportedError("an addition hands its gradient on unchanged: nothing runs")
    function, count = _function(subject)
    shape = (subject.rows, subject.columns)
    shapes = [*[shape] * count, shape[:1] if subject.what == "cross_entropy" else shape]
    return Plan(
        f"{subject.what} {subject.phase} {subject.dtype}",
        lambda: tuple(normal(each, subject.dtype, source) for each in shapes),
        lambda *tensors: _call(function, backward, tensors),
        lambda *tensors: _check(function, function, backward, tensors, tensors),
        ERROR_BOUNDS[subject.dtype],
        subject.bytes,
        capturable=not backward,
    )


def _function(subject: MemoryBound) -> tuple[Function, int]:
    """(the function, how many [rows, columns] inputs it takes)."""
    import torch
    from torch.nn import functional as F  # noqa: N812  # torch's own convention

    columns = (subject.columns,)
    known: dict[str, tuple[Function, int]] = {
        "norm": (lambda x: F.rms_norm(x, columns), 1),
        "layer_norm": (lambda x: F.layer_norm(x, columns), 1),
        "softmax": (lambda x: F.softmax(x, dim=-1), 1),
        "activation": (lambda gate, up: F.silu(gate) * up, 2),
        "residual": (torch.add, 2),
        # Every row's target is its middle column; which one does not change the work.
        "cross_entropy": (lambda x: F.cross_entropy(x, _targets(x), reduction="none"), 1),
    }
    if subject.what not in known:
        raise UnsupportedError(f"no kernel for {subject.what!r}: expected one of {', '.join(known)}")
    return known[subject.what]


def _targets(x: Any) -> Any:
    import torch

    return torch.full((x.shape[0],), x.shape[1] // 2, dtype=torch.long, device=x.device)
