"""A whole step: a software stack runs operators -> seconds of one global step, by part, and their interval."""

from __future__ import annotations

from shapes.step.pricer import CostSource, Pricer, Step, StepCost, schedule_of
from shapes.step.seconds import Work, each_value, slowest_stage, step_parts, work

__all__ = [
    "CostSource",
    "Pricer",
    "Step",
    "StepCost",
    "Work",
    "each_value",
    "schedule_of",
    "slowest_stage",
    "step_parts",
    "work",
]
