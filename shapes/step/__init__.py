"""Step times: one cost source prices each distinct operator once, and a software stack makes a step of them.

`Pricer` is the one way to price a step: its seconds, the interval they lie in, and the tier of that knowledge.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import exp, hypot, log
from operator import attrgetter, mul
from pathlib import Path
from typing import Any

import numpy as np

from shapes.cost import Cost, predict_many
from shapes.cost.constants import TIERS
from shapes.device import Device
from shapes.errors import DAMAGED, InputError
from shapes.frozen import Names, Numbers, frozen, replace
from shapes.memory import memory
from shapes.model import ModelShape
from shapes.operators import Repeated, in_parts
from shapes.operators.types import Operator, Operators, moved_bytes, work_key
from shapes.toml_table import DATA
from shapes.workload import Workload

from .seconds import DEVICE_PARTS, Microbatch, Schedule, Work, add, microbatch, slowest_stage, step_parts, work
from .stack import STEP_TIERS, Interval, SoftwareStack

#: Relative error of the operators that stacks' intervals were calibrated with. A larger error, of operators priced by
#: another device's or element type's constants, widens the interval.
CALIBRATED_ERROR = 0.10
#: From this share of a step's seconds an operator's tier counts for the step, and an unstated setting is named.
NOTABLE = 0.1


@frozen
class StepCost:
    """One global step: ``parts`` add up to ``seconds``, which lie in ``low`` to ``high`` in ``coverage`` of cases.

    ``tier``: "fitted" on runs of this stack and kind of device, "borrowed" from this stack on other devices,
    "extrapolated" from other stacks. ``ratio_error``: relative error of the ratio to another step on the same stack and
    device. ``unknown``: settings that nobody stated and that ``high`` allows for.
    """

    seconds: float
    low: float
    high: float
    coverage: float
    ratio_error: float
    tier: str
    parts: Numbers
    unknown: Names = ()


def step_cost(
    stage: Work, whole: Microbatch | None, schedule: Schedule, stack: SoftwareStack, device: Device, full_s: float = 0.0
) -> StepCost:
    """The step of ``stage`` (the slowest pipeline stage) as ``stack`` runs it on ``device``.

    ``whole``: a microbatch of all stages (None: there is one stage).

    ``full_s``: seconds of the step with full recomputation, if nobody said what is recomputed. An interval up to them
    holds 86 to 100% of the runs of each source that does not say (10 to 100% without: reports/bench/steps_policy.py).
    """
    own = microbatch(stage, stack, device)
    ran = own, whole or own
    parts = {name: float(value) for name, value in step_parts(stage, schedule, stack, *ran).items() if value}
    seconds = sum(parts.values())
    tier = stack.tier(device.architecture)
    # The interval of an architecture that was fitted on, the tier's, or the next wider one that the stack has.
    tiers = (
        *[device.architecture] * (tier == STEP_TIERS[0]),
        *STEP_TIERS[STEP_TIERS.index(tier) :],
        *reversed(STEP_TIERS),
    )
    interval = next((stack.intervals[one] for one in tiers if one in stack.intervals), Interval(0.5, 2.0, 0.5))
    wider = max(0.0, stage.off_s / max(stage.priced_s, 1e-12) - CALIBRATED_ERROR)
    unstated = schedule.ranks > device.link.domain_devices and not device.link.stated
    # Communication within a microbatch's layers is the same however far nodes are apart.
    slower = step_parts(stage, schedule, stack.on_slower_network(), *ran) if unstated else parts
    worth = {
        "network not stated (--nics)": _excess(sum(slower.values()), seconds),
        "recomputation not stated (--checkpointing)": _excess(full_s, seconds),
    }
    low = exp(-hypot(log(interval.low), wider))
    high = exp(hypot(log(interval.high), wider, *worth.values()))
    unknown = tuple(what for what, more in worth.items() if more > NOTABLE)
    return StepCost(seconds, seconds * low, seconds * high, stack.coverage, interval.ratio, tier, parts, unknown)


def _excess(more_s: float, seconds: float) -> float:
    """Logarithm of ``more_s`` over ``seconds``; 0 where either is 0."""
    return log(more_s / seconds) if more_s and seconds else 0.0


#: Share of its host's memory bandwidth, per device, that an update on the host reaches: at least, usually, at most.
#: 0.2 was chosen with published steps in view; without pinned memory it reaches 0.03 (tests/test_offload.py).
REACHED = (0.05, 0.2, 0.6)
#: Over the bytes of AdamW's states (12 a parameter): the bytes that an update moves (states are read and written, and 6
#: of gradient and weight), and those of a 16-bit gradient.
UPDATED, GRADIENT = 30 / 12, 2 / 12


def with_host(cost: StepCost, model: ModelShape | None, workload: Workload, device: Device) -> StepCost:
    """``cost`` with a share of the optimizer, of weights or of saved tensors on the host.

    Once a step gradients go over the link to the host, which updates its share in its own memory, and weights come
    back; if ZeRO shards gradients, they go in every microbatch. Offloaded weights come for both passes of each
    microbatch; saved tensors go in its forward and come back in its backward. Of these copies only the part that
    outlasts the computing shows. InputError if the host is not known, and for a trace.
    """
    if not (workload.offload or workload.offload_params or workload.offload_saved):
        return cost
    link = device.link
    if not model or not link.host_bytes_per_s:
        raise InputError("expected none: the host is not known", "offload", workload.offload)
    there = {part.name: part.hosted for part in memory(model, workload).parts}
    states = there.get("master_weights", 0) + there["optimizer_states"]
    sizes = there["activations"], there["weights"], GRADIENT * states
    saved, weights, gradients = (size / link.host_bytes_per_s for size in sizes)
    leaving = gradients * (workload.zero > 1)
    each = max(saved, weights) + max(saved + weights, leaving)
    computing = sum(cost.parts.get(name, 0) for name in DEVICE_PARTS)
    copies = max(0, workload.accumulation * each - computing) + 2 * gradients - leaving
    bounds = zip((cost.high, cost.seconds, cost.low), REACHED, strict=True)
    updated_s = UPDATED * states / link.host_memory_bytes_per_s
    high, seconds, low = (one + updated_s / reached + copies for one, reached in bounds)
    update_s = seconds - cost.seconds - copies
    parts = {**cost.parts, "optimizer on the host": update_s, "copies to the host": copies}
    return replace(cost, seconds=seconds, low=low, high=high, tier=STEP_TIERS[-1], parts=parts)


def schedule_of(workload: Workload) -> Schedule:
    """The microbatches, stages and ranks into which ``workload`` cuts a global step."""
    w = workload
    return Schedule(w.accumulation, w.p, w.vpp, w.regathers, w.zero == 2, w.model_ranks * w.d)


def over_stages(workload: Workload) -> Workload:
    """``workload`` over all pipeline stages, without what runs once a step.

    Workloads that differ in nothing else are then equal, and priced once.
    """
    saving = workload.saving
    layers = f":{saving.layers * workload.p}" if saving.layers else ""  # so many layers in each stage
    return workload.within_layers(checkpointing=saving.name + layers)


def priced_work(listed: Operators, costs: Sequence[Cost]) -> Work:
    """The operators' ``work`` with the error of their prices."""
    found = work(listed, map(_SECONDS, costs))
    for operator, cost in zip(listed, costs, strict=True):
        found.priced_s += cost.seconds * operator.count
        found.off_s += cost.error * cost.seconds * operator.count
    return found


