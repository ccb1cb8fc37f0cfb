"""How the seconds of a prediction come about: parts that add up to the total."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from shapes.cost.alignment import LEADING, LEVELS, OPERANDS, AlignmentConstants, level
from shapes.cost.bounds import overlapped
from shapes.cost.constants import (
    GemmConstants,
    collective_constants,
    gemm_constants,
    moving_constants,
)
from shapes.cost.fused_attention import QUERIES, attention_times, constants_of, phase_of, work_of
from shapes.cost.gemm import (
    LARGE,
    GemmTimes,
    bounded_seconds,
    tile_load,
    uncorrected_seconds,
)
from shapes.cost.moving import (
    achieved_bandwidth,
    bus_factor,
    cached_attention_parts,
    collective_parts,
    elementwise_parts,
    link_bytes_per_s,
)
from shapes.cost.predict import Cost, Term, alike, per_group, predict, run_for, sizes_of
from shapes.device import Device, load_device
from shapes.dtypes import BYTES
from shapes.kernels import load_kernel
from shapes.operators.cores import written_out
from shapes.operators.types import (
    Attention,
    CachedAttention,
    Collective,
    Elementwise,
    GroupedGemm,
    Operator,
    Product,
    kind_of,
    named_function,
)


def explain(operator: Operator, cost: Cost, device: str | Device) -> tuple[Term, ...]:
    """Parts of ``cost``, predicted for ``operator`` on ``device``, in order; their seconds add up to the cost's."""
    device = load_device(device)
    terms: tuple[Term, ...] = named_function(kind_of(operator).explained)(operator, cost, device)
    return terms


def cached_attention_terms(operator: CachedAttention, cost: Cost, device: Device) -> tuple[Term, ...]:
    constants, _ = gemm_constants(device, operator.dtype)
    launch, memory, compute = cached_attention_parts(operator, constants, device)
    share = operator.cache_bytes / operator.bytes
    reached = achieved_bandwidth(constants) / 1e12
    read = f"{operator.bytes / 1e6:.1f} MB at {reached:.2f} TB/s, {share:.0%} of it KV cache"
    over = "arithmetic at the dense peak, beyond what moving hides"
    return (
        Term("launch", launch, "fixed cost of a kernel"),
        Term("KV cache", memory, read),
        Term("arithmetic", max(0.0, compute - memory), over),
    )


def product_terms(operator: Product, cost: Cost, device: Device) -> tuple[Term, ...]:
    shared = alike(operator, device)
    shape, by = sizes_of([operator]), shared.kernels(device)
    times, unpadded = (one.times(shape, device) for one in (shared, shared._replace(pads=False)))
    served = _served_by(by.alignment, times, unpadded)
    m, n, k, batch = per_group(operator)
    parts = _closed_form(times, by.constants, (m, n, k, batch), by.size, by.out)
    closed, aligned = sum(part.seconds for part in parts), float(times.aligned_s[0])
    chosen = aligned
    if by.cells is not None and by.cells.hit(*shape).size:
        bare = replace(by, constants=replace(by.constants, cells=None))
        chosen = float(bounded_seconds(shape, bare)[0])
    factor = f"measured products of these waves, tails and this k take x{chosen / closed:.3f} of the above"
    parts.append(Term("kernel choice", chosen - closed, factor))
    if chosen != aligned:
        factor = f"measured products of m = {m}, n = {n} take x{aligned / chosen:.3f} of what others of their waves do"
        parts.append(Term("kernel choice for m and n", aligned - chosen, factor))
    elements = (by.size, by.size, by.out)
    for which, name, bytes_each, (_, seconds) in zip(
        LEADING[operator.layout], OPERANDS, elements, cost.alignment_s, strict=True
    ):
        aligned = LEVELS[int(level(shape[which], bytes_each)[0])]
        leading = f"{'mnk'[which]} = {shape[which, 0]}"
        more = " or more" if aligned == LEVELS[-1] else ""
        why = f"leading dimension {leading} is a multiple of {aligned}{more} bytes"
        if seconds > 0:
            why += f"; {served}"
        parts.append(Term(f"alignment of {name}", seconds, why))
    if isinstance(operator, GroupedGemm):
        spent = sum(part.seconds for part in parts)
        parts.append(
            Term("grouping", cost.seconds - spent, f"{operator.groups} groups in one launch, load {operator.load:g}")
        )
    return tuple(parts)


def _first(times: Any) -> Any:
    """`GemmTimes` or `AttentionTimes` of one operator, with numbers for arrays."""
    return replace(
        times, **{key.name: getattr(times, key.name)[0].item() for key in fields(times) if key.name != "alignment"}
    )


def _served_by(c: AlignmentConstants, times: GemmTimes, unpadded: GemmTimes) -> str:
    """What runs a product whose leading dimensions are misaligned: kernels that take them, or padded copies."""
    kernels = f"kernels of {c.family} ({c.tier})"
    return kernels if times.seconds[0] >= unpadded.seconds[0] else f"padded copies, faster than {kernels}"


