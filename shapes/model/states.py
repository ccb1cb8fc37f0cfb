"""Weights, gradients and optimizer states: bytes a parameter, of optimizers whose state depends on shapes by tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

from shapes.dtypes import QUANTISED
from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.model.parameters import ParameterTensor
from shapes.workload import Workload


@frozen
class Precision:
    """Bytes a parameter. ``copies``: kept beside the weights in 16 or 8 bits; ``matrix_copies``: of matrices only."""

    weights: int
    master: int
    gradients: int
    moments: int
    note: str
    copies: int = 0
    matrix_copies: int = 0


#: The book's two conventions for mixed precision are "mixed" (6 + 4 + 8 = 18 with AdamW) and "mixed-16" (16).
PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(4, 0, 4, 4, "everything in fp32"),
    "mixed": Precision(2, 4, 4, 4, "16-bit weights, fp32 master weights and fp32 gradients (18 bytes with AdamW)"),
    "mixed-16": Precision(2, 4, 2, 4, "16-bit weights and gradients, fp32 master weights (16 bytes with AdamW)"),
    "amp": Precision(4, 0, 4, 4, "torch.autocast: fp32 weights, cached 16-bit copies (18 bytes with AdamW)", 2),
    "bf16": Precision(2, 0, 2, 2, "everything in bf16, optimizer states too"),
    "fp8": Precision(2, 4, 4, 4, "Transformer Engine: 16-bit weights, matrices cached in fp8 (and transposed)", 0, 2),
    "fp8-weights": Precision(
        0, 4, 4, 4, "Transformer Engine's fp8_model_init: matrices only in fp8, twice; fp32 master weights", 0, 2
    ),
}

#: bitsandbytes: blocks of 256 share one fp32 absmax, and tensors under 4096 elements keep 32-bit states
#: (`block_wise`, `min_8bit_size` in bitsandbytes/optim/optimizer.py).
EIGHT_BIT_BLOCK, EIGHT_BIT_SMALLEST = 256, 4096


def _eight_bit(tensor: ParameterTensor, moments: int) -> int:
    n = tensor.elements
    if n < EIGHT_BIT_SMALLEST:
        return 8 * n
    return 2 * n + 2 * 4 * -(-n // EIGHT_BIT_BLOCK)


def _factored(tensor: ParameterTensor, moments: int) -> int:
    # A mean over the last axis and one over the one before it, fp32; vectors keep their full second moment.
    if not tensor.is_matrix:
        return 4 * tensor.elements
    *lead, rows, columns = tensor.shape
    return 4 * prod(lead) * (rows + columns)


def _muon(tensor: ParameterTensor, moments: int) -> int:
    # Muon orthogonalises hidden matrices only; embeddings, head and vectors go to AdamW (K. Jordan, muon).
    return (1 if tensor.is_matrix and tensor.role == "block" else 2) * moments * tensor.elements


#: name -> bytes of state of one copy of a tensor; the second argument is the bytes of one moment's element.
OPTIMIZERS: dict[str, Callable[[ParameterTensor, int], int]] = {
    "adamw": lambda tensor, moments: 2 * moments * tensor.elements,
    "adamw-bf16": lambda tensor, moments: 4 * tensor.elements,
    "adamw-8bit": _eight_bit,
    "adamw-master": lambda tensor, moments: 12 * tensor.elements,
    "sgd": lambda tensor, moments: 0,
    "sgd-momentum": lambda tensor, moments: moments * tensor.elements,
    "lion": lambda tensor, moments: moments * tensor.elements,
    "adafactor": _factored,
    "adafactor-momentum": lambda tensor, moments: _factored(tensor, moments) + 4 * tensor.elements,
    "muon": _muon,
}
OPTIMIZER_NOTES: dict[str, str] = {
    "adamw": "two moments",
    "adamw-bf16": "two moments in bf16",
    "adamw-8bit": "two 8-bit moments, an fp32 constant per 256, fp32 for tensors under 4096 elements",
    "adamw-master": "two fp32 moments and an fp32 master weight",
    "sgd": "none",
    "sgd-momentum": "one moment",
    "lion": "one moment",
    "adafactor": "fp32 row and column means of matrices, fp32 second moment of vectors",
    "adafactor-momentum": "adafactor's and an fp32 moment",
    "muon": "one moment for hidden matrices, AdamW's two for the rest",
}


def precision_named(name: str) -> Precision:
    if name not in PRECISIONS:
        raise InputError(f"expected one of {', '.join(PRECISIONS)}", key="precision", value=name)
    return PRECISIONS[name]


def default_precision(workload: Workload) -> str:
    """fp32 trains in fp32, fp8 by Transformer Engine's recipe, 16 bits with fp32 master weights."""
    if workload.dtype in ("fp64", "fp32", "tf32"):
        return "fp32"
    return "fp8" if workload.dtype in QUANTISED else "mixed"


def optimizer_state_bytes(tensors: Iterable[ParameterTensor], optimizer: str, precision: Precision) -> int:
    """Bytes of the optimizer's states; InputError for an unknown optimizer."""
    if optimizer not in OPTIMIZERS:
        raise InputError(f"expected one of {', '.join(OPTIMIZERS)}", key="optimizer", value=optimizer)
    state = OPTIMIZERS[optimizer]
    return sum(tensor.copies * state(tensor, precision.moments) for tensor in tensors)
