"""A tape of one module's operators: what autograd saves, and how many bytes are alive at any moment of a step.

The bytes of a training step are decided by three rules of PyTorch's autograd, which this module replays: a node keeps
the tensors that its backward formula reads until it has run; a view keeps the whole storage; a gradient lives from the
node that makes it until the node that reads it, where gradients that meet are added in place.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from shapes.frozen import frozen

#: The storage of a tape's first tensor: its module's input.
INPUT = 0


@frozen
class Tensor:
    """A tensor on the tape: the storage it lies in and the bytes of its own gradient."""

    storage: int
    bytes: int
    key: int


@frozen
class _Node:
    inputs: tuple[Tensor, ...]
    output: Tensor
    saved: tuple[int, ...]
    work_bytes: int
    shares_gradient: bool
    recomputed: bool
    weights: int
    holds: tuple[Tensor, ...] = ()

    @property
    def storages(self) -> tuple[int, ...]:
        """What is alive while it runs forward."""
        return tuple(tensor.storage for tensor in (*self.inputs, *self.holds, self.output))


@dataclass(slots=True)
class Tape:
    """Operators in the order they run. Sizes are bytes.

    ``returned``: of what its module returns beside its output, which stays until the next such module has run.
    """

    storages: list[int] = field(default_factory=list)
    nodes: list[_Node] = field(default_factory=list)
    keys: int = 0
    recomputing: bool = False
    names: dict[int, str] = field(default_factory=dict)
    returned: int = 0

    def tensor(self, size: int, name: str = "") -> Tensor:
        """A tensor that no node of this tape makes (the module's input)."""
        self.storages.append(size)
        self.keys += 1
        if name:
            self.names[len(self.storages) - 1] = name
        return Tensor(len(self.storages) - 1, size, self.keys)

    def op(
        self,
        name: str,
        inputs: tuple[Tensor, ...],
        size: int,
        saves: tuple[Tensor, ...] = (),
        *,
        saves_output: bool = False,
        saves_bytes: int = 0,
        work: int = 0,
        weights: int = 0,
        shares_gradient: bool = False,
        holds: tuple[Tensor, ...] = (),
    ) -> Tensor:
        """Run an operator that makes ``size`` bytes.

        ``saves``: tensors its backward reads; ``saves_output``: its own output too; ``saves_bytes``: what only it
        knows (a mask, a log-sum-exp). ``work``: bytes its backward needs beside the gradients it returns.
        ``weights``: elements of a weight whose gradient it makes.
        ``shares_gradient``: its backward hands on the gradient it was given (an addition). ``holds``: tensors that it
        does not read, but that a name of the running code still keeps.
        """
        output = self.tensor(size, name)
        saved = [tensor.storage for tensor in saves]
        if saves_output:
            saved.append(output.storage)
        if saves_bytes:
            saved.append(self.tensor(saves_bytes, f"{name} (for its backward)").storage)
        self.nodes.append(_Node(inputs, output, tuple(saved), work, shares_gradient, self.recomputing, weights, holds))
        return output

    def view(self, of: Tensor, size: int, *, copies_gradient: bool = False) -> Tensor:
        """A part of ``of``'s storage. ``copies_gradient``: the parts' gradients are put together again (split)."""
        self.keys += 1
        output = Tensor(of.storage, size, self.keys)
        self.nodes.append(_Node((of,), output, (), 0, not copies_gradient, self.recomputing, 0))
        return output

    def saved(self, *, selective: bool = False) -> dict[int, int]:
        """Storages that autograd keeps after the forward, with their bytes.

        ``selective``: without those that only nodes marked ``recomputing`` save, which run again instead.
        """
        kept = {
            storage: self.storages[storage]
            for node in self.nodes
            if not (selective and node.recomputed)
            for storage in node.saved
        }
        if selective:
            # The recomputed part starts again from its inputs.
            inside = {node.output.key for node in self.nodes if node.recomputed}
            for node in self.nodes:
                if node.recomputed:
                    kept |= {x.storage: self.storages[x.storage] for x in node.inputs if x.key not in inside}
        return kept

    def saved_bytes(self, *, selective: bool = False) -> int:
        return sum(self.saved(selective=selective).values())

    def unneeded_bytes(self) -> int:
        """What is not saved where the input needs no gradient: all that comes before the first trained weight."""
        needing: set[int] = set()
        kept: set[int] = set()
        for node in self.nodes:
            if node.weights or any(tensor.key in needing for tensor in node.inputs):
                needing.add(node.output.key)
                kept |= set(node.saved)
        return sum(size for storage, size in self.saved().items() if storage not in kept)

    def backward_peak_bytes(self, seed_bytes: int, *, made_bytes: int = 2, kept_bytes: int = 0) -> int:
        """Most bytes alive while the tape runs backward, its saved tensors included.

        ``seed_bytes``: the gradient of the last output, alive from the start. A weight's gradient is made in
        ``made_bytes`` an element; it is added to one that is there already (``kept_bytes`` 0), or stays in
        ``kept_bytes`` an element, the made one itself where the two are the same size.
        """
        return max(peak for _, _, peak in self._backward(seed_bytes, made_bytes, kept_bytes))

    def recomputed_peak_bytes(self, seed_bytes: int) -> int:
        """Most bytes alive while a checkpointed tape runs forward again, the gradients that are there included.

        That begins at the first node of the backward that asks for what it saved, and ends with the last such thing
        made (torch.utils.checkpoint's early stop).
        """
        last = max((index for index, node in enumerate(self.nodes) if node.saved), default=-1)
        if last < 0:
            return 0
        there = next(before for node, before, _ in self._backward(seed_bytes, 0, 0) if node.saved) - self.saved_bytes()
        return there + self.forward_peak_bytes(self.saved(), until=last + 1)

    def _backward(self, seed_bytes: int, made_bytes: int, kept_bytes: int) -> Iterator[tuple[_Node, int, int]]:
        """Nodes as they run backward, with the bytes alive before each and at its fullest."""
        passing = 0 if made_bytes == kept_bytes else made_bytes
        users: dict[int, int] = {}
        for node in self.nodes:
            for storage in node.saved:
                users[storage] = users.get(storage, 0) + 1
        alive = sum(self.storages[storage] for storage in users) + seed_bytes
        gradients: dict[int, list[int]] = {}  # tensor key -> [bytes, readers], shared between keys that share one
        if self.nodes:
            gradients[self.nodes[-1].output.key] = [seed_bytes, 1]
        for node in reversed(self.nodes):
            own = gradients.pop(node.output.key, None)
            if own is None:
                continue  # nothing downstream needs its gradient
            before = alive
            new: list[tuple[int, list[int]]] = []
            for tensor in node.inputs:
                if node.shares_gradient:
                    own[1] += 1
                    new.append((tensor.key, own))
                else:
                    alive += tensor.bytes
                    new.append((tensor.key, [tensor.bytes, 1]))
            alive += node.weights * kept_bytes
            yield node, before, max(before, alive + node.work_bytes + node.weights * passing)
            for storage in node.saved:
                users[storage] -= 1
                if not users[storage]:
                    alive -= self.storages[storage]
            alive -= _release(own)
            for key, gradient in new:
                if key in gradients:
                    alive -= _release(gradient)
                else:
                    gradients[key] = gradient

    def forward_peak_bytes(self, kept: Container[int] = (), *, until: int | None = None) -> int:
        """Most bytes alive while the tape runs forward, up to node ``until``: each tensor dies at its last use.

        ``kept``: storages that stay, since autograd saves them.
        """
        last: dict[int, int] = {}
        for index, node in enumerate(self.nodes):
            last |= dict.fromkeys(node.storages, index)
        born: set[int] = set()
        alive = peak = 0
        for index, node in enumerate(self.nodes[:until]):
            saved = (storage for storage in node.saved if storage in kept)
            for storage in {*node.storages, *saved} - born:
                born.add(storage)
                alive += self.storages[storage]
            peak = max(peak, alive)
            for storage in set(node.storages):
                if last[storage] == index and storage not in kept:
                    alive -= self.storages[storage]
        return peak


def _release(gradient: list[int]) -> int:
    """Drop one reader of a gradient; its bytes if that was the last."""
    gradient[1] -= 1
    return gradient[0] if gradient[1] == 0 else 0
