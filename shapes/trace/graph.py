"""The graph of products of one forward pass: what each product, attention core and learned vector reads.

Each tensor carries the set of products that it comes from, as bits of an integer. A product with a weight begins a new
set; every other operator unites those of its inputs. So whether an MLP reads what attention wrote, which three
projections feed a core and which vector scales whose output are facts of edges, whatever the modules are called.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from math import prod
from operator import eq, or_, sub
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from shapes.frozen import Function, Ints, Items, Named, Triple
from shapes.operators.types import Attention

from .attention import Form, FusedAttention, Operands, core_of, standing_in
from .dimensions import NAMES
from .inputs import DataAnswers
from .products import Product, is_product, read_product, tensors_in
from .repeats import Follower, repeated_children
from .run import on_meta_device

#: Bits that are no product: what depends on cosines and sines (or on tables of them in buffers), on the inputs, and on
#: what an operator other than a product made of several tokens (a running sum).
TRIGONOMETRY, INPUTS, MIXED = 1, 2, 4
#: The first product's bit.
FIRST = 3

NodeKind = Literal["gemm", "bmm", "conv", "depthwise", "grouped", "attention", "scores", "lookup"]
#: Indices of a look-up: the tokens' numbers, one for each position, or one number for all.
Index = Literal["tokens", "positions", "types"]


@dataclass
class Node:
    """One product (C[m,n] = A[m,k] B[k,n], ``batch`` times), attention core, depthwise convolution or table look-up.

    ``reads``: the set of nodes that its activation comes from; ``operands``: those of an attention core's queries, keys
    and values. ``weight`` and ``bias``: paths of the parameters of its second operand and its addend. ``index``: the
    kind of a look-up. ``again``: parameters of a loop's further experts, in one grouped product. Eager attention is a
    node "scores", queries by keys, and the "attention" that reads values.
    """

    number: int
    kind: NodeKind
    where: str
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 0
    dtype: str = ""
    weight: str | None = None
    bias: str | None = None
    reads: int = 0
    operands: Ints = ()
    core: Attention | None = None
    index: Index | None = None
    again: set[str] = field(default_factory=set)

    @property
    def bit(self) -> int:
        return 1 << self.number

    @property
    def biased(self) -> bool:
        return self.bias is not None

    @property
    def path(self) -> str:
        """The first weight's, else the module's."""
        return self.weight or self.where

    @property
    def run(self) -> Attention:
        """An attention core as an operator."""
        assert self.core
        return self.core

    def reads_any(self, others: "Sequence[Node]") -> bool:
        return any(self.reads & one.bit for one in others)


def newest(reads: int) -> int:
    """The last product of a set; 0 of an empty one."""
    return max(reads.bit_length() - 1, 0)


@dataclass
class Scaled:
    """A parameter that an operator other than a product combined with an activation: a norm's weight, a bias."""

    parameter: str
    operator: str
    reads: int


class Graph:
    """Nodes in the order in which they ran, and what was seen between them, of a module with these ``parameters``."""

    def __init__(self, parameters: Mapping[str, Ints]) -> None:
        self.parameters = parameters
        self.nodes = list[Node]()
        self.scaled = list[Scaled]()
        self.used = set[str]()
        #: Set of nodes -> channels from them that were multiplied by cosines or sines.
        self.rotated = Counter[int]()
        #: Each norm's module, its width and its input.
        self.normed = list[tuple[str, int, int]]()
        #: Where hidden states are dropped out in training, and their share.
        self.dropped = list[tuple[str, float]]()
        #: Module -> the part of its attention mask not understood.
        self.problems = dict[str, str]()
        #: Module -> key/value heads that it repeats before its core.
        self.shared = dict[str, int]()
        #: (Set of nodes, last dimension, elements) of what was read of them, repetitions aside.
        self.parts = set[Triple]()
        #: Words of modules.toml on how the class is written.
        self.written = set[str]()
        #: Whether attention ran as products.
        self.eager = False

    def size(self, parameter: str) -> int:
        """Elements of a parameter."""
        return prod(self.parameters[parameter])

    def of(self, mask: int) -> list[Node]:
        """The nodes of a set, in order."""
        digits = reversed(bin(mask >> FIRST))
        return [node for node, digit in zip(self.nodes, digits) if digit == "1"]  # noqa: B905 - the shorter ends it


