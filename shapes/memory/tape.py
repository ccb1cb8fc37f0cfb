"""A tape of operators: what autograd saves, and how many bytes are alive at any moment of a step.

The bytes of a training step are decided by three rules of PyTorch's autograd, which this module replays: a node keeps
the tensors that its backward formula reads until it has run; a view keeps the whole storage; a gradient lives from the
node that makes it until the node that reads it. Gradients that meet are added in place, unless the first to come is a
view (of a product's two-dimensional result): then their sum is a third tensor.

The operators of each kind of module, and what each saves, are lines of modules.toml, which ``play`` puts on a tape.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain, count
from sys import maxsize
from types import CodeType
from typing import Any

from shapes.frozen import Counts, Ints, Named, Names, Pair, frozen, replace
from shapes.toml_table import DATA, content, formula, hold

#: A storage, or below 0 a gradient or another tensor of a backward, and so many bytes that come, or (below 0) go.
Events = Iterator[Pair]

#: The storage of a tape's first tensor: its module's input.
INPUT = 0


@frozen
class Tensor:
    """A tensor on the tape: the storage it lies in and the bytes of its own gradient."""

    storage: int
    bytes: int
    key: int


#: Tensors in order, and by their names.
Row = tuple[Tensor, ...]
ByName = dict[str, Tensor]


@frozen
class _Node:
    """One operator: what it reads, makes, keeps for the backward pass, and how its gradient is made."""

    inputs: Row
    output: Tensor
    saved: Ints
    recomputed: bool
    part: int = 0
    dropped: bool = False
    holds: Row = ()
    work: int = 0
    weights: int = 0
    shares_gradient: bool = False
    views_gradient: bool = False

    @property
    def read(self) -> Ints:
        """Storages that are alive before it runs forward."""
        return tuple(tensor.storage for tensor in (*self.inputs, *self.holds))

    @property
    def used(self) -> Ints:
        """Storages that are alive once it has run forward."""
        return *self.read, self.output.storage

    @property
    def looks_back(self) -> bool:
        """Whether its backward reads more than a gradient."""
        return bool(self.saved) or self.views_gradient

    def needed(self, needs: list[bool]) -> set[int]:
        """The saved storages that its backward reads; ``needs``: whether each input needs a gradient."""
        saved, reads = set(self.saved), [tensor.storage for tensor in self.inputs]
        if not any(needs):  # a weight's own copy is for its input's gradient
            return saved.intersection(reads)
        if len(reads) == 2 and [*self.saved] == reads:  # of a product, each for the other's gradient
            return {one for one, other in zip(reads, reversed(needs), strict=True) if other}
        return saved


@dataclass(slots=True)
class Tape:
    """Operators in the order they run. Sizes are bytes.

    ``part``: operators of one part run again together instead of saving (0: none do); ``dropping``: their outputs are
    freed too, once they were read. ``products``: number of products so far. ``named``: tensors that a name in the
    running code keeps alive, whether or not an operator reads them. ``returned``: bytes that a module returns with its
    output; they stay until the next such module has run.
    """

    storages: list[int] = field(default_factory=list)
    nodes: list[_Node] = field(default_factory=list)
    keys: int = 0
    part: int = 0
    dropping: bool = False
    products: int = 0
    named: Row = ()
    returned: int = 0

    @contextmanager
    def marked(self, *, again: bool, drops: bool = False) -> Iterator[None]:
        """Operators that run ``again``, and whose outputs go."""
        before = self.part, self.dropping
        self.part, self.dropping = again * (self.part or self.keys + 1), drops
        yield
        self.part, self.dropping = before

    def tensor(self, size: int) -> Tensor:
        """A tensor that no node of this tape makes (the module's input)."""
        self.storages.append(size)
        self.keys += 1
        return Tensor(len(self.storages) - 1, size, self.keys)

    def op(
        self,
        name: str,
        inputs: Row,
        size: int,
        saves: Row = (),
        *,
        saves_output: bool = False,
        saves_bytes: int = 0,
        kept: int = 0,
        **how: Any,
    ) -> Tensor:
        """Run an operator that makes ``size`` bytes.

        ``saves``: tensors its backward reads; ``saves_output``: its own output too; ``saves_bytes``: what only it
        knows (a mask, a log-sum-exp). ``kept``: a policy by operator does not run it again. ``how``, each 0 or False
        where not said: ``work``, bytes its backward needs in addition to the gradients it returns; ``weights``,
        elements of a weight whose gradient it makes.
        ``shares_gradient``: its backward hands on the gradient it was given (an addition). ``views_gradient``: a
        product over tokens with a weight, which is saved, too; the gradient that it returns is a view of another shape.
        """
        output = self.tensor(size)
        saved = [tensor.storage for tensor in ((*saves, output) if saves_output else saves)]
        if saves_bytes:
            saved.append(self.tensor(saves_bytes).storage)
        again = self.part > 0 and not kept
        self.nodes.append(_Node(inputs, output, tuple(saved), again, self.part, self.dropping, self.named, **how))
        return output

    def hold(self, *tensors: Tensor) -> None:
        """A name of the running code still keeps ``tensors`` while the last operator so far runs."""
        self.nodes[-1] = replace(self.nodes[-1], holds=(*self.nodes[-1].holds, *tensors))

    def view(self, of: Tensor, size: int, *, copies_gradient: bool = False) -> Tensor:
        """A part of ``of``'s storage. ``copies_gradient``: the parts' gradients are put together again (split)."""
        self.keys += 1
        output = Tensor(of.storage, size, self.keys)
        self.nodes.append(_Node((of,), output, (), self.part > 0, self.part, shares_gradient=not copies_gradient))
        return output

    def saved(self, *, selective: bool = False) -> dict[int, int]:
        """Storages that autograd keeps after the forward, with their bytes.

        ``selective``: without those that only nodes which run again save, and without
        what those marked ``dropping`` make.
        """
        again = [node for node in self.nodes if selective and node.recomputed]
        kept = _inputs(again).union(*(node.saved for node in self.nodes if not (selective and node.recomputed)))
        kept = kept.difference(node.output.storage for node in again if node.dropped)
        return {storage: self.storages[storage] for storage in kept}

    def unneeded_bytes(self) -> int:
        """Bytes not saved where the input needs no gradient: all that comes before the first trained weight."""
        needing = set()
        kept = set()
        for node in self.nodes:
            needs = [tensor.key in needing for tensor in node.inputs]
            if node.weights or any(needs):
                needing.add(node.output.key)
                kept |= node.needed(needs)
        return self.bytes(self.saved().keys() - kept)

    def backward(self, seed_bytes: int, made_bytes: int = 2, kept_bytes: int = 0) -> Events:
        """Allocations while the tape runs backward: saved tensors are freed, gradients of weights stay.

        ``seed_bytes``: the gradient of the last output. A weight's gradient is made in ``made_bytes`` an element. It is
        then added to one that exists (``kept_bytes`` 0), or stays in ``kept_bytes`` an element: the same tensor, if the
        two sizes are equal.
        """
        return _Backward(self).events(seed_bytes, made_bytes * (made_bytes != kept_bytes), kept_bytes)

    def compiled(self) -> "Tape":
        """As no name of running code holds a tensor that was read."""
        return Tape(self.storages, [replace(node, holds=()) for node in self.nodes])

    def bytes(self, storages: Iterable[int]) -> int:
        return sum(map(self.storages.__getitem__, storages))

    def freed(self, storages: Iterable[int]) -> Events:
        return ((one, -self.storages[one]) for one in storages)

    def forward(self, kept: Collection[int] = (), until: int = maxsize) -> Events:
        """Allocations while the tape runs forward: each tensor is freed after its last use.

        ``kept``: storages that stay, as autograd saves them. ``until``: run this many nodes; the last one makes only
        outputs that are kept.
        """
        last = {storage: at for at, node in enumerate(self.nodes, 1) for storage in node.used}
        born = set[int]()
        for at, node in enumerate(self.nodes[:until], 1):
            made = node.used if at != until or node.output.storage in kept else node.read
            for one in (*made, *filter(kept.__contains__, node.saved)):
                if one not in born:
                    born.add(one)
                    yield one, self.storages[one]
            yield from self.freed({one for one in born.intersection(node.used) if last[one] == at}.difference(kept))
        yield from self.freed(one for one in born.difference(kept) if last[one] > until)


def peak_bytes(events: Events, there: int = 0) -> int:
    """Most bytes at once, ``there`` being there before."""
    return max(accumulate((size for _, size in events), initial=there))


def _inputs(nodes: list[_Node]) -> set[int]:
    """Storages that ``nodes`` read and do not make themselves."""
    made = {node.output.key for node in nodes}
    return {tensor.storage for node in nodes for tensor in node.inputs if tensor.key not in made}


@dataclass(slots=True)
class _Gradient:
    """A gradient, its bytes, and how many read it."""

    name: int
    bytes: int
    readers: int = 1

    def read(self) -> Events:
        """One reader fewer; the last frees it."""
        self.readers -= 1
        if not self.readers:
            yield self.name, -self.bytes


class _Backward:
    """A ``tape``'s backward under way: the storages that are ``there``, and how many nodes still ask for each.

    Operators that run again do so together, as one of ``parts``, for the first node that asks for anything they saved
    or made, or, of another part, ran while a name held that: Megatron-Core makes a norm's output again before the
    backward of all that it was made for. ``gradients``: by their tensor's key, shared between keys that share one;
    ``views``: the keys of those that are a view.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.names = count(-1, -1)
        self.parts = defaultdict[int, list[_Node]](list)
        for node in tape.nodes:
            self.parts[node.part].append(node)
        # A part's inputs stay until it has run backward.
        given = {part: _inputs(nodes) if part else set() for part, nodes in self.parts.items()}
        self.asked = [{*node.saved, *given[node.part].intersection(node.read)} for node in tape.nodes]
        self.makers = {node.output.storage: node.part for node in tape.nodes}
        self.users = Counter(chain(*self.asked))
        self.there = {*tape.saved(selective=True)}
        self.gradients = dict[int, _Gradient]()
        self.views = set[int]()
        self.later = dict[int, Pair]()

    def events(self, seed_bytes: int, passing: int, kept_bytes: int) -> Events:
        """``passing``, ``kept_bytes``: of an element of a weight's gradient, for a moment and from then on."""
        seed = _Gradient(next(self.names), seed_bytes)
        yield seed.name, seed_bytes
        self.gradients |= {node.output.key: seed for node in self.tape.nodes[-1:]}
        for node, needed in zip(reversed(self.tape.nodes), reversed(self.asked), strict=True):
            own = self.gradients.pop(node.output.key, None)
            if not own:
                continue  # nothing downstream needs its gradient
            yield from self._ask(node, needed)
            new = [own if node.shares_gradient else _Gradient(next(self.names), one.bytes) for one in node.inputs]
            yield from ((one.name, one.bytes) for one in new if one is not own)
            yield next(self.names), node.weights * kept_bytes
            yield from self._passing(node.work, node.weights * passing)
            self.users.subtract(needed)
            gone = self._unasked(needed)
            self.there -= gone
            yield from self.tape.freed(gone)
            own.readers += len(node.inputs) * node.shares_gradient
            yield from own.read()
            for tensor, gradient in zip(node.inputs, new, strict=True):
                yield from self._add(tensor.key, gradient, is_view=node.views_gradient)
            yield self.later.pop(node.output.key, (0, 0))
        yield from {one.name: -one.bytes for one in self.gradients.values()}.items()
        yield from self.tape.freed(self.there)

    def _ask(self, node: _Node, needed: set[int]) -> Events:
        """Make the storages again that ``node`` asks for and that were freed."""
        held = (one.storage for one in node.holds if self.makers.get(one.storage) != node.part)
        asking = {*needed, *held} - self.there
        for part in self.parts.keys() & {node.part * node.looks_back, *map(self.makers.get, asking)} - {0}:
            again = self.parts.pop(part)
            yield from self._again(again)
            if again[0].dropped and part != node.part:
                # Freed storages are filled again, and stay, with what was made for them, until their part ran backward.
                filled = self.tape.bytes(asking.intersection(one.output.storage for one in again))
                name = next(self.names)
                yield name, filled
                self.later[again[0].output.key] = name, -filled

    def _again(self, part: list[_Node]) -> Events:
        """``part`` runs forward again.

        It ends with the last thing that is asked for (torch.utils.checkpoint's early stop); an operator saves what it
        reads before it runs, and takes up what was kept and nothing else asks for.
        """
        tape = self.tape
        makes = {one for node in part for one in (*node.saved, node.output.storage)}
        made = makes - self._unasked(makes) - self.there
        last = max(at for at, node in enumerate(part, 1) if node.looks_back or node.output.storage in made)
        left = self.there - self._unasked(node.output.storage for node in part[: last - 1])
        yield from tape.freed(self.there - left)
        yield from Tape([size * (one not in left) for one, size in enumerate(tape.storages)], part).forward(made, last)
        self.there = left | made

    def _unasked(self, storages: Iterable[int]) -> set[int]:
        """Those that no node's backward asks for any more."""
        return {one for one in storages if not self.users[one]}

    def _passing(self, *sizes: int) -> Events:
        """Allocate ``sizes`` and free them at once."""
        passing = [*zip(self.names, sizes)]  # noqa: B905 - names have no end
        yield from passing
        yield from ((name, -size) for name, size in passing)

    def _add(self, key: int, gradient: _Gradient, *, is_view: bool) -> Events:
        """A ``gradient`` comes, or is added to the one that is there; a sum with a view is a third tensor."""
        if key not in self.gradients:
            self.gradients[key] = gradient
            if is_view:
                self.views.add(key)
            return
        if key in self.views:
            yield from self._passing(self.gradients[key].bytes)
            self.views.remove(key)
        yield from gradient.read()


#: Operators of each kind of module, and how families write them.
DECLARED: Named = content(DATA / "modules.toml")
#: Functions that put a module on the tape, by name.
Runs = dict[str, Callable[..., Tensor]]


@frozen
class Line:
    """One operator or, without an ``output``, a change of the tensors that names of the running code keep (``inputs``).

    ``when``: words that must hold, or with a ``!`` must not. ``run``: a module that puts its own operators on the tape
    instead. ``part``: a view. ``sums`` and ``ways``: further keywords of ``Tape.op`` or ``view``.
    """

    output: str
    inputs: Names
    when: str
    run: str = ""
    part: bool = False
    saves: Names = ()
    sums: Mapping[str, CodeType] = field(default_factory=dict)
    ways: dict[str, bool] = field(default_factory=dict)


def listing(module: str) -> tuple[Line, ...]:
    """A module's lines."""
    return tuple(map(line_of, DECLARED["modules"][module].strip().splitlines()))


def line_of(text: str) -> Line:
    """A line as modules.toml writes it. Raises ValueError for a clause that there is not."""
    head, *columns = map(str.strip, text.split("|"))
    output, arrow, inputs = head.partition("<-")
    parts = (one.strip().partition(" ") for column in columns[bool(arrow) :] for one in column.split(";"))
    clauses = {name: words for name, _, words in parts}
    when = clauses.pop("if", "")
    if not arrow:
        return Line("", tuple(head.split()), when)
    size, _, called = columns[0].partition("run ")
    run, _, n = called.partition(" ")
    saves, part = tuple(clauses.pop("saves", "").split()), clauses.pop("part", None) is not None
    sums = {key: formula(said) for key, said in (("size", size), ("n", n)) if said}
    sums |= {_SUMS[name]: formula(clauses.pop(name)) for name in clauses.keys() & _SUMS}
    ways = {_WAYS[name]: not clauses.pop(name) for name in clauses.keys() & _WAYS}
    if clauses:
        raise ValueError(f"modules.toml: {text!r}: {min(clauses)!r} is no clause")
    return Line(output.strip(), tuple(inputs.split()), when, run, part, saves, sums, ways)


#: Clauses that are sums and those that are words alone -> the keyword of ``Tape.op`` or ``view``.
_SUMS, _WAYS = (DECLARED["clauses"][kind] for kind in ("sums", "words"))


@lru_cache(1024)
def _held(module: str, words: frozenset[str]) -> list[tuple[Line, bool]]:
    """A module's lines, and whether each holds."""
    return [(line, hold(line.when, words.__contains__)) for line in listing(module)]


def play(tape: Tape, module: str, words: frozenset[str], runs: Runs, numbers: Counts, tensors: ByName) -> Tensor:
    """Put a module's operators on ``tape``; the last one's output.

    ``words`` that hold, the modules that it ``runs``, ``numbers`` by name and the ``tensors`` that it reads; the latter
    two are added to.
    """
    named = tape.named
    numbers |= {name: tensor.bytes for name, tensor in tensors.items()}
    output = next(iter(tensors.values()))
    for line, holds in _held(module, words):
        if not line.output:
            if holds:
                verb, *names = line.inputs
                tape.named = named if verb == "forget" else tape.named + tuple(tensors[name] for name in names)
            continue
        inputs = tuple(tensors[name] for name in line.inputs)
        output = _run(tape, line, inputs, runs, numbers, tensors) if holds else inputs[0]
        tensors[line.output], numbers[line.output] = output, output.bytes
    return output


def _run(tape: Tape, line: Line, inputs: Row, runs: Runs, numbers: Counts, tensors: Mapping[str, Tensor]) -> Tensor:
    given = {name: eval(code, {}, numbers) for name, code in line.sums.items()} | line.ways
    if line.run:
        return runs[line.run](*inputs, **given)
    if line.part:
        return tape.view(inputs[0], **given)
    saves = tuple(tensors[name] for name in line.saves if name != line.output)
    return tape.op(line.output, inputs, saves=saves, saves_output=line.output in line.saves, **given)
