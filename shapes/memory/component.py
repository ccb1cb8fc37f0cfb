"""One component of a device's memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Component:
    """Bytes of one component, and the formula with its numbers."""

    name: str
    bytes: int
    formula: str
