"""Functions of tensors, forward and backward: the attention core through torch's kernels and flash-attn.

Also norms, softmax, cross-entropy, activations and residual additions as torch runs them.
"""

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812  # torch's own convention
from torch.nn.attention import SDPBackend, sdpa_kernel

from shapes.frozen import Function
from shapes.measure.backend import Call
from shapes.measure.jobs import ATTENTION, MemoryBound
from shapes.operators.types import Attention

from .common import Plan, UnsupportedError, error_bound, largest_error, normal

#: Attention's gradients sum over a whole row of rounded probabilities: twice the forward's bound.
BACKWARD_SLACK = 2.0
#: Rows of memory-bound kernels that are compared.
CHECKED_ROWS = 512

Tensors = tuple[Any, ...]


def _call(function: Function, backward: bool, tensors: Tensors) -> Call:
    """The function, or the whole backward of a forward that ran before; the last of ``tensors`` is its gradient."""
    *inputs, gradient = tensors
    if not backward:
        return lambda: function(*inputs)
    inputs = [tensor.requires_grad_(True) for tensor in inputs]
    out = function(*inputs)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def _check(function: Function, reference: Function, backward: bool, tensors: Tensors, narrow: Sequence[Any]) -> float:
    """Relative error of output and input gradients against ``reference`` in a wider type.

    ``narrow``: the part of ``tensors`` that the reference is asked for.
    """
    *inputs, gradient = tensors  # those of a backward require gradients by now: its call was made
    dtype = torch.float32 if gradient.dtype.itemsize == 2 else torch.float64
    *wide, wide_gradient = (tensor.detach().to(dtype) for tensor in narrow)
    for tensor in wide:
        tensor.requires_grad_(backward)
    got, want = (function(*inputs), gradient), (reference(*wide), wide_gradient)
    return largest_error(got, want, inputs if backward else [], wide)


def attention(operator: Attention, kernel: str, source: Any) -> Plan:
    """softmax(Q K^T / sqrt(d)) V, its tensors stored as projections leave them: [batch, s, heads, d].

    ``operator.phase`` "dgrad" is the whole backward, of a forward that ran before. ``kernel`` "" is torch's choice.
    """
    if operator.dtype not in ("bf16", "fp16", "fp32"):
        raise UnsupportedError(f"no attention kernel for {operator.dtype}")
    if operator.causal and operator.q_len != operator.kv_len:
        raise UnsupportedError("torch aligns a causal mask to the first key, a cache needs the last")
    windowed = operator.window is not None and operator.window < operator.kv_len
    core, kernel = named_core(kernel, causal=operator.causal, window=operator.window if windowed else None)
    backward = operator.phase != "forward"
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
        error_bound(operator.dtype) * (BACKWARD_SLACK if backward else 1.0),
        operator.bytes,
        capturable=not backward,
    )


