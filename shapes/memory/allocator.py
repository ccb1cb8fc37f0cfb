"""torch's caching allocator: what it reserves of a device for the requests of training steps, in their order.

After c10/cuda/CUDACachingAllocator.cpp of torch 2: a request takes the smallest free block of its pool that holds it,
and what is left of the block is cut off; else a segment is reserved, and stays. Free neighbours become one block.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable

from shapes.frozen import Pair, Sizes, replace

from .moments import StageStep, tapes_of_step

MIB = 2**20
#: Blocks are multiples of it (kMinBlockSize).
ROUND = 512
#: Requests up to it share segments of 2 MiB (kSmallSize, kSmallBuffer); from larger ones more than it is cut off.
SMALL = MIB
#: Components that come with the step, or are not the allocator's.
LATER = ("optimizer_states", "gradients", "activations", "logits_and_loss", "temporary", "framework", "allocator")


class Segments:
    """A device's segments: ``reserved`` bytes."""

    def __init__(self) -> None:
        self.reserved = 0
        # Of the large pool and of the small one: bytes and addresses.
        self._free: tuple[list[Pair], list[Pair]] = [], []
        self._held: dict[Hashable, Pair] = {}

    def change(self, name: Hashable, size: int) -> None:
        """A tensor of so many bytes comes, or (below 0) goes."""
        if size > 0:
            self._held[name] = self._taken(-(-size // ROUND) * ROUND)
        elif size:
            self._give(*self._held.pop(name))

    def _taken(self, size: int) -> Pair:
        small = size <= SMALL
        free = self._free[small]
        at = bisect_left(free, (size, 0))
        if at < len(free):
            there, address = free.pop(at)
        else:
            # From kMinLargeAlloc on a request has a segment of its own (kLargeBuffer, kRoundLarge).
            there = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            # Gaps as long as the segments: no two are neighbours.
            address = 2 * self.reserved
            self.reserved += there
        left = there - size
        if left > SMALL * (not small):
            insort(free, (left, address + size))
            there = size
        return there, address

    def _give(self, size: int, address: int) -> None:
        free = self._free[size <= SMALL]
        for one in [one for one in free if sum(one) == address or address + size == one[1]]:
            free.remove(one)
            size, address = size + one[0], min(address, one[1])
        insort(free, (size, address))


def reserved_bytes(step: StageStep, sizes: Sizes) -> int:
    """Bytes that the allocator reserves for training steps of a stage, whose components take ``sizes``.

    Each tensor is requested by itself, Megatron's in its buffers; AdamW's two moments come with the first update, into
    what the first backward left free, and the second step finds them there.
    """
    segments = Segments()
    # A layer's experts are one tensor.
    copies = [] if step.megatron else [(one, min(one.copies, step.layers)) for one in step.tensors]
    pieces = [one.elements * one.copies // count for one, count in copies for _ in range(count)] or [1]

    def last(component: str, share: int = 1) -> None:
        for at, one in enumerate(one for one in pieces for _ in range(share)):
            segments.change((component, at), sizes[component] * one // (share * sum(pieces)))

    for name in sizes:
        if name not in LATER:
            last(name)
    # Else each tensor's comes with the first backward, whose other microbatches are not in flight.
    buffers = step.megatron or step.sharded or step.in_flight > 1
    if buffers:
        last("gradients")
    for update in (True, False):
        there = Counter[tuple[Hashable, int]]()
        now = step if buffers else replace(step, gradients_stay=step.gradients_stay and not update)
        for where, events in tapes_of_step(now):
            for key, size in events:
                segments.change((where, key), size)
                there[where, key] += size
        if update:
            last("optimizer_states", 2)
        for each, size in there.items():
            if each[1] >= 0 or not step.gradients_stay:
                segments.change(each, -size)
    return segments.reserved
