"""What every kernel does with its blocks of work: waves over the units, loads that hide, a power limit that is felt.

One set of formulas for matrix products (shapes.cost.gemm) and fused attention (shapes.cost.fused_attention), each with
its own constants.

`Limits` are what no kernel can beat: the device's peak, and its memory for all that no cache holds.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shapes.device import Device
from shapes.frozen import frozen

Array = NDArray[np.float64]
#: One value or many; all of them come back as numpy has them.
Values = Array | np.float64 | float


class WaveConstants(Protocol):
    """What the formulas below need to know of a kernel on a device.

    ``units`` work at once. ``quantization``: the share of a partly filled last wave that is paid (1: whole waves, 0:
    persistent kernels that balance it). ``overlap``: how well moving hides behind arithmetic (1: not at all).
    ``throttle``, ``throttle_s``, ``throttle_width``: by how much, from which duration on and how suddenly (in units of
    the logarithm of time) power limits sustained work.
    """

    @property
    def units(self) -> int: ...
    @property
    def quantization(self) -> float: ...
    @property
    def overlap(self) -> float: ...
    @property
    def throttle(self) -> float: ...
    @property
    def throttle_s(self) -> float: ...
    @property
    def throttle_width(self) -> float: ...


def paid_waves(blocks: Values, c: WaveConstants) -> Array:
    """Waves paid for ``blocks`` thread blocks; a first wave is paid whole however few blocks it has."""
    filled = blocks / c.units
    waves: Array = c.quantization * np.ceil(filled) + (1 - c.quantization) * np.maximum(filled, 1.0)
    return waves


def overlapped(compute: Values, memory: Values, c: WaveConstants) -> Array:
    """Seconds of both together: the longer where they hide each other perfectly, their sum at overlap 1."""
    longer = np.maximum(compute, memory)
    seconds: Array = longer * (1 + (np.minimum(compute, memory) / longer) ** c.overlap) ** (1 / c.overlap)
    return seconds


def throttled(seconds: Values, c: WaveConstants) -> Array:
    """``seconds`` lengthened as work gets long enough for the power limit to be felt."""
    if c.throttle == 0:
        return np.asarray(seconds)
    # An exponential and a logarithm take a tenth of the power's time. Beyond e^50 nothing is felt.
    onset = np.exp(np.minimum(np.log(c.throttle_s / seconds) / c.throttle_width, 50.0))
    longer: Array = seconds * (1 + c.throttle / (1 + onset))
    return longer


@frozen
class Limits:
    """The data sheet's figures for one element type."""

    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    cache_bytes: float

    @classmethod
    def of(cls, device: Device, dtype: str) -> Limits:
        memory = device.memory
        return cls(device.peak(dtype), memory.bandwidth_bytes_per_s, memory.last_level_cache_bytes)


def least_seconds(m: Array, n: Array, k: Array, batch: Array, size: float, out: float, limits: Limits) -> Array:
    """Seconds that a product takes at the least; it grows with every dimension."""
    moved = batch * ((m + n) * k * size + m * n * out)
    beyond = np.maximum(moved - limits.cache_bytes, 0.0) / limits.bandwidth_bytes_per_s
    seconds: Array = np.maximum(2 * batch * m * n * k / limits.peak_flops_per_s, beyond)
    return seconds
