"""Kernels with a form and a few constants of their own, fitted to published tables by device: constants and errors.

Which device's constants price a kernel, scaled by what its data sheet says of memory, and what they may be off by.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import hypot
from typing import Any

from shapes.cost.constants import Origin
from shapes.cost.error import Expected
from shapes.device import Device, load_device
from shapes.toml_table import DATA, content

#: Added (in quadrature) to a form's error: for constants of a device of the same architecture (H200 by H100: 5% to 14%
#: off, GB200 by B200 10% to 13%, on the same tables), of any other, and for what nobody measured: a backward, or a
#: recurrence by another's constants.
SAME_ARCHITECTURE, OTHER, UNJUDGED = 0.15, 0.5, 0.6
FILES = ("sparse", "decode", "scans", "states", "experts")
#: Ends the name of an origin's table for what nobody measured.
_GUESSED = " by another's"


def _tables() -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """Form -> device -> its constants and errors."""
    return {key: table for name in FILES for key, table in content(DATA / f"{name}.toml").items()}


@cache
def published_origin(form: str, judged: bool, device: Device) -> Origin:
    """Whose constants of ``form`` price it: the device's, one's of its architecture, else Hopper's.

    ``judged``: whether what is priced is what the tables hold.
    """
    measured = [load_device(name) for name in _tables()[form]]
    alike = [one for one in measured if one.architecture == device.architecture]
    kin = min(
        alike or [one for one in measured if one.architecture == "hopper"] or measured,
        key=lambda one: (one.name != device.base, abs(one.compute.units - device.compute.units)),
    )
    table, own = form if judged else form + _GUESSED, kin.name == device.base
    return Origin(kin.name, "bf16", table, own, True, bool(alike), kin.vendor == device.vendor)


def published(form: str, device: Device, dtype: str) -> tuple[dict[str, float], int]:
    """Constants that price ``form`` on ``device`` in ``dtype``, scaled by its memory and peaks, and whose units.

    Another vendor's units are of another size: there, the whole device's rate at the relative's units is the nearest.
    """
    kin = load_device(published_origin(form, True, device).device)
    faster = device.memory.bandwidth_bytes_per_s / kin.memory.bandwidth_bytes_per_s
    # Indexers were measured in fp8, experts in what their form names, everything else in 16 bits.
    fitted_in = "fp8" if form.startswith("index") else form.split("_")[1] if form.startswith("experts") else "bf16"
    speed = _peak(device, dtype) / _peak(kin, fitted_in)
    units = (device if device.vendor == kin.vendor else kin).compute.units
    # A slower unit's chunks take the longer; on a faster one they wait for one another as long as they did.
    slower = max(1.0, units / kin.compute.units / speed)
    by = {"flops_per_s": speed, "step_s": slower, "start_s": slower}
    constants = {
        key: value * (faster if key.endswith("bytes_per_s") else by.get(key, 1.0))
        for key, value in _tables()[form][kin.name].items()
    }
    return constants, units


def read_seconds(moved: Any, c: Mapping[str, float], l2_bytes: float) -> Any:
    """Seconds of ``moved`` bytes, the share that a cache still holds at its own rate: tables repeat one step."""
    hit = 1 / (1 + (moved / (c["cache_share"] * l2_bytes)) ** 4)
    return moved * (hit / c["cache_bytes_per_s"] + (1 - hit) / c["bandwidth_bytes_per_s"])


def published_error(origin: Origin) -> Expected:
    """What a price by ``origin`` may be off by."""
    form = origin.table.removesuffix(_GUESSED)
    own, guessed = _tables()[form][origin.device], form != origin.table
    borrowed = 0.0 if origin.own_device else SAME_ARCHITECTURE if origin.same_architecture else OTHER
    more = hypot(borrowed, UNJUDGED if guessed else 0.0)
    tier = "fitted" if origin.own_device else "borrowed" if origin.same_architecture else "extrapolated"
    return Expected(hypot(own["error"], more), hypot(own["error_p95"], 2 * more), "extrapolated" if guessed else tier)


def _peak(device: Device, dtype: str) -> float:
    """Peak of ``dtype``, or of 16-bit products where the device has no fp8."""
    return next(device.peak_flops[one] for one in (dtype, "bf16", "fp16", "fp32") if one in device.peak_flops)
