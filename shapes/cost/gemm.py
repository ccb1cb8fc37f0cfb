"""Matrix products: tiles, waves, operand loads, memory, power and alignment.

For a tile (bm, bn) on S units, with T = batch ceil(m/bm) ceil(n/bn) tiles and x = T/S:

    load = (1 + (load_steps (1/bm + 1/bn))^p)^(1/p)               how far a small tile is from feeding its unit
    wave = 2 bm bn S / flops_per_s (k load + prologue_steps) + wave_s
    waves = quantization ceil(x) + (1 - quantization) max(x, 1)   how much of a partly filled last wave is paid
    tile seconds = max(waves wave, bytes / bandwidth)
    seconds = min over tiles, x throttling, x alignment, + launch_s

The least over tiles stands for the library's choice of kernel. Everything grows with m, n and k at fixed alignment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shapes.cost.alignment import AlignmentConstants, penalties
from shapes.cost.constants import GemmConstants, alignment_constants, gemm_constants
from shapes.device import Device, load_device
from shapes.dtypes import BYTES
from shapes.errors import InputError
from shapes.operators.types import Layout

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Shapes worked on at once: a dozen arrays of this many doubles stay in a core's second-level cache.
CHUNK = 4096

_LARGEST = 2**40


def tile_load(tile: tuple[int, int], constants: GemmConstants) -> float:
    """Time of one step of k inside a tile over the arithmetic's own: each step loads bm + bn elements for bm bn."""
    bm, bn = tile
    ratio = constants.load_steps * (1 / bm + 1 / bn)
    return float((1 + ratio**constants.load_power) ** (1 / constants.load_power))


def wave_seconds(k: Array, tile: tuple[int, int], constants: GemmConstants) -> Array:
    """Seconds of one wave: every unit works one tile through all of k."""
    step = 2 * tile[0] * tile[1] * constants.units / constants.flops_per_s
    seconds: Array = k * (step * tile_load(tile, constants)) + (step * constants.prologue_steps + constants.wave_s)
    return seconds


def paid_waves(tiles: Array, constants: GemmConstants) -> Array:
    """Waves paid for ``tiles`` tiles; quantization 1: whole waves, 0: persistent kernels that balance the tail."""
    filled = tiles / constants.units
    share = constants.quantization
    waves: Array = share * np.ceil(filled) + (1 - share) * np.maximum(filled, 1.0)
    return waves


def count_tiles(m: Array, n: Array, batch: Array, tile: tuple[int, int]) -> Array:
    tiles: Array = np.ceil(m / tile[0]) * np.ceil(n / tile[1]) * batch
    return tiles


def throttled(seconds: Array, constants: GemmConstants) -> Array:
    """``seconds`` lengthened as work gets long enough for the power limit to be felt."""
    if constants.throttle == 0:
        return seconds
    # 1 / (1 + exp(-ln(t / t0) / width)) without the logarithm.
    onset = (constants.throttle_s / seconds) ** (1 / constants.throttle_width)
    longer: Array = seconds * (1 + constants.throttle / (1 + onset))
    return longer


def aligned_seconds(m: Array, n: Array, k: Array, batch: Array, size: float, out: float, c: GemmConstants) -> Array:
    """Seconds without launch and alignment; ``size`` and ``out`` are bytes per element of the operands and of C."""
    best: Array = np.full(m.shape, np.inf)
    for tile in c.tiles:
        seconds = paid_waves(count_tiles(m, n, batch, tile), c) * wave_seconds(k, tile, c)
        np.minimum(best, seconds, out=best)
    # The bytes are the same for every tile, so the largest of the two can be taken after the least over tiles.
    np.maximum(best, memory_seconds(m, n, k, batch, size, out, c), out=best)
    return throttled(best, c)


def memory_seconds(m: Array, n: Array, k: Array, batch: Array, size: float, out: float, c: GemmConstants) -> Array:
    """Seconds to move A, B and C once at the achieved bandwidth."""
    seconds: Array = batch * ((m + n) * k * size + m * n * out) / c.bandwidth_bytes_per_s
    return seconds


@dataclass(frozen=True, slots=True)
class GemmTimes:
    """Seconds of many products with what they consist of, arrays of one length."""

    seconds: Array
    body_s: Array
    compute_s: Array
    memory_s: Array
    tile: Integers
    tiles: Array
    waves: Array
    alignment: tuple[Array, Array, Array]


def gemm_times(
    m: Integers, n: Integers, k: Integers, batch: Integers, size: int, out: int, layout: Layout,
    constants: GemmConstants, alignment: AlignmentConstants,
) -> GemmTimes:  # fmt: skip
    """As `aligned_seconds` with launch and alignment, keeping the tile chosen and what bounds it."""
    fm, fn, fk, fb = (array.astype(float) for array in (m, n, k, batch))
    counts = np.array([count_tiles(fm, fn, fb, tile) for tile in constants.tiles])
    waves = paid_waves(counts, constants)
    per_tile = waves * np.array([wave_seconds(fk, tile, constants) for tile in constants.tiles])
    chosen = np.argmin(per_tile, axis=0)
    rows = np.arange(m.size)
    compute, memory = per_tile[chosen, rows], memory_seconds(fm, fn, fk, fb, size, out, constants)
    body = throttled(np.maximum(compute, memory), constants)
    shares = penalties(m, n, k, (size, size, out), layout, alignment)
    a, b, c = (body * share for share in shares)
    total = body + a + b + c + constants.launch_s
    return GemmTimes(
        total, body, compute, memory, chosen, counts[chosen, rows], waves[chosen, rows], (a, b, c)
    )  # fmt: skip


def predict_gemm(
    device: str | Device,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    batch: ArrayLike = 1,
    dtype: str = "bf16",
    layout: Layout = "tn",
) -> Array:
    """Predicted seconds of C[m,n] = A[m,k] B[k,n], ``batch`` times, sustained as in training.

    ``m``, ``n``, ``k`` and ``batch`` are positive integers or arrays of them that broadcast; the result has their
    common shape. ``device`` is a name, an alias, a .toml path or a Device. InputError: a dtype the device lacks, an
    unknown layout or device, dimensions that are not positive integers.
    """
    if layout not in ("tn", "nn", "nt", "tt"):
        raise InputError("expected one of tn, nn, nt, tt", key="layout", value=layout)
    target = load_device(device)
    constants, _ = gemm_constants(target, dtype)
    alignment, size = alignment_constants(target), BYTES[dtype]
    named = zip(("m", "n", "k", "batch"), (m, n, k, batch), strict=True)
    arrays = np.broadcast_arrays(*(_dimension(value, key) for key, value in named))
    flat = [array.ravel() for array in arrays]
    seconds = np.empty(flat[0].size)
    for start in range(0, seconds.size, CHUNK):
        ints = [array[start : start + CHUNK] for array in flat]
        fm, fn, fk, fb = (array.astype(float) for array in ints)
        body = aligned_seconds(fm, fn, fk, fb, size, size, constants)
        a, b, c = penalties(ints[0], ints[1], ints[2], (size, size, size), layout, alignment)
        seconds[start : start + CHUNK] = body * (1 + a + b + c) + constants.launch_s
    return seconds.reshape(arrays[0].shape)


def _dimension(value: ArrayLike, key: str) -> Integers:
    array = np.asarray(value)
    if array.dtype == object or not np.issubdtype(array.dtype, np.integer):
        raise InputError("expected positive integers", key=key, value=value)
    if array.size and not (array.min() >= 1 and array.max() <= _LARGEST):
        raise InputError(f"expected integers between 1 and {_LARGEST}", key=key, value=value)
    return array.astype(np.int64)
