"""What of a class was not understood when it was recognised (shapes.trace.prove)."""

from __future__ import annotations

from collections.abc import Iterable

from shapes.frozen import frozen


@frozen
class Unproven:
    """A module that was not understood ("": the model as a whole), why, and its part of the forward pass's FLOPs."""

    module: str
    share: float
    reason: str

    @property
    def name(self) -> str:
        return self.module or "the model"


def named(found: Iterable[Unproven], most: int = 3) -> str:
    """The modules that were not understood in one line, the largest first, with the reason of the first."""
    listed = sorted(found, key=lambda one: -one.share)
    shown = ", ".join(f"{one.name} ({one.share:.1%} of FLOPs)" for one in listed[:most])
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return f"not understood: {shown}{more}: {listed[0].reason}"
