"""Multiples, powers of two and neighbouring dimensions that rules share."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from shapes.dtypes import BYTES
from shapes.memory import largest_microbatch
from shapes.model import AttentionShape
from sizer.rules.base import Context, Suggestion

#: What a kernel loads at once. NVIDIA's guide asks it of leading dimensions (8 elements of fp16), Hopper's TMA of
#: strides, CUTLASS of its align8 kernels; AMD's and Intel's libraries load vectors of 16 bytes as well.
VECTOR_BYTES = 16


def largest_power_of_two(value: int) -> int:
    """The largest power of two that divides ``value``: 50257 -> 1, 10944 -> 64."""
    return value & -value


def next_multiple(value: int, step: int) -> int:
    return -(-value // step) * step


def neighbours(value: int, step: int) -> tuple[int, ...]:
    """The multiples of ``step`` next to ``value``, below (if positive) and above."""
    below = value // step * step
    return tuple(multiple for multiple in (below, below + step) if multiple > 0)


def degrees_beside(degree: int, divides: Callable[[int], bool]) -> tuple[int, ...]:
    """The powers of two that divide, nearest below ``degree`` and above it to its double: nodes hold so many devices.

    >>> degrees_beside(3, lambda ranks: 28 % ranks == 0)
    (2, 4)
    """
    whole = [1 << power for power in range(degree.bit_length() + 1) if divides(1 << power)]
    above = next((one for one in whole if one > degree), None)
    return (max(one for one in whole if one < degree), *((above,) if above is not None else ()))


def lcm(a: int, b: int) -> int:
    return a // gcd(a, b) * b


def alignment(context: Context) -> int:
    """Elements that dimensions should be multiples of, on this device in this dtype."""
    return context.device.alignment_elements(context.priced_dtype or context.workload.dtype)


def vector(context: Context) -> int:
    """Elements that the tensor cores' loads require of a leading dimension, on every device alike: 16 bytes."""
    return min(VECTOR_BYTES // BYTES[context.priced_dtype or context.workload.dtype] or 1, alignment(context))


def off_vector(context: Context, value: int, t: int = 1) -> bool:
    """Whether a shard of ``value`` is off what the loads require, or ``value`` is not cut into whole ones."""
    return value % (vector(context) * t) != 0


def shard_text(symbol: str, value: int, t: int, step: int) -> str:
    """A shard's part of ``value`` and how far from ``step`` it is: "v/t = 16032 is divisible by 32"."""
    if value % t:
        return f"{symbol} = {value} does not divide over t {t}"
    name = f"{symbol}/t = {value // t}" if t > 1 else symbol
    power = largest_power_of_two(value // t)
    is_now = "is odd" if power == 1 else f"is divisible by {power}"
    return f"{name} {is_now}, not by {step}" if power > 1 else f"{name} {is_now}, not a multiple of {step}"


def square(context: Context) -> bool:
    """Whether heads x head_dim is known to be the hidden size; a trace's caller may have named only some of them."""
    dims = context.dimensions
    known = {"heads", "head_dim", "hidden"} <= dims.keys()
    return known and dims["heads"] * dims["head_dim"] == dims["hidden"]


def heads_that_keep_hidden(
    context: Context, multiple: int, fits: Callable[[int], bool] = lambda head_dim: True
) -> tuple[Suggestion, ...]:
    """Other numbers of heads at the same hidden size whose head dimension is a multiple of ``multiple``.

    The next larger and the next smaller head dimension that ``fits``; both divide the hidden size. As many query heads
    share a key/value head as before, and the heads divide by t and by 2: a prime number of them could never be split.
    """
    dims = context.dimensions
    if context.model is None or not isinstance(context.model.attention, AttentionShape) or not square(context):
        return ()
    dim, hidden = dims["head_dim"], dims["hidden"]
    fitting = [
        candidate
        for candidate in range(multiple, WIDEST_HEAD + 1, multiple)
        if candidate != dim and fits(candidate) and hidden % candidate == 0 and _divides(context, hidden // candidate)
    ]
    larger = [candidate for candidate in fitting if candidate > dim][:1]
    smaller = [candidate for candidate in fitting if candidate < dim][-1:]
    return tuple(
        Suggestion(_with_groups(context, {"heads": hidden // candidate}), f"head_dim {candidate}")
        for candidate in (*larger, *smaller)
    )


#: Head dimensions that every fused kernel takes, the widest first, and the widest that any takes in training.
COMMON_HEADS, WIDEST_HEAD = (128, 64), 256
#: Tensor-parallel degrees of one node, which numbers of heads are best ready for.
NODE = 8


def whole_heads_near(context: Context, neighbourhood: float) -> tuple[Suggestion, ...]:
    """The nearest hidden sizes that are whole heads of 128 or 64, as many as divide over t and a node's degrees."""
    dims, t = context.dimensions, context.workload.t
    if context.model is None or not isinstance(context.model.attention, AttentionShape) or not square(context):
        return ()
    hidden, found = dims["hidden"], []
    for dim in COMMON_HEADS:
        near = {heads * dim: heads for heads in neighbours(hidden // dim, lcm(NODE, t))}
        if dims["heads"] * dim <= hidden * (1 + neighbourhood):
            near[dims["heads"] * dim] = dims["heads"]
        found += [
            (abs(size - hidden), size, heads, dim)
            for size, heads in near.items()
            if abs(size - hidden) <= neighbourhood * hidden and _divides(context, heads)
        ]
    return tuple(
        Suggestion(
            {"hidden": size, **(_with_groups(context, {"heads": heads}) if heads != dims["heads"] else {})},
            f"head_dim {dim}",
        )
        for _, size, heads, dim in sorted(found)
        if size != hidden
    )


def _divides(context: Context, heads: int) -> bool:
    """Whether so many heads divide over t and by 2, in as many groups of key/value heads as keep the ratio."""
    dims = context.dimensions
    return heads % lcm(context.workload.t, 2) == 0 and heads * dims["kv_heads"] % dims["heads"] == 0


def _with_groups(context: Context, change: dict[str, int]) -> dict[str, int]:
    """``change`` with the key/value heads that keep as many query heads to each."""
    dims = context.dimensions
    if dims["kv_heads"] == dims["heads"]:
        return change
    return {**change, "kv_heads": change["heads"] * dims["kv_heads"] // dims["heads"]}


def larger_microbatch(context: Context, wanted: int) -> tuple[Suggestion, ...]:
    """The smallest microbatch of at least ``wanted`` sequences that memory holds and the global batch is made of.

    None in inference, where a batch is as large as the requests that wait; where ``wanted`` does not fit, the largest
    that does. Where what runs now does not fit either, memory is asked only if the layout was said.
    """
    workload = context.workload
    if not workload.train:
        return ()
    most = None
    if context.model is not None and context.divides:
        fits = largest_microbatch(context.model, workload, context.device, implementation=context.implementation)
        if fits < workload.b and context.sets_any("gpus", "d"):
            return ()
        most = fits if fits >= workload.b else None
    rank = workload.global_batch // workload.d if workload.global_batch is not None else None
    if rank is not None:
        whole = [b for b in range(workload.b + 1, (min(most, rank) if most else rank) + 1) if rank % b == 0]
        chosen = next((b for b in whole if b >= wanted), whole[-1] if whole else None)
    else:
        chosen = wanted if most is None else min(wanted, most)
    return (Suggestion({"b": chosen}),) if chosen is not None and chosen > workload.b else ()
