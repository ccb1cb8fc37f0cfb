"""What fits: the largest microbatch and the smallest tensor- and pipeline-parallel degrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from math import gcd, isqrt
from typing import Any

from shapes.device import Device
from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.memory.breakdown import device_bytes, memory
from shapes.memory.training import microbatches_of
from shapes.model import ModelShape
from shapes.workload import Workload

#: No microbatch is searched beyond this: a million sequences fill no device usefully.
LARGEST_SEARCHED = 2**20


def largest_microbatch(
    model: ModelShape,
    workload: Workload,
    device: str | Device | None = None,
    *,
    limit_bytes: int | None = None,
    **options: Any,
) -> int:
    """The largest b that fits ``device`` (or ``limit_bytes``), any integer; 0 where not even one sequence does.

    ``options`` are those of ``memory``. Memory grows with b, so bisection finds it: b fits, b + 1 does not.
    """
    limit = _limit(device, limit_bytes)
    # As many microbatches a step at every b: whether gradients stay is not to change with it.
    options = {**options, "microbatches": microbatches_of(workload, options.get("microbatches"))}

    def fits(b: int) -> bool:
        return memory(model, replace(workload, b=b), **options).total_bytes <= limit

    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= LARGEST_SEARCHED and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@frozen
class Saving:
    """One thing that takes less memory: fields of ``Workload`` and options of ``memory`` with their new values."""

    name: str
    workload: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@frozen
class Saved:
    """A saving with the bytes it leaves at the workload's b, and the largest microbatch it allows."""

    saving: Saving
    total_bytes: int
    largest_microbatch: int


def possible_savings(workload: Workload, optimizer: str = "adamw") -> Iterator[Saving]:
    """The savings not yet in use that this workload allows, cheapest in time first as a rule."""
    if not workload.train:
        return
    if workload.attention == "eager":
        yield Saving("fused attention", {"attention": "auto"})
    if workload.t > 1 and not workload.sequence_parallel:
        yield Saving("sequence parallelism", {"sequence_parallel": True})
    if workload.d > 1:
        for stage in range(workload.zero + 1, 4):
            yield Saving(f"ZeRO {stage}" + (" / FSDP" if stage == 3 else ""), {"zero": stage})
    if workload.checkpointing == "none":
        yield Saving("selective checkpointing", {"checkpointing": "selective"})
    if workload.checkpointing != "full":
        yield Saving("full checkpointing", {"checkpointing": "full"})
    if optimizer == "adamw":
        for other in ("adamw-8bit", "adafactor"):
            yield Saving(other, {}, {"optimizer": other})


def savings(
    model: ModelShape,
    workload: Workload,
    device: str | Device | None = None,
    *,
    limit_bytes: int | None = None,
    **options: Any,
) -> tuple[Saved, ...]:
    """Each possible saving by itself: what it leaves and the largest microbatch with it."""
    limit = _limit(device, limit_bytes)
    found = []
    for saving in possible_savings(workload, options.get("optimizer") or workload.optimizer or "adamw"):
        changed, with_options = replace(workload, **saving.workload), {**options, **saving.options}
        total = memory(model, changed, **with_options).total_bytes
        largest = largest_microbatch(model, changed, limit_bytes=limit, **with_options)
        found.append(Saved(saving, total, largest))
    return tuple(found)


def smallest_tp(
    model: ModelShape,
    workload: Workload,
    device: str | Device | None = None,
    *,
    limit_bytes: int | None = None,
    largest: int = 64,
    **options: Any,
) -> int | None:
    """The smallest t that the model's heads divide by and that fits; None where none up to ``largest`` does."""
    return _smallest("t", model, workload, _limit(device, limit_bytes), largest, options)


def smallest_pp(
    model: ModelShape,
    workload: Workload,
    device: str | Device | None = None,
    *,
    limit_bytes: int | None = None,
    largest: int | None = None,
    **options: Any,
) -> int | None:
    """The smallest p that fits at the workload's t; None where not even one layer a stage does."""
    return _smallest("p", model, workload, _limit(device, limit_bytes), largest or model.layers, options)


def _smallest(
    key: str, model: ModelShape, workload: Workload, limit: int, largest: int, options: dict[str, Any]
) -> int | None:
    # Whole heads on every rank, as many layers on every stage.
    whole = (
        model.layers
        if key == "p"
        else gcd(*(part.heads for _, block in model.all_blocks() if (part := block.attention)))
    )
    for degree in divisors(whole, largest):
        try:
            found = memory(model, replace(workload, **{key: degree}), **options)  # type: ignore[arg-type]
        except InputError:
            continue
        if found.total_bytes <= limit:
            return degree
    return None


def divisors(whole: int, largest: int) -> list[int]:
    """Divisors of ``whole`` up to ``largest``, ascending; of 0, which everything divides, all numbers."""
    if whole == 0:
        return list(range(1, largest + 1))
    small = [one for one in range(1, min(isqrt(whole), largest) + 1) if whole % one == 0]
    return small + [whole // one for one in reversed(small) if one * one != whole and whole // one <= largest]


def _limit(device: str | Device | None, limit_bytes: int | None) -> int:
    if limit_bytes is not None:
        return limit_bytes
    if device is None:
        raise InputError("expected a device or a limit in bytes", key="device")
    return device_bytes(device)
