"""``frozen``: ``dataclass(frozen=True, slots=True)`` under one name, which type checkers follow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """A dataclass of slots that cannot be changed. A class that inherits from one is to be ``frozen`` as well."""
    return dataclass(frozen=True, slots=True)(cls)
