"""Matrix products: tiles, waves, operand loads, memory, power, measured kernel choice and alignment.

For a tile (bm, bn) on S units, with T = batch ceil(m/bm) ceil(n/bn) tiles and x = T/S:

    load = (1 + (load_steps (1/bm + 1/bn))^p)^(1/p)               how far a small tile is from feeding its unit
    wave = 2 bm bn S / flops_per_s (k load + prologue_steps) + wave_s
    waves = quantization ceil(x) + (1 - quantization) max(x, 1)   how much of a partly filled last wave is paid
                                                                  (below one: max(x, split_steps / k), split along k)
    compute = min over tiles of waves x wave                      the library's choice of tile
    memory = bytes / cache bandwidth, and beyond the cache's size / bandwidth
    body = (compute^q + memory^q)^(1/q)                           how well loads hide behind arithmetic
    seconds = max((body x throttling + launch_s) x correction(waves, tails, k) x cell(m, n, k),
                  least the peak and the memory allow)

Two sets of constants, one for products whose least dimension is at least 512, one below 256, blended in between:
small and skinny products run other kernels. Cells correct sizes that the tables hold (shapes.cost.corrections).
Misalignment is added by `shapes.cost.corrections`. Fused attention has waves, overlap and the power limit too
(shapes.cost.fused_attention), with constants of its own. No kernel can beat `least_seconds`: the device's peak, and its
memory for all that no cache holds.
"""

from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from shapes.device import Device, load_device
from shapes.dtypes import BYTES, QUANTISED, next_multiple
from shapes.errors import InputError, refuse
from shapes.frozen import Pair, Triple, frozen, replace
from shapes.operators.types import Layout

from .constants import LARGE, LOW_TILES, GemmConstants, alignment_constants, gemm_constants, relative
from .corrections import (
    LAYOUT,
    AlignmentConstants,
    Array,
    Cells,
    Integers,
    Values,
    count_tiles,
    misaligned_seconds,
    moved_bytes,
)

#: A kernel's constants on a device, `GemmConstants` or fused attention's (whose module needs this one), as the
#: formulas below take them. ``units`` work at once. ``quantization``: the share of a partly filled last wave that is
#: paid (1: whole waves, 0: persistent kernels that balance it). ``overlap``: how well moving hides behind arithmetic
#: (1: not at all). ``throttle``, ``throttle_s``, ``throttle_width``: by how much, from which duration on and how
#: suddenly (in units of the logarithm of time) power limits sustained work.
WaveConstants = Any


def paid_waves(blocks: Values, c: WaveConstants) -> Array:
    """Waves paid for ``blocks`` thread blocks; a first wave is paid whole however few blocks it has."""
    filled = blocks / c.units
    return c.quantization * np.ceil(filled) + (1 - c.quantization) * np.maximum(filled, 1.0)


def overlapped(compute: Values, memory: Values, c: WaveConstants) -> Array:
    """Seconds of both together: the longer where they hide each other perfectly, their sum at overlap 1."""
    longer = np.maximum(compute, memory)
    return longer * (1 + (np.minimum(compute, memory) / longer) ** c.overlap) ** (1 / c.overlap)


def throttled(seconds: Values, c: WaveConstants) -> Array:
    """``seconds`` lengthened as work gets long enough for the power limit to be felt."""
    if c.throttle == 0:
        return np.asarray(seconds)
    # An exponential and a logarithm take a tenth of the power's time. Beyond e^50 nothing is felt.
    onset = np.exp(np.minimum(np.log(c.throttle_s / seconds) / c.throttle_width, 50.0))
    return seconds * (1 + c.throttle / (1 + onset))


def least_seconds(dims: Array, moved: Array, device: Device, dtype: str) -> Array:
    """Seconds that products (m, n, k and batch: rows of ``dims``) take at the least; grows with every dimension."""
    (m, n, k, batch), memory = dims, device.memory
    beyond = np.maximum(moved - memory.last_level_cache_bytes, 0.0) / memory.bandwidth_bytes_per_s
    return np.maximum(2 * batch * m * n * k / device.peak(dtype), beyond)


#: Shapes worked on at once: a dozen arrays of this many doubles stay in a core's second-level cache.
CHUNK = 4096

#: Where weights alone are quantised more rows than LOW_TILES have take blocks of 128 and more, for each block turns its
#: weights into 16 bits anew. Such kernels fetch ahead: how well they hide it is an overlap of 3
#: (reports/fit/weights_alone.py).
LOW_ROWS, AHEAD = 128, 3.0