def named_core(attention: str, *, causal: bool, window: int | None) -> tuple[Function, str]:
    """(softmax(q k^T / sqrt(d)) v of [batch, heads, s, d], its kernel by our name) of what is called ``attention``.

    It runs that kernel and no other. UnsupportedError for those that none here is: a row must not name what did not
    run. ``window``: keys that a query sees, its own included.
    """
    kernel, packages = ATTENTION["names"].get(attention, attention), ATTENTION["packages"]
    if kernel not in ("", *ATTENTION["sdpa"], *packages):
        raise UnsupportedError(f"refused: no {attention} kernel here, and no other is timed in its place")
    if kernel in packages:
        return _flash_attn(packages[kernel], causal, window), kernel
    if window is not None:
        raise UnsupportedError("torch's fused attention has no sliding window; flash_attn has")

    def run(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    if not kernel:
        return run, kernel
    backend = getattr(SDPBackend, ATTENTION["sdpa"][kernel])

    def chosen(*tensors: Any) -> Any:
        with sdpa_kernel(backend):
            return run(*tensors)

    return chosen, kernel


def ran(kernel: str, function: Callable[[], object]) -> None:
    """Run ``function``; UnsupportedError unless torch's profiler saw ``kernel`` (by our name) in it."""
    with torch.profiler.profile() as seen:
        function()
    names = {event.key for event in seen.key_averages() if re.search("attention|fmha|flash", event.key, re.I)}
    if not any(ATTENTION["profiled"].get(kernel, kernel) in name.lower() for name in names):
        raise UnsupportedError(f"refused: {kernel} was asked for, {', '.join(sorted(names)) or 'another kernel'} ran")


def _flash_attn(package: str, causal: bool, window: int | None) -> Function:
    try:
        function = import_module(package).flash_attn_func
    except ImportError:
        raise UnsupportedError(f"refused: {package} is not installed") from None
    # flash-attn counts the keys on each side of the query's own: a window of w holds w - 1 before it.
    sides = (-1, -1) if window is None else (window - 1, 0 if causal else window - 1)

    def run(*tensors: Any) -> Any:
        out = function(*[tensor.transpose(1, 2) for tensor in tensors], causal=causal, window_size=sides)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return run


def _plain(operator: Attention, q: Any, k: Any, v: Any) -> Any:
    """softmax(Q K^T / sqrt(d)) V written out, for one key/value head."""
    scores = q @ k.transpose(-1, -2) * operator.head_dim**-0.5
    first = operator.kv_len - operator.q_len
    rows, columns = (torch.arange(count, device=q.device) for count in (operator.q_len, operator.kv_len))
    behind, window = rows[:, None] + first - columns, operator.window or operator.kv_len
    seen = (behind < window) & (behind > (-1 if operator.causal else -window))
    return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v


def memory_bound(subject: MemoryBound, kernel: str, source: Any) -> Plan:
    """``subject.what`` over [rows, columns]; "dgrad" is its backward, of a forward that ran before."""
    if subject.dtype not in ("bf16", "fp16", "fp32", "fp64"):
        raise UnsupportedError(f"no {subject.what} kernel for {subject.dtype}")
    backward = subject.phase != "forward"
    if subject.what == "residual" and backward:
        raise UnsupportedError("an addition hands its gradient on unchanged: nothing runs")
    function, count = _function(subject)
    shape = subject.rows, subject.columns
    shapes = [*[shape] * count, shape[:1] if subject.what == "cross_entropy" else shape]
    return Plan(
        f"{subject.what} {subject.phase} {subject.dtype}",
        lambda: tuple(normal(each, subject.dtype, source) for each in shapes),
        lambda *tensors: _call(function, backward, tensors),
        lambda *tensors: _check(function, function, backward, tensors, [one[:CHECKED_ROWS] for one in tensors]),
        error_bound(subject.dtype),
        subject.bytes,
        capturable=not backward,
    )


def _function(subject: MemoryBound) -> tuple[Function, int]:
    """(the function, how many [rows, columns] inputs it takes)."""
    columns = (subject.columns,)
    targets: Function = lambda x: x.new_full(x.shape[:1], subject.columns // 2, dtype=torch.long)  # noqa: E731
    known: dict[str, tuple[Function, int]] = {
        "norm": (lambda x: F.rms_norm(x, columns), 1),
        "layer_norm": (lambda x: F.layer_norm(x, columns), 1),
        "softmax": (lambda x: F.softmax(x, dim=-1), 1),
        "activation": (lambda gate, up: F.silu(gate) * up, 2),
        "residual": (torch.add, 2),
        # Every row's target is its middle column; which one does not change the work.
        "cross_entropy": (lambda x: F.cross_entropy(x, targets(x), reduction="none"), 1),
    }
    if subject.what not in known:
        raise UnsupportedError(f"no kernel for {subject.what!r}: expected one of {', '.join(known)}")
    return known[subject.what]
