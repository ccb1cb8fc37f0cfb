"""Measured corrections of the closed form: a factor by waves, by their tails and by the length of the reduction.

Libraries choose kernels by heuristics that no closed form knows: which tile, how many stages, whether to split k. Most
of the cost of that choice depends on the number of waves, on how much of the tiles' last wave would idle, and on the
length of k. The tables hold logarithms of measured over modelled time, linear between their knots and constant outside;
they add up.

The rest is mostly which kernel a library takes for this m and n. A cell (m, n) of the published tables holds the
logarithm of measured over modelled time at a few k, linear in log2 k between them and constant outside. Cells hold for
the products of the tables alone: forward products (layout tn) of 16-bit elements, unbatched, of these very m and n, k
from 512 on and a multiple of 64. They are bounded so that growth by a tile or to the double saves nothing by them
(reports/fit/cells.py).

Leading dimensions off the vector width cost another kernel with a ceiling of its own. Tensor-core kernels load vectors
of 16 bytes; Hopper's and Blackwell's copy engine (TMA) takes only strides that are multiples of them. A product whose A
or B is off is served by an older kernel with narrower loads (on NVIDIA CUTLASS's align1 and align2 kernels for sm75 and
sm80, which cuBLAS ships). The bytes that divide the leading dimension decide, the worse of A and B: below 4 (odd, in 16
bits), 4 or 8, 16, and 32 or more, which is free.

    tiles = batch ceil(m / bm) ceil(n / bn)            of 128 x 128, narrower for a narrow product
    slices = max(1, floor(units / tiles))              a product that leaves units idle is split along k
    walk(rate, start) = paid 2 bm bn (k / slices + start) units / rate
    seconds = max(aligned, walk(narrow, prologue_steps), walk(odd, 0)) + shares x aligned

If launching or moving operands takes most of the time, narrower loads cost less: a misaligned product then takes at
most 1 + BOUND times the aligned one, odd ones no longer than narrow ones. Beyond, the room grows:

    u = FLOPs / peak / (AT max(bytes / bandwidth, launch))
    room = STEEP (max(u, 1) - 1) aligned
    seconds <= (1 + BOUND) aligned + room,  odd <= narrow + room

Two tiles run on a unit at once and hide each other's loads; one left over takes ``alone`` times its half of the pair's.
Which kernels, at which FLOP per clock and unit, is data by family of devices: shapes/data/misaligned.toml.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.device import Device
from shapes.dtypes import BYTES, next_multiple
from shapes.errors import InputError, positive_int, refuse
from shapes.frozen import Floats, Ints, Named, Pair, Triple, frozen
from shapes.operators.types import Layout
from shapes.toml_table import DATA, content

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
Indices = NDArray[np.intp]
#: One value or many; all of them come back as numpy has them.
Values = Array | np.float64 | float

OPERANDS = ("A", "B", "C")
#: Bytes to which a leading dimension can be aligned, as far as a kernel cares: beyond 32 nothing is won.
LEVELS = (1, 2, 4, 8, 16, 32)
#: Kernels by the level they serve: odd elements of 16 bits, 4 and 8 bytes alike, 16 bytes, and no penalty.
CLASSES = ("odd", "narrow", "vector", "free")
_CLASS_OF = np.array([0, 0, 1, 1, 2, 3])

#: layout -> which of m, n, k (0, 1, 2) is the leading dimension of A, B, C.
LEADING: Mapping[str, list[int]] = content(DATA / "operators.toml")["leading"]

#: By how much a misaligned product is slower at the most where its arithmetic takes less than AT of moving its operands
#: or of launching it (public sweeps show 1.0 to 1.5 times there), and how fast that bound rises beyond.
BOUND, AT, STEEP = 0.5, 0.6, 10.0

#: Largest side of the narrow kernels' tiles, and the step in which they shrink for a narrow product.
TILE, TILE_STEP = 128, 32


#: A figure of each of CLASSES without "free".
ByClass = Floats
#: Knots of a table's axis, or the values there.
Knots = Floats


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
    def from_table(cls, table: Named, device: Device, dtype: str) -> "AlignmentConstants":
        """For elements of ``dtype``: ceilings were measured on 16-bit ones, and loads are what is short."""
        size = BYTES[dtype]
        clock_mhz = device.compute.clock_mhz or table.get("clock_mhz", np.inf)
        clock = clock_mhz * 1e6 * device.compute.units * 2 / size
        by_class = {key: _by_class(table.get(key, {}), 0.0) for key in ("share", "c_share", "error", "error_p95")}
        return cls(
            family=table["family"],
            tier=table["tier"],
            ceiling=_by_class(table.get("flops_per_clock_per_unit", {}), np.inf, clock),
            prologue_steps=table.get("prologue_steps", 0.0),
            alone=table.get("alone", 1.0),
            both=table.get("both", 0.0),
            units=device.compute.units,
            peak_flops_per_s=device.peak(dtype),
            bandwidth_bytes_per_s=device.memory.bandwidth_bytes_per_s,
            **by_class,
        )


def _by_class(values: Named, absent: float, times: float = 1.0) -> ByClass:
    return tuple(values.get(name, absent) * times for name in CLASSES[:3])


#: For a dtype without matrix units: no kernel asks for alignment.
NO_FAMILY: Named = {"family": "none", "tier": "published"}


def family_table(device: Device) -> Named:
    """The device's own ``[cost.alignment]``, else the family of its architecture in misaligned.toml."""
    own = device.cost.get("alignment", {})
    if "family" in own:
        return own
    families = content(DATA / "misaligned.toml").items()
    tables = {key: {"family": name, **table} for name, table in families for key in table["serves"]}
    keys = device.compute_capability, device.architecture, device.vendor
    return next((tables[key] for key in keys if key in tables), {**NO_FAMILY, "tier": "extrapolated"})


