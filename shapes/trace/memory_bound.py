"""Bytes that an operator which is no matrix product moves: each input read once, each output written once."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor
from torch.utils import _pytree

from shapes.trace.products import dtype_name

#: Allocation and bookkeeping: no kernel, or one that writes what the next operator writes again.
_FREE = ("empty", "_unsafe_view", "detach", "lift", "alias", "sym_", "_local_scalar", "is_same_size", "set_")
#: These read only the rows they pick, not the table they pick them from.
_GATHERS = frozenset({"embedding", "index", "index_select", "gather", "take", "slice_scatter", "select_scatter"})


@cache
def _is_free(func: Any) -> bool:
    name = func._schema.name.split("::")[-1]
    if any(word in name for word in _FREE):
        return True
    returns = func._schema.returns
    # A view aliases an argument and writes nothing.
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _size(tensor: Tensor) -> int:
    # An expanded tensor has more elements than bytes in memory.
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def bytes_moved(func: Any, args: Any, kwargs: Any, out: Any) -> tuple[int, int, str] | None:
    """(bytes read, bytes written, dtype of the result), or None for a view, an allocation or an empty result."""
    if _is_free(func):
        return None
    results = [leaf for leaf in _pytree.tree_leaves(out) if isinstance(leaf, Tensor)]
    written = sum(map(_size, results))
    if not written:
        return None
    inputs = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if func._schema.name.split("::")[-1] in _GATHERS:
        return written + sum(map(_size, inputs[1:])), written, dtype_name(results[0].dtype)
    return sum(map(_size, inputs)), written, dtype_name(results[0].dtype)
