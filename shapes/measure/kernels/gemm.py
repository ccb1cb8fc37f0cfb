"""Plain and batched matrix products in their real layouts: mm, bmm, fp8 _scaled_mm, int8 _int_mm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shapes.measure.backend import Backend
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
from shapes.operators import Gemm

#: Rows of C that are compared with fp32: enough to meet every column and k, cheap at any m.
CHECKED_ROWS = 32


def gemm(operator: Gemm, kernel: str, backend: Backend, seed: int) -> Kernel:
    """C = A B with A and B stored as ``operator.layout`` says and C along n (see shapes.operators.types)."""
    import torch

    if operator.kind == "conv":
        raise UnsupportedError("a convolution's implicit product does not run as a matrix product")
    if kernel not in (("", "fast_accum", "precise_accum") if operator.dtype == "fp8" else ("",)):
        raise UnsupportedError(f"no kernel {kernel!r} for a {operator.dtype} product")
    if operator.batch > 1 and operator.dtype in ("fp8", "int8"):
        raise UnsupportedError(f"torch has no batched {operator.dtype} product")
    source = generator(backend, seed)
    sets, flush = rotation(operator.bytes, backend)
    out_dtype = torch_dtype(operator.out_dtype or {"fp8": "bf16"}.get(operator.dtype, operator.dtype))
    if operator.dtype == "int8":
        out_dtype = torch.int32
    operands = [_operands(operator, source, out_dtype) for _ in range(sets)]
    return Kernel(
        calls=tuple(_call(operator, kernel, *each, source.device) for each in operands),
        check=lambda: _check(operator, kernel, *operands[0], source.device),
        bound=ERROR_BOUNDS[operator.dtype] if out_dtype.itemsize > 1 else ERROR_BOUNDS["fp8"],
        set_bytes=operator.bytes,
        name=f"{operator.kind} {operator.layout} {operator.dtype}",
        needs_flush=flush,
        check_each=True,
        holds=tuple(operands),
    )


def _operands(operator: Gemm, source: Any, out_dtype: Any) -> tuple[Any, Any, Any]:
    import torch

    lead = (operator.batch,) if operator.batch > 1 or operator.kind == "bmm" else ()
    b_layout, a_layout = operator.layout
    # cuBLAS's first letter is B's: "t" stores it [n, k], along k. A's "n" stores it [m, k], along k.
    a = normal(
        (*lead, *((operator.m, operator.k) if a_layout == "n" else (operator.k, operator.m))), operator.dtype, source
    )
    b = normal(
        (*lead, *((operator.k, operator.n) if b_layout == "n" else (operator.n, operator.k))), operator.dtype, source
    )
    a = a if a_layout == "n" else a.mT
    b = b if b_layout == "n" else b.mT
    return a, b, torch.empty((*lead, operator.m, operator.n), dtype=out_dtype, device=source.device)


def _call(operator: Gemm, kernel: str, a: Any, b: Any, c: Any, device: Any) -> Callable[[], object]:
    import torch

    if operator.dtype == "fp8":
        one = torch.ones((), dtype=torch.float32, device=device)
        # Training's recipes accumulate fast in the forward product and precisely in the gradients.
        fast = operator.phase == "forward" if not kernel else kernel == "fast_accum"
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=c.dtype, use_fast_accum=fast, out=c)
    if operator.dtype == "int8":
        return lambda: torch._int_mm(a, b, out=c)
    product: Any = torch.bmm if a.dim() == 3 else torch.mm
    return in_precision(operator.dtype, lambda: product(a, b, out=c))


def _check(operator: Gemm, kernel: str, a: Any, b: Any, c: Any, device: Any) -> float:
    """Relative error of a spread of rows; the whole output must have been written."""
    import torch

    c.fill_(float("nan") if c.dtype.is_floating_point else -(2**31))
    _call(operator, kernel, a, b, c, device)()
    unwritten = c.isnan() if c.dtype.is_floating_point else c == -(2**31)
    if bool(unwritten.any()):
        return float("nan")
    # Evenly spread whole numbers; in fp64, since fp32 cannot count beyond 16 million rows, and so made on the host.
    rows: Any = torch.linspace(0, operator.m - 1, min(operator.m, CHECKED_ROWS), dtype=torch.float64).long().to(device)
    # One step wider than the kernel; on a device without fp64 units this is 32 rows only.
    wide = torch.float32 if operator.dtype in ("bf16", "fp16", "fp8") else torch.float64
    # index_select is not written for fp8: bytes are picked instead.
    picked = a.view(torch.uint8)[..., rows, :].view(a.dtype) if operator.dtype == "fp8" else a[..., rows, :]
    with fp32_products(allow_tf32=False):
        reference = picked.to(wide) @ b.to(wide)
    return relative_error(c[..., rows, :], reference)
