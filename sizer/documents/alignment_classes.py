"""How a chart colours a size by the power of two that divides it, which is what kernels ask of it."""

from __future__ import annotations

#: Divisor -> its colour, from what every kernel takes to what few take; the last is for odd sizes.
CLASSES = {64: "#4477aa", 32: "#66ccee", 16: "#228833", 8: "#ccbb44", 2: "#ee6677", 1: "#aa3377"}


def alignment_class(value: int) -> str:
    """The largest of the classes that divides ``value``, as the legend names it."""
    return next(_named(divisor) for divisor in CLASSES if value % divisor == 0)


def _named(divisor: int) -> str:
    return "nothing (odd)" if divisor == 1 else str(divisor)


COLOURS = {_named(divisor): colour for divisor, colour in CLASSES.items()}
