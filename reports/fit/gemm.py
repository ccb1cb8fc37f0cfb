"""Published products -> one device's constants for one dtype: two closed forms and their correction tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fit.correction import Case, fit_correction
from shapes.calibrate import Products, bounds, fit_closed_form
from shapes.cost.constants import GemmConstants, carried, carries_corrections, origin_of, relative
from shapes.device import Device, list_devices, load_device
from shapes.dtypes import BYTES

#: Kernels that scale by blocks of 128 have no smaller tiles: H20's rows, which nothing was fitted on, are off by 2.8%
#: with these and by 22% with cuBLAS's.
BLOCKWISE_TILES = ((128, 128), (128, 256), (256, 128))
#: The eight tiles of cuBLAS's classic kernels; more of them fit no better on any device.
TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (256, 64), (128, 256), (256, 128))


def first_guess(device: Device, dtype: str, tiles: tuple[tuple[int, int], ...] = TILES) -> GemmConstants:
    """Where fits start: the data sheet and what such constants usually are."""
    peak, bandwidth = device.peak(dtype), device.memory.bandwidth_bytes_per_s
    return GemmConstants(
        flops_per_s=0.85 * peak,
        bandwidth_bytes_per_s=0.85 * bandwidth,
        cache_bandwidth_bytes_per_s=2.5 * bandwidth,
        cache_bytes=0.5 * device.memory.l2_bytes,
        overlap=3.0,
        launch_s=2.5e-6,
        load_steps=15.0,
        load_power=3.0,
        prologue_steps=50.0,
        wave_s=1e-6,
        quantization=0.5,
        throttle=0.1,
        throttle_s=1e-3,
        throttle_width=0.5,
        tiles=tiles,
        units=device.compute.units,
    )


def fit_products(
    products: Products,
    device: Device,
    dtype: str,
    *,
    starts: int = 2,
    seed: int = 0,
    tiles: tuple[tuple[int, int], ...] = TILES,
    bounded: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> GemmConstants:
    """Constants for large and small products of ``dtype``, with the correction tables of both.

    ``products`` are what may be seen: hold out before calling. ``bounded``: growth may save nothing, which is most of
    the work.
    """
    size, out = BYTES[dtype], max(2, BYTES[dtype])
    limits = bounds(device, dtype)
    large, small = products[products.large], products[~products.large]
    progress(f"{device.name} {dtype}: {len(large)} large products, {len(small)} small ones")
    constants = fit_closed_form(large, first_guess(device, dtype, tiles), limits, (size, out), starts, seed)
    # Half the large limit is where the small set alone holds; above it the two are blended.
    if len(small) >= ENOUGH_SMALL:
        guess = replace(constants, throttle=0.001, overlap=3.0)
        constants = replace(constants, small=fit_closed_form(small, guess, limits, (size, out), starts, seed))
    else:
        products = large
    if size == 1:
        # Their closed form predicts 8-bit products as well with tables as without.
        return constants
    case = Case(constants, size, out)
    served = relatives(device, dtype, constants) if bounded else None
    return fit_correction(products, case, served, architecture=device.architecture, seed=seed, progress=progress)


#: Small products from which they get constants of their own.
ENOUGH_SMALL = 200


def relatives(device: Device, dtype: str, constants: GemmConstants) -> list[Case]:
    """Closed forms of the devices that would borrow these constants' correction tables."""
    cases = []
    for name in list_devices():
        other = load_device(name)
        if other.name == device.name or dtype not in other.peak_flops or dtype in other.cost:
            continue
        kin, origin = relative(other), origin_of(other, device, dtype, dtype)
        if kin.name == device.name and carries_corrections(other, device, origin):
            cases.append(Case(carried(constants, other, device, dtype, origin), BYTES[dtype], max(2, BYTES[dtype])))
    return cases
