"""shapes: what a transformer runs, on what, and how long it takes. It knows nothing of advice; `sizer` builds on it.

Names are loaded when first used, so that importing the package costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .errors import InputError

if TYPE_CHECKING:
    from .cost.gemm import predict_gemm
    from .model import ModelShape
    from .workload import Workload

_HOMES = {"ModelShape": "shapes.model", "Workload": "shapes.workload", "predict_gemm": "shapes.cost.gemm"}

__all__ = ["InputError", "ModelShape", "Workload", "predict_gemm"]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'shapes' has no attribute {name!r}")
