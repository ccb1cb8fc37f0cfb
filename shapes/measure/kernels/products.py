"""Matrix products in their real layouts: mm, bmm, fp8 _scaled_mm, int8 _int_mm.

A layer's experts run as one grouped product (torch._grouped_mm) or as a loop of plain ones.
"""

from typing import Any

import torch

from shapes.frozen import Ints
from shapes.measure.backend import Call
from shapes.measure.jobs import EXPERTS
from shapes.operators.types import Gemm, GroupedGemm

from .common import (
    Plan,
    UnsupportedError,
    error_bound,
    fp32_products,
    in_precision,
    normal,
    relative_error,
    torch_dtype,
)

#: Rows of C that are compared with fp32: enough to meet every column and k, cheap at any m.
CHECKED_ROWS = 32
#: Rows of a group, in elements, are rounded to this, as routers pad them: 16-byte strides of 2-byte elements.
GROUP_MULTIPLE = 8


def gemm(operator: Gemm, kernel: str, source: Any) -> Plan:
    """C = A B with A and B stored as ``operator.layout`` says and C along n (see shapes.operators.types)."""
    if operator.kind == "conv":
        raise UnsupportedError("a convolution's implicit product does not run as a matrix product")
    if operator.weight_bytes is not None:
        raise UnsupportedError("torch has no product of quantised weights")
    dtype = operator.dtype
    if kernel not in (("", "fast_accum", "precise_accum") if dtype == "fp8" else ("",)):
        raise UnsupportedError(f"no kernel {kernel!r} for a {dtype} product")
    if operator.batch > 1 and dtype in ("fp8", "int8"):
        raise UnsupportedError(f"torch has no batched {dtype} product")
    out_dtype = torch_dtype(operator.out_dtype or {"fp8": "bf16"}.get(dtype, dtype))
    if dtype == "int8":
        out_dtype = torch.int32
    return Plan(
        f"{operator.kind} {operator.layout} {dtype}",
        lambda: _operands(operator, source, out_dtype),
        lambda *operands: _call(operator, kernel, *operands),
        lambda *operands: _check(operator, kernel, *operands),
        error_bound(dtype if out_dtype.itemsize > 1 else "fp8"),
        operator.bytes,
    )


def _stored(operator: Gemm | GroupedGemm, source: Any, *, batch_a: Ints, batch_b: Ints) -> Any:
    """A [m, k] and B [k, n] under their leading dimensions, lying in memory as the layout says."""
    b_layout, a_layout = operator.layout
    # cuBLAS's first letter is B's: "t" stores it [n, k], along k. A's "n" stores it [m, k], along k.
    pairs = (a_layout, (*batch_a, operator.m, operator.k)), (b_layout, (*batch_b, operator.k, operator.n))
    for layout, (*lead, rows, columns) in pairs:
        if layout == "n":
            yield normal((*lead, rows, columns), operator.dtype, source)
        else:
            yield normal((*lead, columns, rows), operator.dtype, source).mT


def _operands(operator: Gemm, source: Any, out_dtype: Any) -> tuple[Any, Any, Any]:
    lead = (operator.batch,) if operator.batch > 1 or operator.kind == "bmm" else ()
    a, b = _stored(operator, source, batch_a=lead, batch_b=lead)
    return a, b, torch.empty((*lead, operator.m, operator.n), dtype=out_dtype, device=source.device)


def _call(operator: Gemm, kernel: str, a: Any, b: Any, c: Any) -> Call:
    if operator.dtype == "fp8":
        one = torch.ones((), dtype=torch.float32, device=a.device)
        # Training's recipes accumulate fast in the forward product and precisely in the gradients.
        fast = operator.phase == "forward" if not kernel else kernel == "fast_accum"
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=c.dtype, use_fast_accum=fast, out=c)
    if operator.dtype == "int8":
        return lambda: torch._int_mm(a, b, out=c)
    product = torch.bmm if a.dim() == 3 else torch.mm
    return in_precision(operator.dtype, lambda: product(a, b, out=c))


