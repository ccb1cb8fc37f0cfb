"""The microbatch: any b up to the largest that fits, at the sequence lengths allowed; time is compared a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shapes.device import Device
from shapes.memory import largest_microbatch
from shapes.model import ModelShape
from shapes.workload import Workload
from sizer.searching.space import Limits, Space, anything, nothing_left

NAME = "microbatch"


def space(model: ModelShape, workload: Workload, device: Device, limits: Limits) -> Space:
    """b from 1 to twice the baseline's tokens, as far as memory allows, for its s and each of ``limits.seq_lens``."""
    baseline = {"b": workload.b, "s": workload.s} if limits.seq_lens else {"b": workload.b}
    found: list[Mapping[str, int]] = []
    excluded: dict[str, int] = {}
    fits: dict[int, int] = {}
    for s in dict.fromkeys((workload.s, *(limits.seq_lens or ()))):
        fits[s] = largest_microbatch(model, replace(workload, s=s), device)
        wanted = max(1, 2 * workload.tokens // s)
        highest = min(wanted, fits[s]) if fits[s] else wanted
        if highest < wanted:
            excluded[f"memory of {device.name} (the largest that fits is {fits[s]} at s {s})"] = wanted - highest
        found += [{key: {"b": b, "s": s}[key] for key in baseline} for b in limits.values(1, highest, 1)]
    candidates = tuple(change for change in found if change != baseline)
    if not candidates:
        raise nothing_left(NAME, excluded)
    notes = [
        f"the largest microbatch that fits {device.name} is {most} at s {s}"
        if most
        else f"nothing fits {device.name} at s {s}: times only"
        for s, most in fits.items()
    ]
    return Space(
        NAME, model, workload, candidates, part=anything, parameters_of=lambda changed: changed.parameters,
        baseline=baseline, excluded=excluded, notes=(*notes, "times are compared a token"),
    )  # fmt: skip
