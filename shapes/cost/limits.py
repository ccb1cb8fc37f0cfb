"""What no kernel can beat: the device's peak, and its memory for all that no cache holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shapes.device import Device
from shapes.frozen import frozen

Array = NDArray[np.float64]


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