#: torch.compile pads dimensions to multiples of so many bytes.
PADDED_BYTES = 16

_LARGEST = 2**40


def tile_load(tile: Pair, constants: GemmConstants) -> float:
    """Time of one step of k inside a tile over the arithmetic's own: each step loads bm + bn elements for bm bn."""
    bm, bn = tile
    ratio = constants.load_steps * (1 / bm + 1 / bn)
    return float((1 + ratio**constants.load_power) ** (1 / constants.load_power))


def wave_seconds(k: Array, tile: Pair, constants: GemmConstants) -> Array:
    """Seconds of one wave: every unit works one tile through all of k."""
    step = 2 * tile[0] * tile[1] * constants.units / constants.flops_per_s
    return k * (step * tile_load(tile, constants)) + (step * constants.prologue_steps + constants.wave_s)


def compute_seconds(dims: Array, c: GemmConstants) -> Array:
    """Seconds of the arithmetic in the best tile."""
    k = dims[2]
    return reduce(
        np.minimum, (tiled_seconds(waves_paid(count_tiles(dims, tile), k, c), k, tile, c) for tile in c.tiles)
    )


def tiled_seconds(waves: Array, k: Array, tile: Pair, c: GemmConstants) -> Array:
    """Seconds of ``waves``; a slice's start and end are no shorter than a tile's."""
    seconds = waves * wave_seconds(k, tile, c)
    if c.split_steps < np.inf:
        seconds += np.maximum(1 - waves, 0.0) * wave_seconds(np.zeros(1), tile, c)
    return seconds


def waves_paid(tiles: Array, k: Array, c: GemmConstants) -> Array:
    """`paid_waves`; a first wave that leaves units idle is split along k among them, down to slices of split_steps."""
    waves = paid_waves(tiles, c)
    if c.split_steps == np.inf:
        return waves
    sliced = np.maximum(tiles / c.units, np.minimum(c.split_steps / k, 1.0))
    return np.where(tiles < c.units, sliced, waves)


def memory_seconds(moved: Array, c: GemmConstants) -> Array:
    """Seconds to move A, B and C once: what the cache holds at its bandwidth, the rest at the memory's."""
    beyond = max(1 / c.bandwidth_bytes_per_s - 1 / c.cache_bandwidth_bytes_per_s, 0.0)
    return moved / c.cache_bandwidth_bytes_per_s + np.maximum(moved - c.cache_bytes, 0.0) * beyond


def uncorrected_seconds(dims: Array, moved: Array, c: GemmConstants) -> Array:
    """The closed form: body with throttling, and launch; m, n, k and batch are rows of ``dims``."""
    body = overlapped(compute_seconds(dims, c), memory_seconds(moved, c), c)
    return throttled(body, c) + c.launch_s


def set_seconds(dims: Array, moved: Array, c: GemmConstants) -> Array:
    """Seconds by one set of constants, blending aside, without misalignment."""
    seconds = uncorrected_seconds(dims, moved, c)
    if c.correction:
        seconds = seconds * c.correction.factor(c.units, dims)
    return seconds


def large_share(dims: Array) -> Array:
    """Weight of the large set: 1 from a least dimension of LARGE on, 0 up to half of it."""
    return np.clip(np.log2(np.min(dims[:3], axis=0) / LARGE) + 1, 0.0, 1.0)


def aligned_seconds(dims: Array, moved: Array, c: GemmConstants) -> Array:
    """Seconds without misalignment of products (m, n, k and batch: rows of ``dims``) of ``moved`` bytes each."""
    seconds = set_seconds(dims, moved, c)
    if not c.small:
        return seconds
    share = large_share(dims)
    below = np.flatnonzero(share < 1)
    if below.size:
        small = set_seconds(dims[:, below], moved[below], c.small)
        if not c.correction:
            # Tables are bound to times that do not fall between the sets; bare closed forms are not.
            np.minimum(small, seconds[below], out=small)
        seconds[below] = seconds[below] ** share[below] * small ** (1 - share[below])
    return seconds


