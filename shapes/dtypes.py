"""Element types by the names the field uses, their sizes, and sizes as kernels take them."""

from typing import Any

from .errors import one_of

#: Bytes an element takes in memory. tf32 is fp32 in memory: only the multiplier is narrower. Scales of blocks are left
#: out; half a byte counts as a whole one here, in products that arithmetic bounds.
BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "mxfp8": 1, "mxfp4": 1, "nvfp4": 1, "int8": 1}
DTYPES = tuple(BYTES)

#: Element types that a recipe quantises 16-bit tensors to (shapes.recipes); products in them write 16 bits.
QUANTISED = ("fp8", "mxfp8", "mxfp4", "nvfp4", "int8")
#: Bytes of an MXFP4 weight with its share of a scale, and how many share one.
MXFP4_BYTES, MXFP4_BLOCK = 0.5 + 1 / 32, 32


def dtype_bytes(dtype: str) -> int:
    """Bytes per element of ``dtype``; an unknown name is an InputError that lists the known ones."""
    one_of(dtype, BYTES, "dtype")
    return BYTES[dtype]


def next_multiple(value: Any, step: Any) -> Any:
    """The least multiple of ``step`` that is no less than ``value``; of columns and arrays, too."""
    return -(-value // step) * step