#: Operators -> one cost each: the only interface between advice and the source of its seconds.
CostSource = Callable[[Sequence[Operator], Device], Sequence[Cost]]


@frozen
class Step:
    """The operators of one microbatch (and the update) with their costs, and the global step that they make.

    ``cost``: the step of ``accumulation`` microbatches as a software stack runs it. None: the operators' seconds are
    added up, by which parts of a model are compared; times ``stages``, which a decode step passes one after the other,
    and at least ``least_s``, which memory needs.
    """

    operators: Operators
    costs: tuple[Cost, ...]
    cost: StepCost | None = None
    accumulation: int = 1
    stages: int = 1
    least_s: float = 0.0

    @property
    def priced(self) -> Iterator[tuple[Operator, Cost]]:
        """Each operator with its cost."""
        return zip(self.operators, self.costs, strict=True)

    @property
    def seconds(self) -> float:
        return self._bound("seconds")

    @property
    def low(self) -> float:
        return self._bound("low")

    @property
    def high(self) -> float:
        return self._bound("high")

    def _bound(self, bound: str) -> float:
        if self.cost:
            return float(getattr(self.cost, bound))
        added = sum(map(mul, map(attrgetter(bound), self.costs), map(attrgetter("count"), self.operators)))
        return max(self.least_s, self.stages * float(added))

    @property
    def flops(self) -> int:
        """FLOPs of this device's operators in the step, forward and backward."""
        return self.accumulation * sum(one.flops * one.count for one in self.operators if one.phase != "optimizer")

    @property
    def source(self) -> str:
        """The sources of the seconds, each once."""
        return "; ".join(dict.fromkeys(cost.source for cost in self.costs))

    @property
    def tier(self) -> str:
        """The least certain tier among operators with a notable share of the seconds."""
        each = [operator.count * cost.seconds for operator, cost in self.priced]
        least_s = NOTABLE * sum(each)
        listed = (cost.tier for cost, seconds in zip(self.costs, each, strict=True) if seconds >= least_s)
        return max(listed, key=TIERS.index, default="measured")


_SECONDS = attrgetter("seconds")
#: No operator takes so long; sums over a step's operators stay finite.
LONGEST_S = 1e30