def level(dimension: Integers, size: int) -> Integers:
    """Index into LEVELS of the largest power of two that divides ``dimension`` x ``size`` bytes, at most the last."""
    # or-ing the last level in caps the lowest set bit; the position of that bit is the level.
    lowest = dimension * size | LEVELS[-1]
    return np.log2(lowest & -lowest).astype(np.int64)


def operand_classes(dimensions: Sequence[Integers] | Integers, sizes: Triple, layout: Layout) -> tuple[Integers, ...]:
    """Index into CLASSES of A's, B's and C's leading dimension, of m, n and k; ``sizes`` are bytes per element."""
    leading = zip(LEADING[layout], sizes, strict=True)
    return tuple(_CLASS_OF[level(dimensions[which], size)] for which, size in leading)


def count_tiles(dims: Array, tile: tuple[Values, Values]) -> Array:
    """Tiles of products whose m, n, k and batch are rows of ``dims``."""
    m, n, _, batch = dims
    return np.ceil(m / tile[0]) * np.ceil(n / tile[1]) * batch


def moved_bytes(dims: Array, size: Values, out: float) -> Array:
    """Bytes of A, B and C."""
    m, n, k, batch = dims
    return np.asarray(batch * ((m + n) * k * size + m * n * out))


def paid_tiles(tiles: Array, c: "AlignmentConstants") -> Array:
    """Tiles that the fullest unit works one after the other: two run at once, and one left over takes ``alone``."""
    pairs, rest = np.divmod(np.ceil(tiles / c.units), 2)
    return 2 * pairs + rest * c.alone


def kernel_seconds(dims: Array, which: Integers, c: "AlignmentConstants") -> tuple[Array, Array]:
    """Seconds, without launch, of the kernel that serves class ``which``, and those an odd one's loads take at least.

    0 where there is no ceiling.
    """
    bm, bn = (np.minimum(next_multiple(side, TILE_STEP), TILE) for side in dims[:2])
    tiles = count_tiles(dims, (bm, bn))
    # A product that fills less than half of the units is split along k.
    slices = np.maximum(np.floor(c.units / tiles), 1.0)
    steps = dims[2] / slices
    volume = paid_tiles(tiles * slices, c) * (2 * bm * bn * c.units)
    rate = np.array([c.ceiling[1], *c.ceiling[1:], np.inf])[which]
    walk = volume * (steps + c.prologue_steps) / rate
    return walk, np.where(which == 0, volume * steps / c.ceiling[0], 0.0)


