"""The microbatch: any integer up to the largest that fits; time is compared a token."""

from __future__ import annotations

from shapes.device import Device
from shapes.memory import largest_microbatch
from shapes.model import ModelShape
from shapes.workload import Workload
from sizer.searching.space import Limits, Space, anything, nothing_left

NAME = "microbatch"


def space(model: ModelShape, workload: Workload, device: Device, limits: Limits) -> Space:
    """1 to twice the baseline's b, as far as memory allows."""
    fits = largest_microbatch(model, workload, device)
    highest = min(2 * workload.b, fits) if fits else 2 * workload.b
    values = [value for value in limits.values(1, highest, 1) if value != workload.b]
    excluded = {f"memory of {device.name} (the largest that fits is {fits})": max(0, 2 * workload.b - highest)}
    if not values:
        raise nothing_left(NAME, excluded)
    note = (
        f"the largest microbatch that fits {device.name} is {fits}"
        if fits
        else f"nothing fits {device.name}: times only"
    )
    return Space(
        NAME, model, workload, tuple({"b": value} for value in values), part=anything,
        parameters_of=lambda changed: changed.parameters, baseline={"b": workload.b},
        excluded={key: number for key, number in excluded.items() if number},
        notes=(note, "times are compared a token"),
    )  # fmt: skip
