"""Whether a recognised ``ModelShape`` is the model.

The proof: parameters to the digit, and the products and attention cores that torch ran, forward and backward, with
their element types, at more than one length of the sequence.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import partial

from torch import Tensor, nn
from torch.utils import _pytree

from shapes.errors import InputError, refuse
from shapes.frozen import Items, Named, Names, Pair, Sizes, Texts, Values, Words, first_of, frozen, replace
from shapes.model import ModelShape, Unproven, run_lengths
from shapes.model.layers import each_layer
from shapes.operators import operators
from shapes.operators.types import Attention, Gemm, GroupedGemm, Operator
from shapes.workload import Workload

from .config import Built
from .dimensions import named_dimensions, positions
from .graph import Graph, Node, record
from .guards import TooLong, bounded_operators
from .inputs import LoopAnswers
from .recognise import Recogniser
from .repeats import Cut, FoldedNames
from .result import Traced, batch_and_sequence
from .run import on_meta, parameters_of, run, to_meta

#: A product or core as both sides give it.
Key = tuple[object, ...]
_NONE: Sizes = {}


def products(found: Iterable[Operator], *, masks: bool = True, shared: Sizes = _NONE) -> Counter[Key]:
    """The products with a weight, grouped products and fused attention cores, counted; what cores see with ``masks``.

    Products of activations alone are left out: those of a recurrence's reference loop are not what its kernels run.
    So are depthwise convolutions, which are bound by memory. Experts count one by one, each with its share of the rows.
    ``shared``: key/value heads of cores whose modules repeat them.
    """
    counted = Counter[Key]()
    for one in found:
        match one:
            case GroupedGemm():
                each = {"m": float(one.m), "n": one.n, "k": one.k}
                each[one.ragged] /= one.groups
                key: Key = (one.phase, "gemm", 1, *each.values(), one.dtype)
                counted[key] += one.count * (one.groups - 1)
            case Gemm() if one.kind != "bmm" and one.batch == 1:
                key = one.phase, one.kind, one.batch, one.m, one.n, one.k, one.dtype
            case Attention():
                key = _core(one, shared, masks=masks)
            case _:
                continue
        counted[key] += one.count
    return counted


def _core(one: Attention, shared: Sizes, *, masks: bool = True) -> Key:
    one = replace(one, kv_heads=shared.get(one.name, one.kv_heads))
    # A window as long as the sequence hides nothing.
    window = one.window if one.window and one.window < one.kv_len else None
    return one.phase, *one.sizes, *(one.causal, window) * masks, one.dtype


def run_products(graph: Graph, shared: Sizes = _NONE) -> Counter[Key]:
    """The same of a graph: what the forward pass ran."""
    counted = Counter[Key]()
    for node in graph.nodes:
        if node.core:
            counted[_core(node.core, shared or graph.shared)] += 1
        elif node.weight and node.kind in ("gemm", "conv", "grouped"):
            rows = node.m / node.batch if node.kind == "grouped" else node.m
            counted["forward", node.kind.replace("grouped", "gemm"), 1, rows, node.n, node.k, node.dtype] += node.batch
    return counted


def differences(model: ModelShape, run: Counter[Key], workload: Workload, *, masks: bool = True) -> Texts:
    """Lines on operators that torch ran and ``model`` does not have, and the other way round.

    ``masks``: the keys that each attention sees are compared too.
    """
    try:
        said = products(operators(model, workload), masks=masks)
    except InputError as error:
        return [str(error)]
    # A product of two vectors is no matrix's: the likeness of a text and an image.
    lines = [
        f"torch runs {' '.join(map(str, key))}, {count} more"
        for key, count in (run - said).items()
        if key[3:6].count(1) < 2
    ]
    return lines + [
        f"torch does not run {' '.join(map(str, key))}, {count} times" for key, count in (said - run).items()
    ]


@frozen
class Proof:
    """The outcome of a recognition. ``model``: proven to be the class (None: a part of it was not understood).

    ``unproven``: modules that were not understood, the largest share first. ``parameters``: those that ran; ``held``:
    modules with parameters that did not run (towers for images; of layers alike one or two). ``keys``: dimension -> its
    key in the configuration; ``longest``: the longest sequence that it names. ``dtype``: that of most products.
    ``learns``: as `OfModule`'s. ``eager``: attention ran as products. ``built``: the class, to list its products.
    ``module``: the recognised module.
    """

    model: ModelShape | None
    unproven: tuple[Unproven, ...]
    parameters: int
    held: Names = ()
    keys: Words = field(default_factory=dict)
    longest: int | None = None
    dtype: str = "bf16"
    learns: bool = False
    eager: bool = False
    built: Built | None = field(default=None, compare=False)
    module: nn.Module | None = field(default=None, compare=False)


@frozen
class OfModule:
    """A module of one's own, called as in an example of ``b`` sequences of ``longest`` tokens; members as `Built`'s.

    ``learns``: what it reads has a gradient, as where layers alone are a part of some model.
    """

    module: nn.Module
    args: Items
    kwargs: Named
    b: int
    longest: int
    buffers: Mapping[str, Tensor]
    learns: bool = False

    @property
    def name(self) -> str:
        return type(self.module).__name__

    def lengths(self) -> Pair:
        return self.longest, (self.longest + 1) // 2

    def graph(self, s: int) -> Graph:
        return record(
            self.module,
            *self._arguments(s),
            answers=LoopAnswers(),
            transformers=False,
            buffers=self.buffers,
            where=self.name,
        )

    def run(self, s: int) -> Traced:
        return run(self.module, *self._arguments(s), train=True, model_type=self.name, answers=LoopAnswers())

    def _arguments(self, s: int) -> tuple[Items, Values]:
        """The example's with one sequence of s tokens (1: what is of one size, as an image)."""

        def one(tensor: Tensor) -> Tensor:
            if tensor.shape[:1] != (self.b,):
                return tensor
            sizes = 1, *[s if size == self.longest else size for size in tensor.shape[1:2]], *tensor.shape[2:]
            return tensor.new_empty(sizes, requires_grad=self.learns and tensor.is_floating_point())

        return _pytree.tree_map_only(  # type: ignore[no-any-return] # as it was given
            Tensor, one, (self.args, dict(self.kwargs))
        )


