"""A whole step: a software stack runs operators -> seconds of one global step, by part, and their interval."""

from __future__ import annotations

from shapes.step.pricer import CostSource, Pricer, Step, StepCost, mean_error, price_step, schedule_of, step_cost
from shapes.step.seconds import (
    Kind,
    Region,
    Schedule,
    Work,
    each_value,
    microbatch,
    slowest_stage,
    step_parts,
    with_layers,
    work,
)
from shapes.step.stack import SoftwareStack, default_stack, list_stacks, load_stack

__all__ = [
    "CostSource",
    "Kind",
    "Pricer",
    "Region",
    "Schedule",
    "SoftwareStack",
    "Step",
    "StepCost",
    "Work",
    "default_stack",
    "each_value",
    "list_stacks",
    "load_stack",
    "mean_error",
    "microbatch",
    "price_step",
    "schedule_of",
    "slowest_stage",
    "step_cost",
    "step_parts",
    "with_layers",
    "work",
]
