"""Operators that mostly move bytes: memory-bound operators, a decode step's attention (decode.py), and collectives.

Memory-bound operators take their bytes over the achieved bandwidth, and a launch; collectives, by kind, message size,
group and link, bytes as NCCL's tests count them:

    seconds = latency + factor (bytes + half_bytes) / (bandwidth_share x link)

``factor`` is what each rank sends over the link per byte of the buffer in a ring. Over several nodes a ring enters and
leaves each of them through the cards of all its ranks there, so that the link is the slower of the node's own and of a
card's rate times those ranks; an all-to-all's ranks each send to the others through their own.

Over nodes an all-gather and a reduce-scatter go round a ring of all ranks, so that their latency grows with every rank
and node; an all-reduce goes up and down trees of nodes.

A mixture's dispatcher (DeepEP, HybridEP) sends a token that several experts of one rank, or of one node, want once
only: `copies_sent`. A router limited to some groups of experts (DeepSeek-V3's, section 2.1.2) meets no more nodes.
"""

from math import inf, log2

from shapes.device import Device
from shapes.frozen import Items, replace
from shapes.operators.types import Collective, Elementwise, Operator, kind_of
from shapes.program import named_function

from .constants import (
    CollectiveConstants,
    GemmConstants,
    Origin,
    collective_constants,
    direct_constants,
    moving_constants,
    published,
    published_origin,
)


def elementwise_parts(operator: Elementwise, device: Device) -> Items:
    """Seconds of the launch and of moving the bytes, of one run."""
    constants, _ = moving_constants(device)
    return constants.launch_s, operator.bytes / achieved_bandwidth(constants)


def achieved_bandwidth(constants: GemmConstants) -> float:
    """Bytes/s that skinny products reach, which do nothing but move: large ones do not identify it."""
    return (constants.small or constants).bandwidth_bytes_per_s


#: Seconds that one doubling of the nodes adds to a collective's latency: NCCL's trees over InfiniBand or Ethernet take
#: 10 to 20 us a hop (aiconfigurator-core states 10 us of point-to-point latency, systems/*.yaml, p2p_latency).
NODE_LATENCY_S = 10e-6
#: Seconds that a ring's step to the next rank of a node and to the next node takes (NCCL, src/graph/tuning.cc, hwLat:
#: Ring/Simple over NVLINK and NET).
RING_STEP_S, RING_NODE_STEP_S = 3.4e-6, 14e-6
#: Share of a network card's rate that is reached: DeepEP's dispatch and combine over 2 and 4 nodes of H100 move 39 to
#: 45 of 50 GB/s a rank (aiconfigurator-core, wideep_deepep_normal_perf, 4,096 tokens and more).
INTER_NODE_SHARE = 0.88


def bus_factor(operator: Collective) -> float:
    """Bytes each rank sends per byte of the buffer: all-reduce 2 (r-1)/r, the others (r-1)/r, send_recv 1."""
    if operator.what == "send_recv":
        return 1.0
    share = 1 - 1 / operator.ranks
    return share * (
        2 if operator.what == "all_reduce" else copies_sent(operator.copies, operator.ranks) / operator.copies
    )


def copies_sent(copies: int, places: int) -> float:
    """How many of ``places`` ranks or nodes ``copies`` even and independent choices are expected to meet."""
    return places * (1 - (1 - 1 / places) ** copies)