class ProductKernels(NamedTuple):
    """Kernels of products that are alike, priced in one go: on ``device``, of ``dtype``, by the kernels of ``recipe``.

    ``out``: bytes an element of C. ``grouped``: one launch for many; ``pads``: torch.compile may pad them. ``weights``:
    bytes an element of B where it is quantised further than A.
    """

    device: Device
    dtype: str
    layout: Layout = "tn"
    recipe: str | None = None
    out: int = 2
    grouped: bool = False
    pads: bool = False
    weights: float | None = None

    @property
    def constants(self) -> GemmConstants:
        """Weights alone are quantised for other kernels than the library's whose choice was measured, with small tiles.

        No cache holds what a step reads of them before it comes back. Arithmetic is as fast as in large products: small
        ones of 16 bits wait for memory, which does not show how fast theirs is.
        """
        found = gemm_constants(self.device, self.dtype, self.recipe)[0]
        if not self.weights_alone:
            return found
        return found.both(
            correction=None,
            cells=None,
            tiles=(*LOW_TILES, *(tile for tile in found.tiles if tile[0] >= LOW_ROWS)),
            cache_bytes=0.0,
            overlap=AHEAD,
            flops_per_s=found.flops_per_s,
            load_steps=found.load_steps,
            load_power=found.load_power,
        )

    @property
    def weights_alone(self) -> bool:
        """Whether they are quantised further than what is multiplied, in 16 bits and more."""
        return self.weights is not None and not self.recipe and self.dtype not in QUANTISED

    @property
    def alignment(self) -> AlignmentConstants:
        return alignment_constants(self.device, self.dtype)

    @property
    def elements(self) -> Triple:
        """Bytes an element of A, B and C."""
        return BYTES[self.dtype], BYTES[self.dtype], self.out

    def moved(self, dims: Array) -> Array:
        """Bytes of A, B and C of products (m, n, k and batch: rows of ``dims``)."""
        m, n, *_ = dims
        size = BYTES[self.dtype]
        return moved_bytes(dims, size if self.weights is None else (m * size + n * self.weights) / (m + n), self.out)

    @property
    def cells(self) -> Cells | None:
        """The cells that speak of products in this layout: not of grouped ones, nor of weights alone quantised."""
        return self.constants.cells if self.layout == LAYOUT and not self.grouped else None

    @property
    def slower(self) -> float:
        """Seconds, but for the launch, over those of as many products that are not grouped."""
        return float(relative(self.device, "grouped").cost["grouped"]["slowdown"]) if self.grouped else 1.0


def bounded_seconds(sizes: Integers, by: ProductKernels) -> Array:
    """`aligned_seconds` of products (m, n, k and batch: rows) with what their cells add, never below the possible."""
    dims = sizes.astype(float)
    moved = by.moved(dims)
    seconds = aligned_seconds(dims, moved, by.constants)
    if by.cells:
        seconds = by.cells.corrected(seconds, sizes)
    return np.maximum(seconds, least_seconds(dims, moved, by.device, by.dtype))


def _misaligned(sizes: Integers, aligned: Array, by: ProductKernels) -> tuple[Array, Array, Array]:
    c = by.constants
    return misaligned_seconds(sizes, by.elements, by.layout, aligned, c.launch_s, by.alignment, partial(throttled, c=c))


@frozen
class GemmTimes:
    """Seconds of many products and what they consist of, arrays of one length; ``tile`` indexes the tiles."""

    seconds: Array
    aligned_s: Array
    compute_s: Array
    memory_s: Array
    tile: Integers
    tiles: Array
    waves: Array
    alignment: tuple[Array, Array, Array]


def gemm_times(sizes: Integers, by: ProductKernels, load: Any = 1.0) -> GemmTimes:
    """As `aligned_seconds` with misalignment, keeping the tile chosen and what bounds it.

    All but ``seconds`` are one group's, for grouped products; ``load``: the fullest group's over the mean.
    """
    dims, constants = sizes.astype(float), by.constants
    aligned, moved = bounded_seconds(sizes, by), by.moved(dims)
    choice = _choice(dims, moved, constants)
    if constants.small:
        choice = np.where(large_share(dims) < 0.5, _choice(dims, moved, constants.small), choice)
    compute, memory, tile, tiles, waves = choice
    alignment = _misaligned(sizes, aligned, by)
    seconds = aligned + sum(alignment)
    if by.grouped:
        seconds += (seconds - constants.launch_s) * (by.slower - 1) + (load - 1) / sizes[3] * compute
    times = GemmTimes(seconds, aligned, compute, memory, tile.astype(np.int64), tiles, waves, alignment)
    return _padded(times, sizes, by) if by.pads else times


