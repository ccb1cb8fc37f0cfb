"""`mfu --explain`: a measured step beside its predicted parts, and what would account for the difference.

Every cause is the same step priced once more with one thing otherwise: its worth is the change in predicted seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from shapes.device import Device
from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.json_form import shown
from shapes.operators import operators
from shapes.step import Pricer, StepCost
from shapes.step.stack import ELEMENTWISE, SoftwareStack, load_stack
from shapes.workload import Dispatcher, Workload
from sizer.batch import batch_of
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
    cost = _priced(subject, device, subject.stack, subject.workload)
    towards = 1 if measured_s > cost.seconds else -1
    causes = []
    for what, changed in _alternatives(subject, device):
        worth = changed.seconds - cost.seconds
        if worth * towards > NOTABLE * cost.seconds:
            causes.append(Cause(what, worth))
    causes.sort(key=lambda cause: -abs(cause.seconds))
    return Explanation(measured_s, cost, subject.stack.name, subject.workload.accumulation, tuple(causes))


def _priced(subject: Subject, device: Device, stack: SoftwareStack, workload: Workload) -> StepCost:
    listed = subject.operators
    if workload != subject.workload and subject.model is not None:
        listed = operators(subject.model, workload)
    cost = Pricer(device, stack=stack).step(listed, workload, subject.model).cost
    assert cost is not None
    return cost


def _alternatives(subject: Subject, device: Device) -> Iterator[tuple[str, StepCost]]:
    """Everything that may have been otherwise, priced."""
    stack, workload = subject.stack, subject.workload
    for what, changed in _workloads(subject, device):
        try:
            yield what, _priced(subject, device, stack, changed)
        except InputError:  # no such kernel or split here
            continue
    for what, other in _stacks(stack):
        yield what, _priced(subject, device, other, workload)
    link = replace(
        device.link,
        inter_node_bytes_per_s=device.link.inter_node_bytes_per_s * SLOWER_LINK,
        intra_node_bytes_per_s=device.link.intra_node_bytes_per_s * SLOWER_LINK,
    )
    yield (
        "links at half their rate (a slower network, PCIe instead of NVLink)",
        _priced(subject, replace(device, link=link), stack, workload),
    )


def _workloads(subject: Subject, device: Device) -> Iterator[tuple[str, Workload]]:
    if subject.model is None:
        return
    workload = subject.workload
    for kernel in ("eager", "fa2", "auto"):
        if kernel != workload.attention:
            yield f"attention by {kernel} instead of {workload.attention}", replace(workload, attention=kernel)
    for how in ("none", "selective", "full"):
        if how != workload.checkpointing:
            yield f"checkpointing {how} instead of {workload.checkpointing}", replace(workload, checkpointing=how)
    if subject.model.moe is not None and workload.e > 1:
        other: Dispatcher = "alltoall" if workload.dispatcher == "flex" else "flex"
        yield f"experts' tokens sent by {other} instead of {workload.dispatcher}", replace(workload, dispatcher=other)
        beside = "no dispatch" if workload.ep_overlap else "dispatch"
        yield f"{beside} beside another microbatch's computing", replace(workload, ep_overlap=not workload.ep_overlap)
    if subject.model.moe is not None:
        uneven = workload.expert_load * UNEVEN
        yield f"uneven routing: the fullest expert {uneven:g} x the mean", replace(workload, expert_load=uneven)


def _stacks(stack: SoftwareStack) -> Iterator[tuple[str, SoftwareStack]]:
    eager, compiled = load_stack("transformers-eager"), load_stack("transformers-compile")
    for what, other in (("no fusion: eager kernels", eager), ("fusion: compiled kernels", compiled)):
        host = replace(stack.host, kernels=other.host.kernels)
        yield f"{what} between the products", replace(stack, kernels=_elementwise(stack, other), host=host)
    exposed = {group: replace(overlap, hidden=0.0) for group, overlap in stack.overlap.items()}
    hidden = {group: replace(overlap, hidden=1.0, contention=0.0) for group, overlap in stack.overlap.items()}
    yield "no overlap of communication with computing", replace(stack, overlap=exposed)
    yield "communication hidden as far as computing lasts", replace(stack, overlap=hidden)
    slow = replace(stack.host, launch_s=stack.host.launch_s * SLOWER_HOST)
    yield f"a host {SLOWER_HOST:g} x as slow (its CPU, data loading, synchronisation)", replace(stack, host=slow)
    yield "no host between the kernels (CUDA graphs)", replace(stack, host=replace(stack.host, launch_s=0.0))
    throttled = {name: value * LOWER_CLOCK for name, value in stack.kernels.items()}
    yield "a slower device in the group, or a stage a tenth longer: all wait for it", replace(stack, kernels=throttled)


def _elementwise(stack: SoftwareStack, other: SoftwareStack) -> Mapping[str, float]:
    return {**stack.kernels, **{name: other.kernels[name] for name in ELEMENTWISE}}
