"""Collectives by message size over link bandwidth, as NCCL's tests count bytes.

    seconds = latency + ranks x latency_per_rank + factor (bytes + half_bytes) / (bandwidth_share x link)

``factor`` is what each rank sends over the link per byte of the buffer in a ring. Over several nodes a ring enters and
leaves each of them through the network cards of all the group's ranks there, so that the link is the slower of the
node's own and of one card's rate times those ranks; an all-to-all's ranks each send to the others through their own.
"""

from __future__ import annotations

from math import log2

from shapes.cost.constants import CollectiveConstants
from shapes.device import Device
from shapes.operators.types import Collective

#: Seconds that one doubling of the nodes adds to a collective's latency: NCCL's trees over InfiniBand or Ethernet take
#: 10 to 20 us a hop (aiconfigurator-core states 10 us of point-to-point latency, systems/*.yaml, p2p_latency).
NODE_LATENCY_S = 10e-6


def bus_factor(what: str, ranks: int) -> float:
    """Bytes each rank sends per byte of the buffer: all-reduce 2 (r-1)/r, the others (r-1)/r, send_recv 1."""
    if what == "send_recv":
        return 1.0
    share = (ranks - 1) / ranks
    return 2 * share if what == "all_reduce" else share


def ranks_in_domain(device: Device, operator: Collective) -> int:
    """Ranks of the group that share one domain of fast links, ``stride`` ranks lying between neighbours."""
    return max(1, min(operator.ranks, device.link.domain_devices // operator.stride))


def link_bytes_per_s(device: Device, operator: Collective) -> float:
    """Data-sheet bandwidth a rank has for the bytes that `bus_factor` counts."""
    link, inside = device.link, ranks_in_domain(device, operator)
    if inside == operator.ranks:
        return link.intra_node_bytes_per_s
    if operator.what == "all_to_all":
        # Only what leaves the domain takes the card; the rest goes beside it over the faster links.
        leaving = (operator.ranks - inside) / (operator.ranks - 1)
        return min(link.intra_node_bytes_per_s, link.inter_node_bytes_per_s / leaving)
    return min(link.intra_node_bytes_per_s, link.inter_node_bytes_per_s * inside)


def collective_parts(operator: Collective, device: Device, constants: CollectiveConstants) -> tuple[float, float]:
    """Seconds of latency and of transfer of one run."""
    if operator.ranks == 1:
        return 0.0, 0.0
    inside = ranks_in_domain(device, operator)
    latency = constants.latency_s + constants.latency_per_rank_s * inside
    latency += NODE_LATENCY_S * log2(operator.ranks / inside)
    reached = constants.bandwidth_share * link_bytes_per_s(device, operator)
    moved = bus_factor(operator.what, operator.ranks) * operator.bytes
    # Small messages never reach the full rate: half_bytes is the size at which half of it is reached.
    ramp = moved * constants.half_bytes / (moved + constants.half_bytes) if moved else 0.0
    return latency, (moved + ramp) / reached
