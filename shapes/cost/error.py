"""How far off a prediction may be: held-out errors from the device files, wider where constants are borrowed.

``[error.<dtype>]`` holds the mean absolute relative error by regime, on shapes the fit has not seen.
"""

from __future__ import annotations

from math import hypot

from shapes.cost.constants import Origin, relative
from shapes.cost.gemm import LARGE
from shapes.device import Device

#: Added (in quadrature) when constants are another device's: from predicting H200 by H100 (5.3%), B200 by H100 and A100
#: (8.8%) and L40S by them (15%); other vendors were never judged, so twice the worst of those is stated.
SAME_ARCHITECTURE, SAME_VENDOR, OTHER_VENDOR = 0.06, 0.15, 0.30
#: Added when the dtype's constants are another dtype's, scaled by the peaks: fp8 by bf16 was off by this much.
OTHER_DTYPE = 0.25


def gemm_regime(m: int, n: int, k: int, misaligned: bool) -> str:
    """Name of the regime in ``[error]`` that a product belongs to."""
    if misaligned:
        return "misaligned"
    return "large" if min(m, n, k) >= LARGE else "small"


def relative_error(device: Device, origin: Origin, regime: str) -> float:
    """Expected relative error of a prediction in ``regime``; the device's own held-out figure where it has one."""
    own = device.errors.get(origin.dtype, {}).get(regime) or device.errors.get(regime)
    if own is not None and origin.own_dtype:
        return float(own)
    errors = relative(device).errors
    base = float(errors.get(origin.dtype, {}).get(regime) or errors.get(regime, 0.5))
    if not origin.own_dtype:
        base = hypot(base, OTHER_DTYPE)
    if origin.own_device:
        return base
    if origin.same_architecture:
        return hypot(base, SAME_ARCHITECTURE)
    return hypot(base, SAME_VENDOR if origin.same_vendor else OTHER_VENDOR)
