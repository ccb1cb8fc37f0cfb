"""A whole step: operators' costs and a software stack -> seconds of one global step, by part."""

from __future__ import annotations

from shapes.cost.step.price import StepCost, mean_error, price_step, schedule_of, step_cost, works
from shapes.cost.step.seconds import Microbatch, Schedule, microbatch, step_parts
from shapes.cost.step.work import Kind, Region, Work, slowest_stage, work

__all__ = [
    "Kind",
    "Microbatch",
    "Region",
    "Schedule",
    "StepCost",
    "Work",
    "mean_error",
    "microbatch",
    "price_step",
    "schedule_of",
    "slowest_stage",
    "step_cost",
    "step_parts",
    "work",
    "works",
]
