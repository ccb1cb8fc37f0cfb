"""Seconds of one global step with the interval they lie in, and how they are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import exp, hypot, log

from shapes.cost.predict import predict_many
from shapes.cost.result import Cost
from shapes.cost.step.seconds import Schedule, step_parts
from shapes.cost.step.work import Work, slowest_stage, work
from shapes.device import Device
from shapes.frozen import frozen
from shapes.model import ModelShape
from shapes.operators import Operator, operators
from shapes.software_stack import STEP_TIERS, Interval, SoftwareStack
from shapes.workload import Workload

#: Relative error of operators that a stack's interval was calibrated with: beyond it, operators priced by another
#: device's or element type's constants widen the interval.
CALIBRATED_ERROR = 0.10


@frozen
class StepCost:
    """One global step: ``parts`` add up to ``seconds``; it lies in ``low`` to ``high`` in ``coverage`` of cases.

    ``tier``: "fitted" on runs of this stack and kind of device, "borrowed" from this stack on other devices,
    "extrapolated" from other stacks. ``ratio_error`` is that of the ratio to another step of the stack and device.
    """

    seconds: float
    low: float
    high: float
    coverage: float
    ratio_error: float
    tier: str
    parts: Mapping[str, float]


def step_cost(
    stage: Work,
    whole: Work,
    schedule: Schedule,
    stack: SoftwareStack,
    device: Device,
    operator_error: float = 0.0,
    tier: str | None = None,
) -> StepCost:
    """The step of ``stage`` (slowest pipeline stage) and ``whole`` (all stages') as ``stack`` runs it on ``device``.

    ``operator_error``: mean relative error of the operators' own prices. ``tier``: how the stack is known, where it
    stands for another one (None: as its file says).
    """
    parts = {name: float(value) for name, value in step_parts(stage, whole, schedule, stack, device).items()}
    seconds = sum(parts.values())
    tier = tier or stack.tier(device.architecture)
    interval = interval_of(stack, tier)
    wider = max(0.0, operator_error - CALIBRATED_ERROR)
    low, high = (exp(sign * hypot(log(edge), wider)) for sign, edge in ((-1, interval.low), (1, interval.high)))
    return StepCost(
        seconds,
        seconds * low,
        seconds * high,
        stack.coverage,
        interval.ratio,
        tier,
        {name: value for name, value in parts.items() if value},
    )


def interval_of(stack: SoftwareStack, tier: str) -> Interval:
    """The interval of ``tier``, or the stack's next wider one where it has none of its own."""
    for known in (*STEP_TIERS[STEP_TIERS.index(tier) :], *reversed(STEP_TIERS)):
        if known in stack.intervals:
            return stack.intervals[known]
    return Interval(0.5, 2.0, 0.5)


def price_step(
    model: ModelShape,
    workload: Workload,
    device: Device,
    stack: SoftwareStack,
    accumulation: int | None = None,
    tier: str | None = None,
) -> StepCost:
    """One global step of ``model``: ``accumulation`` microbatches (None: the workload's) and the update."""
    listed = operators(model, workload)
    costs = predict_many(listed, device)
    stage, whole = works(model, workload, device)
    stack = stack.without_overlap(workload.exposed)
    return step_cost(stage, whole, schedule_of(workload, accumulation), stack, device, mean_error(listed, costs), tier)


def works(model: ModelShape, workload: Workload, device: Device) -> tuple[Work, Work]:
    """The work of the slowest pipeline stage and of all stages, the same object where there is one."""
    listed = operators(model, workload)
    stage = work(listed, predict_many(listed, device))
    if workload.p == 1:
        return stage, stage
    stage = slowest_stage(stage, model, workload.p)
    everything = operators(model, replace(workload, p=1))
    return stage, work(everything, predict_many(everything, device))


def schedule_of(workload: Workload, accumulation: int | None = None) -> Schedule:
    """How ``workload`` cuts a global step (``accumulation`` None: as its global batch says)."""
    times = accumulation or workload.accumulation
    return Schedule(times, workload.p, workload.vpp, workload.zero == 3, workload.zero == 2)


def mean_error(listed: Iterable[Operator], costs: Iterable[Cost]) -> float:
    """Relative error of the operators' prices, weighted by their seconds."""
    total = error = 0.0
    for operator, cost in zip(listed, costs, strict=True):
        total += cost.seconds * operator.count
        error += cost.error * cost.seconds * operator.count
    return error / total if total else 0.0