def _closed_form(
    times: GemmTimes, constants: GemmConstants, shape: tuple[int, int, int, int], size: int, out: int
) -> list[Term]:
    """The closed form's parts, by the set of constants that weighs more for this shape."""
    m, n, k, batch = shape
    dimensions = (np.array([float(value)]) for value in shape)
    c = constants.small if constants.small is not None and min(m, n, k) < LARGE / 2**0.5 else constants
    fm, fn, fk, fb = dimensions
    total = float(uncorrected_seconds(fm, fn, fk, fb, size, out, c)[0])
    tile = bm, bn = c.tiles[int(times.tile[0])]
    tiles, waves = float(times.tiles[0]), float(times.waves[0])
    compute, memory = float(times.compute_s[0]), float(times.memory_s[0])
    together = float(overlapped(times.compute_s, times.memory_s, c)[0])
    step = 2 * bm * bn / c.flops_per_s
    useful, computed = 2.0 * batch * m * n * k / c.flops_per_s, tiles * step * k
    paid, load = waves * c.units * step, tile_load(tile, c)
    # A slice of a product that is split along k starts and ends as a tile does.
    started = max(waves, 1.0)
    moved = batch * ((m + n) * k * size + m * n * out)
    return [
        Term("launch", c.launch_s, "kernel launch and first bytes"),
        Term("arithmetic", useful, f"{2 * batch * m * n * k / 1e9:.4g} GFLOP at {c.flops_per_s / 1e12:.0f} TFLOPS"),
        Term(
            "partial tiles",
            computed - useful,
            f"{tiles:.0f} tiles of {bm}x{bn} keep {useful / computed:.1%} of what they compute",
        ),
        Term(
            "unfilled waves",
            paid * k - computed,
            f"{tiles:.0f} tiles on {c.units} units: {waves:.2f} waves paid for {tiles / c.units:.2f}",
        ),
        Term("operand loads", paid * k * (load - 1), f"feeding a {bm}x{bn} tile takes x{load:.3f} of its arithmetic"),
        Term(
            "tile start and end",
            started * c.units * step * c.prologue_steps,
            f"{c.prologue_steps:.0f} steps of k a tile that nothing overlaps",
        ),
        Term("wave overhead", started * c.wave_s, f"{c.wave_s * 1e6:.2f} us a wave"),
        Term("waiting for memory", together - compute, f"moving {moved / 1e6:.4g} MB takes {memory * 1e6:.1f} us"),
        Term("power limit", total - c.launch_s - together, "sustained work clocks lower"),
    ]


def attention_terms(operator: Attention, cost: Cost, device: Device) -> tuple[Term, ...]:
    run = run_for(operator, device)
    why = "".join(f"; {name} {reason}" for name, reason in run.refused)
    if run.kernel == "eager":
        return tuple(
            Term(one.name, predict(one, device).seconds, f"not fused: a kernel of its own{why}")
            for one in written_out(operator)
        )
    backward = operator.phase != "forward"
    c = constants_of(run.kernel, device, operator.dtype).phases[phase_of(backward, operator.trains)]
    one = _first(attention_times(work_of([operator], [run]), c, backward, BYTES[operator.dtype]))
    seen = operator.kv_len * operator.visible_share
    parts = (
        Term("launch", c.launch_s, f"{load_kernel(run.kernel).title}{why}"),
        Term("arithmetic", one.ideal_s, f"{operator.visible_flops / 1e9:.4g} GFLOP that the mask leaves"),
        Term(
            "head_dim padding",
            one.padded_s - one.ideal_s,
            f"head_dim {operator.head_dim}, {operator.v_head_dim} runs as {run.d_qk}, {run.d_v}",
        ),
        Term(
            "head_dim checks",
            one.partial_s - one.padded_s,
            "a head that does not fill what it runs as is masked load by load",
        ),
        Term(
            "partial blocks",
            one.walked_s - one.partial_s,
            f"{operator.q_len} queries in blocks of {QUERIES}, whole blocks at the mask's edge of {seen:.0f} keys",
        ),
        Term("block start and end", one.started_s - one.walked_s, "what a block does before and after its keys"),
        Term(
            "unfilled waves",
            one.compute_s - one.started_s,
            f"{one.blocks:.0f} blocks on {c.units} units: {one.waves:.2f} waves paid for {one.blocks / c.units:.2f}",
        ),
        Term(
            "waiting for memory",
            one.body_s - one.compute_s,
            f"moving {operator.bytes / 1e6:.4g} MB takes {one.memory_s * 1e6:.1f} us",
        ),
        Term("power limit", one.seconds - c.launch_s - one.copies_s - one.body_s, "sustained work clocks lower"),
        Term(
            "copies",
            one.copies_s,
            f"Q, K and V are padded to {run.copied} first" if run.copied else "K and V go to a server's cache first",
        ),
    )
    return tuple(part for part in parts if part.seconds or part.what not in ("copies", "head_dim checks"))


def collective_terms(operator: Collective, cost: Cost, device: Device) -> tuple[Term, ...]:
    latency, transfer = collective_parts(operator, device, collective_constants(device, operator.what))
    moved = bus_factor(operator) * operator.bytes / 1e6
    link = link_bytes_per_s(device, operator) / 1e9
    return (
        Term("latency", latency, f"{operator.what} over {operator.ranks} ranks"),
        Term("transfer", transfer, f"{moved:.4g} MB a rank over a {link:.0f} GB/s link"),
    )


def elementwise_terms(operator: Elementwise, cost: Cost, device: Device) -> tuple[Term, ...]:
    constants, _ = moving_constants(device)
    launch, moving = elementwise_parts(operator, constants)
    reached = achieved_bandwidth(constants) / 1e12
    return (
        Term("launch", launch, "kernel launch and first bytes"),
        Term("bytes", moving, f"{operator.bytes / 1e6:.4g} MB at {reached:.2f} TB/s"),
    )
