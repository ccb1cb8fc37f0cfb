"""Parts that every kernel needs: dtypes, random inputs, error bounds and relative errors."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from shapes.frozen import Ints, Items, frozen
from shapes.measure.backend import Call
from shapes.toml_table import DATA, content


class UnsupportedError(RuntimeError):
    """No kernel here does this work: a recorded outcome, not a failure."""


@frozen
class Plan:
    """How one piece of work is run. ``inputs`` makes the tensors of one call; ``call`` makes a callable over them.

    ``check`` runs it on them and returns the relative error against a wider type, at most ``bound`` of a right kernel.
    ``set_bytes``: what one call touches. ``most_sets``: of inputs, where most of what a call reads is the same in each.
    ``capturable``: may be replayed from a graph.
    """

    name: str
    inputs: Callable[[], Items]
    call: Callable[..., Call]
    check: Callable[..., float]
    bound: float
    set_bytes: int
    capturable: bool = True
    most_sets: int | None = None


#: By element type torch's name of it, and the largest ‖out - fp32‖ / ‖fp32‖ of a right kernel.
DTYPES = content(DATA / "timing.toml")["dtypes"]


def torch_dtype(name: str) -> Any:
    """torch's type for a dtype's name."""
    if name not in DTYPES:
        raise UnsupportedError(f"torch has no plain type for {name}")
    return getattr(torch, DTYPES[name]["torch"])


def error_bound(name: str) -> float:
    """The largest relative error of a right kernel."""
    return float(DTYPES[name]["error"])


def normal(shape: Ints, dtype: str, source: Any) -> Any:
    """Random normal values: zeros and constants run faster, as they toggle fewer wires."""
    if dtype == "int8":
        return torch.randint(-128, 128, shape, dtype=torch.int8, device=source.device, generator=source)
    kind = torch_dtype(dtype)
    draw = kind if kind.itemsize > 1 else torch.bfloat16
    return torch.empty(shape, dtype=draw, device=source.device).normal_(generator=source).to(kind)


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
