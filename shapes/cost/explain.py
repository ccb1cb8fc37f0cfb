"""How the seconds of a prediction come about, as parts that add up, and what the prices of a device are off by."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, compress

import numpy as np

from shapes.device import Device, load_device
from shapes.frozen import frozen
from shapes.kernels import KERNELS, load_kernel
from shapes.operators.cores import written_out
from shapes.operators.types import Attention, Collective, GroupedGemm, Operator, Product, kind_of
from shapes.program import named_function
from shapes.recipes import RECIPES, load_recipe
from shapes.toml_table import DATA, content

from . import Cost, Term, alike, alike_attention, predict, run_for, sizes_of
from .constants import (
    GROUPED,
    IN_CELL,
    LARGE,
    MISALIGNED_AS,
    Expected,
    GemmConstants,
    alignment_constants,
    expected,
    gemm_constants,
    moving_constants,
)
from .corrections import CLASSES, LEADING, LEVELS, Integers, level
from .fused_attention import PHASES, QUERIES, constants_of, work_of
from .gemm import GemmTimes, ProductKernels, bounded_seconds, gemm_times, overlapped, tile_load, uncorrected_seconds
from .moving import achieved_bandwidth, bus_factor, leaving_switch, link_bytes_per_s, moved_parts

#: Type of operator, other than products and fused attention -> the names of its price's parts.
TERMS = content(DATA / "operators.toml")["terms"]


def explain(operator: Operator, cost: Cost, device: str | Device) -> tuple[Term, ...]:
    """Parts of ``cost``, predicted for ``operator`` on ``device``, in order; their seconds add up to the cost's."""
    device = load_device(device)
    return tuple(named_function(kind_of(operator).explained)(operator, cost, device))


def moved_terms(operator: Operator, cost: Cost, device: Device) -> Iterator[Term]:
    moved = operator.bytes / 1e6
    facts = {
        "one": operator,
        "moved": moved,
        "gflop": operator.flops / 1e9,
        "cache": getattr(operator, "cache_bytes", 0) / operator.bytes,
        "reached": achieved_bandwidth(moving_constants(device)[0]) / 1e12,
    }
    if isinstance(operator, Collective):
        facts |= {
            "sent": bus_factor(operator) * moved,
            "link": link_bytes_per_s(device, operator) / 1e9,
            "leaving": f", {share:.0%} of it beyond a leaf switch"
            if (share := leaving_switch(device, operator))
            else "",
        }
    for (what, why), seconds in zip(
        TERMS[operator.__class__.__name__].items(), moved_parts(operator, device), strict=True
    ):
        yield Term(what, float(seconds), why.format(**facts))


def product_terms(operator: Product, cost: Cost, device: Device) -> Iterator[Term]:
    shape, by = sizes_of([operator]), alike(operator, device)
    times = gemm_times(shape, by)
    parts = _closed_form(times, shape[:, 0].tolist(), by)
    parts.extend(_kernel_choice(sum(part.seconds for part in parts), float(times.aligned_s[0]), shape, by))
    served = f"kernels of {by.alignment.family} ({by.alignment.tier})"
    if times.seconds[0] < gemm_times(shape, by._replace(pads=False)).seconds[0]:
        served = f"padded copies, faster than {served}"
    for which, bytes_each, (name, seconds) in zip(LEADING[operator.layout], by.elements, cost.alignment_s, strict=True):
        divides = LEVELS[int(level(shape[which], bytes_each)[0])]
        more = " or more" if divides == LEVELS[-1] else ""
        why = f"leading dimension {'mnk'[which]} = {shape[which, 0]} is a multiple of {divides}{more} bytes"
        parts.append(Term(f"alignment of {name}", seconds, f"{why}; {served}" if seconds > 0 else why))
    yield from parts
    if isinstance(operator, GroupedGemm):
        rest = cost.seconds - sum(part.seconds for part in parts)
        yield Term("grouping", rest, f"{operator.groups} groups in one launch, load {operator.load:g}")


def _kernel_choice(closed: float, aligned: float, shape: Integers, by: ProductKernels) -> Iterator[Term]:
    """From the ``closed`` form to ``aligned`` seconds: what tables by waves and by m and n say."""
    chosen = aligned
    if by.cells and by.cells.hit(shape).size:
        # Grouped products have no cells.
        chosen = float(bounded_seconds(shape, by._replace(grouped=True))[0])
    factor = f"measured products of these waves, tails and this k take x{chosen / closed:.3f} of the above"
    yield Term("kernel choice", chosen - closed, factor)
    if chosen != aligned:
        m, n = shape[:2, 0]
        factor = f"measured products of m = {m}, n = {n} take x{aligned / chosen:.3f} of what others of their waves do"
        yield Term("kernel choice for m and n", aligned - chosen, factor)