#: A subject of a proof: a module on the meta device that can be called with a sequence of any length.
Provable = Built | OfModule


def prove_built(built: Built) -> Proof:
    """The class of a configuration, recognised and proven."""
    try:
        with bounded_operators():
            found = built.on_few_layers(partial(prove, built))
    except TooLong as error:
        found, built.too_long = _unknown(error.expected, built.module), error
    return replace(
        found,
        keys=named_dimensions(built.settings)[1],
        longest=positions(built.settings),
        built=None if found.model else built,
    )


def prove_module(module: nn.Module, args: Items, kwargs: Named) -> Proof:
    """``module`` recognised and proven, at the length of its sequences and at half of it.

    Images, and what runs at that length alone, are of one size.
    """
    args, kwargs = to_meta(args, kwargs)
    b, s = batch_and_sequence((*args, *kwargs.values()))
    buffers = {path: buffer for path, buffer in module.named_buffers() if buffer.device.type == "cpu"}
    with on_meta(module), bounded_operators():
        for tokens in (s, 1):
            try:
                return prove(OfModule(module, args, kwargs, b, tokens, buffers))
            except InputError as error:
                found = _unknown(str(error), module)
                if isinstance(error, TooLong):
                    break
    return found


def _unknown(why: str, module: nn.Module) -> Proof:
    """Nothing of a class was understood."""
    return Proof(None, (Unproven("", 1.0, why),), parameters_of(module))


def prove(subject: Provable, cut: Cut | None = None) -> Proof:
    """Recognised in a forward pass of one length, its products proven there, and forward and backward at another.

    ``cut``: which layers of the whole those stand for that run. InputError where the whole cannot be told from them.
    """
    module, (graph, lengths, dtype) = subject.module, recorded(subject)
    reader = Recogniser(graph, module, subject.name, lengths[0])
    model, problems = reader.read(), reader.left
    stands_for = cut.stands_for if cut else {}
    parameters, held = sum(_times(path, stands_for) * graph.size(path) for path in graph.used), reader.held()
    if isinstance(subject, OfModule):
        subject = replace(subject, learns=reader.learns)
    if model and not problems and (line := difference(model, graph, subject, lengths, dtype)):
        problems = {"": line}
    if problems:
        model = None
    elif model and cut:
        model = _whole(model, cut, held)
        refuse(model.parameters != parameters, f"{model.parameters:,} parameters recognised of {parameters:,}")
    unproven = _unproven(graph, problems, module, stands_for)
    return Proof(model, unproven, parameters, held, dtype=dtype, learns=reader.learns, eager=graph.eager, module=module)


