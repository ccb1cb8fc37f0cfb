"""Memory-bound operators: bytes over achieved bandwidth, and a launch."""

from __future__ import annotations

from shapes.cost.constants import GemmConstants
from shapes.operators.types import Elementwise


def elementwise_parts(operator: Elementwise, constants: GemmConstants) -> tuple[float, float]:
    """Seconds of the launch and of moving the bytes, of one run."""
    return constants.launch_s, operator.bytes / achieved_bandwidth(constants)


def achieved_bandwidth(constants: GemmConstants) -> float:
    """Bytes/s that skinny products reach, which do nothing but move: large ones do not identify it."""
    return (constants.small or constants).bandwidth_bytes_per_s