def _padded(times: GemmTimes, sizes: Integers, by: ProductKernels) -> GemmTimes:
    """``times`` where misaligned operands may be copied to padded ones first, as torch.compile does where it is faster.

    All three dimensions grow to 16 bytes' worth (torch._inductor.fx_passes.pad_mm); A and B are read and written where
    one of theirs did, each by a kernel of its own, and C's padding is a view's.
    """
    in_a, in_b, in_c = times.alignment
    off = np.flatnonzero(in_a + in_b > 0)
    if not off.size:
        return times
    *before, many = sizes[:, off]
    size, constants = BYTES[by.dtype], by.constants
    pm, pn, pk = next_multiple(sizes[:3, off], PADDED_BYTES // size)
    ahead = gemm_times(np.array([pm, pn, pk, many]), by._replace(pads=False)).seconds
    skinny = constants.small or constants
    for (rows, columns), (more, wider) in (((before[0], before[2]), (pm, pk)), ((before[2], before[1]), (pk, pn))):
        moved = size * many * (rows * columns + more * wider)
        ahead += np.where(
            (rows < more) | (columns < wider), constants.launch_s + moved / skinny.bandwidth_bytes_per_s, 0
        )
    excess = (in_a + in_b + in_c)[off]
    share = np.clip((ahead - (times.seconds[off] - excess)) / excess, 0.0, 1.0)
    kept = np.ones(sizes.shape[1])
    kept[off] = share
    seconds = times.seconds.copy()
    seconds[off] -= (1 - share) * excess
    return replace(times, seconds=seconds, alignment=(in_a * kept, in_b * kept, in_c * kept))


def _choice(dims: Array, moved: Array, c: GemmConstants) -> Array:
    """Rows: seconds of arithmetic and of memory, the best tile's index, its tiles and the waves paid."""
    counts, k = np.array([count_tiles(dims, tile) for tile in c.tiles]), dims[2]
    waves = waves_paid(counts, k, c)
    per_tile = np.array([tiled_seconds(row, k, tile, c) for row, tile in zip(waves, c.tiles, strict=True)])
    best, rows = np.argmin(per_tile, axis=0), np.arange(k.size)
    return np.stack(
        [per_tile[best, rows], memory_seconds(moved, c), best.astype(float), counts[best, rows], waves[best, rows]]
    )


def predict_gemm(
    device: str | Device,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    batch: ArrayLike = 1,
    dtype: str = "bf16",
    layout: Layout = "tn",
    recipe: str | None = None,
) -> Array:
    """Predicted seconds of C[m,n] = A[m,k] B[k,n], ``batch`` times, sustained as in training.

    ``m``, ``n``, ``k`` and ``batch`` are positive integers or arrays of them that broadcast; the result has their
    common shape. ``device`` is a name, an alias, a .toml path or a Device; ``recipe`` says whose low-precision kernels
    run (shapes.recipes). InputError: a dtype the device lacks, an unknown layout or device, dimensions that are not
    positive integers.
    """
    refuse(layout not in ("tn", "nn", "nt", "tt"), "expected one of tn, nn, nt, tt", "layout", layout)
    by = ProductKernels(load_device(device), dtype, layout, recipe, output_bytes(dtype))
    dimensions = [_dimension(value, key) for key, value in {"m": m, "n": n, "k": k, "batch": batch}.items()]
    try:
        arrays = np.broadcast_arrays(*dimensions)
    except ValueError:
        shapes = " and ".join(str(array.shape) for array in dimensions)
        raise InputError(f"expected arrays that broadcast, found shapes {shapes}", "m, n, k, batch") from None
    return gemm_seconds(np.array([array.ravel() for array in arrays]), by).reshape(arrays[0].shape)


def gemm_seconds(sizes: Integers, by: ProductKernels, load: Any = 1.0) -> Array:
    """The seconds of `gemm_times` alone, of products whose m, n, k and batch are the rows of ``sizes``."""
    seconds = np.empty(sizes.shape[1])
    for start in range(0, seconds.size, CHUNK):
        seconds[start : start + CHUNK] = gemm_times(sizes[:, start : start + CHUNK], by, load).seconds
    return seconds


def output_bytes(dtype: str, out_dtype: str | None = None) -> int:
    """Bytes per element of C: 8-bit products write 16 bits unless told otherwise."""
    return BYTES[out_dtype] if out_dtype is not None else max(2, BYTES[dtype])


def _dimension(value: ArrayLike, key: str) -> Integers:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):  # rows of different lengths
        raise InputError("expected positive integers", key, value) from None
    refuse(not np.issubdtype(array.dtype, np.integer), "expected positive integers", key, value)
    refuse(
        array.size and not 1 <= array.min() <= array.max() <= _LARGEST,
        f"expected integers between 1 and {_LARGEST}",
        key,
        value,
    )
    return array.astype(np.int64)