def recorded(subject: Provable) -> tuple[Graph, Pair, str]:
    """The graph to be understood, the two lengths (its own and the proof's), and the element type of most products."""
    first, second = subject.lengths()
    graph = subject.graph(first)
    if graph.eager and first < subject.longest:
        first, second = subject.longest, first
        graph = subject.graph(first)
    flops = Counter[str]()
    for node in graph.nodes:
        flops[node.dtype] += _flops(node) * bool(node.dtype)
    return graph, (first, second), max(flops, key=flops.__getitem__, default="bf16")


def refuted(model: ModelShape, graph: Graph, workload: Workload) -> Texts:
    """Lines on parameters, products and attention of a forward pass that differ from ``model``."""
    ran = sum(map(graph.size, graph.used))
    if model.parameters != ran:
        return [f"{model.parameters:,} parameters recognised of {ran:,}"]
    return differences(model, run_products(graph), workload)


def difference(model: ModelShape, graph: Graph, subject: Provable, lengths: Pair, dtype: str) -> str | None:
    """The first thing that torch ran and ``model`` does not say, or the other way round; None: they are the same."""
    first, second = lengths
    found = refuted(model, graph, Workload(1, first, dtype, "infer"))
    if not found and graph.eager:
        # A window that a class builds itself shows at the longer length alone.
        again = run_products(subject.graph(second), graph.shared)
        found = differences(model, again, Workload(1, second, dtype, "infer"))
    if found:
        return found[0]
    # Masks are proven forward alone, as not every class hands them to its core. Eager attention consists of products of
    # activations; their gradients follow from those that ran forward.
    names = FoldedNames(subject.module)
    shared = {names.fold(path): heads for path, heads in graph.shared.items()}
    traced = products(subject.run(second).operators, masks=False, shared=shared)
    workload = Workload(1, second, dtype, attention="eager" if graph.eager else "flash")
    return first_of(differences(model, traced, workload, masks=False))


def _times(path: str, stands_for: Sizes) -> int:
    """How many layers of the whole what ``path`` is in counts for: 1 outside of them."""
    return next((times for layer, times in stands_for.items() if path.startswith(f"{layer}.")), 1)


def _whole(model: ModelShape, cut: Cut, held: Items) -> ModelShape:
    """``model`` with all its layers; InputError where those that are there do not say what they are."""
    wholes = [cut.whole(each_layer(stack.blocks), held) for stack in model.stacks]
    refuse(sum(map(bool, wholes)) != len(cut.containers), "layers of one kind that are not alike")
    stacks = (
        replace(stack, blocks=run_lengths(layers)) if layers else stack
        for stack, layers in zip(model.stacks, wholes, strict=True)
    )
    return replace(model, stacks=tuple(stacks))


def _unproven(graph: Graph, problems: Words, module: nn.Module, stands_for: Sizes) -> tuple[Unproven, ...]:
    """Modules that were not understood, by folded path, with their share of the FLOPs, the largest first."""
    fold = FoldedNames(module).fold
    outer = {
        path.removesuffix(".weight"): why
        for path, why in problems.items()
        if not any(path.startswith(f"{other}.") for other in problems)
    }
    reasons = {fold(path): outer[path] for path in reversed(outer)}
    shares = Counter[str]()
    for node in graph.nodes:
        own = f"{node.where}.", f"{node.weight}."
        # Once, though a layer may run another's matrices.
        found = (path for path in outer if not path or any(one.startswith(f"{path}.") for one in own))
        shares[next(map(fold, found), "of all")] += _times(node.path, stands_for) * _flops(node)
    total = shares.total() or 1
    unproven = (Unproven(name, shares[name] / total, why) for name, why in reasons.items())
    return tuple(sorted(unproven, key=lambda one: -one.share))


def _flops(node: Node) -> int:
    if node.core:
        return int(node.core.flops)
    return 2 * node.m * node.n * node.k * (node.batch if node.kind in ("gemm", "bmm", "conv") else 1)
