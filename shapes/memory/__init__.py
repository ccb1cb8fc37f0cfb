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
from shapes.memory.engine import UTILIZATION, engine_bytes, longest_context, most_requests
from shapes.memory.modules import CHECKED
from shapes.workload import Implementation

__all__ = [
    "CHECKED",
    "UTILIZATION",
    "Implementation",
    "Memory",
    "Saved",
    "engine_bytes",
    "largest_microbatch",
    "longest_context",
    "memory",
    "memory_of_parameters",
    "most_requests",
    "savings",
    "smallest_pp",
    "smallest_tp",
]
