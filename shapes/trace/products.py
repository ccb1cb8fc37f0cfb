"""From one dispatched operator to one product in BLAS order, and from backward products to the canonical orientation.

A product and its transpose are the same GEMM to cuBLAS (C^T = B^T A^T, operands swapped). Torch's formulas give a
weight's gradient as [out, in] for ``linear`` and [in, out] for GPT-2's Conv1D; here every weight gradient is reported
as m = out, n = in, k = tokens, every product with a weight has the tokens in m (forward, dgrad), and the layout is
transposed with it. The gradient of an activation keeps the orientation in which that activation lies in memory.
"""

from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

from shapes.frozen import Pair, frozen, replace
from shapes.operators.types import Layout

from .dimensions import NAMES

#: Tensor identity that survives views and transposes and tells apart the chunks of a fused projection.
TensorId = Pair


def dtype_name(dtype: torch.dtype) -> str:
    """The field's name of ``dtype``; torch's own name for one that no product runs in (int64, bool)."""
    name = str(dtype).removeprefix("torch.")
    return str(NAMES["dtypes"].get(name, name))


def identity(tensor: Tensor) -> TensorId:
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset())


@frozen
class Product:
    """C[m,n] = A[m,k] B[k,n], ``batch`` times; ``a_along_k`` / ``b_along_k``: that operand is contiguous along k."""

    m: int
    n: int
    k: int
    batch: int
    a: TensorId
    b: TensorId
    a_along_k: bool
    b_along_k: bool
    dtype: str
    out_dtype: str
    kind: Literal["gemm", "bmm", "conv", "grouped"]
    ragged: Literal["m", "k"] = "m"

    @property
    def layout(self) -> Layout:
        return ("t" if self.b_along_k else "n") + ("n" if self.a_along_k else "t")  # type: ignore[return-value] # two of two letters

    def transposed(self) -> "Product":
        """C^T[n,m] = B^T[n,k] A^T[k,m]."""
        return replace(self, m=self.n, n=self.m, a=self.b, b=self.a, a_along_k=self.b_along_k, b_along_k=self.a_along_k)

    @property
    def linear(self) -> "Product":
        """With a weight: a batch of one, as torch.einsum runs projections by heads, is a plain product."""
        return replace(self, kind="gemm") if (self.kind, self.batch) == ("bmm", 1) else self


def _along_last(tensor: Tensor) -> bool:
    # A dimension of size 1 has an arbitrary stride: the other one decides.
    rows, columns = tensor.stride()[-2:]
    return columns == 1 or tensor.shape[-1] == 1 or (rows != 1 and tensor.shape[-2] != 1)


def matrix_product(a: Tensor, b: Tensor, out: Tensor) -> Product:
    """mm and bmm alike: A[..., m, k] B[..., k, n]."""
    return Product(
        a.shape[-2],
        b.shape[-1],
        a.shape[-1],
        a.shape[0] if a.dim() == 3 else 1,
        identity(a),
        identity(b),
        _along_last(a),
        not _along_last(b),
        dtype_name(a.dtype),
        dtype_name(out.dtype),
        "bmm" if a.dim() == 3 else "gemm",
    )


def grouped_product(a: Tensor, b: Tensor, out: Tensor) -> Product:
    """``_grouped_mm``: 2D x 3D has ragged rows, 2D x 2D a ragged k (its result is 3D), 3D x 2D ragged columns."""
    base = replace(matrix_product(a, b, out), batch=1, kind="grouped")
    if a.dim() == 2 and b.dim() == 3:
        return replace(base, batch=b.shape[0])
    if a.dim() == 2:
        return replace(base, batch=out.shape[0], ragged="k")
    if b.dim() == 2:
        return replace(base, batch=a.shape[0]).transposed()
    return replace(base, batch=a.shape[0], kind="bmm")


def convolution_product(inputs: Tensor, weight: Tensor, out: Tensor, *, groups: int, transposed: bool) -> Product:
    """A convolution's implicit GEMM: m = batch x output positions, n = channels out, k = channels in x kernel.

    A grouped (depthwise) convolution is ``batch`` = groups products. A transposed convolution multiplies each *input*
    position with the kernel. Layout: as a linear layer over the unfolded patches.
    """
    positions = (inputs if transposed else out).shape
    rows = positions[0] * prod(positions[2:]) if len(positions) == weight.dim() else prod(positions[1:])
    kernel = prod(weight.shape[2:])
    if transposed:
        n, k = weight.shape[1] * kernel, weight.shape[0] // groups
    else:
        n, k = weight.shape[0] // groups, weight.shape[1] * kernel
    ids, dtypes = (identity(inputs), identity(weight)), (dtype_name(weight.dtype), dtype_name(out.dtype))
    return Product(rows, n, k, groups, *ids, True, True, *dtypes, "conv")  # both operands lie along k


_PRODUCTS = NAMES["products"]
#: The function that reads each kind of product; "vector" is a matrix, or a vector, times a vector.
_READERS = {
    "matrix": matrix_product,
    "vector": lambda a, b, out: matrix_product(a if a.dim() == 2 else a.unsqueeze(0), b.unsqueeze(-1), out),
    "grouped": grouped_product,
}


def is_product(operator: str) -> bool:
    """Whether the dispatched ``operator`` is a product or convolution that :func:`read_product` reads."""
    return operator in _PRODUCTS


def read_product(operator: str, arguments: Sequence[Any], out: Any) -> tuple[Product, Tensor, Tensor]:
    """The product, and its operands A and B."""
    kind, position = _PRODUCTS[operator]
    a, b = arguments[position : position + 2]
    if kind == "convolution":
        return convolution_product(a, b, out, groups=arguments[8], transposed=arguments[6]), a, b
    product = _READERS[kind](a, b, out)
    return (product, b, a) if kind == "grouped" and a.dim() == 3 and b.dim() == 2 else (product, a, b)


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors among the leaves of nested containers."""
    if isinstance(tree, Tensor):
        return [tree]
    # torch's pytree takes ten times as long, and this is asked of every operator.
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [*chain.from_iterable(map(tensors_in, parts))]
