"""shapes: what a transformer runs, on what, and how long it takes. It knows nothing of advice; `sizer` builds on it.

Names are loaded when first used, so that importing the package costs next to nothing. Type checkers read __init__.pyi.
"""

from importlib import import_module

_TABLE = """\
ModelShape    shapes.model
Workload      shapes.workload
predict_gemm  shapes.cost.gemm
Timing        shapes.cost
predict       shapes.cost
predict_many  shapes.cost
Device        shapes.device
list_devices  shapes.device
load_device   shapes.device
InputError    shapes.errors
"""
_HOMES = dict(line.split() for line in _TABLE.splitlines())
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'shapes' has no attribute {name!r}")
