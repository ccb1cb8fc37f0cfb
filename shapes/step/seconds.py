"""One global step: microbatches through a pipeline, what overlaps them, the gradients' reduction and the update.

    device    = sum over classes of factor x seconds                     of layers and of ends
    exposed   = max(comm - hidden device, 0) + contention min(comm, hidden device)
    host      = launch_s x kernels + collective_s x collectives
    micro     = sum over layers, ends of (device^q + host^q)^(1/q), and exposed   launch-bound if the host is slower
    step      = accumulation micro(stage) + (micro(all stages) - micro(stage)) / vpp + sends + data + update + fixed

``micro(all stages) - micro(stage)`` is what fills and drains a 1F1B pipeline: one microbatch through the other stages;
an interleaved schedule pays it a ``vpp``-th. Where gradients accumulate they are reduced once a step, but with FSDP
(ZeRO 3), which gathers the weights and reduces the gradients of every microbatch, and ZeRO 2, which does the latter.
``exposed`` is paid beside the host's time, too: a collective ends when its slowest rank has come to it, so that it does
not fill a wait for the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shapes.device import Device
from shapes.frozen import frozen
from shapes.step.stack import ELEMENTWISE, PARTS, PRODUCTS, Overlap, SoftwareStack
from shapes.step.work import WITHIN, Kind, Region, Work

#: How sharply a region turns from device-bound to launch-bound: kernels of one layer differ in length, so that both are
#: partly paid near the balance. Chosen on the runs of one node; 1 would add, infinity take the longer.
SHARPNESS = 4.0


@frozen
class Schedule:
    """How a global step is cut: ``accumulation`` microbatches over ``p`` stages of ``vpp`` chunks each.

    ``every_microbatch``: data parallelism talks in every microbatch (ZeRO 3), not once; ``reduces_every_microbatch``:
    gradients are reduced in every one, since no rank keeps them whole (ZeRO 2). Numbers or arrays.
    """

    accumulation: Any = 1
    p: Any = 1
    vpp: Any = 1
    every_microbatch: Any = False
    reduces_every_microbatch: Any = False


def device_seconds(region: Region, stack: SoftwareStack, device: Device) -> Mapping[str, Any]:
    """Seconds on the device by class, as this stack's kernels run them."""
    found: dict[str, Any] = {}
    for kind, seconds in region.seconds.items():
        found[kind.name] = found.get(kind.name, 0.0) + factor(kind, stack, device) * seconds
    return found


def factor(kind: Kind, stack: SoftwareStack, device: Device) -> float:
    """The stack's seconds over the tables' for one kind of operators."""
    if kind.name not in PRODUCTS:
        return stack.kernels.get(kind.name, stack.kernels["norm"])
    if kind.name == "attention":
        own = stack.attention_factor(device.architecture, int(kind.detail))
    else:
        own = stack.kernels[kind.name] * (stack.by_dtype.get(str(kind.detail), 1.0) if kind.detail else 1.0)
    return own * stack.by_device.get(device.name, 1.0)


def host_seconds(region: Region, stack: SoftwareStack, collectives: Any = 0) -> Any:
    """Seconds that the host takes to issue a region's kernels."""
    kernels = sum(stack.host.kernels.get(kind.name, 1.0) * runs for kind, runs in region.runs.items())
    return (
        stack.host.launch_s * kernels
        + stack.host.collective_s * collectives
        + stack.host.softmax_fallback_s * region.fallbacks
    )


def exposed(communication: Any, beside: Any, overlap: Overlap) -> Any:
    """Seconds of ``communication`` that computing of ``beside`` seconds does not hide."""
    needed, cover = communication / overlap.speed, overlap.hidden * beside
    return np.maximum(needed - cover, 0.0) + overlap.contention * np.minimum(needed, cover)


