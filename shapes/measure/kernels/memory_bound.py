"""Norms, softmax, cross-entropy, activations and residual additions, as torch runs them, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shapes.measure.backend import Backend
from shapes.measure.jobs import MemoryBound
from shapes.measure.kernels.common import ERROR_BOUNDS, UnsupportedError, generator, normal, relative_error, rotation
from shapes.measure.timer import Kernel

Function = Callable[..., Any]


def memory_bound(subject: MemoryBound, backend: Backend, seed: int) -> Kernel:
    """``subject.what`` over [rows, columns]; "dgrad" is its backward, of a forward that ran before."""
    if subject.dtype not in ("bf16", "fp16", "fp32", "fp64"):
        raise UnsupportedError(f"no {subject.what} kernel for {subject.dtype}")
    if subject.what == "residual" and subject.phase != "forward":
        raise UnsupportedError("an addition hands its gradient on unchanged: nothing runs")
    function, inputs = _functions(subject)
    source = generator(backend, seed)
    sets, flush = rotation(subject.bytes, backend)
    groups = [_inputs(subject, inputs, source) for _ in range(sets)]
    make = _forward if subject.phase == "forward" else _backward
    return Kernel(
        calls=tuple(make(function, *group) for group in groups),
        check=lambda: _check(function, *groups[0]),
        bound=ERROR_BOUNDS[subject.dtype],
        set_bytes=subject.bytes,
        name=f"{subject.what} {subject.phase} {subject.dtype}",
        capturable=subject.phase == "forward",
        needs_flush=flush,
        holds=(groups,),
    )


def _functions(subject: MemoryBound) -> tuple[Function, int]:
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


def _inputs(subject: MemoryBound, count: int, source: Any) -> tuple[list[Any], Any]:
    """The inputs and the output's gradient."""
    tensors = [normal((subject.rows, subject.columns), subject.dtype, source) for _ in range(count)]
    shape = (subject.rows,) if subject.what == "cross_entropy" else (subject.rows, subject.columns)
    if subject.phase != "forward":
        for tensor in tensors:
            tensor.requires_grad_(True)
    return tensors, normal(shape, subject.dtype, source)


def _forward(function: Function, inputs: list[Any], gradient: Any) -> Callable[[], object]:
    return lambda: function(*inputs)


def _backward(function: Function, inputs: list[Any], gradient: Any) -> Callable[[], object]:
    import torch

    out = function(*inputs)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def _check(function: Function, inputs: list[Any], gradient: Any) -> float:
    """Relative error of outputs (forward) or input gradients (backward) against the same function in fp32 or fp64."""
    import torch

    dtype = torch.float32 if inputs[0].dtype.itemsize == 2 else torch.float64
    wide = [tensor.detach().to(dtype).requires_grad_(tensor.requires_grad) for tensor in inputs]
    out, reference = function(*inputs), function(*wide)
    if not inputs[0].requires_grad:
        return relative_error(out, reference)
    mine = torch.autograd.grad(out, inputs, gradient)
    want = torch.autograd.grad(reference, wide, gradient.to(dtype))
    return max(relative_error(one, two) for one, two in zip(mine, want, strict=True))