def misaligned_seconds(
    dimensions: Sequence[Integers] | Integers,
    sizes: Triple,
    layout: Layout,
    aligned: Array,
    launch_s: float,
    c: "AlignmentConstants",
    sustained: Callable[[Array], Array],
) -> tuple[Array, Array, Array]:
    """Seconds that A's, B's and C's leading dimension add to ``aligned``; m, n, k and batch are ``dimensions``.

    ``sustained``: seconds as the power limit lengthens them, which slows narrow loads' kernels as it does others.
    """
    of_a, of_b, of_c = operand_classes(dimensions, sizes, layout)
    worse = np.minimum(of_a, of_b)
    body = np.maximum(aligned - launch_s, 0.0)
    in_c = body * np.array([*c.c_share, 0.0])[of_c]
    extra = np.zeros(aligned.shape)
    off = np.flatnonzero(worse < len(CLASSES) - 1)
    if off.size:
        dims = np.array([array[off] for array in dimensions], dtype=float)
        walk, loads = map(sustained, np.maximum(kernel_seconds(dims, worse[off], c), 1e-12))
        moved = moved_bytes(dims, sizes[0], sizes[2])
        arithmetic = 2 * dims.prod(axis=0) / c.peak_flops_per_s
        beyond = arithmetic / (AT * np.maximum(moved / c.bandwidth_bytes_per_s, launch_s))
        room = STEEP * np.maximum(beyond - 1, 0.0) * aligned[off]
        narrow = np.maximum(walk, body[off])
        slower = np.minimum(np.maximum(narrow, loads), narrow + room) - body[off]
        share = np.array([*c.share, 0.0])
        shared = body[off] * (share[worse[off]] + c.both * share[np.maximum(of_a, of_b)[off]])
        extra[off] = np.minimum(slower, BOUND * aligned[off] + room) + shared
    in_a = np.where(of_a <= of_b, extra, 0.0)
    return in_a, extra - in_a, in_c


#: Waves are counted in this tile, the one libraries prefer for large products.
REFERENCE_TILE = (128, 256)


@frozen
class Grid:
    """The knots: one table over waves of REFERENCE_TILE and k, and one for each of ``tail_tiles``.

    A tail table has a layer for a product of one wave of its tile, of two, and so on, the last of ``tail_waves`` for
    all beyond, over the idle share of the last wave and k.
    """

    log2_waves: Knots
    log2_k: Knots
    tail_tiles: tuple[Pair, ...]
    tail_waves: int
    tail_idle: Knots
    tail_log2_k: Knots

    def corners(self, dims: Array, units: int) -> Iterator[tuple[Indices, Array]]:
        """The entries that speak of each product on ``units`` units, as (index among all, weight) pairs of arrays."""
        log2_k = np.log2(dims[2])
        waves = np.log2(waves_of(REFERENCE_TILE, dims, units))
        for (i, u), (j, v) in product(sides(waves, self.log2_waves), sides(log2_k, self.log2_k)):
            yield i * len(self.log2_k) + j, u * v
        start = len(self.log2_waves) * len(self.log2_k)
        along_k = sides(log2_k, self.tail_log2_k) if self.tail_tiles else ()
        for tile in self.tail_tiles:
            waves = waves_of(tile, dims, units)
            whole = np.ceil(waves)
            layer = np.minimum(whole, self.tail_waves).astype(np.intp) - 1
            for (i, u), (j, v) in product(sides(whole - waves, self.tail_idle), along_k):
                yield start + (layer * len(self.tail_idle) + i) * len(self.tail_log2_k) + j, u * v
            start += self.tail_waves * len(self.tail_idle) * len(self.tail_log2_k)


def waves_of(tile: Pair, dims: Array, units: int) -> Array:
    """How many waves of ``tile`` a product is on ``units`` units; below 1: units without a tile."""
    return count_tiles(dims, tile) / units


@frozen
class Correction:
    """A grid and the logarithm of measured over modelled time at each of its knots."""

    grid: Grid
    log_factors: Knots

    @classmethod
    def from_table(cls, table: Named) -> "Correction":
        """From the ``correction`` table of a device file."""
        tail = table.get("tail", {"tiles": (), "idle": (), "log2_k": (), "log_factor": ""})
        tiles = tuple(map(tuple, tail["tiles"]))
        rows, tails = _rows(table["log_factor"]), _rows(tail["log_factor"])
        grid = Grid(
            _numbers(table["log2_waves"]),
            _numbers(table["log2_k"]),
            tiles,
            len(tails) // max(len(tiles), 1),
            _numbers(tail["idle"]),
            _numbers(tail["log2_k"]),
        )
        return cls(grid, _numbers(chain(*rows, *tails)))

    def factor(self, units: int, dims: Array) -> Array:
        """Measured over modelled time of products on ``units`` units."""
        table = np.asarray(self.log_factors)
        return np.exp(sum(table[at] * weight for at, weight in self.grid.corners(dims, units)))