def shown(communication: Mapping[str, Any], group: str, beside: Any, stack: SoftwareStack) -> Any:
    """Seconds of a group's ``communication`` that show, parts of it by themselves where the stack tells them apart."""
    alone = [part for part, whole in PARTS.items() if whole == group and part in stack.overlap]
    apart = sum(communication.get(part, 0.0) for part in alone)
    overlap = stack.overlap[group]
    return exposed(communication.get(group, 0.0) - apart, beside, overlap) + apart / overlap.speed


@frozen
class Microbatch:
    """Seconds of one microbatch: on the device by class, communication that shows by group, and what the host adds."""

    device: Mapping[str, Any]
    exposed: Mapping[str, Any]
    waiting_for_host: Any
    host: Any

    @property
    def computing(self) -> Any:
        return sum(self.device.values())

    @property
    def seconds(self) -> Any:
        return self.computing + sum(self.exposed.values()) + self.waiting_for_host


def microbatch(work: Work, stack: SoftwareStack, device: Device) -> Microbatch:
    """One microbatch of ``work``: each region takes what the device or the host needs, whichever is longer.

    What of its communication shows comes on top of either.
    """
    layers = device_seconds(work.layers, stack, device)
    ends = device_seconds(work.ends, stack, device)
    in_layers, in_ends = sum(layers.values()), sum(ends.values())
    sent = [group for group in WITHIN if group in work.communication]
    shows = {group: shown(work.communication, group, in_layers, stack) for group in sent}
    messages = sum(work.messages.get(group, 0) for group in WITHIN)
    host = (host_seconds(work.layers, stack, messages), host_seconds(work.ends, stack))
    waiting = sum(_together(device, own) - device for device, own in zip((in_layers, in_ends), host, strict=True))
    return Microbatch(_added(layers, ends), shows, waiting, sum(host))


def _together(device: Any, host: Any) -> Any:
    return (device**SHARPNESS + host**SHARPNESS) ** (1 / SHARPNESS)


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {key: one.get(key, 0.0) + other.get(key, 0.0) for key in dict.fromkeys((*one, *other))}


def step_parts(stage: Work, whole: Work, schedule: Schedule, stack: SoftwareStack, device: Device) -> dict[str, Any]:
    """Seconds of one global step by part; they add up to the step.

    ``stage``: the slowest pipeline stage's work; ``whole``: all stages' (the same where there is one).
    """
    own = microbatch(stage, stack, device)
    times = schedule.accumulation
    parts: dict[str, Any] = {}
    for name in _device_parts(own):
        parts[name] = times * _device_parts(own)[name]
    for group, seconds in own.exposed.items():
        name = f"{group.removeprefix('overlapped_')} parallelism"
        parts[name] = parts.get(name, 0.0) + times * seconds
    parts["waiting for the host"] = times * own.waiting_for_host
    if stage is not whole:
        everything = microbatch(whole, stack, device).seconds
        parts["pipeline bubble"] = np.maximum(everything - own.seconds, 0.0) / schedule.vpp
        sends = shown(stage.communication, "pipeline", own.computing, stack)
        parts["pipeline sends"] = (times + schedule.p - 1) * schedule.vpp * sends
    data = shown(stage.communication, "data", own.seconds, stack)
    reduction = stage.communication.get("data", 0.0) - stage.communication.get("gather", 0.0)
    earlier = shown({"data": reduction}, "data", own.seconds, stack)
    parts["data parallelism"] = (
        np.where(schedule.every_microbatch, times, 1) * data
        + np.where(schedule.reduces_every_microbatch, times - 1, 0) * earlier
    )
    parts["optimizer"] = stack.optimizer * stage.update_s
    # Inference has no update, and nothing of what surrounds one.
    parts["once a step"] = np.where(stage.update_s > 0, stack.fixed_s, 0.0)
    return parts


def _device_parts(own: Microbatch) -> dict[str, Any]:
    device = own.device
    return {
        "products": sum(device.get(name, 0.0) for name in ("gemm", "grouped")),
        "attention": sum(device.get(name, 0.0) for name in ("attention", "bmm", "softmax")),
        "elementwise": sum(device.get(name, 0.0) for name in ELEMENTWISE if name != "softmax"),
    }
