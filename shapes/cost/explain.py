"""How the seconds of a prediction come about: parts that add up to the total."""

from __future__ import annotations

import numpy as np

from shapes.cost.alignment import LEADING, LEVELS, OPERANDS, level
from shapes.cost.attention import QUERIES, attention_time
from shapes.cost.collective import bus_factor, collective_parts, link_bytes_per_s
from shapes.cost.constants import attention_constants, collective_constants, gemm_constants
from shapes.cost.gemm import tile_load
from shapes.cost.memory_bound import elementwise_parts
from shapes.cost.predict import per_group, product_times
from shapes.cost.result import Cost, Part
from shapes.device import Device
from shapes.dtypes import BYTES
from shapes.operators.types import Attention, Collective, Elementwise, Gemm, GroupedGemm


def explain(cost: Cost) -> tuple[Part, ...]:
    """Parts of ``cost``; see `Cost.explain`."""
    operator, device = cost.operator, cost.device
    if operator is None or device is None:
        return (Part("total", cost.seconds, cost.source),)
    if isinstance(operator, Gemm | GroupedGemm):
        return _product(cost, operator, device)
    if isinstance(operator, Attention):
        return _attention(cost, operator, device)
    if isinstance(operator, Collective):
        return _collective(operator, device)
    return _elementwise(operator, device)


def _product(cost: Cost, operator: Gemm | GroupedGemm, device: Device) -> tuple[Part, ...]:
    out = getattr(operator, "out_dtype", None) or operator.dtype
    times, _ = product_times([operator], operator.dtype, out, operator.layout, device)
    constants, _ = gemm_constants(device, operator.dtype)
    m, n, k, batch = per_group(operator)
    tile = constants.tiles[int(times.tile[0])]
    bm, bn = tile
    tiles, waves = float(times.tiles[0]), float(times.waves[0])
    compute, memory, body = float(times.compute_s[0]), float(times.memory_s[0]), float(times.body_s[0])
    step = 2 * bm * bn / constants.flops_per_s
    useful = 2.0 * batch * m * n * k / constants.flops_per_s
    computed = tiles * step * k
    in_waves = waves * constants.units * step * k
    fed = in_waves * tile_load(tile, constants)
    started = fed + waves * constants.units * step * constants.prologue_steps
    size = BYTES[operator.dtype]
    parts = [
        Part("launch", constants.launch_s, "kernel launch and first bytes"),
        Part("arithmetic", useful, f"{2 * batch * m * n * k / 1e9:.4g} GFLOP at {constants.flops_per_s / 1e12:.0f} TFLOPS"),
        Part("partial tiles", computed - useful, f"{tiles:.0f} tiles of {bm}x{bn} keep {useful / computed:.1%} of what they compute"),
        Part("unfilled waves", in_waves - computed, f"{tiles:.0f} tiles on {constants.units} units: {waves:.2f} waves paid for {tiles / constants.units:.2f}"),
        Part("operand loads", fed - in_waves, f"a {bm}x{bn} tile needs {tile_load(tile, constants):.3f} of its arithmetic's time to be fed"),
        Part("tile start and end", started - fed, f"{constants.prologue_steps:.0f} steps of k a tile that nothing overlaps"),
        Part("wave overhead", compute - started, f"{constants.wave_s * 1e6:.2f} us a wave"),
        Part("waiting for memory", max(memory - compute, 0.0), f"{memory * constants.bandwidth_bytes_per_s / 1e6:.4g} MB at {constants.bandwidth_bytes_per_s / 1e12:.2f} TB/s take {memory * 1e6:.1f} us"),
        Part("power limit", body - max(compute, memory), "sustained work clocks lower"),
    ]  # fmt: skip
    dimensions = np.array([m, n, k], dtype=np.int64)
    sizes = (size, size, BYTES[out])
    for which, name, bytes_each, (_, seconds) in zip(
        LEADING[operator.layout], OPERANDS, sizes, cost.alignment_s, strict=True
    ):
        aligned = LEVELS[int(level(dimensions[which : which + 1], bytes_each)[0])]
        leading = f"{'mnk'[which]} = {dimensions[which]}"
        more = " or more" if aligned == LEVELS[-1] else ""
        parts.append(
            Part(f"alignment of {name}", seconds, f"leading dimension {leading} is a multiple of {aligned}{more} bytes")
        )
    if isinstance(operator, GroupedGemm):
        spent = sum(part.seconds for part in parts)
        parts.append(
            Part("grouping", cost.seconds - spent, f"{operator.groups} groups in one launch, load {operator.load:g}")
        )
    return tuple(parts)


def _attention(cost: Cost, operator: Attention, device: Device) -> tuple[Part, ...]:
    constants = attention_constants(device, operator.dtype)
    time = attention_time(operator, constants)
    rows = -(-operator.q_len // QUERIES) * QUERIES / operator.q_len
    keys = operator.kv_len * operator.visible_share
    in_tiles = time.padded_s * rows
    started = in_tiles * (keys + constants.prologue_keys) / keys
    return (
        Part("launch", constants.launch_s, "kernel launch and first bytes"),
        Part("arithmetic", time.ideal_s, f"{operator.flops * operator.visible_share / 1e9:.4g} GFLOP that the mask leaves"),
        Part("head_dim padding", time.padded_s - time.ideal_s, f"head_dim {operator.head_dim} runs in the {time.bucket} bucket"),
        Part("partial tiles", in_tiles - time.padded_s, f"{operator.q_len} queries in blocks of {QUERIES}"),
        Part("block start and end", started - in_tiles, f"worth {constants.prologue_keys:.0f} keys a block of {keys:.0f}"),
        Part("unfilled waves", time.compute_s - started, f"{time.blocks} blocks on {constants.units} units: {time.waves:.2f} waves paid for {time.filled:.2f}"),
        Part("waiting for memory", max(time.memory_s - time.compute_s, 0.0), f"{operator.bytes / 1e6:.4g} MB at {constants.bandwidth_bytes_per_s / 1e12:.2f} TB/s"),
    )  # fmt: skip


def _collective(operator: Collective, device: Device) -> tuple[Part, ...]:
    latency, transfer = collective_parts(operator, device, collective_constants(device))
    moved = bus_factor(operator.what, operator.ranks) * operator.bytes / 1e6
    link = link_bytes_per_s(device, operator.ranks) / 1e9
    return (
        Part("latency", latency, f"{operator.what} over {operator.ranks} ranks"),
        Part("transfer", transfer, f"{moved:.4g} MB a rank over a {link:.0f} GB/s link"),
    )


def _elementwise(operator: Elementwise, device: Device) -> tuple[Part, ...]:
    constants, _ = gemm_constants(device, "bf16" if "bf16" in device.peak_flops else "fp16")
    launch, moving = elementwise_parts(operator, constants)
    reached = constants.bandwidth_bytes_per_s / 1e12
    return (
        Part("launch", launch, "kernel launch and first bytes"),
        Part("bytes", moving, f"{operator.bytes / 1e6:.4g} MB at {reached:.2f} TB/s"),
    )
