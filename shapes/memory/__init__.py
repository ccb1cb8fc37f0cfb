"""Memory of one device by component, and what fits (torch-free)."""

from shapes.memory.breakdown import (
    CONTEXT_BYTES,
    DISTRIBUTED_BYTES,
    WEIGHT_DTYPES,
    Memory,
    Saved,
    Saving,
    largest_microbatch,
    memory,
    memory_of_parameters,
    possible_savings,
    savings,
    smallest_pp,
    smallest_tp,
    weight_bytes,
)
from shapes.memory.engine import UTILIZATION, engine_bytes, longest_context, most_requests
from shapes.memory.modules import CHECKED
from shapes.memory.moments import Gradients, Moment
from shapes.memory.training import Component
from shapes.model.parameters import (
    OPTIMIZERS,
    PRECISIONS,
    ParameterTensor,
    default_precision,
    optimizer_state_bytes,
    precision_named,
)
from shapes.model.stages import parameter_tensors
from shapes.workload import Implementation

__all__ = [
    "CHECKED",
    "CONTEXT_BYTES",
    "DISTRIBUTED_BYTES",
    "OPTIMIZERS",
    "PRECISIONS",
    "UTILIZATION",
    "WEIGHT_DTYPES",
    "Component",
    "Gradients",
    "Implementation",
    "Memory",
    "Moment",
    "ParameterTensor",
    "Saved",
    "Saving",
    "default_precision",
    "engine_bytes",
    "largest_microbatch",
    "longest_context",
    "memory",
    "memory_of_parameters",
    "most_requests",
    "optimizer_state_bytes",
    "parameter_tensors",
    "possible_savings",
    "precision_named",
    "savings",
    "smallest_pp",
    "smallest_tp",
    "weight_bytes",
]
