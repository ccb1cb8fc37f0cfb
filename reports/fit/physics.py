"""Millions of shapes asked whether a prediction is faster than the device can be, or work that grows saves time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.cost.constants import FITTED, GemmConstants, gemm_constants
from shapes.cost.corrections import LEAST_K, STEP_K, moved_bytes
from shapes.cost.gemm import aligned_seconds, least_seconds, output_bytes, predict_gemm
from shapes.device import Device, list_devices, load_device
from shapes.dtypes import BYTES
from shapes.errors import InputError

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

#: What a tile more may save before it is a fault: rounding and the blend of two sets of constants.
TOLERANCE = 0.01
#: One tile of each dimension.
TILES = (256, 256, 64)
#: Columns by which products of few rows grow besides, and how many rows are few.
COLUMNS, FEW = 64, 64
#: Ways of growing: along which of m, n and k, by how much (None: to the double), from how many rows at the most.
GROWTHS: tuple[tuple[int, int | None, float], ...] = (
    *((axis, add, np.inf) for axis, tile in enumerate(TILES) for add in (tile, None)),
    (1, COLUMNS, FEW),
)
#: What rounding may take off a bound.
ROUNDING = 1 - 1e-9
#: Largest k of the published tables.
LARGEST_K = 65536


@dataclass(frozen=True, slots=True)
class Counts:
    """How many of ``shapes`` shapes (aligned and not) break what no kernel can break."""

    device: str
    dtype: str
    shapes: int
    above_peak: int
    above_bandwidth: int
    a_tile_saves: int
    doubling_saves: int

    @property
    def broken(self) -> int:
        return self.above_peak + self.above_bandwidth + self.a_tile_saves + self.doubling_saves


def against_physics(shapes: int, seed: int = 0) -> list[Counts]:
    """`Counts` of every device and dtype that has a peak, ``shapes`` in all."""
    cases = [(name, dtype) for name in list_devices() for dtype in load_device(name).peak_flops]
    each = max(100, -(-shapes // len(cases)))
    return [count(name, dtype, each, seed + index) for index, (name, dtype) in enumerate(cases)]


@dataclass(frozen=True, slots=True)
class CellCounts:
    """In how many pairs of sizes, one with a cell and growing into the other, growth saves time.

    ``alone``: in how many it does by the constants without cells, and no more with them.
    """

    device: str
    cells: int
    pairs: int
    a_tile_saves: int
    doubling_saves: int
    alone: int


def celled() -> list[str]:
    """Devices whose 16-bit products have cells: those fitted, and B60, whose constants no other borrows."""
    return [name for name in (*FITTED, "b60") if gemm_constants(load_device(name), "bf16")[0].cells is not None]


def around_cells(name: str, ks: Integers | None = None) -> CellCounts:
    """`CellCounts` of a fitted device's bf16 products at each of ``ks`` (every k that has cells, up to 65536)."""
    device = load_device(name)
    constants, _ = gemm_constants(device, "bf16")
    if constants.cells is None:
        raise InputError("expected cells", where=device.origin, key="cost.bf16.cells")
    m, n = (dims.ravel() for dims in np.meshgrid(constants.cells.m, constants.cells.n, indexing="ij"))
    counts = np.zeros(4, dtype=np.int64)
    for k in np.arange(LEAST_K, LARGEST_K + 1, STEP_K) if ks is None else ks:
        own = np.stack([m, n, np.full_like(m, k)])
        of_own = _with_and_without(own, constants, device)
        for (axis, add, rows), backwards in product(GROWTHS, (False, True)):
            other, there = grown(own, axis, add, rows, backwards)
            doubled = add is None
            of_other = _with_and_without(other, constants, device)
            saved, alone = (
                1 - (here[there] / beyond if backwards else beyond / here[there])
                for here, beyond in zip(of_own, of_other, strict=True)
            )
            limit = 1e-9 if doubled else TOLERANCE
            saves = int((saved > limit).sum())
            kept = int((alone > np.maximum(limit, saved - 1e-9)).sum())
            counts += [int(there.sum()), 0 if doubled else saves, saves if doubled else 0, kept]
    return CellCounts(name, m.size, *counts.tolist())


