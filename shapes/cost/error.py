"""How far off a prediction may be: held-out errors from the device files, wider where constants are borrowed.

``[error.<dtype>]`` holds the mean absolute relative error by regime on shapes the fit has not seen, against single
frameworks as a user runs one of them (``large``), its 95th percentile (``large_p95``), and against the median over
frameworks, which nobody runs (``large_consensus``). ``large_cell`` is of sizes whose m and n are the tables' own, on k
(and n) that neither the cells nor the fit below them have seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import hypot

import numpy as np

from shapes.cost.alignment import CLASSES, AlignmentConstants, Indices, Integers
from shapes.cost.constants import Origin, alignment_constants
from shapes.cost.gemm import LARGE
from shapes.device import Device, load_device
from shapes.dtypes import BYTES
from shapes.frozen import frozen

#: Added (in quadrature) when constants are another device's: from predicting H200 by H100 (5.3%), B200 by H100 and A100
#: (8.8%) and L40S by them (15%); other vendors were never judged, so twice the worst of those is stated.
SAME_ARCHITECTURE, SAME_VENDOR, OTHER_VENDOR = 0.06, 0.15, 0.30
#: Added when the dtype's constants are another dtype's, scaled by the peaks: fp8 by bf16 was off by this much.
OTHER_DTYPE = 0.25


#: Mean error of misaligned products where misaligned.toml states none by class: of kernels fitted on a sweep of the
#: device's own, on other devices of the family, on other architectures alone.
MISALIGNED = {"measured": 0.08, "published": 0.10, "extrapolated": 0.30}
#: What the regimes of misaligned products are called before their class (shapes.cost.alignment.CLASSES).
MISALIGNED_AS = "misaligned, "

#: The regime of grouped products; a misaligned one's class follows it.
GROUPED = "grouped"

#: Ends the regimes of products whose m and n are a cell of the tables (shapes.cost.corrections).
IN_CELL = "_cell"
#: What is known of a figure, the best first: measured here, fitted on this device's published
#: tables, published by others for this kind of device, borrowed from a relative, extrapolated to what nobody measured.
TIERS = ("measured", "fitted", "published", "borrowed", "extrapolated")
#: 95th percentile over mean of an absolute error that is normally spread: where none was judged.
P95_OVER_MEAN = 2.45


@frozen
class Expected:
    """Relative error of a prediction, its 95th percentile, and the tier of what it rests on (one of TIERS)."""

    error: float
    p95: float
    tier: str


def gemm_regimes(least: Integers, worse: Integers, c: AlignmentConstants, hit: Indices) -> list[str]:
    """Names of the regimes that products belong to: by their ``least`` dimension and the class of A and B's worse.

    ``hit``: the products that a cell speaks of (shapes.cost.corrections).
    """
    names = np.where(least >= LARGE, "large", "small").astype(object)
    names[hit] += IN_CELL
    for index, name in enumerate(CLASSES):
        if c.served[index]:
            names[worse == index] = MISALIGNED_AS + name
    found: list[str] = names.tolist()
    return found


def grouped_regime(regime: str) -> str:
    """The regime of a grouped product whose groups, each by itself, would be in ``regime``."""
    return f"{GROUPED}, {regime}" if regime.startswith(MISALIGNED_AS) else GROUPED


def expected(device: Device, origin: Origin, regime: str, dtype: str) -> Expected:
    """What a prediction in ``regime`` may be off by; the device's own held-out figures where it has them."""
    if regime.startswith(f"{GROUPED}, "):
        return _both(*(expected(device, origin, one, dtype) for one in regime.split(", ", 1)))
    if regime.startswith(MISALIGNED_AS):
        return _both(expected(device, origin, "large", dtype), _misaligned(device, regime, dtype))
    tier = _tier(device, origin, regime)
    for errors in (device.errors.get(origin.table, {}), device.errors) if origin.own_dtype else ():
        if regime in errors:
            error = float(errors[regime])
            return Expected(error, float(errors.get(f"{regime}_p95", P95_OVER_MEAN * error)), tier)
    errors = (device if origin.own_device else load_device(origin.device)).errors
    error = float(errors.get(origin.table, {}).get(regime) or errors.get(regime, 0.5))
    error = hypot(error, *_borrowed(origin))
    return Expected(error, P95_OVER_MEAN * error, tier)


def weight_only(judged: Expected) -> Expected:
    """Of products whose weights alone are quantised: bytes are exact, arithmetic is priced as other kernels' is."""
    error = hypot(judged.error, OTHER_DTYPE)
    return Expected(error, max(judged.p95, P95_OVER_MEAN * error), least_certain((judged.tier, "borrowed")))


def _borrowed(origin: Origin) -> tuple[float, float]:
    """What another element type's and another device's constants add."""
    dtype = 0.0 if origin.own_dtype else OTHER_DTYPE
    if origin.own_device:
        return dtype, 0.0
    if not origin.same_vendor:
        return dtype, OTHER_VENDOR
    return dtype, SAME_ARCHITECTURE if origin.same_architecture else SAME_VENDOR


def _both(one: Expected, other: Expected) -> Expected:
    """Of a price that two independent errors enter."""
    return Expected(hypot(one.error, other.error), hypot(one.p95, other.p95), least_certain((one.tier, other.tier)))


def _misaligned(device: Device, regime: str, dtype: str) -> Expected:
    """What the kernels of misaligned products add."""
    kernels, at = alignment_constants(device, dtype), CLASSES.index(regime.removeprefix(MISALIGNED_AS))
    # Sweeps are of 16-bit elements.
    known = kernels.tier if BYTES[dtype] == 2 else "extrapolated"
    judged = (kernels.error[at], kernels.error_p95[at]) if known == "published" else (0.0, 0.0)
    mean = judged[0] or MISALIGNED[known]
    return Expected(mean, judged[1] or P95_OVER_MEAN * mean, known)


def least_certain(tiers: Iterable[str]) -> str:
    """The last of TIERS that is among ``tiers``."""
    return max(tiers, key=TIERS.index)


def _tier(device: Device, origin: Origin, regime: str) -> str:
    if not origin.same_vendor:
        return "extrapolated"
    if regime == "memory_bound" or not origin.own_dtype:
        return "borrowed"
    own = regime in device.cost if regime in (GROUPED, "collective") else origin.own_device
    return "fitted" if own else "borrowed"
