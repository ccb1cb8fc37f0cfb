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
    possible_savings,
    savings,
    smallest_pp,
    smallest_tp,
    weight_bytes,
)
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
    "largest_microbatch",
    "memory",
    "optimizer_state_bytes",
    "parameter_tensors",
    "possible_savings",
    "precision_named",
    "savings",
    "smallest_pp",
    "smallest_tp",
    "weight_bytes",
]
