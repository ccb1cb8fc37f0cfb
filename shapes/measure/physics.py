"""Whether a measurement can be true: before somebody else's rows count, each is held against what a device can do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shapes.device import Device
from shapes.measure.record import Measurement
from shapes.measure.stats import summarise

#: Timing's own error: a rate so much over a limit is not over it.
ROOM = 0.02
#: Where a row says no clock: boards run above the boost clock of their data sheet by up to this much.
CLOCK_ROOM = 0.10
#: The control shape's time while a row was measured, against its median over the dataset: beyond this the device was in
#: another state (shared, hot, throttled) than for the others.
CONTROL_ROOM = 0.10
#: A time that its own samples do not give, relative.
STATISTICS_ROOM = 1e-3

Objection = Callable[[Measurement, Device | None, float | None], str | None]


def objection(one: Measurement, device: Device | None, control_s: float | None) -> str | None:
    """Why ``one`` cannot stand, in a few words, or None. ``device`` None: its limits are not known and not asked.

    ``control_s``: the control shape's median over the rows that ``one`` belongs to.
    """
    if not one.ok:
        return None
    return next((said for check in _CHECKS if (said := check(one, device, control_s)) is not None), None)


def _above_peak(one: Measurement, device: Device | None, control_s: float | None) -> str | None:
    peak = device.peak_flops.get(str(one.description.get("dtype"))) if device is not None else None
    if device is None or peak is None or one.tflops is None:
        return None
    limit = peak * _clock(one, device) * (1 + ROOM)
    if 1e12 * one.tflops <= limit:
        return None
    return f"rate above the peak: {one.tflops:.4g} of {limit / 1e12:.4g} TFLOPS"


def _clock(one: Measurement, device: Device) -> float:
    """How far over its data sheet's clock the device may have run, times."""
    clock, published = one.clocks.get("sm_mhz"), device.compute.clock_mhz
    if not isinstance(clock, int | float) or not published:
        return 1 + CLOCK_ROOM
    return max(1.0, clock / published)


def _above_bandwidth(one: Measurement, device: Device | None, control_s: float | None) -> str | None:
    # Products may keep what they write in the cache; a kernel that only moves bytes is timed past it.
    if device is None or one.description["kind"] != "memory_bound" or not one.seconds:
        return None
    rate, limit = one.bytes / one.seconds, device.memory.bandwidth_bytes_per_s * (1 + ROOM)
    return f"bytes above the bandwidth: {rate / 1e9:.4g} of {limit / 1e9:.4g} GB/s" if rate > limit else None


def _statistics(one: Measurement, device: Device | None, control_s: float | None) -> str | None:
    seconds = summarise(one.samples).seconds
    if one.seconds is not None and abs(seconds / one.seconds - 1) <= STATISTICS_ROOM:
        return None
    return f"its samples give {seconds:.6g} s"


def _control(one: Measurement, device: Device | None, control_s: float | None) -> str | None:
    if one.control_s is None or control_s is None or abs(one.control_s / control_s - 1) <= CONTROL_ROOM:
        return None
    return f"control shape off by {one.control_s / control_s - 1:+.0%}"


def _throttled(one: Measurement, device: Device | None, control_s: float | None) -> str | None:
    reasons = one.clocks.get("throttle") or ()
    return f"throttled: {', '.join(map(str, reasons))}" if reasons else None


_CHECKS: tuple[Objection, ...] = (_above_peak, _above_bandwidth, _statistics, _throttled, _control)


def control_median(measurements: list[Measurement]) -> float | None:
    """The control shape's median seconds over ``measurements``; None where none has it."""
    found = [one.control_s for one in measurements if one.control_s is not None]
    return float(np.median(found)) if found else None
