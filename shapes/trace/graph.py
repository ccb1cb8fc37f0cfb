"""The graph of products of one forward pass: what each product, attention core and learned vector reads.

Each tensor carries the set of products that it comes from, as bits of an integer. A product with a weight begins a new
set; every other operator unites those of its inputs. So whether an MLP reads what attention wrote, which three
projections feed a core and which vector scales whose output are facts of edges, whatever the modules are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from shapes.errors import InputError
from shapes.operators.types import Attention
from shapes.trace.attention import FusedAttention, core_of
from shapes.trace.inputs import DataAnswers
from shapes.trace.products import convolution_product, identity, is_product, read_product
from shapes.trace.repeats import calls_followed

#: Bits that are no product: what depends on cosines and sines (or on tables of them in buffers), and on the inputs.
TRIGONOMETRY, INPUTS = 1, 2
#: The first product's bit.
FIRST = 2

NodeKind = Literal["gemm", "bmm", "conv", "depthwise", "grouped", "attention", "lookup"]


@dataclass(slots=True)
class Node:
    """One product (C[m,n] = A[m,k] B[k,n], ``batch`` times), attention core, depthwise convolution or table look-up.

    ``reads``: the set of what its activation comes from; a ``core`` has those of ``query``, ``key``, ``value``.
    ``weight`` and ``bias``: paths of the parameters that its second operand and its addend were made of.
    """

    number: int
    kind: NodeKind
    where: str
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 1
    dtype: str = ""
    weight: str | None = None
    bias: str | None = None
    reads: int = 0
    query: int = 0
    key: int = 0
    value: int = 0
    core: Attention | None = None

    @property
    def bit(self) -> int:
        return 1 << self.number


@dataclass(slots=True)
class Scaled:
    """A parameter that an operator other than a product combined with an activation: a norm's weight, a bias."""

    parameter: str
    operator: str
    reads: int


@dataclass(slots=True)
class Rotated:
    """``width`` channels of an activation multiplied by cosines or sines."""

    reads: int
    width: int


@dataclass(slots=True)
class Graph:
    """Nodes in the order in which they ran. ``normed``: the width of each norm, with a weight or without.

    ``problems``: module -> what of its attention mask was not understood.
    """

    parameters: Mapping[str, tuple[int, ...]]
    nodes: list[Node] = field(default_factory=list)
    scaled: list[Scaled] = field(default_factory=list)
    rotated: list[Rotated] = field(default_factory=list)
    normed: list[int] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)

    def of(self, mask: int) -> list[Node]:
        """The nodes of a set, in order."""
        found, number = [], FIRST
        mask >>= FIRST
        while mask:
            skipped = (mask & -mask).bit_length() - 1
            number += skipped
            found.append(self.nodes[number - FIRST])
            mask >>= skipped + 1
            number += 1
        return found


@dataclass(slots=True)
class _Value:
    mask: int
    made_of: frozenset[str]
    activation: bool
    storage: object


class GraphRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no annotation there
    """Builds a ``Graph`` while active; the module's tensors are on the meta device and no gradient is taken."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch has no annotation there
        self.graph = Graph({path: tuple(p.shape) for path, p in module.named_parameters()})
        self._modules = {id(child): path for path, child in module.named_modules()}
        self._stack: list[str] = [""]
        self._values: dict[int, _Value] = {}
        for path, parameter in module.named_parameters():
            self._put(parameter, 0, frozenset({path}), False)
        for buffer in module.buffers():
            if buffer.is_floating_point():
                self._put(buffer, TRIGONOMETRY, frozenset(), False)

    def following(self) -> AbstractContextManager[None]:
        """Follow calls into modules, so that nodes know where they ran."""

        def enter(module: nn.Module, _inputs: Any) -> None:
            self._stack.append(self._modules.get(id(module), self._stack[-1]))

        def leave(_module: nn.Module, _inputs: Any, _output: Any) -> None:
            self._stack.pop()

        return calls_followed(enter, leave)

    @property
    def where(self) -> str:
        """Path of the module that is running."""
        return self._stack[-1]

    def reads_input(self, tensor: Tensor) -> None:
        """``tensor`` is an argument of the model."""
        self._put(tensor, INPUTS, frozenset(), True)

    def attention(
        self,
        out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: bool,
        window: int | None,
        sinks: Tensor | None,
    ) -> None:
        """A fused attention core whose result is ``out``."""
        node = self._node("attention")
        node.query, node.key, node.value = (self._value(one).mask for one in (query, key, value))
        node.core = core_of(node.where, query, key, value, causal=causal, window=window)
        if sinks is not None:
            for path in self._value(sinks).made_of:
                self._scaled(path, "sinks", node.bit)
        self._set(out, node.bit, frozenset(), True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if is_product(name):
            product, a, b = read_product(name, args, out)
            addend = args[0] if name in _WITH_ADDEND else None
            self._product(product, a, b, addend, out)
        elif name in ("aten::convolution", "aten::_convolution"):
            self._convolution(args, out)
        elif name == "aten::embedding":
            self._lookup(args[0], args[1], out)
        else:
            self._other(name, args, kwargs or {}, out)
        return out

    def _convolution(self, args: Any, out: Tensor) -> None:
        inputs, weight, bias, transposed, groups = args[0], args[1], args[2], args[6], args[8]
        product = convolution_product(inputs, weight, out, groups, transposed=transposed)
        if groups > 1 and groups == inputs.shape[1 if inputs.dim() == weight.dim() else 0]:
            value = self._value(inputs)
            node = self._node("depthwise", weight=self._first(weight))
            node.m, node.n, node.k, node.reads = product.m, groups, product.k, value.mask
            node.bias = None if bias is None else self._first(bias)
            self._use(weight, bias)
            self._set(out, value.mask | node.bit, frozenset(), True)
            return
        self._product(product, inputs, weight, bias, out)

    def _lookup(self, table: Tensor, index: Tensor, out: Tensor) -> None:
        made_of = self._value(table).made_of
        if not made_of:
            self._other("aten::embedding", (table, index), {}, out)
            return
        node = self._node("lookup", weight=self._first(table))
        node.reads = self._value(index).mask
        node.m, node.n = index.numel(), table.shape[-1]
        self._use(table)
        self._set(out, node.bit, frozenset(), True)

    def _product(self, product: Any, a: Tensor, b: Tensor, addend: Tensor | None, out: Tensor) -> None:
        first, second = self._value(a), self._value(b)
        if product.kind == "grouped" and product.a != identity(a):
            first, second = second, first
        if not first.activation and second.activation and product.kind != "conv":
            product, first, second = product.transposed(), second, first
        if not first.activation and not second.activation:
            # Of constants and parameters alone (rotary angles): no operator of the step.
            mask = first.mask | second.mask
            self._set(out, mask, first.made_of | second.made_of, False)
            return
        node = self._node(product.kind)
        node.m, node.n, node.k, node.batch = product.m, product.n, product.k, product.batch
        node.dtype = product.dtype
        node.reads = first.mask
        mask = node.bit
        if second.made_of and not second.activation:
            self.graph.used |= second.made_of
            node.weight = min(second.made_of)
        elif second.activation:
            node.kind = "bmm"
            node.reads |= second.mask
            mask |= node.reads
        if addend is not None:
            value = self._value(addend)
            if value.made_of and not value.activation:
                node.bias = self._first(addend)
                self._use(addend)
            else:
                mask |= value.mask
        self._set(out, mask, frozenset(), True)

    def _other(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        outs = [leaf for leaf in _pytree.tree_leaves(out) if isinstance(leaf, Tensor)]
        if not outs:
            return
        tensors = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        values = [self._value(tensor) for tensor in tensors]
        mask, made_of, activation = 0, frozenset[str](), False
        for value in values:
            mask |= value.mask
            made_of |= value.made_of
            activation = activation or value.activation
        short = name.split("::")[-1]
        if short in ("cos", "sin", "polar"):
            mask |= TRIGONOMETRY
        if activation:
            self._combined(short, tensors, values)
            made_of = frozenset()
        if short in _MADE_NEW:
            mask, made_of, activation = 0, frozenset(), False
        for one in outs:
            self._set(one, mask, made_of, activation)

    def _combined(self, operator: str, tensors: list[Tensor], values: list[_Value]) -> None:
        """Notes what an operator on an activation says of norms, learned vectors and rotation."""
        reads = 0
        for value in values:
            if value.activation:
                reads |= value.mask
        if operator in _NORMS:
            self.graph.normed.append(tensors[0].shape[-1] if tensors[0].dim() else 1)
        for tensor, value in zip(tensors, values, strict=True):
            if value.activation:
                continue
            for path in value.made_of:
                self._scaled(path, operator, reads)
            if value.mask & TRIGONOMETRY and operator in ("mul", "mul_"):
                wide = min(tensor.shape[-1], *(one.shape[-1] for one in tensors if one.dim())) if tensor.dim() else 0
                self.graph.rotated.append(Rotated(reads & ~TRIGONOMETRY, wide * (4 if tensor.is_complex() else 1)))

    def _scaled(self, path: str, operator: str, reads: int) -> None:
        self.graph.used.add(path)
        self.graph.scaled.append(Scaled(path, operator, reads))

    def _use(self, *tensors: Tensor | None) -> None:
        for tensor in tensors:
            if tensor is not None:
                self.graph.used |= self._value(tensor).made_of

    def _first(self, tensor: Tensor) -> str | None:
        return min(self._value(tensor).made_of, default=None)

    def _node(self, kind: NodeKind, weight: str | None = None) -> Node:
        node = Node(len(self.graph.nodes) + FIRST, kind, self._stack[-1], weight=weight)
        self.graph.nodes.append(node)
        return node

    def _value(self, tensor: Tensor) -> _Value:
        found = self._values.get(tensor.untyped_storage()._cdata)
        return found if found is not None else _Value(0, frozenset(), False, None)

    def _put(self, tensor: Tensor, mask: int, made_of: frozenset[str], activation: bool) -> None:
        storage = tensor.untyped_storage()
        # The storage is kept alive, so that its address is never taken for another's.
        self._values[storage._cdata] = _Value(mask, made_of, activation, storage)

    def _set(self, tensor: Tensor, mask: int, made_of: frozenset[str], activation: bool) -> None:
        """A result: of a new storage its own set, of one that is written into or viewed united with what it had."""
        before = self._values.get(tensor.untyped_storage()._cdata)
        if before is None:
            self._put(tensor, mask, made_of, activation)
        elif before.activation or activation:
            before.mask |= mask
            before.activation, before.made_of = True, frozenset()
        else:
            before.mask |= mask
            before.made_of |= made_of


#: Products whose first argument is added to the result.
_WITH_ADDEND = frozenset({"aten::addmm", "aten::_addmm_activation", "aten::baddbmm", "aten::addmv", "aten::addbmm"})
#: Operators that take a tensor's shape alone.
_MADE_NEW = frozenset(
    {"empty_like", "new_empty", "zeros_like", "new_zeros", "ones_like", "new_ones", "new_full", "full_like"}
)
#: Operators that run once in a norm.
_NORMS = frozenset({"native_layer_norm", "rsqrt", "_fused_rms_norm", "rms_norm", "native_group_norm"})


#: Keys that a mask is asked about: more than any window.
_MASK_KEYS = 16384
#: Queries that tell a window from a chunk, and either from all keys.
_MASK_QUERIES = (8191, 10_000, _MASK_KEYS - 1)


def mask_form(mask_function: Callable[..., Any]) -> tuple[bool, int | None] | None:
    """(causal, window) of a mask function of transformers, asked on integers; None for any other form.

    A chunk is given as a window of as many keys: what a query sees at most.
    """
    keys = torch.arange(_MASK_KEYS, device="cpu")
    zero = torch.zeros((), dtype=torch.long, device="cpu")
    seen = []
    for query in _MASK_QUERIES:
        found = torch.as_tensor(mask_function(zero, zero, torch.tensor(query, device="cpu"), keys))
        allowed = torch.nonzero(found.reshape(-1).expand(_MASK_KEYS)).reshape(-1).tolist()
        if not allowed or allowed[-1] - allowed[0] + 1 != len(allowed):
            return None
        seen.append((query, allowed[0], allowed[-1]))
    causal = all(last == query for query, _, last in seen)
    if not causal and any(last == query for query, _, last in seen[:-1]):
        return None
    if all(first == 0 for _, first, _ in seen):
        return (causal, None) if causal or all(last == _MASK_KEYS - 1 for _, _, last in seen) else None
    if not causal:
        widths = {last - first + 1 for query, first, last in seen[:-1]}
        return (False, widths.pop()) if len(widths) == 1 else None
    window = max(query - first + 1 for query, first, _ in seen)
    sliding = all(first == max(query - window + 1, 0) for query, first, _ in seen)
    chunked = any(all(first == query - query % size for query, first, _ in seen) for size in range(window, 2 * window))
    return (True, window) if sliding or chunked else None


class _Watched(FusedAttention):
    """Fused attention as a node of the graph; masks as transformers' own functions say them."""

    def __init__(self, recorder: GraphRecorder) -> None:
        super().__init__(recorder)  # type: ignore[arg-type] # nothing of a Recorder is asked here
        self._graph = recorder
        #: By identity; the mask is kept alive, so that it is no other tensor's.
        self._forms: dict[int, tuple[Tensor, tuple[bool, int | None] | None]] = {}

    def core(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        causal: bool,
        window: int | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        out = torch.empty((*query.shape[:-1], value.shape[-1]), dtype=query.dtype, device="meta")
        if mask is not None and id(mask) in self._forms:
            form = self._forms[id(mask)][1]
            where = self._graph.where
            if form is None:
                self._graph.graph.problems[where] = "an attention mask of unknown form"
            elif window is not None and form[1] != window:
                self._graph.graph.problems[where] = f"a window of {window} keys beside a mask of {form[1]}"
            else:
                causal, window = form[0] and query.shape[-2] > 1, form[1]
        self._graph.attention(out, query, key, value, causal=causal, window=window, sinks=sinks)
        return out

    @contextmanager
    def in_transformers(self, *, masks: bool) -> Iterator[None]:
        """Also note what each mask lets through, in place of making it (``masks``: it is made as well)."""
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

        def stand_in(*args: Any, mask_function: Callable[..., Any] | None = None, **kwargs: Any) -> Tensor | None:
            if mask_function is None:
                return None
            made = torch.empty((1, 1, 1, 1), dtype=torch.bool, device="meta")
            with _disable_current_modes(), torch.device("cpu"):
                try:
                    form = mask_form(mask_function)
                except Exception:  # of tensors on the meta device
                    form = None
            self._forms[id(made)] = made, form
            return made

        with super().in_transformers(masks=True):
            if not masks:
                ALL_MASK_ATTENTION_FUNCTIONS["sdpa"] = stand_in
            try:
                yield
            finally:
                if not masks:
                    ALL_MASK_ATTENTION_FUNCTIONS.pop("sdpa")


def record(
    module: nn.Module,
    inputs: Mapping[str, Any],
    *,
    answers: DataAnswers,
    masks: bool = False,
) -> Graph:
    """The graph of one call ``module(**inputs)`` of transformers on the meta device, every layer run.

    ``masks``: let transformers build its attention masks, which some models read.
    InputError where the forward asks for a tensor's values.
    """
    recorder = GraphRecorder(module)
    watched = _Watched(recorder)
    for leaf in _pytree.tree_leaves(dict(inputs)):
        if isinstance(leaf, Tensor):
            recorder.reads_input(leaf)
    with ExitStack() as stack:
        stack.enter_context(torch.device("meta"))
        stack.enter_context(torch.no_grad())
        stack.enter_context(watched.in_transformers(masks=masks))
        stack.enter_context(recorder.following())
        stack.enter_context(watched)
        stack.enter_context(answers)
        stack.enter_context(recorder)
        try:
            module(**inputs)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"cannot be followed on the meta device: {type(error).__name__}: {error}") from error
    return recorder.graph
