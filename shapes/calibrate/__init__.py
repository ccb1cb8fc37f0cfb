"""A user's own measurements -> a device's constants. Used by `sizer calibrate`; needs scipy.

What ships was fitted by reports/fit on published tables.
"""

from __future__ import annotations

from shapes.calibrate.data import stored_products
from shapes.calibrate.device_file import write_tables
from shapes.calibrate.run import Calibration, calibrate

__all__ = ["Calibration", "calibrate", "stored_products", "write_tables"]
