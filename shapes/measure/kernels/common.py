"""What every kernel needs: dtypes, random inputs, error bounds and relative errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from shapes.frozen import frozen
from shapes.measure.backend import Backend, Call


class UnsupportedError(RuntimeError):
    """No kernel here does this work: a recorded outcome, not a failure."""


@frozen
class Plan:
    """How one piece of work is run. ``inputs`` makes the tensors of one call; ``call`` makes a callable over them.

    ``check`` runs it on them and returns the relative error against a wider type, at most ``bound`` of a right kernel.
    ``set_bytes``: what one call touches. ``most_sets``: of inputs, where most of what a call reads is the same in each.
    ``capturable``: may be replayed from a graph. ``check_each``: so cheap that every shape is checked.
    """

    name: str
    inputs: Callable[[], tuple[Any, ...]]
    call: Callable[..., Call]
    check: Callable[..., float]
    bound: float
    set_bytes: int
    capturable: bool = True
    check_each: bool = False
    most_sets: int | None = None


#: Largest ‖out - fp32‖ / ‖fp32‖ of a right kernel by dtype: several times its rounding error (2**-9 for bf16's 8 bits,
#: 2**-12 fp16, 2**-12 tf32), well under what a wrong element or a skipped tile leaves. fp8's inputs are compared after
#: their rounding, so its bound holds bf16 output and Hopper's 14-bit accumulation. int8 products are exact.
ERROR_BOUNDS: dict[str, float] = {
    "fp64": 1e-5,
    "fp32": 1e-5,
    "tf32": 3e-3,
    "bf16": 1e-2,
    "fp16": 2e-3,
    "fp8": 2e-2,
    "int8": 1e-6,
}


def torch_dtype(name: str) -> Any:
    """torch's type for a dtype's name; tf32 is float32 in memory."""
    import torch

    types = {
        "fp64": torch.float64,
        "fp32": torch.float32,
        "tf32": torch.float32,
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
        "fp8": torch.float8_e4m3fn,
        "int8": torch.int8,
    }
    if name not in types:
        raise UnsupportedError(f"torch has no plain type for {name}")
    return types[name]


def generator(backend: Backend, seed: int) -> Any:
    import torch

    return torch.Generator(device=backend.device).manual_seed(seed)


#: What `normal` makes.
INPUTS = "normal inputs (int8: uniform)"


def normal(shape: tuple[int, ...], dtype: str, source: Any, *, scale: float = 1.0) -> Any:
    """Random normal values: zeros and constants run faster, as they toggle fewer wires."""
    import torch

    if dtype == "int8":
        return torch.randint(-128, 128, shape, dtype=torch.int8, device=source.device, generator=source)
    kind = torch_dtype(dtype)
    draw = kind if kind.itemsize > 1 else torch.bfloat16
    values = torch.empty(shape, dtype=draw, device=source.device).normal_(0.0, scale, generator=source)
    return values.to(kind)


def relative_error(out: Any, reference: Any) -> float:
    """‖out - reference‖ / ‖reference‖ in fp64; not a number where either holds one."""
    wide = reference.double()
    return float((out.double() - wide).norm() / wide.norm())


#: Gradients this much smaller than the largest are not compared.
NEGLIGIBLE = 1e-3


def largest_error(
    got: tuple[Any, Any], want: tuple[Any, Any], inputs: Sequence[Any], wide_inputs: Sequence[Any]
) -> float:
    """Largest `relative_error` of an output, and of its gradients by ``inputs``, as far as ``want`` reaches.

    ``got``, ``want``: (output, the gradient that came to it).
    """
    import torch

    pairs = [(got[0], want[0])]
    if inputs:
        with fp32_products(allow_tf32=False):
            wanted = torch.autograd.grad(want[0], wide_inputs, want[1])
        mine = torch.autograd.grad(got[0], inputs, got[1])
        # Some gradients are zero but for rounding (a key bias shifts all scores alike): nothing to compare.
        largest = max(float(two.norm()) for two in wanted)
        pairs += [(one, two) for one, two in zip(mine, wanted, strict=True) if two.norm() > NEGLIGIBLE * largest]
    return float(
        np.max([relative_error(one[tuple(map(slice, two.shape))].detach(), two.detach()) for one, two in pairs])
    )


@contextmanager
def fp32_products(allow_tf32: bool) -> Iterator[None]:
    """fp32 products in full precision, or through tf32 units, whatever the process had set."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allow_tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def in_precision(dtype: str, call: Callable[[], object]) -> Callable[[], object]:
    """``call`` with tf32 on for tf32 and off for fp32; other dtypes run as they are.

    The switch costs under a microsecond of host time, and none on a device that works from a queue.
    """
    if dtype not in ("fp32", "tf32"):
        return call

    def run() -> object:
        with fp32_products(dtype == "tf32"):
            return call()

    return run
