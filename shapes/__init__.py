"""shapes: what a transformer runs, on what, and how long it takes. It knows nothing of advice; `sizer` builds on it.

Names are loaded when first used, so that importing the package costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .errors import InputError

if TYPE_CHECKING:
    from .cost import Timing, predict, predict_many
    from .cost.gemm import predict_gemm
    from .device import Device, list_devices, load_device
    from .model import ModelShape
    from .workload import Workload

_HOMES = {"ModelShape": "shapes.model", "Workload": "shapes.workload", "predict_gemm": "shapes.cost.gemm"}
_HOMES |= dict.fromkeys(("Timing", "predict", "predict_many"), "shapes.cost")
_HOMES |= dict.fromkeys(("Device", "list_devices", "load_device"), "shapes.device")

__all__ = [
    "Device", "InputError", "ModelShape", "Timing", "Workload", "list_devices", "load_device", "predict",
    "predict_gemm", "predict_many",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'shapes' has no attribute {name!r}")