@dataclass
class _Scores:
    """Queries by keys on their way to a softmax, and past it.

    ``form``: of the mask that was added, where one said it; ``seen``: of the values that the softmax read, ``heads``
    apart (0: with the batch).
    """

    node: Node
    normalised: bool = False
    heads: int = 0
    form: Form | None = None
    seen: Form | None = None


@dataclass
class _Value:
    mask: int
    made_of: frozenset[str]
    activation: bool
    storage: object
    scores: _Scores | None = None
    #: One over a root of a mean: what it multiplies is normed.
    inverse_root: bool = False


class Known:
    """Values of the tensors that depend on no weight and no other token: masks, positions, angles.

    Each operator on such tensors also runs on the CPU. Scores of eager attention count as equal before their mask.
    """

    def __init__(self) -> None:
        self._values = WeakIdKeyDictionary()
        #: Storages that something unknown was written into, kept alive so that none's address becomes another's.
        self._lost = dict[int, object]()

    def put(self, tensor: Tensor, value: Tensor) -> None:
        self._values[tensor] = value

    def of(self, tensor: Tensor) -> Tensor | None:
        if tensor.device.type == "cpu":
            return tensor
        lost = tensor.untyped_storage()._cdata in self._lost
        return None if lost else self._values.get(tensor)  # type: ignore[no-untyped-call] # torch's

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """``func`` gave ``out``: its values, where those of all its arguments are known."""
        name, outs = func._schema.name.split("::")[-1], tensors_in(out)
        read = tensors_in((args, kwargs))[name in _OVERWRITES :]
        # Memory that was only reserved holds anything; past a softmax nothing is asked.
        unknown = "rand" in name or "empty" in name or "softmax" in name
        unknown = unknown or any(self.of(one) is None for one in read)
        found = None if unknown else self._run(func, name, args, kwargs, outs)
        if found is None and func._schema.is_mutable:
            self._lost.update((storage._cdata, storage) for storage in (one.untyped_storage() for one in outs))
        for one, value in zip(outs, tensors_in(found)):  # noqa: B905 - unknown results have none
            self.put(one, value.expand(one.shape))

    def _run(self, func: Any, name: str, args: Any, kwargs: Any, outs: list[Tensor]) -> Any:
        """What ``func`` gives on the CPU; None of what is too large, or the CPU lacks."""
        leaves, form = _pytree.tree_flatten((args, kwargs))
        values = [
            self.of(leaf)
            if isinstance(leaf, Tensor)
            else torch.device("cpu")
            if isinstance(leaf, torch.device)
            else leaf
            for leaf in leaves
        ]
        if name in _OVERWRITES and values[0] is None:
            values[0] = torch.empty(leaves[0].shape, dtype=leaves[0].dtype, device="cpu")
        if torch.Tag.pointwise in func.tags or name in _POINTWISE:
            values = _narrowed(values, len(outs[0].shape))
            shapes = [one.shape for one in values if isinstance(one, Tensor)]
            size = prod(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call] # torch has no annotation there
        else:
            size = 0 if func.is_view or "view" in name else sum(one.numel() for one in outs)
        if size > _MOST_KNOWN:
            return None
        args, kwargs = _pytree.tree_unflatten(values, form)
        with _disable_current_modes(), suppress(Exception):  # of an operator that the CPU lacks
            return func(*args, **kwargs)


