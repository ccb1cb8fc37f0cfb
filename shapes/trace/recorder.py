"""The dispatch mode that turns what torch runs into operators, forward and backward.

A backward operator runs inside an autograd node, and a node carries the sequence number it got in the forward pass.
So every backward operator is led back to the product it differentiates, and with it to a module; and its phase follows
from which operand of that product the formula still needs: the weight gives dgrad, the activation wgrad.
"""

from bisect import bisect_right
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from shapes.frozen import Sizes, frozen, replace
from shapes.operators.types import Gemm, GroupedGemm, Operator, Operators, Phase

from .dimensions import NAMES
from .products import Product, grouped_product, is_product, read_product, tensors_in
from .repeats import FoldedNames, Follower


@frozen
class _Forward:
    """A product of the forward pass in canonical orientation (the weight, if any, is operand B)."""

    name: str
    times: int
    product: Product
    weight: bool


class Recorder(Follower):  # type: ignore[no-untyped-call] # as its base
    """Counts products and attention cores while active; :meth:`operators` then gives them, equal ones merged.

    ``stands_for``: path of a layer -> how many layers its operators count for (1 elsewhere).
    """

    def __init__(self, module: nn.Module, stands_for: Sizes) -> None:
        self.names = FoldedNames(module)
        super().__init__(self.names.of_module)
        self._stands_for = {id(module.get_submodule(path)): times for path, times in stands_for.items()}
        self.opaque = set[str]()
        self._rows = Counter[Operator]()
        self._forwards = dict[int | None, _Forward]()
        self._places = [("", 1)]
        self._place_numbers = [0]
        # Weights by storage: parameters, and what was computed from parameters alone by the first of them. The values
        # keep the storages alive, so that an address is never taken for another tensor's.
        self._weights: dict[int, tuple[int | None, object]] = {
            (storage := parameter.untyped_storage())._cdata: (id(parameter), storage)
            for parameter in module.parameters()
        }

    @property
    def _times(self) -> int:
        return next((self._stands_for[id(m)] for m in self.stack if id(m) in self._stands_for), 1)

    def _mark(self) -> None:
        number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined] # the profiler's own, unlisted
        place = self.where, self._times
        if self._place_numbers[-1] == number:
            self._places[-1] = place
        else:
            self._place_numbers.append(number)
            self._places.append(place)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = self.run(func, args, kwargs)
        name = func._schema.name
        if is_product(name):
            self._product(*read_product(name, args, out))
        elif name == "aten::convolution_backward":
            self._convolution_backward(args[-1])
        elif name == "transformers::grouped_mm_fallback_backward":
            # transformers 5's grouped product where torch has none (2.6): one call for both gradients.
            where, times, _ = self.place()
            called = self.names.of_product(self._weight(args[1]), where)
            self._gradients(_Forward(called, times, grouped_product(args[0], args[1], args[3]), weight=True))
        elif func.namespace not in NAMES["operators"]["seen_through"]:
            self.opaque.add(name)
        self._taint(func, args, kwargs, out)
        return out

    def place(self) -> tuple[str, int, int | None]:
        """(module path, times, sequence number) of the running operator; the number is None outside the backward."""
        node = torch._C._current_autograd_node()  # its stub says there always is one
        if not node:
            return self.where, self._times, None
        number = node._sequence_nr()
        if number >= 2**63:  # AccumulateGrad: of no forward operator
            return "", 1, number
        name, times = self._places[bisect_right(self._place_numbers, number) - 1]
        return name, times, number

    def add(self, operator: Operator, times: int) -> None:
        self._rows[operator] += times

    def _weight(self, tensor: Tensor) -> int | None:
        return self._weights.get(tensor.untyped_storage()._cdata, (None,))[0]

    def _product(self, product: Product, a: Tensor, b: Tensor) -> None:
        where, times, number = self.place()
        if number is not None:
            self._backward(product, where, times, number)
            return
        first, parameter = self._weight(a), self._weight(b)
        if first and not parameter and product.kind != "conv":
            product, parameter = product.transposed(), first
        if parameter:
            product = product.linear
        name = self.names.of_product(parameter, where)
        if torch.is_grad_enabled():
            # The node was made just before its operator was dispatched.
            made = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
            self._forwards[made] = _Forward(name, times, product, parameter is not None)
        self._emit(name, "forward", product, times)

    def _backward(self, product: Product, where: str, times: int, number: int) -> None:
        forward = self._forwards.get(number)
        if not forward:
            self._emit(where, "dgrad", product, times)
            return
        of_a = _differentiates_a(product, forward.product)
        self._gradients(forward, data=of_a, weight=not of_a)

    def _gradients(self, forward: _Forward, *, data: bool = True, weight: bool = True) -> None:
        """A product's gradients: a weight's as [out, in], an activation's in its memory layout."""
        product, own = forward.product, forward.weight
        if data:
            # dA = dC B^T of a product in canonical orientation: (m, k, n), tokens in the rows.
            along = not product.b_along_k
            found = replace(product, n=product.k, k=product.n, a_along_k=True, b_along_k=along, ragged="m")
            self._emit(forward.name, "dgrad", found if own or product.a_along_k else found.transposed(), forward.times)
        if weight:
            # dB^T = dC^T A: (n, k, m), the tokens summed over.
            sizes = {"m": product.n, "n": product.k, "k": product.m}
            found = replace(product, **sizes, a_along_k=False, b_along_k=False, ragged="k")
            found = found if own or product.b_along_k else found.transposed()
            self._emit(forward.name, "wgrad" if own else "dgrad", found, forward.times)

    def _convolution_backward(self, output_mask: list[bool]) -> None:
        forward = self._forwards.get(self.place()[2])
        if not forward:
            self.opaque.add("aten::convolution_backward of a convolution that was not seen")
            return
        self._gradients(forward, data=output_mask[0], weight=output_mask[1])

    def _emit(self, name: str, phase: Phase, product: Product, times: int) -> None:
        if min(product.m, product.n, product.k, product.batch) == 0:
            return
        shared = {key: getattr(product, key) for key in ("m", "n", "k", "dtype", "layout")}
        shared |= {"name": name, "phase": phase}
        out_dtype = None if product.out_dtype == product.dtype else product.out_dtype
        operator = (
            GroupedGemm(groups=product.batch, ragged=product.ragged, **shared)
            if product.kind == "grouped"
            else Gemm(batch=product.batch, kind=product.kind, out_dtype=out_dtype, **shared)
        )
        self.add(operator, times)

    def _taint(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if torch._C._current_autograd_node() is not None:
            return
        found = [*map(self._weight, tensors_in((args, kwargs)))]
        # Only what is computed from parameters alone in the forward pass is a weight: a cast, a scale, a stack.
        if not found or not all(found) or "empty" in func._schema.name:
            return
        for tensor in tensors_in(out):
            storage = tensor.untyped_storage()
            self._weights.setdefault(storage._cdata, (found[0], storage))

    def operators(self) -> Operators:
        """The recorded operators, in the order first met."""
        return tuple(replace(operator, count=count) for operator, count in self._rows.items())


def _differentiates_a(product: Product, forward: Product) -> bool:
    """Whether a backward product is the gradient of the forward's operand A (it then still needs B)."""
    operands = product.a, product.b
    has_a, has_b = forward.a in operands, forward.b in operands
    if has_a != has_b:
        return has_b
    # Neither is recognised (both were copied): dA sums over n, dB over m.
    if forward.n != forward.m:
        return product.k == forward.n
    return {product.m, product.n} == {forward.m, forward.k}
