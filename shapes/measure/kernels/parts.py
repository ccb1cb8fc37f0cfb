"""Parts of a model run whole: its MLP, one layer, or the last norm with head and loss, as plain torch modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shapes.measure.backend import Backend
from shapes.measure.jobs import Part
from shapes.measure.kernels.common import (
    ERROR_BOUNDS,
    UnsupportedError,
    fp32_products,
    generator,
    in_precision,
    normal,
    relative_error,
    rotation,
    torch_dtype,
)
from shapes.measure.timer import Kernel

#: Errors of a few products in a row add up, and gradients cancel: several times one product's bound.
CHAIN_SLACK = 5.0
#: Gradients this much smaller than the largest are not compared.
NEGLIGIBLE = 1e-3
#: Rows of the input that the check runs: whole sequences of at most this length.
CHECKED_ROWS = 512


def part(subject: Part, backend: Backend, seed: int) -> Kernel:
    """``subject`` forward, or forward and backward with gradients of weights and input, as one training step makes."""
    import torch

    from shapes.measure.kernels.modules import module_of

    dtype = subject.workload.dtype
    if dtype not in ("bf16", "fp16", "fp32", "tf32"):
        raise UnsupportedError(f"whole parts run in bf16, fp16, fp32 or tf32, not {dtype}")
    if subject.workload.t * subject.workload.e > 1:
        raise UnsupportedError("a part split over devices cannot run on one")
    torch.manual_seed(seed)
    with torch.device(backend.device):
        module = module_of(subject).to(torch_dtype(dtype))
    source = generator(backend, seed)
    shape = (subject.workload.b, subject.workload.s, subject.model.hidden)
    sets, flush = rotation(_bytes(module, shape), backend)
    # Weights are the bulk of what a step reads and are the same in each: only the inputs rotate.
    inputs = [(normal(shape, dtype, source), normal(shape, dtype, source)) for _ in range(min(sets, 4))]
    run = torch.compile(module) if subject.compiled else module
    train = subject.direction != "forward"
    calls = tuple(in_precision(dtype, _call(module, run, x, gradient, train)) for x, gradient in inputs)
    return Kernel(
        calls=calls,
        check=lambda: _check(module, run, shape, dtype, source, train),
        bound=CHAIN_SLACK * ERROR_BOUNDS[dtype],
        set_bytes=_bytes(module, shape),
        name=f"{subject.part} {subject.direction} {dtype}",
        capturable=False,
        needs_flush=flush and sets == 1,
        check_each=True,
        holds=(module, inputs),
    )


def _bytes(module: Any, shape: tuple[int, int, int]) -> int:
    weights = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
    element = next(module.parameters()).element_size()
    return int(weights + 2 * shape[0] * shape[1] * shape[2] * element)


def _call(module: Any, run: Any, x: Any, gradient: Any, train: bool) -> Callable[[], object]:
    import torch

    if not train:

        def forward() -> object:
            with torch.no_grad():
                return run(x)

        return forward
    x.requires_grad_(True)
    weights = list(module.parameters())

    def step() -> object:
        out = run(x)
        return torch.autograd.grad(out, [x, *weights], gradient if out.shape == gradient.shape else None)

    return step


def _check(module: Any, run: Any, shape: tuple[int, int, int], dtype: str, source: Any, train: bool) -> float:
    """Relative error of output and gradients against an fp32 copy, on one sequence of at most 512 rows."""
    import copy

    import torch

    x = normal((1, min(shape[1], CHECKED_ROWS), shape[2]), dtype, source).requires_grad_(train)
    wide = copy.deepcopy(module).to(torch.float32)
    wide_x = x.detach().to(torch.float32).requires_grad_(train)
    with torch.set_grad_enabled(train):
        out: Any = in_precision(dtype, lambda: run(x))()
        with fp32_products(allow_tf32=False):
            want = wide(wide_x)
    errors = [relative_error(out.detach(), want.detach())]
    if train:
        gradient = torch.ones_like(want) if want.dim() == 0 else normal(tuple(want.shape), dtype, source)
        mine = torch.autograd.grad(out, [x, *module.parameters()], gradient.to(out.dtype))
        with fp32_products(allow_tf32=False):
            wanted = torch.autograd.grad(want, [wide_x, *wide.parameters()], gradient.to(torch.float32))
        # Some gradients are zero but for rounding (a key bias shifts all scores alike): nothing to compare.
        largest = max(float(two.norm()) for two in wanted)
        pairs = zip(mine, wanted, strict=True)
        errors += [relative_error(one, two) for one, two in pairs if float(two.norm()) > NEGLIGIBLE * largest]
    return max(errors)
