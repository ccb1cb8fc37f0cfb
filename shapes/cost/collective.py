"""Collectives by message size over link bandwidth, as NCCL's tests count bytes.

    seconds = latency + ranks x latency_per_rank + factor (bytes + half_bytes) / (bandwidth_share x link)

``factor`` is what each rank sends over the link per byte of the buffer in a ring.
"""

from __future__ import annotations

from shapes.cost.constants import CollectiveConstants
from shapes.device import Device
from shapes.operators.types import Collective


def bus_factor(what: str, ranks: int) -> float:
    """Bytes each rank sends per byte of the buffer: all-reduce 2 (r-1)/r, the others (r-1)/r, send_recv 1."""
    if what == "send_recv":
        return 1.0
    share = (ranks - 1) / ranks
    return 2 * share if what == "all_reduce" else share


def link_bytes_per_s(device: Device, ranks: int) -> float:
    """Data-sheet bandwidth between the devices: inside one domain as far as they fit, else across nodes."""
    link = device.link
    return link.intra_node_bytes_per_s if ranks <= link.domain_devices else link.inter_node_bytes_per_s


def collective_parts(operator: Collective, device: Device, constants: CollectiveConstants) -> tuple[float, float]:
    """Seconds of latency and of transfer of one run."""
    if operator.ranks == 1:
        return 0.0, 0.0
    latency = constants.latency_s + constants.latency_per_rank_s * operator.ranks
    reached = constants.bandwidth_share * link_bytes_per_s(device, operator.ranks)
    moved = bus_factor(operator.what, operator.ranks) * operator.bytes
    # Small messages never reach the full rate: half_bytes is the size at which half of it is reached.
    ramp = moved * constants.half_bytes / (moved + constants.half_bytes) if moved else 0.0
    return latency, (moved + ramp) / reached
