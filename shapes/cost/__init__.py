"""Operators x device -> seconds, each with its error and where it comes from.

Every prediction is of the *sustained* regime, in which training runs: hours of work at the power limit. A short burst
on a cool device is up to a tenth faster.
"""

from __future__ import annotations

from shapes.cost.gemm import predict_gemm
from shapes.cost.predict import Cost, Timing, predict, predict_many

__all__ = ["Cost", "Timing", "predict", "predict_gemm", "predict_many"]
