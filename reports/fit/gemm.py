"""Published products -> one device's constants for one dtype: two closed forms and their correction tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fit.correction import fit_correction
from shapes.calibrate.closed_form import bounds, fit_closed_form
from shapes.calibrate.products import Products
from shapes.cost.constants import GemmConstants
from shapes.device import Device
from shapes.dtypes import BYTES

#: The eight tiles of cuBLAS's classic kernels; more of them fit no better on any device.
TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (256, 64), (128, 256), (256, 128))


def first_guess(device: Device, dtype: str, speed: float = 0.85) -> GemmConstants:
    """Where fits start: the data sheet and what such constants usually are. ``speed`` is the share of the peak."""
    peak, bandwidth = device.peak(dtype), device.memory.bandwidth_bytes_per_s
    return GemmConstants(
        flops_per_s=speed * peak, bandwidth_bytes_per_s=0.85 * bandwidth, cache_bandwidth_bytes_per_s=2.5 * bandwidth,
        cache_bytes=0.5 * device.memory.l2_bytes, overlap=3.0, launch_s=2.5e-6, load_steps=15.0, load_power=3.0,
        prologue_steps=50.0, wave_s=1e-6, quantization=0.5, throttle=0.1, throttle_s=1e-3, throttle_width=0.5,
        tiles=TILES, units=device.compute.units,
    )  # fmt: skip


def fit_products(
    products: Products, device: Device, dtype: str, *, starts: int = 3, seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> GemmConstants:  # fmt: skip
    """Constants for large and small products of ``dtype``, each set with its correction table.

    ``products`` are what may be seen: hold out before calling.
    """
    size, out = BYTES[dtype], max(2, BYTES[dtype])
    large = products[products.large]
    progress(f"{device.name} {dtype}: {len(large)} large products")
    constants = fit_closed_form(large, first_guess(device, dtype), bounds(device, dtype), (size, out), starts, seed)
    kind = device.architecture
    constants = fit_correction(large, constants, (size, out), architecture=kind, seed=seed)
    # Half the large limit is where the small set alone holds; above it the two are blended.
    small = products[~products.large]
    if len(small) < 200:
        return constants
    progress(f"{device.name} {dtype}: {len(small)} small products")
    guess = replace(constants, correction=None, throttle=0.001, overlap=3.0)
    below = fit_closed_form(small, guess, bounds(device, dtype), (size, out), starts, seed)
    below = fit_correction(small, below, (size, out), architecture=kind, seed=seed)
    return replace(constants, small=below)