def _check(operator: Gemm, kernel: str, a: Any, b: Any, c: Any) -> float:
    """Relative error of a spread of rows; the whole output must have been written."""
    c.fill_(float("nan") if c.dtype.is_floating_point else -(2**31))
    _call(operator, kernel, a, b, c)()
    if bool((c.isnan() if c.dtype.is_floating_point else c == -(2**31)).any()):
        return float("nan")
    # Evenly spread whole numbers; in fp64, since fp32 cannot count beyond 16 million rows, and so made on the host.
    rows = torch.linspace(0, operator.m - 1, min(operator.m, CHECKED_ROWS), dtype=torch.float64).long().to(a.device)
    # One step wider than the kernel; on a device without fp64 units this is 32 rows only.
    wide = torch.float32 if operator.dtype in ("bf16", "fp16", "fp8") else torch.float64
    # index_select is not written for fp8: bytes are picked instead.
    picked = a.view(torch.uint8)[..., rows, :].view(a.dtype) if operator.dtype == "fp8" else a[..., rows, :]
    with fp32_products(allow_tf32=False):
        reference = picked.to(wide) @ b.to(wide)
    return relative_error(c[..., rows, :], reference)


def group_sizes(total: int, groups: int, load: float) -> Ints:
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
    sizes = [first] + [(total - first) // (groups - 1) // GROUP_MULTIPLE * GROUP_MULTIPLE] * (groups - 1)
    sizes[-1] += total - sum(sizes)
    return tuple(sizes)


def grouped_product(kernel: str) -> Any:
    """torch's grouped product, None for a loop; UnsupportedError where ``kernel``, or this torch, has none."""
    native = getattr(torch, "_grouped_mm", None)
    if kernel not in ("", *EXPERTS) or (native is None and kernel != "loop"):
        raise UnsupportedError(f"refused: no grouped kernel {kernel or EXPERTS[0]} here: loop, or newer torch")
    return None if kernel == "loop" else native


def grouped_gemm(operator: GroupedGemm, kernel: str, source: Any) -> Plan:
    """Each group's product in the operator's layout. ``kernel``: grouped_mm (default where torch has it) or loop.

    ragged m: A [m, k], B [groups, k, n]; ragged k: A [m, k] and B [k, n], both over all groups' k.
    """
    if operator.dtype not in ("bf16", "fp16", "fp32") or operator.weight_bytes is not None:
        raise UnsupportedError(f"no grouped product for {operator.dtype} or quantised weights")
    kernel, native = kernel or EXPERTS[0], grouped_product(kernel)
    rows = operator.ragged == "m"
    sizes = group_sizes(operator.m if rows else operator.k, operator.groups, operator.load)
    ends = torch.tensor(sizes, device=source.device).cumsum(0).to(torch.int32)

    def call(a: Any, b: Any) -> Call:
        if kernel == "loop":
            return lambda: [left @ right for left, right in _pairs(operator, sizes, a, b)]
        return lambda: native(a, b, offs=ends)

    def check(a: Any, b: Any) -> float:
        out: Any = call(a, b)()
        wide = torch.float64 if operator.dtype == "fp32" else torch.float32
        parts = out.split(sizes) if rows and kernel != "loop" else out
        pairs = zip(parts, _pairs(operator, sizes, a, b), strict=True)
        return max(relative_error(one, left.to(wide) @ right.to(wide)) for one, (left, right) in pairs if one.numel())

    return Plan(
        f"grouped {kernel} ragged {operator.ragged} {operator.layout} {operator.dtype}",
        lambda: tuple(_stored(operator, source, batch_a=(), batch_b=(operator.groups,) if rows else ())),
        call,
        check,
        error_bound(operator.dtype),
        operator.bytes,
    )


def _pairs(operator: GroupedGemm, sizes: Ints, a: Any, b: Any) -> Any:
    """Each group's operands."""
    if operator.ragged == "m":
        return zip(a.split(sizes), b, strict=True)
    return zip(a.split(sizes, dim=1), b.split(sizes), strict=True)
