"""Multiples, powers of two and neighbouring dimensions that rules share."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from shapes.model import AttentionShape
from sizer.rules.base import Context, Suggestion


def largest_power_of_two(value: int) -> int:
    """The largest power of two that divides ``value``: 50257 -> 1, 10944 -> 64."""
    return value & -value


def next_multiple(value: int, step: int) -> int:
    return -(-value // step) * step


def neighbours(value: int, step: int) -> tuple[int, ...]:
    """The multiples of ``step`` next to ``value``, below (if positive) and above."""
    below = value // step * step
    return tuple(multiple for multiple in (below, below + step) if multiple > 0)


def lcm(a: int, b: int) -> int:
    return a // gcd(a, b) * b


def alignment(context: Context) -> int:
    """Elements that dimensions should be multiples of, on this device in this dtype."""
    return context.device.alignment_elements(context.priced_dtype or context.workload.dtype)


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

    The next larger and the next smaller head dimension that ``fits``; both divide the hidden size, and the heads
    divide by t.
    """
    dims, t = context.dimensions, context.workload.t
    if context.model is None or not isinstance(context.model.attention, AttentionShape) or not square(context):
        return ()
    heads, dim, hidden = dims["heads"], dims["head_dim"], dims["hidden"]
    grouped = dims["kv_heads"] != heads
    fitting = [
        candidate
        for candidate in range(multiple, 257, multiple)
        if hidden % candidate == 0
        and candidate != dim
        and fits(candidate)
        and (hidden // candidate) % t == 0
        and not (grouped and (hidden // candidate) % dims["kv_heads"])
    ]
    larger = [candidate for candidate in fitting if candidate > dim][:1]
    smaller = [candidate for candidate in fitting if candidate < dim][-1:]
    return tuple(
        Suggestion({"heads": hidden // candidate}, f"head_dim {candidate}") for candidate in (*larger, *smaller)
    )
