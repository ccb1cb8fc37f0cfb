"""Measured products -> one device's constants for one dtype.

Robust least squares on the logarithm of time, several starts, then the correction tables by ridge regression on what
is left, held to predictions that never fall when a dimension grows by a tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shapes.calibrate.correction import fit_correction
from shapes.cost.constants import NUMBERS, GemmConstants
from shapes.cost.gemm import LARGE, aligned_seconds, uncorrected_seconds
from shapes.device import Device
from shapes.dtypes import BYTES

Array = NDArray[np.float64]

#: The eight tiles of cuBLAS's classic kernels; more of them fit no better on any device.
TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (256, 64), (128, 256), (256, 128))

#: Relative residual from which a shape pulls less than in proportion: 1-4% of shapes are kernel-choice cliffs.
ROBUST_SCALE = 0.05

#: Rows a fit of the closed form looks at: more change nothing in the third digit.
ROWS = 2000


@dataclass(frozen=True, slots=True)
class Products:
    """Measured aligned products: dimensions and seconds, arrays of one length."""

    m: Array
    n: Array
    k: Array
    seconds: Array

    def __len__(self) -> int:
        return len(self.m)

    def __getitem__(self, rows: NDArray[np.generic]) -> Products:
        return Products(self.m[rows], self.n[rows], self.k[rows], self.seconds[rows])

    @property
    def large(self) -> NDArray[np.bool_]:
        """Where m, n and k are all at least LARGE."""
        large: NDArray[np.bool_] = np.minimum(np.minimum(self.m, self.n), self.k) >= LARGE
        return large

    def predicted(self, constants: GemmConstants, size: int = 2, out: int = 2) -> Array:
        return aligned_seconds(self.m, self.n, self.k, np.ones_like(self.m), size, out, constants)

    def errors(self, constants: GemmConstants, size: int = 2, out: int = 2) -> Array:
        """Absolute relative error of each product's prediction."""
        errors: Array = np.abs(self.predicted(constants, size, out) / self.seconds - 1)
        return errors


def first_guess(device: Device, dtype: str, speed: float = 0.85) -> GemmConstants:
    """Where fits start: the data sheet and what such constants usually are. ``speed`` is the share of the peak."""
    peak, bandwidth = device.peak(dtype), device.memory.bandwidth_bytes_per_s
    return GemmConstants(
        flops_per_s=speed * peak, bandwidth_bytes_per_s=0.85 * bandwidth, cache_bandwidth_bytes_per_s=2.5 * bandwidth,
        cache_bytes=0.5 * device.memory.l2_bytes, overlap=3.0, launch_s=2.5e-6, load_steps=15.0, load_power=3.0,
        prologue_steps=50.0, wave_s=1e-6, quantization=0.5, throttle=0.1, throttle_s=1e-3, throttle_width=0.5,
        tiles=TILES, units=device.compute.units,
    )  # fmt: skip


def bounds(device: Device, dtype: str) -> dict[str, tuple[float, float]]:
    """Lowest and highest value of each constant: what is physically sensible, which is also what is identified."""
    peak, bandwidth = device.peak(dtype), device.memory.bandwidth_bytes_per_s
    return {
        "flops_per_s": (0.2 * peak, 1.6 * peak),
        "bandwidth_bytes_per_s": (0.5 * bandwidth, 1.0 * bandwidth),
        "cache_bandwidth_bytes_per_s": (1.0 * bandwidth, 12.0 * bandwidth),
        "cache_bytes": (0.02 * device.memory.l2_bytes, 1.5 * device.memory.l2_bytes),
        "overlap": (1.2, 12.0),
        "launch_s": (3e-7, 2e-5),
        "load_steps": (0.5, 120.0),
        "load_power": (0.5, 12.0),
        "prologue_steps": (0.1, 600.0),
        "wave_s": (1e-8, 2e-5),
        "quantization": (0.02, 1.0),
        "throttle": (1e-3, 0.5),
        "throttle_s": (2e-5, 2e-2),
        "throttle_width": (0.15, 3.0),
    }


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


def fit_closed_form(
    products: Products, guess: GemmConstants, limits: dict[str, tuple[float, float]], sizes: tuple[int, int],
    starts: int = 3, seed: int = 0, prior: float | None = None,
) -> GemmConstants:  # fmt: skip
    """The 14 numbers by least squares on log time; ``prior``: pull each towards ``guess`` by that many log units."""
    from scipy.optimize import least_squares

    random = np.random.default_rng(seed)
    rows = random.choice(len(products), min(ROWS, len(products)), replace=False)
    seen = products[rows]
    low, high = (np.log([limits[name][side] for name in NUMBERS]) for side in (0, 1))
    centre = np.clip(np.log([getattr(guess, name) for name in NUMBERS]), low + 1e-6, high - 1e-6)
    target, ones = np.log(seen.seconds), np.ones(len(seen))

    def residuals(theta: Array) -> Array:
        trial = _with(guess, theta)
        predicted = uncorrected_seconds(seen.m, seen.n, seen.k, ones, *sizes, trial)
        if trial.correction is not None:
            predicted = aligned_seconds(seen.m, seen.n, seen.k, ones, *sizes, trial)
        misfit = np.log(predicted) - target
        if prior is None:
            return misfit
        return np.concatenate([misfit, (theta - centre) * (ROBUST_SCALE / prior)])

    best = None
    for start in range(starts):
        begin = centre if start == 0 else np.clip(centre + random.normal(0, 0.6, centre.size), low + 1e-6, high - 1e-6)
        result = least_squares(
            residuals, begin, bounds=(low, high), loss="soft_l1", f_scale=ROBUST_SCALE, x_scale="jac", max_nfev=40
        )
        if best is None or result.cost < best.cost:
            best = result
    assert best is not None
    return _with(guess, best.x)


def _with(constants: GemmConstants, theta: Array) -> GemmConstants:
    return replace(constants, **dict(zip(NUMBERS, np.exp(theta).tolist(), strict=True)))
