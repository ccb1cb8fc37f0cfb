"""What a fused attention kernel reaches on a device: its own fitted constants, or the nearest device's, scaled.

``shapes/data/attention/<kernel>.toml`` holds them by device and element type, forward and backward; reports/fit
writes the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import hypot
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.cost.constants import achievable, relative
from shapes.cost.error import OTHER_DTYPE, OTHER_VENDOR, P95_OVER_MEAN, TIERS
from shapes.device import Device, load_device
from shapes.frozen import frozen
from shapes.kernels import load_kernel
from shapes.toml_table import content, names, shipped

Array = NDArray[np.float64]
ByBucket = tuple[tuple[float, float], ...]

#: Added (in quadrature) where another device's constants stand in: B200's are 12 to 17% off on its architecture's
#: others, L40S's 21% on RTX PRO 6000 Server (reports/attention.md), of 8 and 11% at home.
BORROWED_WITHIN, BORROWED_BETWEEN = 0.15, 0.18
#: Where a build for asynchronous matrix units stands in for an older generation's: beside FlashAttention 2 cuDNN takes
#: 1.22 of the time on A100, 1.0 on L40S and 1.14 on RTX PRO 6000 (huggingface/transformers#48163), and by GB200's
#: constants, scaled, 0.87 to 1.9 by length.
BORROWED_BACK, ASYNCHRONOUS = 0.30, ("hopper", "blackwell")
#: Element types that run at another's rate.
_SAME = {"fp16": "bf16"}


@frozen
class AttentionConstants:
    """Constants of one kernel, phase and element type on a device (shapes.cost.attention).

    ``flops_per_s`` and ``prologue_keys`` (a block's start and end in keys) are by computed head dimension (the mean of
    both). ``partial``: the share of time added where the head does not fill it. ``uneven``: the share added under a
    causal mask, whose blocks are unevenly long; ``ignores_window``: a window is masked but not skipped.
    ``copy_bytes_per_s``: what copies before the kernel reach; ``cache_bytes_per_s``: what writing K and V to a server's
    cache does (0: not known to be written). ``deterministic``: share added by a reproducible backward, by head
    dimension. The others are shapes.cost.waves'.
    """

    flops_per_s: ByBucket
    prologue_keys: ByBucket
    bandwidth_bytes_per_s: float
    copy_bytes_per_s: float
    launch_s: float
    quantization: float
    overlap: float
    throttle: float
    throttle_s: float
    throttle_width: float
    units: int
    partial: float = 0.0
    uneven: float = 0.0
    cache_bytes_per_s: float = 0.0
    ignores_window: bool = False
    deterministic: ByBucket = ()

    @classmethod
    def from_table(cls, table: Mapping[str, Any], units: int) -> AttentionConstants:
        numbers = {key: float(table[key]) for key in NUMBERS if key in table}
        tables = {key: _by_bucket(table[key]) for key in TABLES if key in table}
        return cls(units=units, ignores_window=bool(table.get("ignores_window", False)), **numbers, **tables)  # type: ignore[arg-type] # by name

    def rate(self, bucket: Array) -> Array:
        """FLOP/s at a head dimension; below the smallest fitted one matrix units idle in proportion."""
        smallest = self.flops_per_s[0][0]
        rate: Array = _at(bucket, self.flops_per_s) * np.minimum(bucket / smallest, 1.0)
        return rate

    def prologue(self, bucket: Array) -> Array:
        return _at(bucket, self.prologue_keys)

    def reproducible(self, bucket: Array) -> Array:
        return _at(bucket, self.deterministic) if self.deterministic else np.zeros_like(bucket)


#: Keys of one set in a constants file: single numbers, and tables by head dimension.
NUMBERS = (
    "bandwidth_bytes_per_s",
    "copy_bytes_per_s",
    "launch_s",
    "quantization",
    "overlap",
    "throttle",
    "throttle_s",
    "throttle_width",
    "partial",
    "uneven",
    "cache_bytes_per_s",
)
TABLES = ("flops_per_s", "prologue_keys", "deterministic")


def _by_bucket(table: Mapping[str, Any]) -> ByBucket:
    return tuple(sorted((float(bucket), float(value)) for bucket, value in table.items()))


def _at(bucket: Array, fitted: ByBucket) -> Array:
    """The fitted constant, between its neighbours, or the nearest end's."""
    buckets, values = zip(*fitted, strict=True)
    constant: Array = np.interp(bucket, buckets, values)
    return constant