def ranks_in_domain(device: Device, operator: Collective) -> int:
    """Ranks of the group that share one domain of fast links, ``stride`` ranks lying between neighbours."""
    return max(1, min(operator.ranks, device.link.domain_devices // operator.stride))


def leaving_switch(device: Device, operator: Collective) -> float:
    """Share of the traffic of a rank's card that leaves its leaf switch; 0 if one switch has the whole group.

    Rings and trees in the order of the nodes enter and leave each switch once; in an all-to-all each rank sends to
    every other. For a pipeline it is known only which neighbours are below one switch.
    """
    link, inside = device.link, ranks_in_domain(device, operator)
    below = max(inside, (link.leaf_nodes or inf) * link.node_devices / operator.stride)
    if operator.ranks <= below:
        return 0.0
    return (operator.ranks - below) / (operator.ranks - inside) if operator.what == "all_to_all" else inside / below


def link_bytes_per_s(device: Device, operator: Collective, share: float = 1.0) -> float:
    """Bandwidth a rank has for the bytes that `bus_factor` counts; ``share`` of the data sheet's within a node."""
    link, inside = device.link, ranks_in_domain(device, operator)
    within = share * link.intra_node_bytes_per_s
    if inside == operator.ranks:
        return within
    card = link.inter_node_bytes_per_s * (1.0 if share == 1.0 else INTER_NODE_SHARE)
    card /= max(1.0, link.oversubscription * leaving_switch(device, operator))
    if link.sharp and operator.what == "all_reduce":
        card *= bus_factor(operator)  # a card sends its bytes, and receives the sum, once
    if operator.what == "all_to_all":
        # Only what leaves the domain takes the card; the rest goes at the same time over the faster links.
        domains = -(-operator.ranks // inside)
        groups, met = operator.groups
        leaving = (1 - 1 / domains) * min(copies_sent(operator.copies, domains), met * -(-domains // groups))
        whole = (1 - 1 / operator.ranks) * copies_sent(operator.copies, operator.ranks)
        return min(within, card * whole / leaving)
    return min(within, card * inside)


def _latency_over_nodes(operator: Collective, inside: int) -> float:
    """Seconds of latency that a group has over one of the ``inside`` ranks that share a node.

    DeepEP sends to other nodes at once: the tokens are written there and then announced.
    """
    if operator.what == "all_to_all" and operator.direct:
        return 2 * NODE_LATENCY_S * (1 - inside / operator.ranks)
    if operator.what not in ("all_gather", "reduce_scatter"):
        return NODE_LATENCY_S * log2(operator.ranks / inside)
    others = -(-operator.ranks // inside) - 1
    return RING_NODE_STEP_S * others + RING_STEP_S * (operator.ranks - inside - others)


def collective_parts(operator: Collective, device: Device, constants: CollectiveConstants | None = None) -> Items:
    """Seconds of latency and of transfer of one run; ``constants`` None: the device's."""
    if operator.ranks == 1:
        return 0.0, 0.0
    inside, what = ranks_in_domain(device, operator), operator.what
    # Engines' own reductions are for the ranks of one node; DeepEP's low-latency kernels are not, and send a token to
    # each of its experts.
    if operator.direct and (inside == operator.ranks or what == "all_to_all"):
        constants = constants or direct_constants(device, what, inside)
        operator = replace(operator, copies=1) if constants else operator
    constants = constants or collective_constants(device, what)
    latency, share, half_bytes = constants.among(max(2, inside))
    latency += _latency_over_nodes(operator, inside)
    moved = bus_factor(operator) * operator.bytes
    # Small messages never reach the full rate: half_bytes is the size at which half of it is reached.
    ramp = moved * half_bytes / (moved + half_bytes) if moved else 0.0
    return latency, (moved + ramp) / link_bytes_per_s(device, operator, share)


def moved_parts(operator: Operator, device: Device) -> Items:
    """Seconds of one run, by its parts; InputError: an element type that the device lacks."""
    known = kind_of(operator)
    parts = named_function(known.parts)
    if not known.form:
        return parts(operator, device)
    device.peak(operator.dtype)
    form, _ = named_function(known.form)(operator)
    return parts(operator, published(form, device, operator.dtype))


def origin_of(operator: Operator, device: Device) -> Origin:
    """Where the constants come from that price the operator."""
    if form := kind_of(operator).form:
        return published_origin(*named_function(form)(operator), device)
    origin = moving_constants(device)[1]
    measured = isinstance(operator, Collective) and "collective" in device.cost
    return replace(origin, own_device=True) if measured else origin
