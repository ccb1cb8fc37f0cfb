"""A whole step: operators' costs and a software stack -> seconds of one global step, by part."""

from __future__ import annotations

from shapes.cost.step.price import StepCost, mean_error, price_step, schedule_of, step_cost, works
from shapes.cost.step.seconds import Microbatch, Schedule, microbatch, step_parts
from shapes.cost.step.work import Kind, Region, Work, each_value, group_of, slowest_stage, stacked, with_layers, work

__all__ = [
    "Kind",
    "Microbatch",
    "Region",
    "Schedule",
    "StepCost",
    "Work",
    "each_value",
    "group_of",
    "mean_error",
    "microbatch",
    "price_step",
    "schedule_of",
    "slowest_stage",
    "stacked",
    "step_cost",
    "step_parts",
    "with_layers",
    "work",
    "works",
]
