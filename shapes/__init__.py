"""shapes: what a transformer runs, on what, and how long it takes. It knows nothing of advice; `sizer` builds on it.

Names are loaded when first used, so that importing the package costs next to nothing. Type checkers read __init__.pyi.
"""

from importlib import import_module

_HOMES = {"ModelShape": "shapes.model", "Workload": "shapes.workload", "predict_gemm": "shapes.cost.gemm"}
_HOMES |= dict.fromkeys(("Timing", "predict", "predict_many"), "shapes.cost")
_HOMES |= dict.fromkeys(("Device", "list_devices", "load_device"), "shapes.device")
_HOMES["InputError"] = "shapes.errors"
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'shapes' has no attribute {name!r}")