def _narrowed(values: list[Any], dims: int) -> list[Any]:
    """``values`` of a pointwise operator at one place of each leading dimension in which all of them repeat themselves.

    So scores of all heads are one head's until a bias tells them apart.
    """
    for at in range(-dims, -2):
        wide = {
            place: one
            for place, one in enumerate(values)
            if isinstance(one, Tensor) and one.dim() >= -at and one.shape[at] > 1
        }
        if not any(one.stride(at) for one in wide.values()):
            values = [wide[place].narrow(at, 0, 1) if place in wide else one for place, one in enumerate(values)]
    return values


class GraphRecorder(Follower):  # type: ignore[no-untyped-call] # as its base
    """Builds a ``Graph`` while active; the module's tensors are on the meta device and no gradient is taken."""

    def __init__(self, module: nn.Module, buffers: Mapping[str, Tensor]) -> None:
        super().__init__({id(child): path for path, child in module.named_modules()})
        self.known = Known()
        self.graph = Graph({path: tuple(p.shape) for path, p in module.named_parameters()})
        #: Attention masks' storages, kept alive so that each is no other tensor's, with what each lets through.
        self.forms = dict[int, tuple[object, Form | None]]()
        self._values = dict[int, _Value]()
        # Lists inside others (layers' experts, if any), and the products of their parts.
        self._lists = {
            path: len(parts) for path, parts in repeated_children(module) if any(map(str.isdigit, path.split(".")))
        }
        self._loops = dict[tuple[str, str], Node]()
        for path, parameter in module.named_parameters():
            self._set(parameter, 0, frozenset({path}), False)
        for path, buffer in module.named_buffers():
            if buffer.is_floating_point():
                self._set(buffer, TRIGONOMETRY, activation=False)
            if path in buffers:
                self.known.put(buffer, buffers[path])

    def form_of(self, mask: Tensor) -> Form | None:
        """The keys that an attention mask lets through, if the function that made it says so."""
        return self.forms.get(mask.untyped_storage()._cdata, (None, None))[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = self.run(func, args, kwargs)
        self.known.follow(func, args, kwargs or {}, out)
        name = func._schema.name
        if is_product(name):
            product, a, b = read_product(name, args, out)
            # The addend comes before the operands, and after those of a convolution.
            addend = args[2 if product.kind == "conv" else 0]
            self._product(product, a, b, None if addend is a or addend is b else addend, out)
        elif name == "aten::embedding":
            self._lookup(args[0], args[1], out)
        else:
            self._other(name, args, kwargs or {}, out)
        return out

    def _biased(self, node: Node, added: Tensor) -> None:
        """Notes a product's bias; learned vectors of some of its columns alone (EVA's) are added to it."""
        made_of = self._value(added).made_of
        if sum(map(self.graph.size, made_of)) < node.n:
            self._scaled(added, "add", node.bit)
            return
        node.again |= made_of
        node.bias = self._use(added)

    def _depthwise(self, product: Product, inputs: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
        node = self._node("depthwise", weight=self._use(weight), m=product.m, n=product.batch, k=product.k)
        node.reads = self._value(inputs).mask
        node.bias = None if bias is None else self._use(bias)
        self._set(out, node.reads | node.bit)

    def _lookup(self, table: Tensor, index: Tensor, out: Tensor) -> None:
        if not self._value(table).made_of:
            self._other("aten::embedding", (table, index), {}, out)
            return
        node = self._node("lookup", weight=self._use(table), m=index.numel(), n=table.shape[-1])
        node.reads, node.index = self._value(index).mask, _index(self.known.of(index))
        self._set(out, node.bit)

    def _product(self, product: Product, a: Tensor, b: Tensor, addend: Tensor | None, out: Tensor) -> None:
        if product.kind == "conv" and 1 < product.batch == a.shape[1 if a.dim() == b.dim() else 0]:
            self._depthwise(product, a, b, addend, out)
            return
        first, second = self._value(a), self._value(b)
        if not first.activation and second.activation and product.kind != "conv":
            product, first, second = product.transposed(), second, first
        if not first.activation and not second.activation:
            # It reads constants and parameters alone (rotary angles): no operator of the step.
            self._set(out, first.mask | second.mask, first.made_of | second.made_of, False)
            return
        weight = min(second.made_of, default="")
        if weight:
            product = product.linear
        node = self._of_loop(weight) or self._node(product.kind)
        node.n, node.k, node.dtype = product.n, product.k, product.dtype
        node.m += product.m
        node.batch += product.batch
        node.reads |= first.mask
        mask = node.bit
        if weight:  # an activation is made of none
            self.graph.used |= second.made_of  # as `_use`: either operand may be the weight
            node.weight = node.weight or weight
            node.again |= second.made_of
        elif second.activation and first.scores and first.scores.normalised:
            self._eager_core(node, first.scores, second.mask)
            mask, addend = node.bit, None
        elif second.activation:
            node.kind, node.operands = "bmm", (first.mask, second.mask)
            node.reads |= second.mask
            mask |= node.reads
        if addend is not None:
            value = self._value(addend)
            if value.made_of:  # a learned bias reads nothing
                self._biased(node, addend)
            else:
                mask |= value.mask
        self._set(out, mask)
        if node.operands and not node.core:
            self._scored(node, addend, out)

    def _scored(self, node: Node, bias: Tensor | None, out: Tensor) -> None:
        """``out`` may be scores of attention, which are known where their ``bias`` is."""
        self._value(out).scores = _Scores(node)
        known = torch.zeros((), device="cpu") if bias is None else self.known.of(bias)
        if known is not None:
            (each,) = _narrowed([known.expand(out.shape)], out.dim())
            self.known.put(out, each.clone().expand(out.shape))

    def _of_loop(self, weight: str) -> Node | None:
        """The grouped product that one of an expert is a part of: of a ModuleList as long as some product is wide."""
        for path, number in self._lists.items():
            if weight.startswith(f"{path}.") and any(one.n == number for one in self.graph.nodes):
                of = path, weight.removeprefix(f"{path}.").partition(".")[2]
                if of not in self._loops:
                    self._loops[of] = self._node("grouped")
                return self._loops[of]
        return None

    def _eager_core(self, node: Node, scores: _Scores, value: int) -> None:
        """Eager attention ends in ``node``: the queries and keys of ``scores`` with values that come from ``value``."""
        first = scores.node
        form = scores.form
        # As so many keys show it.
        if not form or scores.seen != (form[0], form[1] if form[1] and form[1] < first.n else None):
            form = scores.seen
        if not form:
            self.graph.problems[node.where] = "an attention mask of unknown form"
        causal, window = form or (True, None)
        first.kind, node.kind, self.graph.eager = "scores", "attention", True
        node.operands = *first.operands, value
        heads = scores.heads or node.batch
        sizes = node.batch // heads, heads, heads, first.m, first.n, first.k, node.n
        node.core = Attention(node.where, "forward", *sizes, causal=causal, window=window, dtype=node.dtype)

    def _other(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        outs = tensors_in(out)
        if not outs:
            return
        tensors = tensors_in((args, kwargs))
        values = [*map(self._value, tensors)]
        mask, activation = reduce(or_, (value.mask for value in values), 0), any(value.activation for value in values)
        made_of = frozenset[str]().union(*(value.made_of for value in values))
        short = name.split("::")[-1]
        if short in ("cos", "sin", "polar"):
            # Of positions that are given, too.
            mask = mask & ~INPUTS | TRIGONOMETRY
        if activation:
            self._combined(short, tensors, values)
            mask |= MIXED * (short in _MIXES and outs[0].is_floating_point())
        if short in _MADE_NEW:
            mask, made_of, activation = 0, frozenset(), False
        for one in outs:
            self._set(one, mask, made_of, activation)
        negative = short == "pow" and isinstance(args[1], float) and args[1] == -0.5
        self._value(outs[0]).inverse_root |= negative or short == "rsqrt"
        self._follow_scores(short, tensors, values, outs)

    def _follow_scores(self, operator: str, tensors: list[Tensor], values: list[_Value], outs: list[Tensor]) -> None:
        found = [value.scores for value in values if value.scores]
        if len(found) != 1 or operator in _MADE_NEW:
            return
        (scores,) = found
        for tensor in tensors:
            scores.form = self.form_of(tensor) or scores.form
        if operator in ("_softmax", "_safe_softmax"):
            values_read = self.known.of(tensors[0])
            # Of (b, a, s, s) the heads; 0 where fewer dimensions do not say them.
            scores.heads = sum(tensors[0].shape[1:][-3:-2])
            scores.normalised, scores.seen = True, None if values_read is None else mask_of(values_read)
        for one in outs:
            self._value(one).scores = scores

    def _combined(self, operator: str, tensors: list[Tensor], values: list[_Value]) -> None:
        """Notes what an operator on an activation says of norms, learned vectors and rotation."""
        widths = [one.shape[-1] for one in tensors if one.dim()]
        plain = reduce(or_, (value.mask for value in values if value.activation)) & ~TRIGONOMETRY
        self.graph.written.add(_WRITTEN.get(operator, ""))
        if operator in _NORMS or (operator in ("mul", "mul_") and any(value.inverse_root for value in values)):
            self.graph.normed.append((self.where, max(widths), plain))
        for tensor, value in zip(tensors, values, strict=True):
            if value.activation and value.mask != TRIGONOMETRY:
                own = prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
                self.graph.parts.add((value.mask & ~TRIGONOMETRY, max(tensor.shape[-1:], default=1), own))
                continue
            self._scaled(tensor, operator, plain)
            if value.mask & TRIGONOMETRY and operator in ("mul", "mul_"):
                self.graph.rotated[plain] += min(widths) * (tensor.dim() > 0) * (4 if tensor.is_complex() else 1)

    def _scaled(self, tensor: Tensor, operator: str, reads: int) -> None:
        made_of = self._value(tensor).made_of
        self.graph.used |= made_of
        self.graph.scaled += [Scaled(path, operator, reads) for path in made_of]

    def _use(self, tensor: Tensor) -> str | None:
        """The (first) parameter that ``tensor`` was made of, noted as used."""
        made_of = self._value(tensor).made_of
        self.graph.used |= made_of
        return min(made_of, default=None)

    def _node(self, kind: NodeKind, **known: Any) -> Node:
        node = Node(len(self.graph.nodes) + FIRST, kind, self.where, **known)
        self.graph.nodes.append(node)
        return node

    def _value(self, tensor: Tensor) -> _Value:
        # A table that was there before and is no buffer holds angles, too (Meta's freqs_cis).
        unknown = _Value(TRIGONOMETRY * (tensor.dim() > 1), frozenset(), False, None)
        return self._values.get(tensor.untyped_storage()._cdata, unknown)

    def _set(self, tensor: Tensor, mask: int, made_of: frozenset[str] = frozenset(), activation: bool = True) -> None:
        """A result: of a new storage its own set, of one that is written into or viewed united with what it had."""
        storage = tensor.untyped_storage()
        # The storage is kept alive, so that its address is never taken for another's.
        held = self._values.setdefault(storage._cdata, _Value(mask, made_of, activation, storage))
        held.mask |= mask
        held.activation |= activation
        held.made_of = frozenset() if held.activation else held.made_of | made_of


#: The number of every token that runs: neither padding nor the kind of a sentence.
TOKEN = 5
#: Elements of the largest tensor whose values are followed.
_MOST_KNOWN = 2**25


def _index(values: Tensor | None) -> Index | None:
    """The kind of a look-up by its indices."""
    if values is None:
        return None
    found = set(values.reshape(-1).tolist())
    if len(found) > 1:
        return "positions"
    return "tokens" if found == {TOKEN} and values.numel() > 1 else "types"


_MADE_NEW, _OVERWRITES, _NORMS, _POINTWISE, _MIXES, _WRITTEN = (
    NAMES["operators"][name] for name in ("made_new", "overwrites", "norms", "pointwise", "mixes", "written")
)


#: Keys that a mask is asked about: more than any window.
_MASK_KEYS = 16384
#: Queries that tell a window from a chunk, and either from all keys; the first tells a prefix that all tokens see.
_MASK_QUERIES = (0, 8191, 10_000, _MASK_KEYS - 1)


#: The least that a mask subtracts from a score; a bias by distance subtracts less.
_HIDES = 5000


def mask_form(mask_function: Function) -> Form | None:
    """(causal, window) of a mask function of transformers, asked on integers; None for any other form.

    A chunk is given as a window of as many keys: what a query sees at most.
    """
    with torch.device("cpu"):  # numbers, whatever a caller's own device is
        keys, zero = torch.arange(_MASK_KEYS), torch.tensor(0)
        rows = ((query, mask_function(zero, zero, torch.tensor(query), keys)) for query in _MASK_QUERIES)
        return _form([(query, torch.as_tensor(sees).reshape(-1).expand(_MASK_KEYS)) for query, sees in rows])


def mask_of(scores: Tensor) -> Form | None:
    """(causal, window) of scores [..., queries, keys] that were equal but for their mask and a bias by distance."""
    *_, queries, keys = scores.shape
    (scores,) = _narrowed([scores], scores.dim())
    seen = (scores > scores.amax(-1, keepdim=True) - _HIDES).reshape(-1, queries, keys)
    if not bool((seen == seen[:1]).all()):
        return None
    # As many tokens before each as of all that a mask is asked about.
    asked = [query * queries // _MASK_KEYS for query in _MASK_QUERIES]
    return _form([(query, seen[0, query]) for query in asked])


def _form(rows: list[tuple[int, Tensor]]) -> Form | None:
    """The form of a mask by (query, keys that it sees), from the middle query to the last; None for any other."""
    seen = []
    for query, sees in rows:
        allowed = torch.nonzero(sees).reshape(-1).tolist()
        if not allowed or allowed[-1] - allowed[0] + 1 != len(allowed):
            return None
        seen.append((query, allowed[0], allowed[-1]))
    queries, firsts, lasts = zip(*seen, strict=True)
    if lasts == queries:
        window = 1 + max(map(sub, queries, firsts))
        sliding = firsts == tuple(max(query - window + 1, 0) for query in queries)
        chunks = (tuple(query - query % size for query in queries) for size in range(window, 2 * window))
        return (True, window if any(firsts) else None) if sliding or firsts in chunks else None
    if not any(firsts) and min(lasts) + 1 == rows[0][1].numel():
        return False, None
    if any(map(eq, lasts[:-1], queries)) or not any(firsts):
        return None
    # The first query's window is cut.
    widths = {*map(sub, lasts[1:-1], firsts[1:])}
    return (False, widths.pop() + 1) if len(widths) == 1 else None


class _Watched(FusedAttention):
    """Fused attention as a node of the graph; masks as transformers' own functions say them."""

    recorder: GraphRecorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs)
        if func is functional.dropout and not self.recorder._value(out).scores:  # called in evaluation, too
            share = (kwargs or {}).get("p", args[1] if len(args) > 1 else 0.5)
            self.recorder.graph.dropped.append((self.recorder.where, share))
        if func is torch.tensor:
            # Made at once of Python's numbers, which no operator shows.
            with _disable_current_modes(), torch.device("cpu"):
                self.recorder.known.put(out, torch.tensor(args[0], dtype=out.dtype))
        return out

    def core(self, operands: Operands, mask: Tensor | None, seen: Form, sinks: Tensor | None = None) -> Tensor:
        recorder, problems = self.recorder, self.recorder.graph.problems
        query, _, value = operands
        out = torch.empty((*query.shape[:-1], value.shape[-1]), dtype=query.dtype, device="meta")
        node = recorder._node("attention")
        if mask is not None:
            form = recorder.form_of(mask) or self._values_form(mask)
            if not form:
                problems[node.where] = "an attention mask of unknown form"
            elif form[0] and seen[1] not in (None, form[1]):  # a kernel's window has two sides
                problems[node.where] = f"a window of {seen[1]} keys and a mask of {form[1]}"
            else:
                seen = form[0] and query.shape[-2] > 1, form[1]
        node.operands = tuple(recorder._value(one).mask for one in operands)
        node.core = core_of(node.where, operands, seen)
        for name, one in (("sinks", sinks), ("mask", mask)):
            if one is not None:
                recorder._scaled(one, name, node.bit)
        recorder._set(out, node.bit)
        return out

    def _values_form(self, mask: Tensor) -> Form | None:
        """The keys that a mask lets through by its values, if those depend on no weight or token."""
        seen = self.recorder.known.of(mask)
        if seen is None:
            return None
        return mask_of(torch.where(seen, 0.0, -torch.inf) if seen.dtype == torch.bool else seen)

    @contextmanager
    def in_transformers(self, *, masks: bool) -> Iterator[None]:
        """Also note what each mask lets through, in place of making it (``masks``: it is made as well)."""
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

        def note(make: Function, *args: Any, **kwargs: Any) -> Tensor | None:
            mask_function = kwargs.get("mask_function")
            made = torch.empty((1, 1, 1, 1), dtype=torch.bool, device="meta")
            if masks:
                made = make(*args, **kwargs)
            if mask_function is None or made is None:
                return made if masks else None
            form = None
            with _disable_current_modes(), suppress(Exception):  # of tensors on the meta device
                form = mask_form(mask_function)
            storage = made.untyped_storage()
            self.recorder.forms[storage._cdata] = storage, form
            return made

        noted = {name: partial(note, ALL_MASK_ATTENTION_FUNCTIONS[name]) for name in ("sdpa", "eager")}
        with super().in_transformers(masks=True), standing_in(ALL_MASK_ATTENTION_FUNCTIONS, noted):
            yield


def record(
    module: nn.Module,
    args: Items,
    kwargs: Named,
    *,
    answers: DataAnswers,
    transformers: bool,
    masks: bool = False,
    buffers: Mapping[str, Tensor] | None = None,
    where: str | None = None,
) -> Graph:
    """The graph of one call ``module(*args, **kwargs)`` on the meta device, every layer run.

    ``transformers``: the class is theirs. ``masks``: let it build its attention masks, which some models read.
    ``buffers``: values of the module's buffers on the CPU, which some classes keep masks in.
    InputError where the forward asks for a tensor's values.
    """
    recorder = GraphRecorder(module, buffers or {})
    # Positional arguments are token numbers, and so are what a module of one's own calls neither a mask nor positions.
    words = "input_ids$" if transformers or "input_ids" in kwargs else "^(?!.*(mask|pos|type))"
    for name, value in (*(("input_ids", one) for one in args), *kwargs.items()):
        if isinstance(value, Tensor):
            recorder._set(value, INPUTS)
            if not value.is_floating_point() or "values" in name:
                # Every token is TOKEN, and none is padding, as no number of a series marks it.
                number = TOKEN if re.search(words, name) else "padding" not in name
                recorder.known.put(value, torch.full(value.shape, number, dtype=value.dtype, device="cpu"))
    around = _Watched(recorder), answers, where or type(module).__name__
    with on_meta_device(recorder, *around, transformers=transformers, masks=masks, train=False):
        module(*args, **kwargs)
    return recorder.graph
