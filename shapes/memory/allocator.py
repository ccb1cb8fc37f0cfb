"""torch's caching allocator: what it reserves of a device for the requests of training steps, in their order.

After c10/cuda/CUDACachingAllocator.cpp of torch 2: a request takes the smallest free block of its pool that holds it,
and what is left of the block is cut off; else a segment is reserved, and stays. Free neighbours become one block. Where
the device has no more, segments that nothing lies in are given back first (release_cached_blocks).
"""

from bisect import bisect_left, insort
from collections.abc import Hashable
from math import inf
from typing import Any

from shapes.frozen import Ints, Pair, Sizes, replace

from .moments import StageStep, Tapes, tapes_of_step
from .tape import DECLARED

MIB = 2**20
#: Blocks are multiples of it (kMinBlockSize).
ROUND = 512
#: Requests up to it share segments of 2 MiB (kSmallSize, kSmallBuffer); from larger ones more than it is cut off.
SMALL = MIB


class Segments:
    """A device's segments: ``reserved`` bytes, ``most`` at any time; more than its ``limit`` is out of memory.

    ``held``: bytes and address of each tensor that is there, by its name.
    """

    def __init__(self, limit: float = inf) -> None:
        self.limit = limit
        self.reserved = self.most = 0
        # Bytes and addresses of all, and of the next one.
        self._segments = set[Pair]()
        self._next = 0
        # Free blocks of the large and of the small pool, as (bytes, address); and each by its start and by its end.
        self._free: tuple[list[Pair], list[Pair]] = [], []
        self._edges = dict[int, Pair]()
        self.held = dict[Any, Pair]()

    def change(self, name: Hashable, size: int) -> None:
        """A tensor of so many bytes comes, or (below 0) goes."""
        if size > 0:
            self.held[name] = self._taken(-(-size // ROUND) * ROUND)
        elif size:
            self._give(*self.held.pop(name))

    def spread(self, component: str, size: int, pieces: Ints, each: int = 1) -> None:
        """A ``component`` of ``size`` bytes comes, in ``each`` tensors for one of the ``pieces``, by its share."""
        total = each * sum(pieces)
        for at, one in enumerate(pieces):
            for nth in range(each):
                self.change((component, at, nth), size * one // total)

    def play(self, tapes: Tapes) -> None:
        """Allocate and free as ``tapes`` say, by tape and key."""
        for where, events in tapes:
            for key, size in events:
                self.change((where, key), size)

    def _taken(self, size: int) -> Pair:
        small = size <= SMALL
        free = self._free[small]
        at = bisect_left(free, (size, 0))
        if at < len(free):
            there, address = self._leave(free, free[at])
        else:
            # From kMinLargeAlloc on a request has a segment of its own (kLargeBuffer, kRoundLarge).
            there = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            if self.reserved + there > self.limit:
                # To the device, what is a whole segment.
                for whole in self._free:
                    for one in self._segments.intersection(whole):
                        self._segments.remove(self._leave(whole, one))
                        self.reserved -= one[0]
            # Gaps as long as the segments: no two are neighbours.
            address = self._next
            self._next += 2 * there
            self._segments.add((there, address))
            self.reserved += there
            self.most = max(self.most, self.reserved)
        left = there - size
        if left > SMALL * (not small):
            self._join(free, (left, address + size))
            there = size
        return there, address

    def _give(self, size: int, address: int) -> None:
        free = self._free[size <= SMALL]
        for edge in {address, address + size} & self._edges.keys():
            more, at = self._leave(free, self._edges[edge])
            size, address = size + more, min(address, at)
        self._join(free, (size, address))

    def _join(self, free: list[Pair], one: Pair) -> None:
        insort(free, one)
        self._edges[one[1]] = self._edges[sum(one)] = one

    def _leave(self, free: list[Pair], one: Pair) -> Pair:
        del free[bisect_left(free, one)], self._edges[one[1]], self._edges[sum(one)]
        return one


def reserved_bytes(step: StageStep, sizes: Sizes, limit: float) -> int:
    """Bytes that the allocator reserves for training steps of a stage, whose components take ``sizes``.

    ``limit``: bytes of the device; more than that, less the framework's, is out of memory. Each tensor is requested by
    itself, Megatron's in its buffers. AdamW's two moments come with the first update, into memory that the first
    backward left free, and the second step finds them there.
    """
    segments, pieces = Segments(limit - sizes["framework"]), _pieces(step)
    for name, size in sizes.items():
        if name not in DECLARED["later"]:
            segments.spread(name, size, pieces)
    first = replace(step, gradients_stay=False)
    if step.megatron or step.sharded or step.in_flight > 1:
        # Else each gradient comes with the first backward, before other microbatches are in flight.
        segments.spread("gradients", sizes["gradients"], pieces)
        first = step
    tapes = {one: [*tapes_of_step(one)] for one in {first, step}}
    segments.play(tapes[first])
    left = [name for name in segments.held if name[0] not in sizes]
    segments.spread("optimizer_states", sizes["optimizer_states"], pieces, 2)
    for name in left:
        if name[1] >= 0 or not step.gradients_stay:
            segments.change(name, -1)
    segments.play(tapes[step])
    return segments.most


def _pieces(step: StageStep) -> Ints:
    """Elements of each tensor of a stage, a layer's experts together; Megatron's are one buffer."""
    copies = () if step.megatron else ((one, min(one.copies, step.layers)) for one in step.tensors)
    return tuple(one.elements * one.copies // count for one, count in copies for _ in range(count)) or (1,)