def grown(
    own: Integers, axis: int, add: int | None, rows: float, backwards: bool
) -> tuple[Integers, NDArray[np.bool_]]:
    """What sizes grow into, or ``backwards`` what grows into them; and for which of them there is such a size.

    ``axis``, ``add`` and ``rows`` are one of GROWTHS.
    """
    other, there = own.copy(), own[0] <= rows
    if add is None:
        other[axis] = own[axis] // 2 if backwards else 2 * own[axis]
        there &= (own[axis] % 2 == 0) | (not backwards)
    else:
        other[axis] += -add if backwards else add
        there &= other[axis] > 0
    return other[:, there], there


def _with_and_without(dims: Integers, constants: GemmConstants, device: Device) -> tuple[Array, Array]:
    """Seconds of unbatched bf16 products with and without cells."""
    assert constants.cells is not None
    m, n, k = dims
    sizes = np.array([m, n, k, np.ones_like(m)])
    moved = moved_bytes(floats := sizes.astype(float), 2, 2)
    bare = aligned_seconds(floats, moved, constants)
    least = least_seconds(floats, moved, device, "bf16")
    return np.maximum(constants.cells.corrected(bare, sizes), least), np.maximum(bare, least)


def drawn(shapes: int, seed: int) -> tuple[Integers, Integers, Integers]:
    """m, n, k up to 65536, evenly over their logarithm; the first half multiples of 64, where growth is tried."""
    random = np.random.default_rng(seed)
    m, n, k = (np.exp(random.uniform(np.log(16), np.log(65536), shapes)).astype(np.int64) for _ in range(3))
    whole = np.arange(shapes) < shapes // 2
    m, n, k = (np.where(whole, np.maximum(64, dim // 64 * 64), np.maximum(1, dim)) for dim in (m, n, k))
    return m, n, k


def beyond_device(device: Device, dtype: str, seconds: Any, flops: Any, moved: Any) -> tuple[int, int]:
    """Of kernels of ``seconds``, how many beat the device's peak, and how many its bandwidth.

    Bytes ``moved`` count beyond what caches hold.
    """
    beyond = np.maximum(moved - device.memory.last_level_cache_bytes, 0)
    return (
        int((seconds * device.peak(dtype) < flops * ROUNDING).sum()),
        int((seconds * device.memory.bandwidth_bytes_per_s < beyond * ROUNDING).sum()),
    )


def count(name: str, dtype: str, shapes: int, seed: int) -> Counts:
    device = load_device(name)
    m, n, k = drawn(shapes, seed)
    seconds = predict_gemm(device, m, n, k, dtype=dtype)
    size, out = BYTES[dtype], output_bytes(dtype)
    flops = 2.0 * m * n * k
    moved = (m + n) * k * size + m * n * float(out)
    grown_faster = doubled_faster = 0
    half = shapes // 2
    asked = np.stack([m[:half], n[:half], k[:half]]), seconds[:half]
    few_rows = np.stack([np.random.default_rng(seed).integers(1, FEW + 1, half), n[:half], k[:half]])
    few = few_rows, predict_gemm(device, *few_rows, dtype=dtype)
    for axis, add, rows in GROWTHS:
        own, before = asked if rows == np.inf else few
        after, _ = grown(own, axis, add, rows, backwards=False)
        saved = 1 - predict_gemm(device, *after, dtype=dtype) / before
        if add is None:
            doubled_faster += int((saved > 1e-9).sum())
        else:
            grown_faster += int((saved > TOLERANCE).sum())
    return Counts(
        name,
        dtype,
        shapes,
        *beyond_device(device, dtype, seconds, flops, moved),
        grown_faster,
        doubled_faster,
    )