def _closed_form(times: GemmTimes, shape: list[int], by: ProductKernels) -> list[Term]:
    """The closed form's parts, by the set of constants that weighs more for this shape."""
    (m, n, k, batch), c = shape, by.constants
    dims = np.array(shape, float)[:, None]
    moved = by.moved(dims)
    if c.small and min(m, n, k) < LARGE / 2**0.5:
        c = c.small
    total = float(uncorrected_seconds(dims, moved, c)[0])
    tile = bm, bn = c.tiles[int(times.tile[0])]
    tiles, waves, compute, memory = (
        float(one[0]) for one in (times.tiles, times.waves, times.compute_s, times.memory_s)
    )
    together = float(overlapped(times.compute_s, times.memory_s, c)[0])
    step = 2 * bm * bn / c.flops_per_s
    flops = 2 * batch * m * n * k
    useful, computed = flops / c.flops_per_s, tiles * step * k
    paid, load = waves * c.units * step, tile_load(tile, c)
    # A slice of a product that is split along k starts and ends as a tile does.
    started = max(waves, 1.0)
    kept = f"{tiles:.0f} tiles of {bm}x{bn} keep {useful / computed:.1%} of what they compute"
    filled = f"{tiles:.0f} tiles on {c.units} units: {waves:.2f} waves paid for {tiles / c.units:.2f}"
    steps = f"{c.prologue_steps:.0f} steps of k a tile that nothing overlaps"
    return [
        Term("launch", c.launch_s, "kernel launch and first bytes"),
        Term("arithmetic", useful, f"{flops / 1e9:.4g} GFLOP at {c.flops_per_s / 1e12:.0f} TFLOPS"),
        Term("partial tiles", computed - useful, kept),
        Term("unfilled waves", paid * k - computed, filled),
        Term("operand loads", paid * k * (load - 1), f"feeding a {bm}x{bn} tile takes x{load:.3f} of its arithmetic"),
        Term("tile start and end", started * c.units * step * c.prologue_steps, steps),
        Term("wave overhead", started * c.wave_s, f"{c.wave_s * 1e6:.2f} us a wave"),
        Term("waiting for memory", together - compute, f"moving {moved[0] / 1e6:.4g} MB takes {memory * 1e6:.1f} us"),
        Term("power limit", total - c.launch_s - together, "sustained work clocks lower"),
    ]


def attention_terms(operator: Attention, cost: Cost, device: Device) -> Iterator[Term]:
    run, shared = run_for(operator, device), alike_attention(operator, device)
    why = "".join(f"; {name} {reason}" for name, reason in run.refused)
    if run.kernel == "eager":
        for part in written_out(operator):
            yield Term(part.name, predict(part, device).seconds, f"not fused: a kernel of its own{why}")
        return
    c = constants_of(shared.kernel, device, shared.dtype).phases[shared.phase]
    one = shared.times(work_of([operator], [run]), device).only(0)
    seen = operator.kv_len * operator.visible_share
    yield Term("launch", c.launch_s, f"{load_kernel(run.kernel).title}{why}")
    dims = f"head_dim {operator.head_dim}, {operator.v_head_dim} runs as {run.d_qk}, {run.d_v}"
    blocks = f"{operator.q_len} queries in blocks of {QUERIES}, whole blocks at the mask's edge of {seen:.0f} keys"
    filled = f"{one.blocks:.0f} blocks on {c.units} units: {one.waves:.2f} waves paid for {one.blocks / c.units:.2f}"
    memory = f"moving {operator.bytes / 1e6:.4g} MB takes {one.memory_s * 1e6:.1f} us"
    before = 0.0
    for what, seconds, said in (
        ("arithmetic", one.ideal_s, f"{operator.visible_flops / 1e9:.4g} GFLOP that the mask leaves"),
        ("head_dim padding", one.padded_s, dims),
        ("head_dim checks", one.partial_s, "a head that does not fill what it runs as is masked load by load"),
        ("partial blocks", one.walked_s, blocks),
        ("block start and end", one.started_s, "what a block does before and after its keys"),
        ("unfilled waves", one.compute_s, filled),
        ("waiting for memory", one.body_s, memory),
        ("power limit", one.seconds - c.launch_s - one.copies_s, "sustained work clocks lower"),
    ):
        if what != "head_dim checks" or seconds != before:
            yield Term(what, seconds - before, said)
        before = seconds
    if one.copies_s:
        copied = (
            f"Q, K and V are padded to {run.copied} first" if run.copied else "K and V go to a server's cache first"
        )
        yield Term("copies", one.copies_s, copied)


@frozen
class ClassError:
    """One class of kernels; ``kernel``: "product", a fused attention's name, "elementwise" or "collective"."""

    kernel: str
    dtype: str
    regime: str
    expected: Expected


def expected_errors(device: Device) -> tuple[ClassError, ...]:
    """Products by element type, size and alignment, grouped ones, attention by kernel and phase, what only moves."""
    origin, products = moving_constants(device)[1], chain(*map(partial(_of_products, device), device.peak_flops))
    dtype = "bf16" if "bf16" in device.peak_flops else "fp16"
    grouped, elementwise, collective = (
        ClassError(kernel, dtype, regime, expected(device, origin, regime, dtype))
        for kernel, regime in (("product", GROUPED), ("elementwise", "memory_bound"), ("collective", "collective"))
    )
    return *products, grouped, *_of_attention(device, dtype), elementwise, collective


def _of_products(device: Device, dtype: str) -> Iterator[ClassError]:
    for recipe in (None, *(name for name in RECIPES if load_recipe(name).dtype == dtype)):
        constants, own = gemm_constants(device, dtype, recipe)
        if recipe is None or own.table == f"{dtype}_{recipe}":
            named = f"{dtype} {recipe}" if recipe else dtype
            for regime in _regimes(constants, () if recipe else alignment_constants(device, dtype).served):
                yield ClassError("product", named, regime, expected(device, own, regime, dtype))


def _of_attention(device: Device, dtype: str) -> Iterator[ClassError]:
    for kernel in KERNELS:
        if kernel != "eager" and load_kernel(kernel).runs_on(device.architecture):
            c = constants_of(kernel, device, dtype)
            for at, phase in enumerate(PHASES):
                if c.phases[at] not in c.phases[:at]:
                    yield ClassError(kernel, dtype, phase if at < 2 else f"forward, {phase}", c.expected[at])


def _regimes(constants: GemmConstants, served: Iterable[bool]) -> Iterator[str]:
    """Regimes that single products are in, of CLASSES those that are ``served`` by other kernels."""
    for end in ("", IN_CELL) if constants.cells else ("",):
        yield from ("large" + end, "small" + end)
    for name in compress(CLASSES, served):
        yield MISALIGNED_AS + name