@dataclass(eq=False)
class Pricer:
    """Prices operators on one device and remembers each one, as a suggestion changes only a few of them.

    ``stack``: the software that runs whole steps (None: operators are added up).
    """

    device: Device
    source: CostSource = predict_many
    stack: SoftwareStack | None = None

    def __post_init__(self) -> None:
        self._known = dict[object, Cost]()
        self._whole = lru_cache(lambda stack, *step: microbatch(self.summed(*step), stack, self.device))
        self._parts = dict[int, tuple[Operators, Work]]()

    def step(
        self, listed: Sequence[Operator], workload: Workload | None = None, model: ModelShape | None = None
    ) -> Step:
        """``listed`` priced; with a stack, the global step that they make in ``workload``.

        ``model``: for the work of the other pipeline stages (None: a trace, which has no stages).
        """
        listed, costs = tuple(listed), self._costs(listed)
        if workload and workload.serving:
            # No stack was fitted on serving: engines replay graphs, and nothing waits for the host. Tables repeat one
            # kernel, whose cache is warm; in a whole step it is cold, so that memory takes its time at least.
            least_s = workload.p * moved_bytes(listed) / self.device.memory.bandwidth_bytes_per_s
            return Step(listed, costs, stages=workload.p, least_s=least_s)
        if not self.stack or not workload:
            return Step(listed, costs)
        if not model:  # a trace is one whole pass, whatever the stages
            workload = replace(workload, p=1)
        return Step(listed, costs, self.cost(model, workload, priced_work(listed, costs)), workload.accumulation)

    def prepare(self, model: ModelShape, workloads: Iterable[Workload]) -> None:
        """Price at once the operators of all steps of a plan."""
        each = (one for workload in workloads for one in (workload, over_stages(workload))[: workload.p])
        self._add_up(in_parts(model, one) for one in each)

    def summed(self, model: ModelShape, workload: Workload) -> Work:
        """The work of one microbatch; each part of it is priced once."""
        total, found = Work(), in_parts(model, workload)
        self._add_up([found])
        for part, times in found:
            add(total, self._parts[id(part)][1], times)
        return total

    def cost(self, model: Any, workload: Workload, own: Work | None = None) -> StepCost:
        """The global step of a stage's ``own`` work (None: of the ``model``'s operators).

        A plan gives none: its thousands of steps share their parts.
        """
        assert self.stack
        stage, whole, full_s = own or self.summed(model, workload), None, 0.0
        stack = self.stack.without_overlap(workload.exposed)
        if workload.p > 1:
            stage = slowest_stage(stage, model, workload.p, self.stack, self.device)
            whole = self._whole(stack, model, over_stages(workload))
        if workload.checkpointing == "unknown" and model:
            full_s = self.cost(model, replace(workload, checkpointing="full")).seconds
        cost = step_cost(stage, whole, schedule_of(workload), stack, self.device, full_s)
        return with_host(cost, model, workload, self.device)

    def learn(self, many: Iterable[Operators]) -> None:
        """Price the operators of many steps at once: one at a time is many times slower."""
        self._costs([*chain(*many)])

    def _add_up(self, steps: Iterable[Repeated]) -> None:
        """The work of each part of steps that is new, all priced at once."""
        # The key is the part's identity, which lasts as long as the part is kept here.
        new = {id(part): part for step in steps for part, _ in step if id(part) not in self._parts}
        self.learn(new.values())
        self._parts |= {key: (part, priced_work(part, self._costs(part))) for key, part in new.items()}

    def _costs(self, listed: Sequence[Operator]) -> tuple[Cost, ...]:
        keys = [*map(work_key, listed)]
        missing = {key: one for key, one in zip(keys, listed, strict=True) if key not in self._known}
        if missing:
            self._known.update(zip(missing, self._priced([*missing.values()]), strict=True))
        return tuple(self._known[key] for key in keys)

    def _priced(self, wanted: Sequence[Operator]) -> Sequence[Cost]:
        """The costs of ``wanted``. InputError if a device's file, which anybody may write, gives no finite times."""
        try:
            with np.errstate(all="ignore"):  # what it gives is judged here
                costs = self.source(wanted, self.device)
            wrong = [cost for cost in costs if not 0 <= cost.low <= cost.seconds <= cost.high < LONGEST_S]
        except DAMAGED as error:
            if isinstance(error, InputError) or Path(self.device.origin).is_relative_to(DATA):
                raise  # said already, or not the user's mistake
            expected = f"expected tables as `sizer calibrate` writes them ({type(error).__name__})"
            raise InputError(expected, "cost and error", where=self.device.origin) from None
        if wrong:
            raise InputError(
                "expected constants that give finite times", "cost and error", wrong[0].seconds, self.device.origin
            )
        return costs

    def error_s(self, before: Step, after: Step) -> float:
        """Seconds by which the difference of ``before`` and ``after`` may be off.

        It is the error of the operators that ``after`` does not run alike; with a stack at most the error of the ratio
        of two steps on one stack and device.
        """
        kept = {work_key(op): op.count for op in after.operators}
        changed = 0.0
        for operator, cost in before.priced:
            gone = operator.count - kept.get(work_key(operator), 0)
            changed += max(0, gone) * float(max(cost.high - cost.seconds, cost.seconds - cost.low))
        changed *= before.accumulation
        return min(changed, before.cost.ratio_error * before.seconds) if before.cost else changed
