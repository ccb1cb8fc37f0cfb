"""What leading dimensions off the vector width cost: another kernel with a ceiling of its own.

Tensor-core kernels load vectors of 16 bytes; Hopper's and Blackwell's copy engine (TMA) takes only strides that are
multiples of them. A product whose A or B is off is served by an older kernel with narrower loads (on NVIDIA CUTLASS's
align1 and align2 kernels for sm75 and sm80, which cuBLAS ships). How many bytes divide the leading dimension decides,
the worse of A and B: below 4 (odd, in 16 bits), 4 or 8, 16, and 32 or more, which is free.

    tiles = batch ceil(m / bm) ceil(n / bn)            of 128 x 128, narrower for a narrow product
    slices = max(1, floor(units / tiles))              a product that leaves units idle is split along k
    walk(rate, start) = paid 2 bm bn (k / slices + start) units / rate
    seconds = max(aligned, walk(narrow, prologue_steps), walk(odd, 0)) + shares x aligned

Where launching or moving operands takes most of the time, narrower loads cost less: up to there a misaligned product
takes at most 1 + BOUND times the aligned one, odd ones no longer than narrow ones; beyond, the room grows:

    u = FLOPs / peak / (AT max(bytes / bandwidth, launch))
    room = STEEP (max(u, 1) - 1) aligned
    seconds <= (1 + BOUND) aligned + room,  odd <= narrow + room

Two tiles run on a unit at once and hide each other's loads; one left over takes ``alone`` times its half of the pair's.
Which kernels, at which FLOP per clock and unit, is data by family of devices: shapes/data/misaligned.toml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.device import Device
from shapes.dtypes import BYTES
from shapes.frozen import frozen
from shapes.json_form import Named, Values
from shapes.operators.types import Layout
from shapes.toml_table import DATA, content

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
Indices = NDArray[np.intp]

OPERANDS = ("A", "B", "C")
#: Bytes to which a leading dimension can be aligned, as far as a kernel cares: beyond 32 nothing is won.
LEVELS = (1, 2, 4, 8, 16, 32)
#: Kernels by the level they serve: odd elements of 16 bits, 4 and 8 bytes alike, 16 bytes, and no penalty.
CLASSES = ("odd", "narrow", "vector", "free")
_CLASS_OF = np.array([0, 0, 1, 1, 2, 3])

#: layout -> which of m, n, k (0, 1, 2) is the leading dimension of A, B, C (table of shapes.operators.types).
LEADING: dict[str, tuple[int, int, int]] = {
    "tn": (2, 2, 1),
    "nn": (2, 1, 1),
    "nt": (0, 1, 1),
    "tt": (0, 2, 1),
}

#: By how much a misaligned product is slower at the most where its arithmetic takes less than AT of moving its operands
#: or of launching it (public sweeps show 1.0 to 1.5 times there), and how fast that bound rises beyond.
BOUND, AT, STEEP = 0.5, 0.6, 10.0

#: Largest side of the narrow kernels' tiles, and the step in which they shrink for a narrow product.
TILE, TILE_STEP = 128, 32


#: A figure of each of CLASSES without "free".
ByClass = tuple[float, ...]


@frozen
class AlignmentConstants:
    """One family's kernels for misaligned products; tuples are by CLASSES without "free".

    ``ceiling``: FLOP/s of all units (inf: none). ``prologue_steps``: a tile's start and end in steps of k. ``alone``:
    time of a tile that has its unit to itself over its half of a pair's. ``share``, ``c_share``: what a misaligned A
    or B, and a misaligned C, add to the aligned time; ``both``: by how much more where A and B are both off.
    ``tier``: "measured" (this device), "published" (fitted on others' sweeps of the family) or "extrapolated".
    ``peak_flops_per_s``, ``bandwidth_bytes_per_s``: the device's, of its data sheet.
    ``error``, ``error_p95``: relative errors on sweeps that the fit had not seen, 0 where nobody measured.
    """

    family: str
    tier: str
    ceiling: ByClass
    prologue_steps: float
    alone: float
    share: ByClass
    both: float
    c_share: ByClass
    units: int
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    error: ByClass = 3 * (0.0,)
    error_p95: ByClass = 3 * (0.0,)

    @property
    def served(self) -> tuple[bool, ...]:
        """Which of CLASSES run on other kernels than products of 32 bytes and more do."""
        return *(rate < np.inf or share > 0 for rate, share in zip(self.ceiling, self.share, strict=True)), False

    @classmethod
    def from_table(cls, table: Named, device: Device, dtype: str) -> AlignmentConstants:
        """For elements of ``dtype``: ceilings were measured on 16-bit ones, and loads are what is short."""
        size = BYTES[dtype]
        clock_mhz = device.compute.clock_mhz or float(table.get("clock_mhz", np.inf))
        clock = clock_mhz * 1e6 * device.compute.units * 2 / size
        by_class = {key: _by_class(table.get(key, {}), 0.0) for key in ("share", "c_share", "error", "error_p95")}
        return cls(
            family=str(table["family"]),
            tier=str(table["tier"]),
            ceiling=_by_class(table.get("flops_per_clock_per_unit", {}), np.inf, clock),
            prologue_steps=float(table.get("prologue_steps", 0.0)),
            alone=float(table.get("alone", 1.0)),
            both=float(table.get("both", 0.0)),
            units=device.compute.units,
            peak_flops_per_s=device.peak(dtype),
            bandwidth_bytes_per_s=device.memory.bandwidth_bytes_per_s,
            **by_class,
        )


def _by_class(values: Named, absent: float, times: float = 1.0) -> ByClass:
    return tuple(float(values.get(name, absent)) * times for name in CLASSES[:3])


#: What a dtype without matrix units has: no kernel that asks for alignment.
NO_FAMILY: Named = {"family": "none", "tier": "published"}


def family_table(device: Device) -> Named:
    """The device's own ``[cost.alignment]``, else the family of its architecture in misaligned.toml."""
    own: Mapping[str, Any] = device.cost.get("alignment", {})
    if "family" in own:
        return own
    tables = _families()
    keys = (device.compute_capability, device.architecture, device.vendor)
    return next((tables[key] for key in keys if key in tables), {**NO_FAMILY, "tier": "extrapolated"})


@lru_cache(maxsize=1)
def _families() -> dict[str | None, Values]:
    """Compute capability, architecture or vendor -> its family's table, with the family's name in it."""
    families = content(DATA / "misaligned.toml")
    return {key: {"family": name, **table} for name, table in families.items() for key in table["serves"]}


def level(dimension: Integers, size: int) -> Integers:
    """Index into LEVELS of the largest power of two that divides ``dimension`` x ``size`` bytes, at most the last."""
    # or-ing the last level in caps the lowest set bit; the position of that bit is the level.
    lowest = dimension * size | LEVELS[-1]
    index: Integers = np.log2(lowest & -lowest).astype(np.int64)
    return index


def operand_classes(
    m: Integers, n: Integers, k: Integers, sizes: tuple[int, int, int], layout: Layout
) -> tuple[Integers, ...]:
    """Index into CLASSES of A's, B's and C's leading dimension; ``sizes`` are bytes per element."""
    dimensions = (m, n, k)
    leading = zip(LEADING[layout], sizes, strict=True)
    return tuple(_CLASS_OF[level(dimensions[which], size)] for which, size in leading)


def paid_tiles(tiles: Array, c: AlignmentConstants) -> Array:
    """Tiles that the fullest unit works one after the other: two run at once, and one left over takes ``alone``."""
    pairs, rest = np.divmod(np.ceil(tiles / c.units), 2)
    paid: Array = 2 * pairs + rest * c.alone
    return paid


def kernel_seconds(
    m: Array, n: Array, k: Array, batch: Array, which: Integers, c: AlignmentConstants
) -> tuple[Array, Array]:
    """Seconds, without launch, of the kernel that serves class ``which``, and those an odd one's loads take at least.

    0 where there is no ceiling.
    """
    bm, bn = (np.minimum(np.ceil(side / TILE_STEP) * TILE_STEP, TILE) for side in (m, n))
    tiles = np.ceil(m / bm) * np.ceil(n / bn) * batch
    # A product that fills less than half of the units is split along k.
    slices = np.maximum(np.floor(c.units / tiles), 1.0)
    steps = k / slices
    volume = paid_tiles(tiles * slices, c) * (2 * bm * bn * c.units)
    rate = np.array([c.ceiling[1], *c.ceiling[1:], np.inf])[which]
    walk: Array = volume * (steps + c.prologue_steps) / rate
    return walk, np.where(which == 0, volume * steps / c.ceiling[0], 0.0)


def misaligned_seconds(
    dimensions: Sequence[Integers] | Integers,
    sizes: tuple[int, int, int],
    layout: Layout,
    aligned: Array,
    launch_s: float,
    c: AlignmentConstants,
    sustained: Callable[[Array], Array],
) -> tuple[Array, Array, Array]:
    """Seconds that A's, B's and C's leading dimension add to ``aligned``; m, n, k and batch are ``dimensions``.

    ``sustained``: seconds as the power limit lengthens them, which slows narrow loads' kernels as it does others.
    """
    of_a, of_b, of_c = operand_classes(dimensions[0], dimensions[1], dimensions[2], sizes, layout)
    worse = np.minimum(of_a, of_b)
    body = np.maximum(aligned - launch_s, 0.0)
    in_c = body * np.array([*c.c_share, 0.0])[of_c]
    extra = np.zeros(aligned.shape)
    off = np.flatnonzero(worse < len(CLASSES) - 1)
    if off.size:
        fm, fn, fk, fb = (array[off].astype(float) for array in dimensions)
        walk, loads = map(sustained, np.maximum(kernel_seconds(fm, fn, fk, fb, worse[off], c), 1e-12))
        moved = fb * ((fm + fn) * fk * sizes[0] + fm * fn * sizes[2])
        arithmetic = 2 * fm * fn * fk * fb / c.peak_flops_per_s
        beyond = arithmetic / (AT * np.maximum(moved / c.bandwidth_bytes_per_s, launch_s))
        room = STEEP * np.maximum(beyond - 1, 0.0) * aligned[off]
        narrow = np.maximum(walk, body[off])
        slower = np.minimum(np.maximum(narrow, loads), narrow + room) - body[off]
        share = np.array([*c.share, 0.0])
        shared = body[off] * (share[worse[off]] + c.both * share[np.maximum(of_a, of_b)[off]])
        extra[off] = np.minimum(slower, BOUND * aligned[off] + room) + shared
    return np.where(of_a <= of_b, extra, 0.0), np.where(of_a <= of_b, 0.0, extra), in_c
