"""torch's caching allocator: what it reserves of a device for the requests of training steps, in their order.

After c10/cuda/CUDACachingAllocator.cpp of torch 2: a request takes the smallest free block of its pool that holds it,
and what is left of the block is cut off; else a segment is reserved, and stays. Free neighbours become one block.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable

from shapes.frozen import Sizes, replace

from .moments import StageStep, tapes_of_step

MIB = 2**20
#: Blocks are multiples of it (kMinBlockSize).
ROUND = 512
#: Requests up to it share segments of 2 MiB (kSmallSize, kSmallBuffer); from larger ones more than it is cut off.
SMALL = MIB
#: Requests below it share segments of 20 MiB (kMinLargeAlloc, kLargeBuffer), others have their own (kRoundLarge).
OWN = 10 * MIB
#: Components that come with the step, or are not the allocator's.
LATER = ("optimizer_states", "gradients", "activations", "logits_and_loss", "temporary", "framework", "allocator")


class Segments:
    """A device's segments: ``reserved`` bytes."""

    def __init__(self) -> None:
        self.reserved = 0
        # Whether of the small pool, bytes, address.
        self._free: list[tuple[bool, int, int]] = []
        self._held: dict[Hashable, tuple[bool, int, int]] = {}

    def change(self, name: Hashable, size: int) -> None:
        """A tensor of so many bytes comes, or (below 0) goes."""
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
            there = 2 * MIB if small else 20 * MIB if size < OWN else -(-size // (2 * MIB)) * 2 * MIB
            # Gaps as long as the segments: no two are neighbours.
            address = 2 * self.reserved
            self.reserved += there
        left = there - size
        if left > SMALL * (not small):
            insort(self._free, (small, left, address + size))
            there = size
        return small, there, address

    def _give(self, small: bool, size: int, address: int) -> None:
        for one in [one for one in self._free if one[2] + one[1] == address or address + size == one[2]]:
            self._free.remove(one)
            size, address = size + one[1], min(address, one[2])
        insort(self._free, (small, size, address))


def reserved_bytes(step: StageStep, sizes: Sizes) -> int:
    """Bytes that the allocator reserves for training steps of a stage, whose components take ``sizes``.

    Each tensor is requested by itself, Megatron's in its buffers; AdamW's two moments come with the first update, into
    what the first backward left free, and the second step finds them there.
    """
    segments = Segments()
    pieces = [1]
    if not step.megatron:
        # A layer's experts are one tensor.
        copies = [(one, min(one.copies, step.layers)) for one in step.tensors]
        pieces = [one.elements * one.copies // count for one, count in copies for _ in range(count)]

    def last(component: str, share: int = 1) -> None:
        for at, one in enumerate(one for one in pieces for _ in range(share)):
            segments.change((component, at), sizes[component] * one // (share * sum(pieces)))

    for name in sizes:
        if name not in LATER or (name == "gradients" and (step.megatron or step.sharded)):
            last(name)
    for update in (True, False):
        there = Counter[tuple[Hashable, int]]()
        now = step if step.megatron else replace(step, gradients_stay=step.gradients_stay and not update)
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