#: Sets of a kernel's constants. A forward that a backward follows has its own where servers' own rows, whose keys and
#: values are fetched page by page, gave the forward's.
PHASES = ("forward", "backward", "training")


def phase_of(backward: bool, training: bool) -> int:
    """Index into PHASES."""
    return 1 if backward else 2 if training else 0


@frozen
class KernelConstants:
    """Constants of PHASES, and where they are from: ``device`` and ``dtype`` they were fitted on.

    In PHASES' order ``errors`` and ``p95s``, the mean relative error and its 95th percentile, and ``tiers``: "fitted"
    on this device's measurements of this kernel, "published" by its authors, "borrowed" from another device or element
    type, "extrapolated" from another vendor's.
    """

    phases: tuple[AttentionConstants, ...]
    kernel: str
    device: str
    dtype: str
    tiers: tuple[str, ...]
    errors: tuple[float, ...]
    p95s: tuple[float, ...]

    @property
    def forward(self) -> AttentionConstants:
        return self.phases[0]

    @property
    def backward(self) -> AttentionConstants:
        return self.phases[1]

    def source(self, device: Device) -> str:
        """The ``source`` of a prediction: "predicted:<device>", saying so where constants were borrowed."""
        if self.device == device.name and self.tiers[0] in ("fitted", "published"):
            return f"predicted:{device.name}"
        return f"predicted:{device.name} ({self.kernel} constants of {self.device}, scaled)"


def _file(kernel: str) -> Mapping[str, Any]:
    return content(shipped("attention", kernel))


def fitted_devices(kernel: str) -> tuple[str, ...]:
    """Devices whose measurements of the kernel were fitted, the one to borrow from in doubt first."""
    return tuple(_file(kernel))


@lru_cache(maxsize=256)
def constants_of(kernel: str, device: Device, dtype: str) -> KernelConstants:
    """Constants of ``kernel`` in ``dtype`` on ``device``; InputError when the device has no such dtype."""
    peak = device.peak(dtype)
    kernel = _priced_as(kernel, device)
    kin = _kin(kernel, device)
    sets = _file(kernel)[kin.name]
    base = dtype if dtype in sets else _SAME.get(dtype, "bf16")
    base = base if base in sets else "bf16"
    own_dtype = base in (dtype, _SAME.get(dtype))
    phases = _phases(sets[base], kin.compute.units)
    errors = sets[base]["error"]
    same = kin.name == device.name
    if not (same and own_dtype):
        speed = _speed(device, kin, peak, base)
        bandwidth = device.memory.bandwidth_bytes_per_s / kin.memory.bandwidth_bytes_per_s
        phases = tuple(_scaled(one, device, speed, bandwidth, peak) for one in phases)
    extra = hypot(0.0 if own_dtype else OTHER_DTYPE, _distance(device, kin))
    tier = "fitted" if same and own_dtype else "borrowed" if device.vendor == kin.vendor else "extrapolated"
    tiers = tuple(max(tier, sets[base].get("tiers", {}).get(phase, tier), key=TIERS.index) for phase in PHASES)
    means, p95s = [], []
    for phase in PHASES:
        known = phase if phase in errors else "forward"
        mean = float(errors[known])
        means.append(hypot(mean, extra))
        p95s.append(hypot(float(errors.get(f"{known}_p95", P95_OVER_MEAN * mean)), P95_OVER_MEAN * extra))
    return KernelConstants(phases, kernel, kin.name, base, tiers, tuple(means), tuple(p95s))


