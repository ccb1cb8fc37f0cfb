"""Memory of one device by component, and what fits (torch-free)."""

from shapes.memory.breakdown import (
    Memory,
    Saved,
    largest_microbatch,
    memory,
    memory_of_parameters,
    savings,
    smallest_pp,
    smallest_tp,
)
from shapes.memory.modules import CHECKED
from shapes.workload import Implementation

__all__ = [
    "CHECKED",
    "Implementation",
    "Memory",
    "Saved",
    "largest_microbatch",
    "memory",
    "memory_of_parameters",
    "savings",
    "smallest_pp",
    "smallest_tp",
]
