"""One component of a device's memory."""

from __future__ import annotations

from shapes.frozen import frozen


@frozen
class Component:
    """Bytes of one component, and the formula with its numbers."""

    name: str
    bytes: int
    formula: str
