"""torch's caching allocator: what it reserves of a device for the requests of training steps, in their order.

After c10/cuda/CUDACachingAllocator.cpp of torch 2: a request takes the smallest free block of its pool that holds it,
of which what is of use is cut off; else a new segment, and segments stay. Free neighbours become one.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator

from shapes.frozen import Sizes, replace

from .moments import StageStep, embedding_gradient, gradients_of, in_flight, layer_runs, layer_tapes, moments, tail_tape
from .tape import Events

MIB = 2**20
#: Blocks are multiples of it (kMinBlockSize).
ROUND = 512
#: Requests up to it share segments of 2 MiB (kSmallSize, kSmallBuffer); cut off of a larger one is more than it.
SMALL = MIB
#: Requests below it share segments of 20 MiB (kMinLargeAlloc, kLargeBuffer), others have their own (kRoundLarge).
OWN = 10 * MIB
#: Components that are not there from the start, or are not the allocator's.
LATER = ("optimizer_states", "gradients", "activations", "logits_and_loss", "temporary", "framework", "allocator")
#: Steps until nothing new is reserved: the optimizer's states are made at the end of the first.
STEPS = 2


class Segments:
    """Segments of one device, ``reserved`` bytes of them."""

    def __init__(self) -> None:
        self.reserved = 0
        # Whether of the small pool, bytes, address.
        self._free: list[tuple[bool, int, int]] = []
        self._held: dict[Hashable, tuple[bool, int, int]] = {}

    def change(self, name: Hashable, size: int) -> None:
        """So many bytes come, or (below 0) what has the name goes."""
        if size > 0:
            self._held[name] = self._taken(-(-size // ROUND) * ROUND)
        elif size:
            self._give(*self._held.pop(name))

    def _taken(self, size: int) -> tuple[bool, int, int]:
        small = size <= SMALL
        at = bisect_left(self._free, (small, size, 0))
        if at < len(self._free) and self._free[at][0] is small:
            _, there, address = self._free.pop(at)
        else:
            own = -(-size // (2 * MIB)) * 2 * MIB
            there = 2 * MIB if small else 20 * MIB if size < OWN else own
            # Gaps as long as the segments: no two are neighbours.
            address = 2 * self.reserved
            self.reserved += there
        if there - size > SMALL * (not small):
            insort(self._free, (small, there - size, address + size))
            there = size
        return small, there, address

    def _give(self, small: bool, size: int, address: int) -> None:
        for one in [one for one in self._free if one[2] + one[1] == address or address + size == one[2]]:
            self._free.remove(one)
            size, address = size + one[1], min(address, one[2])
        insort(self._free, (small, size, address))


def reserved_bytes(step: StageStep, sizes: Sizes) -> int:
    """Bytes that the allocator reserves for training steps of a stage, whose components take ``sizes``."""
    segments = Segments()
    step = replace(step, in_flight=in_flight(step), gradients_stay=gradients_of(step).stay)
    for name, size in _requests(step, sizes):
        segments.change(name, size)
    return segments.reserved


def _requests(step: StageStep, sizes: Sizes) -> Iterator[tuple[Hashable, int]]:
    """What comes and goes from the weights on: tensor by tensor, of Megatron in its buffers."""
    tensors = [one.elements for one in step.tensors for _ in range(one.copies)]
    lasting = [name for name in sizes if name not in LATER or (name == "gradients" and step.gradients_stay)]

    def in_pieces(component: str) -> Iterator[tuple[Hashable, int]]:
        pieces = [1] if step.megatron else tensors
        return (((component, at), sizes[component] * one // sum(pieces)) for at, one in enumerate(pieces))

    for name in lasting:
        yield from in_pieces(name)
    for first in (True, *(False,) * (STEPS - 1)):
        there: dict[Hashable, int] = {}
        for where, events in _of_step(step):
            for key, size in events:
                there[where, key] = there.get((where, key), 0) + size
                yield (where, key), size
        if first:
            yield from in_pieces("optimizer_states")
        yield from ((name, -size) for name, size in there.items())


def _of_step(step: StageStep) -> Iterator[tuple[Hashable, Events]]:
    """A step's tapes as they run, each by where it is; gradients of weights are left."""
    layers = [tape for place, count in layer_runs(step) for tape in [layer_tapes(step)[place]] * count]
    ...
