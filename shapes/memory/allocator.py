"""What torch's caching allocator takes beyond the tensors in it.

Source: pytorch c10/cuda/CUDACachingAllocator.cpp: allocations of 10 MiB and more are segments of their own, rounded up
to 2 MiB (kMinLargeAlloc, kRoundLarge), of whose rest what is under 1 MiB is no block that another tensor gets
(should_split: kSmallSize); smaller ones share segments of 20 MiB, those of 1 MiB and less segments of 2 MiB.
"""

from __future__ import annotations

from collections.abc import Iterable

from shapes.memory.component import Component
from shapes.model.parameters import ParameterTensor
from shapes.model.states import Precision

MIB = 2**20
#: kMinLargeAlloc, kRoundLarge, kSmallSize, kLargeBuffer and kSmallBuffer.
LARGE, ROUNDED_TO, SPLIT_FROM, LARGE_SEGMENT, SMALL_SEGMENT = 10 * MIB, 2 * MIB, MIB, 20 * MIB, 2 * MIB
#: Of the last segment of either pool half is free, as likely as not.
OPEN_SEGMENTS = (LARGE_SEGMENT + SMALL_SEGMENT) // 2


def lost(size: int) -> int:
    """Bytes that one allocation of ``size`` keeps from all others.

    >>> lost(10 * MIB + 1)
    0
    >>> lost(11 * MIB + 1)
    1048575
    """
    rest = -size % ROUNDED_TO if size >= LARGE else 0
    return rest if rest < SPLIT_FROM else 0


def allocator(tensors: Iterable[ParameterTensor], precision: Precision, *, flat: bool) -> Component:
    """Rounding of weights, master weights, gradients and two moments of ``tensors``, and of the segments half used.

    ``flat``: they lie in a few long buffers (Megatron's, ZeRO's), whose rounding is nothing. How activations of
    changing sizes fragment a segment is not known beforehand, and not in it.
    """
    each = () if flat else (precision.weights, precision.master, precision.gradients, *2 * (precision.moments,))
    rounding = sum(tensor.copies * lost(tensor.elements * size) for tensor in tensors for size in each)
    text = "segments half used" if flat else "weights, gradients and states rounded to 2 MiB, and segments half used"
    return Component(
        "allocator", rounding + OPEN_SEGMENTS, f"{text} (torch's caching allocator; fragmentation unknown)"
    )