def _priced_as(kernel: str, device: Device) -> str:
    """Whose constants price it: its own, or those its file names; a kernel nobody measured is priced as fa2."""
    named = load_kernel(kernel).costs
    return named if named in names("attention") else "fa2"


def _kin(kernel: str, device: Device) -> Device:
    """The fitted device that stands nearest: itself, its architecture's, its relative, or the file's first."""
    fitted = [load_device(name) for name in fitted_devices(kernel)]
    near = [other for other in fitted if other.architecture == device.architecture]
    own = [other for other in near if other.name == device.name]
    # A kernel that leaves a newer generation's instructions alone says nothing of another vendor's own build of it.
    stand_in = [other for other in fitted if other.name == relative(device).name and other.vendor == device.vendor]
    # Compute capability 8.6 (GA102) is built like 8.9 (Ada): `relative` knows.
    return (own or (stand_in if device.compute_capability == "8.6" else []) or near or stand_in or fitted)[0]


def _speed(device: Device, kin: Device, peak: float, base: str) -> float:
    """FLOP/s relative to ``kin``'s: by the peaks inside an architecture.

    Between architectures a kernel keeps the instructions it was written in: FlashAttention 2 on H100 is 1.6 times
    A100's, as units and clocks are, not 3.2 times as the peaks are (arXiv 2407.08608, figure 5).
    """
    by_peak = peak / kin.peak(base)
    if device.architecture == kin.architecture:
        return by_peak
    if device.vendor != kin.vendor:
        return by_peak * achievable(device) / achievable(kin)
    clocks = [other.compute.units * _highest_clock(other) for other in (device, kin)]
    return min(by_peak, clocks[0] / clocks[1]) if all(clocks) else by_peak


def _highest_clock(device: Device) -> float:
    """Kernels that leave most of the matrix units idle are not slowed by power: they run at the highest clock."""
    return max(device.compute.clock_mhz or 0.0, *device.compute.clock_mhz_of.values(), 0.0)


def _scaled(one: AttentionConstants, device: Device, speed: float, bandwidth: float, peak: float) -> AttentionConstants:
    rates = tuple((bucket, min(rate * speed, peak)) for bucket, rate in one.flops_per_s)
    return replace(
        one,
        flops_per_s=rates,
        bandwidth_bytes_per_s=one.bandwidth_bytes_per_s * bandwidth,
        copy_bytes_per_s=one.copy_bytes_per_s * bandwidth,
        cache_bytes_per_s=one.cache_bytes_per_s * bandwidth,
        units=device.compute.units,
    )


def _distance(device: Device, kin: Device) -> float:
    if device.name == kin.name:
        return 0.0
    if device.architecture == kin.architecture:
        return BORROWED_WITHIN
    if kin.architecture in ASYNCHRONOUS and device.vendor == kin.vendor and device.architecture not in ASYNCHRONOUS:
        return BORROWED_BACK
    return BORROWED_BETWEEN if device.vendor == kin.vendor else OTHER_VENDOR


def _phases(table: Mapping[str, Any], units: int) -> tuple[AttentionConstants, ...]:
    """In PHASES' order; a backward known only by its speed has the training forward's other constants."""
    forward = AttentionConstants.from_table(table, units)
    training = AttentionConstants.from_table(table["training"], units) if "training" in table else forward
    back = table["backward"]
    if "flops_per_s" in back:
        return forward, AttentionConstants.from_table(back, units), training
    speed = float(back["speed"])
    rates = tuple((bucket, rate * speed) for bucket, rate in training.flops_per_s)
    bandwidth = training.bandwidth_bytes_per_s * float(back.get("bandwidth", 1.0))
    return forward, replace(training, flops_per_s=rates, bandwidth_bytes_per_s=bandwidth), training
