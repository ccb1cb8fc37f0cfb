"""Memory-bound operators: bytes over achieved bandwidth, and a launch; a decode step's attention as a roofline."""

from __future__ import annotations

from shapes.cost.constants import GemmConstants
from shapes.device import Device
from shapes.operators.types import CachedAttention, Elementwise

#: Rows of the smallest matrix instruction (mma.m16n8k16, PTX ISA), which the query heads that share a key fill.
ROWS = 16
#: What the roofline of a decode step's attention may be off by. No decode kernel was judged here: half is a guess, wide
#: enough for kernels that reach two thirds of the bandwidth that products do.
DECODE_ERROR = 0.5


def elementwise_parts(operator: Elementwise, constants: GemmConstants) -> tuple[float, float]:
    """Seconds of the launch and of moving the bytes, of one run."""
    return constants.launch_s, operator.bytes / achieved_bandwidth(constants)


def cached_attention_parts(
    operator: CachedAttention, constants: GemmConstants, device: Device
) -> tuple[float, float, float]:
    """Seconds of the launch, of moving the cache and of its arithmetic at the dense peak, which overlap, of one run.

    Split over the keys (flash-decoding), so that few requests fill the device too; query heads of one key/value head
    share its read, in whole instructions.
    """
    queries = operator.q_len * operator.heads // operator.kv_heads
    padded = -(-queries // ROWS) * ROWS / queries
    compute = operator.flops * padded / device.peak(operator.dtype)
    return constants.launch_s, operator.bytes / achieved_bandwidth(constants), compute


def achieved_bandwidth(constants: GemmConstants) -> float:
    """Bytes/s that skinny products reach, which do nothing but move: large ones do not identify it."""
    return (constants.small or constants).bandwidth_bytes_per_s