def sides(values: Array, knots: Knots) -> tuple[tuple[Indices, Array], tuple[Indices, Array]]:
    """The knots below and above each value with their weights, clipped to the ends."""
    grid = np.asarray(knots)
    index = np.clip(np.searchsorted(grid, values, side="right") - 1, 0, grid.size - 2)
    share = np.clip((values - grid[index]) / (grid[index + 1] - grid[index]), 0.0, 1.0)
    return (index, 1 - share), (index + 1, share)


def _numbers(values: Any) -> Knots:
    return tuple(map(float, values))


def _rows(block: str) -> list[list[str]]:
    """A table of a file, a line of numbers each: text, which a TOML reader passes over at once."""
    return [line.split() for line in block.split("\n") if line]


#: The tables' layout, their least k, and the number that divides every k.
LAYOUT, LEAST_K, STEP_K = "tn", 512, 64
#: Entries are whole multiples of this.
UNIT = 1e-4


@frozen
class Cells:
    """Rising values of m and of n, knots of log2 k, and a line for each m: of each n, an entry for each knot, in UNITs.

    ``-`` marks a cell without measurements. Kept as text: it is read once a product is priced.
    """

    m: Ints
    n: Ints
    log2_k: Knots
    entries: str

    @classmethod
    def from_table(cls, table: Named) -> "Cells":
        """From the ``cells`` table of a device file."""
        m, n = (tuple(positive_int(int(value), f"cells.{axis}") for value in table[axis]) for axis in "mn")
        return cls(m, n, _numbers(table["log2_k"]), str(table["log_factor"]))

    def at(self, dims: Integers) -> Integers:
        """Index of each product's cell, below 0 where it has none."""
        m, n, *_ = dims
        row, column = (np.searchsorted(own, one) for own, one in ((self.m, m), (self.n, n)))
        there = (np.append(self.m, 0)[row] == m) & (np.append(self.n, 0)[column] == n)
        return np.where(there, row * len(self.n) + column, -1)

    def hit(self, dims: Integers) -> Indices:
        """Which of these products of LAYOUT (m, n, k and batch: rows of ``dims``) a cell speaks of."""
        cell, (*_, k, batch) = self.at(dims), dims
        rows = np.flatnonzero((cell >= 0) & (batch == 1) & (k >= LEAST_K) & (k % STEP_K == 0))
        return rows[~np.isnan(_log_factors(self)[cell[rows], 0])]

    def corrected(self, seconds: Array, dims: Integers) -> Array:
        """``seconds`` of products of LAYOUT, those of a cell times its factor."""
        rows = self.hit(dims)
        if not rows.size:
            return seconds
        cell, total = self.at(dims[:, rows]), np.zeros(rows.size)
        for knot, share in sides(np.log2(dims[2, rows]), self.log2_k):
            total += _log_factors(self)[cell, knot] * share
        corrected = seconds.copy()
        corrected[rows] *= np.exp(total)
        return corrected


@lru_cache(16)
def _log_factors(cells: "Cells") -> Array:
    """Entries by cell and knot; NaN where nothing was measured."""
    rows = [line.split() for line in cells.entries.splitlines()]
    ms, ns, knots = len(cells.m), len(cells.n), len(cells.log2_k)
    for axis, values in (("m", cells.m), ("n", cells.n)):
        refuse(sorted(values) != [*values], "expected rising values", f"cells.{axis}")
    refuse(
        len(rows) != ms or any(len(row) != ns * knots for row in rows) or knots < 2,
        f"expected {ms} lines of {ns * knots} entries",
        "cells.log_factor",
        len(rows),
    )
    try:
        entries = np.array([float("nan" if one == "-" else one) for row in rows for one in row])
    except ValueError as error:
        raise InputError(f"expected numbers: {error}", "cells.log_factor") from None
    return entries.reshape(ms * ns, knots) * UNIT
