"""The tile and wave model's constants from measured products, by robust least squares on the logarithm of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shapes.calibrate.data import Products, Record
from shapes.cost.alignment import Array
from shapes.cost.constants import NUMBERS, GemmConstants
from shapes.cost.gemm import aligned_seconds, uncorrected_seconds
from shapes.device import Device
from shapes.toml_table import DATA, content

#: Relative residual from which a shape pulls less than in proportion: 1-4% of shapes are kernel-choice cliffs.
ROBUST_SCALE = 0.05

#: Rows a fit of the closed form looks at: more change nothing in the third digit.
ROWS = 2000


def bounds(device: Device, dtype: str) -> dict[str, tuple[float, float]]:
    """Lowest and highest value of each constant: what is physically sensible, which is also what carries over.

    No rate above the peak, and no loss hidden in a load or a throttling so gradual that it acts on every product.
    """
    of = {
        "": 1.0,
        "peak": device.peak(dtype),
        "bandwidth": device.memory.bandwidth_bytes_per_s,
        "l2": device.memory.l2_bytes,
    }
    limits = content(DATA / "fitting.toml")["bounds"].items()
    return {name: (low * of[unit], high * of[unit]) for name, (low, high, unit) in limits}


def fit_closed_form(
    products: Products,
    guess: GemmConstants,
    limits: dict[str, tuple[float, float]],
    sizes: tuple[int, int],
    starts: int = 3,
    seed: int = 0,
    prior: float | None = None,
) -> GemmConstants:
    """The 14 numbers by least squares on log time; ``prior``: pull each towards ``guess`` by that many log units."""
    from scipy.optimize import least_squares

    random = np.random.default_rng(seed)
    rows = random.choice(len(products), min(ROWS, len(products)), replace=False)
    seen = products[rows]
    low, high = (np.log([limits[name][side] for name in NUMBERS]) for side in (0, 1))
    # A device whose power is ample has no throttling: 0, below every bound.
    begun = np.maximum([getattr(guess, name) for name in NUMBERS], np.exp(low))
    centre = np.clip(np.log(begun), low + 1e-6, high - 1e-6)
    target, ones = np.log(seen.seconds), np.ones(len(seen))

    def residuals(theta: Array) -> Array:
        trial = _with(guess, theta)
        price = uncorrected_seconds if trial.correction is None else aligned_seconds
        predicted = price(seen.m, seen.n, seen.k, ones, *sizes, trial)
        misfit = np.log(predicted) - target
        if prior is None:
            return misfit
        return np.concatenate([misfit, (theta - centre) * (ROBUST_SCALE / prior)])

    begins = [centre, *(centre + random.normal(0, 0.6, centre.size) for _ in range(starts - 1))]
    results = [
        least_squares(
            residuals,
            np.clip(begin, low + 1e-6, high - 1e-6),
            bounds=(low, high),
            loss="soft_l1",
            f_scale=ROBUST_SCALE,
            x_scale="jac",
            max_nfev=40,
        )
        for begin in begins
    ]
    return _with(guess, min(results, key=lambda result: result.cost).x)


def _with(constants: GemmConstants, theta: Array) -> GemmConstants:
    return replace(constants, **dict(zip(NUMBERS, np.exp(theta).tolist(), strict=True)))


def grouped(records: Sequence[Record], key: str) -> dict[str, list[Record]]:
    """Records by one of their fields."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(getattr(record, key), []).append(record)
    return dict(sorted(groups.items()))
