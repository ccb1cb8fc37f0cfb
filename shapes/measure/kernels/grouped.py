"""A layer's experts as one grouped product (torch._grouped_mm), or as a loop of plain ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shapes.measure.backend import Backend
from shapes.measure.kernels.common import ERROR_BOUNDS, UnsupportedError, generator, normal, relative_error, rotation
from shapes.measure.timer import Kernel
from shapes.operators import GroupedGemm

#: Rows of a group, in elements, are rounded to this, as routers pad them: 16-byte strides of 2-byte elements.
GROUP_MULTIPLE = 8


def group_sizes(total: int, groups: int, load: float) -> tuple[int, ...]:
    """How many of ``total`` rows each group gets: the first ``load`` times the mean, the rest evenly.

    Sizes are multiples of 8 as far as ``total`` allows; the last group takes what remains.

    >>> group_sizes(64, 4, 1.0)
    (16, 16, 16, 16)
    >>> group_sizes(64, 4, 2.0)
    (32, 8, 8, 16)
    """
    if groups == 1:
        return (total,)
    first = min(total, int(total / groups * load) // GROUP_MULTIPLE * GROUP_MULTIPLE)
    rest = (total - first) // (groups - 1) // GROUP_MULTIPLE * GROUP_MULTIPLE
    sizes = [first] + [rest] * (groups - 1)
    sizes[-1] += total - sum(sizes)
    return tuple(sizes)


def grouped_gemm(operator: GroupedGemm, kernel: str, backend: Backend, seed: int) -> Kernel:
    """Each group's product in the operator's layout. ``kernel``: grouped_mm (default where torch has it) or loop."""
    import torch

    if operator.dtype not in ("bf16", "fp16", "fp32"):
        raise UnsupportedError(f"no grouped product for {operator.dtype}")
    native = getattr(torch, "_grouped_mm", None)
    kernel = kernel or ("grouped_mm" if native is not None else "loop")
    if kernel not in ("grouped_mm", "loop"):
        raise UnsupportedError(f"no grouped kernel {kernel!r}: expected grouped_mm or loop")
    if kernel == "grouped_mm" and native is None:
        raise UnsupportedError("this torch has no grouped product")
    source = generator(backend, seed)
    total = operator.m if operator.ragged == "m" else operator.k
    sizes = group_sizes(total, operator.groups, operator.load)
    sets, flush = rotation(operator.bytes, backend)
    pairs = [_operands(operator, source) for _ in range(sets)]
    ends = torch.tensor(sizes, device=source.device).cumsum(0).to(torch.int32)

    def call(a: Any, b: Any) -> Callable[[], Any]:
        if kernel == "loop":
            return lambda: _loop(operator, sizes, a, b)
        return lambda: native(a, b, offs=ends)  # type: ignore[misc]  # None was refused above

    return Kernel(
        calls=tuple(call(a, b) for a, b in pairs),
        check=lambda: _check(operator, sizes, call(*pairs[0])(), *pairs[0]),
        bound=ERROR_BOUNDS[operator.dtype],
        set_bytes=operator.bytes,
        name=f"grouped {kernel} ragged {operator.ragged} {operator.layout} {operator.dtype}",
        needs_flush=flush,
        holds=(pairs, ends),
    )


def _operands(operator: GroupedGemm, source: Any) -> tuple[Any, Any]:
    """ragged m: A [m, k], B [groups, k, n]; ragged k: A [m, k] and B [k, n], both over all groups' k."""
    lead = (operator.groups,) if operator.ragged == "m" else ()
    b_layout, a_layout = operator.layout
    a_shape = (operator.m, operator.k) if a_layout == "n" else (operator.k, operator.m)
    b_shape = (operator.k, operator.n) if b_layout == "n" else (operator.n, operator.k)
    a, b = normal(a_shape, operator.dtype, source), normal((*lead, *b_shape), operator.dtype, source)
    return (a if a_layout == "n" else a.mT), (b if b_layout == "n" else b.mT)


def _loop(operator: GroupedGemm, sizes: tuple[int, ...], a: Any, b: Any) -> list[Any]:
    if operator.ragged == "m":
        return [rows @ b[group] for group, rows in enumerate(a.split(sizes))]
    return [left @ right for left, right in zip(a.split(sizes, dim=1), b.split(sizes), strict=True)]


def _check(operator: GroupedGemm, sizes: tuple[int, ...], out: Any, a: Any, b: Any) -> float:
    import torch

    wide = torch.float64 if operator.dtype == "fp32" else torch.float32
    want = _loop(operator, sizes, a.to(wide), b.to(wide))
    parts = out if isinstance(out, list) else (out.split(sizes) if operator.ragged == "m" else list(out))
    return max(relative_error(one, two) for one, two in zip(parts, want, strict=True) if two.numel())
