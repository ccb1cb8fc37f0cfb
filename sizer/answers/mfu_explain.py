"""`mfu --explain`: a measured step beside its predicted parts, and what would account for the difference.

Every cause is the same step priced once more with one thing otherwise: its worth is the change in predicted seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shapes.device import Device
from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.json_form import shown
from shapes.operators import operators
from shapes.step import Pricer, StepCost
from shapes.step.stack import ELEMENTWISE, SoftwareStack, load_stack
from shapes.workload import Workload
from sizer.answers.batch import batch_of
from sizer.subject import Subject, run_on

#: A cause that changes the step by less explains nothing.
NOTABLE = 0.01
#: What "slower" means of the host, the links and the clocks, and how uneven experts and stages are taken to be.
SLOWER_HOST, SLOWER_LINK, LOWER_CLOCK, UNEVEN = 2.0, 0.5, 1.1, 1.5


@frozen
class Cause:
    """What might be otherwise than was assumed, and by how many seconds it would change the step."""

    what: str
    seconds: float


@frozen
class Explanation:
    """A measured step beside the predicted one, whose ``parts`` add up; ``causes`` by what they are worth.

    Only causes that lead from the prediction towards the measurement are listed.
    """

    measured_s: float
    predicted: StepCost
    stack: str
    accumulation: int
    causes: tuple[Cause, ...]

    JSON = shown(
        *(f"predicted.{name}" for name in ("tier", "coverage", "parts")),
        "expected",
        predicted_seconds="predicted.seconds",
        predicted_low="predicted.low",
        predicted_high="predicted.high",
        unexplained_seconds="unexplained_s",
        hidden=("measured_s",),
    )

    @property
    def unexplained_s(self) -> float:
        return self.measured_s - self.predicted.seconds

    @property
    def expected(self) -> bool:
        """Whether the measurement lies in the prediction's interval: then there is nothing to explain."""
        return self.predicted.low <= self.measured_s <= self.predicted.high


def explain_step(subject: Subject, device: Device, measured_s: float) -> Explanation:
    """What ``measured_s`` seconds of ``subject``'s global step consist of, as far as predictions can tell.

    InputError where devices and global batch do not agree with the layout: another step would be explained.
    """
    batch_of(subject.workload)
    subject = run_on(subject, device)
    cost = _priced(subject, subject.workload, subject.stack, device)
    towards = 1 if measured_s > cost.seconds else -1
    causes = []
    for what, changed in _alternatives(subject, device):
        try:
            worth = _priced(subject, *changed).seconds - cost.seconds
        except InputError:  # no such kernel or split here
            continue
        if worth * towards > NOTABLE * cost.seconds:
            causes.append(Cause(what, worth))
    causes.sort(key=lambda cause: -abs(cause.seconds))
    return Explanation(measured_s, cost, subject.stack.name, subject.workload.accumulation, tuple(causes))


def _priced(subject: Subject, workload: Workload, stack: SoftwareStack, device: Device) -> StepCost:
    listed = subject.operators
    if workload != subject.workload and subject.model is not None:
        listed = operators(subject.model, workload)
    cost = Pricer(device, stack=stack).step(listed, workload, subject.model).cost
    assert cost is not None
    return cost


def _alternatives(subject: Subject, device: Device) -> Iterator[tuple[str, tuple[Workload, SoftwareStack, Device]]]:
    """Everything that may have been otherwise."""
    stack, workload, link = subject.stack, subject.workload, device.link
    if subject.model is not None:
        for what, change in _workloads(workload, moe=subject.model.moe is not None):
            yield what, (replace(workload, **change), stack, device)
    for what, other in _stacks(stack):
        yield what, (workload, other, device)
    rates = {name: getattr(link, name) * SLOWER_LINK for name in ("inter_node_bytes_per_s", "intra_node_bytes_per_s")}
    slower = replace(device, link=replace(link, **rates))
    yield "links at half their rate (a slower network, PCIe instead of NVLink)", (workload, stack, slower)


def _workloads(workload: Workload, *, moe: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Fields of the workload that may have been others."""
    for name, others in (("attention", ("eager", "fa2", "auto")), ("checkpointing", ("none", "selective", "full"))):
        now, by = getattr(workload, name), " by" if name == "attention" else ""
        yield from ((f"{name}{by} {other} instead of {now}", {name: other}) for other in others if other != now)
    if moe and workload.e > 1:
        other = "alltoall" if workload.dispatcher == "flex" else "flex"
        yield f"experts' tokens sent by {other} instead of {workload.dispatcher}", {"dispatcher": other}
        overlapped = "no dispatch" if workload.ep_overlap else "dispatch"
        yield f"{overlapped} beside another microbatch's computing", {"ep_overlap": not workload.ep_overlap}
    if moe:
        uneven = workload.expert_load * UNEVEN
        yield f"uneven routing: the fullest expert {uneven:g} x the mean", {"expert_load": uneven}


def _stacks(stack: SoftwareStack) -> Iterator[tuple[str, SoftwareStack]]:
    """Software that may have run it otherwise."""
    host, kernels = stack.host, stack.kernels
    for what, name in (("no fusion: eager kernels", "eager"), ("fusion: compiled kernels", "compile")):
        other = load_stack(f"transformers-{name}")
        between = {**kernels, **{kind: other.kernels[kind] for kind in ELEMENTWISE}}
        changed = replace(stack, kernels=between, host=replace(host, kernels=other.host.kernels))
        yield f"{what} between the products", changed
    exposed = {group: replace(overlap, hidden=0.0) for group, overlap in stack.overlap.items()}
    hidden = {group: replace(overlap, hidden=1.0, contention=0.0) for group, overlap in stack.overlap.items()}
    yield "no overlap of communication with computing", replace(stack, overlap=exposed)
    yield "communication hidden as far as computing lasts", replace(stack, overlap=hidden)
    slow = replace(host, launch_s=host.launch_s * SLOWER_HOST)
    yield f"a host {SLOWER_HOST:g} x as slow (its CPU, data loading, synchronisation)", replace(stack, host=slow)
    yield "no host between the kernels (CUDA graphs)", replace(stack, host=replace(host, launch_s=0.0))
    throttled = {name: value * LOWER_CLOCK for name, value in kernels.items()}
    yield "a slower device in the group, or a stage a tenth longer: all wait for it", replace(stack, kernels=throttled)
