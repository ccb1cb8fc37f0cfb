"""A user's own measurements -> a device's constants. Used by `sizer calibrate`; needs scipy, and pyarrow for parquet.

What ships was fitted by reports/fit on published tables.
"""

from __future__ import annotations

from shapes.calibrate.data import Record, read_records
from shapes.calibrate.device_file import write_tables
from shapes.calibrate.run import Calibration, calibrate, refine

__all__ = ["Calibration", "Record", "calibrate", "read_records", "refine", "write_tables"]
