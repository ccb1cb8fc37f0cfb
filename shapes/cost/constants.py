"""A device's constants: its own fitted ones, or those of its nearest fitted relative, scaled by the data sheets.

Also the error of predictions by them: held-out errors from the device files, wider where constants are borrowed.
``[error.<dtype>]`` holds the mean absolute relative error by regime on shapes that the fit has not seen: against single
frameworks as a user runs one of them (``large``), its 95th percentile (``large_p95``), and against the median over
frameworks, which nobody runs (``large_consensus``). ``large_cell`` covers sizes whose m and n are in the tables, at k
(and n) that neither the cells nor the fit have seen.

Kernels with a form and a few constants of their own (``published``) were fitted to published tables by device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from functools import cache, lru_cache
from math import hypot, inf, log2
from types import SimpleNamespace
from typing import Any

import numpy as np

from shapes.device import Device, load_device
from shapes.dtypes import BYTES, QUANTISED
from shapes.errors import InputError
from shapes.frozen import Floats, Function, Ints, Named, Names, Numbers, Pair, Values, frozen, replace
from shapes.toml_table import DATA, content

from .corrections import CLASSES, NO_FAMILY, AlignmentConstants, Cells, Correction, family_table

#: Least dimension from which the constants for large products hold alone.
LARGE = 512


#: How fitted constants carry over to other devices; the file says what each key is for.
CARRY = SimpleNamespace(**content(DATA / "carrying.toml"))
#: The same of products without matrix units.
PLAIN_CORES = SimpleNamespace(**CARRY.plain_cores)
#: Devices whose constants were fitted to measurements of their own.
FITTED: Names = tuple(CARRY.fitted)


#: Tiles of few rows that no fit tells, from a tensor core instruction's on: Marlin's (csrc of vLLM and SGLang) and
#: TensorRT-LLM's; of the first some are cuBLAS's.
LOW_TILES = (16, 128), (32, 128), (64, 128)


@frozen
class GemmConstants:
    """Constants of the tile and wave model (shapes.cost.gemm) for one device and dtype.

    ``flops_per_s``: what all units reach inside a long tile. ``cache_bytes`` move at ``cache_bandwidth_bytes_per_s``,
    what is beyond at ``bandwidth_bytes_per_s``. ``overlap``: how well moving hides behind arithmetic (1: not at all).
    ``load_steps`` and ``load_power``: how fast a tile must be fed, see `tile_load`. ``prologue_steps``: a tile's start
    and end in steps of k. ``wave_s``: what a wave adds. ``quantization``: the share of a partly filled last
    wave that is paid. ``throttle``, ``throttle_s``, ``throttle_width``: by how much, and from which duration on, power
    limits sustained work. ``correction``: what measurements say beyond that; ``small``: the set for small products.
    ``split_steps``: least steps of k of a slice where a product of less than a wave is split along k (inf: never).
    ``cells``: what single m and n of the tables that the constants were fitted to take in addition.
    """

    flops_per_s: float
    bandwidth_bytes_per_s: float
    cache_bandwidth_bytes_per_s: float
    cache_bytes: float
    overlap: float
    launch_s: float
    load_steps: float
    load_power: float
    prologue_steps: float
    wave_s: float
    quantization: float
    throttle: float
    throttle_s: float
    throttle_width: float
    tiles: tuple[Pair, ...]
    units: int
    correction: Correction | None = None
    small: GemmConstants | None = None
    split_steps: float = inf
    cells: Cells | None = None

    @classmethod
    def from_table(cls, table: Named, units: int) -> GemmConstants:
        read: dict[str, Function] = {
            "split_steps": float,
            "correction": Correction.from_table,
            "cells": Cells.from_table,
            "small": lambda small: cls.from_table(small, units),
        }
        values: Values = {key: float(table[key]) for key in NUMBERS}
        values |= {key: build(table[key]) for key, build in read.items() if key in table}
        return cls(tiles=tuple(map(tuple, table["tiles"])), units=units, **values)

    def both(self, **changes: Any) -> GemmConstants:
        """With these changes, of small products too."""
        return replace(self, small=self.small and self.small.both(**changes), **changes)

    def coarse(self, least: int) -> GemmConstants:
        """Without tiles of fewer rows or columns than ``least``; kernels split few of the others along k."""
        return self.both(tiles=tuple(tile for tile in self.tiles if min(tile) >= least), split_steps=CARRY.split_steps)

    def scaled(self, speed: float, bandwidth: float, cache: float, elements: float, units: int) -> GemmConstants:
        """For ``speed`` x the FLOP/s, ``bandwidth`` x the bytes/s, ``cache`` x the L2, ``elements`` x the bytes."""
        return replace(
            self,
            flops_per_s=self.flops_per_s * speed,
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s * bandwidth,
            # The cache's clock goes with the units'.
            cache_bandwidth_bytes_per_s=self.cache_bandwidth_bytes_per_s * max(speed, bandwidth),
            cache_bytes=self.cache_bytes * cache,
            # A tile's start and end wait for memory: in steps of k they grow with FLOP/s over elements/s. On the same
            # silicon they wait for a latency, which a slower memory does not lengthen.
            prologue_steps=self.prologue_steps * speed * elements / max(bandwidth, units == self.units),
            wave_s=self.wave_s / speed * units / self.units,
            units=units,
            # A slower unit is easier to feed, though its feed is slower too (H20's fp8 rows: reports/kernels.md).
            load_steps=self.load_steps * (speed * self.units / units) ** 0.25,
            small=self.small and self.small.scaled(speed, bandwidth, cache, elements, units),
            # Another device's library takes other kernels at the same sizes.
            cells=None,
        )


#: Keys of one set of constants in a device file, next to ``tiles``, ``correction``, ``small``, ``split_steps`` and
#: ``cells``.
NUMBERS = tuple(one.name for one in fields(GemmConstants) if one.type == "float" and one.default is MISSING)


@frozen
class Origin:
    """Where constants come from: the fitted device they were taken from, and whether they had to be scaled.

    ``table``: of ``[cost]`` and ``[error]``, which is the dtype's but where a recipe has kernels of its own.
    """

    device: str
    dtype: str
    table: str
    own_device: bool
    own_dtype: bool
    same_architecture: bool
    same_vendor: bool

    def source(self, device: Device) -> str:
        """The ``source`` of predictions: "predicted:<device>", saying so when constants were borrowed."""
        if self.own_device:
            return f"predicted:{device.name}"
        return f"predicted:{device.name} (constants of {self.device}, scaled)"


@lru_cache(256)
def relative(device: Device, table: str = "bf16") -> Device:
    """The fitted device whose constants stand in: itself if fitted, else same architecture first, nearest in balance.

    ``table`` of ``[cost]`` is what is asked for: a device that a user refined may lack some.

    Balance is peak FLOP/s over bandwidth: what decides where a product stops being memory-bound.
    """
    if table in device.cost:
        return device
    product = table not in (GROUPED, "collective")
    fitted = [load_device(name) for name in FITTED + tuple(CARRY.linked)]
    if table == "collective":
        # Over the same links: NVLink's kernels do not run over PCIe.
        fitted = [
            one for one in fitted if table in one.cost and one.link.intra_node == device.link.intra_node
        ] or fitted

    def those(key: str, value: str | None) -> list[Device]:
        alike = [other for other in fitted if getattr(other, key) == value]
        # Some were fitted on one recipe's products alone, or on nothing but products.
        return [one for one in alike if table in one.cost] or [one for one in alike if product and "bf16" in one.cost]

    built = CARRY.built_like.get(device.compute_capability)
    kin = those("compute_capability", built) if built else those("architecture", device.architecture)
    of = CARRY.relative | CARRY.products if product else CARRY.relative
    kin = kin or those("name", of.get(device.architecture, "h100-sxm")) or fitted
    return min(kin, key=lambda other: abs(_balance(other) / _balance(device) - 1))


def _balance(device: Device) -> float:
    return _peak(device) / device.memory.bandwidth_bytes_per_s


def _peak(device: Device, dtype: str = "bf16") -> float:
    """The peak of ``dtype``, else of 16-bit products, else the highest."""
    known = (device.peak_flops[one] for one in (dtype, "bf16", "fp16", "fp32") if one in device.peak_flops)
    return next(known, max(device.peak_flops.values()))


@lru_cache(256)
def gemm_constants(device: Device, dtype: str, recipe: str | None = None) -> tuple[GemmConstants, Origin]:
    """Constants for products of ``dtype`` on ``device``, by the kernels of ``recipe`` where a relative knows them.

    InputError when the device has no such dtype.
    """
    if device.limit_w:
        constants, origin = gemm_constants(replace(device, limit_w=None), dtype, recipe)
        slower = constants.scaled(clock_share(device), 1.0, 1.0, 1.0, constants.units)
        return replace(slower, cells=constants.cells), origin
    peak = device.peak(dtype)
    for table in (recipe, recipe and recipe.removesuffix("_served")):
        if table and (found := _of_recipe(device, dtype, f"{dtype}_{table}")):
            return found
    kin = _whose(device, dtype)
    base = _base(kin, device, dtype)
    constants = GemmConstants.from_table(kin.cost[base], kin.compute.units)
    origin = origin_of(device, kin, dtype, base)
    if origin.own_device and origin.own_dtype and peak == kin.peak(base):
        return constants, origin
    borrowed = carried(constants, device, kin, dtype, origin)
    least = CARRY.least_tile.get(device.architecture, {}).get(dtype)
    return (borrowed.coarse(least) if least else borrowed), origin


def clock_share(device: Device) -> float:
    """Share of its sustained clock that a device keeps under a limit of its power."""
    return _by_power(_limited(device), device)


def sustained_share(device: Device) -> float:
    """Share of its peak that a device's power sustains all day, over its fitted relative's.

    For another vendor's device: what its products were published to reach, over H100's.
    """
    kin, own = relative(device), _limited(device)
    if device.vendor != "nvidia":
        return achievable(device) / achievable(load_device("h100-sxm"))
    if not _limited_by_power(own):
        return 1.0
    return min(1.0, _by_power(own, kin, CARRY.sustained) * _peak(kin) / _peak(device))


def _limited(device: Device) -> Device:
    """The device as one that is rated for what it may take."""
    return replace(device, power_w=device.limit_w or device.power_w)


def _base(kin: Device, device: Device, dtype: str) -> str:
    """The element type of ``kin`` whose constants stand in for those of ``dtype`` on ``device``."""
    wanted = [dtype, CARRY.equal.get(dtype, "fp8" if dtype in QUANTISED else "bf16")]
    if dtype in QUANTISED and device.peak(dtype) <= _peak(device):
        # Units no faster than in 16 bits are those units, fed with fewer bytes (Gaudi 3's fp8).
        wanted = []
    elif dtype == "int8" and kin.architecture != device.architecture:
        # A relative's int8 kernels are of its own architecture, and older than its fp8 ones.
        del wanted[0]
    for base in (*wanted, "bf16"):
        if base in kin.cost:
            return base
    raise InputError("expected cost constants for bf16", "cost", where=kin.origin)


def _whose(device: Device, dtype: str) -> Device:
    """The device whose constants of ``dtype`` stand in; plain cores have relatives of their own."""
    if dtype in device.cost:
        return device
    if dtype not in device.compute.vector_dtypes or device.vendor != "nvidia":
        return relative(device)
    kin = load_device(PLAIN_CORES.of.get(device.architecture, PLAIN_CORES.usual))
    return kin if dtype in kin.cost else load_device(PLAIN_CORES.usual)


def _of_recipe(device: Device, dtype: str, table: str) -> tuple[GemmConstants, Origin] | None:
    """A recipe's own kernels: this device's ``table``, else that of a fitted device of its architecture."""
    kin = relative(device, table)
    if kin.architecture != device.architecture or table not in kin.cost:
        return None
    constants = GemmConstants.from_table(kin.cost[table], kin.compute.units)
    origin = replace(origin_of(device, kin, dtype, dtype), table=table)
    return carried(constants, device, kin, dtype, origin), origin


def origin_of(device: Device, kin: Device, dtype: str, base: str) -> Origin:
    """The origin of ``device``'s constants for ``dtype`` when it borrows ``kin``'s constants of ``base``."""
    return Origin(
        kin.name,
        base,
        base,
        kin.base == device.base,
        dtype == base or CARRY.equal.get(dtype) == base,
        kin.architecture == device.architecture,
        kin.vendor == device.vendor,
    )


def carries_corrections(device: Device, kin: Device, origin: Origin) -> bool:
    """Whether ``kin``'s tables of kernel choice hold on ``device``: a library chooses by architecture and element type.

    They do not hold on a device that is not slowed by the power limit that they were fitted under, nor on one with half
    the units (A30), where the same tails fall on other sizes.
    """
    alike = device.compute.units > CARRY.alike_units * kin.compute.units
    return origin.same_architecture and origin.own_dtype and alike and not power_is_ample(device, kin)


def carried(constants: GemmConstants, device: Device, kin: Device, dtype: str, origin: Origin) -> GemmConstants:
    """``kin``'s constants for ``dtype`` on ``device``, by the data sheets: peaks, bandwidths, caches, units, power."""
    peak = device.peak(dtype)
    speed, foreign = peak / kin.peak(origin.dtype), device.vendor != "nvidia" and not origin.same_architecture
    if foreign:
        speed *= achievable(device) / achievable(kin)
    bandwidth = device.memory.bandwidth_bytes_per_s / kin.memory.bandwidth_bytes_per_s
    cache, elements = device.memory.l2_bytes / kin.memory.l2_bytes, BYTES[dtype] / BYTES[origin.dtype]
    if constants.correction and not carries_corrections(device, kin, origin):
        constants = _without_tables(constants, kin)
    scaled = constants.scaled(speed, bandwidth, cache, elements, device.compute.units)
    if foreign:
        return scaled
    if (small := scaled.small) and (table := small.correction) and bandwidth < 1:
        # Small products wait the longer for a slower memory, which no choice of a kernel changes: by A100's table whole
        # 64 columns more of a few rows saved up to 1.8% on the 40 GB ones.
        weaker = replace(table, log_factors=tuple(bandwidth * one for one in table.log_factors))
        scaled = replace(scaled, small=replace(small, correction=weaker))
    most = asymptote(device, dtype) * peak
    if dtype in device.compute.vector_dtypes:
        # Where power is short it feeds a share of plain cores; elsewhere nothing says that it is.
        fed_share = PLAIN_CORES.fed_share * (device.power_w * 1e12 / peak) ** PLAIN_CORES.fed_power
        short = (device.compute_capability in PLAIN_CORES.fed) * max(0.0, most / peak / fed_share - 1)
        # Registers feed plain cores more than matrix units. They take half of what `scaled` adds, in log, which fits
        # the best squares of seven devices (reports/kernels.md).
        fed = (constants.load_steps * scaled.load_steps) ** 0.5
        return replace(scaled, flops_per_s=most, throttle=short, throttle_s=PLAIN_CORES.sustained_s, load_steps=fed)
    if origin.own_device:
        return scaled
    ample = power_is_ample(device, kin)
    if not (ample or origin.own_dtype):
        return replace(scaled, flops_per_s=min(most, scaled.flops_per_s))
    # How many more of the matrix units' operations are this dtype's: of Blackwell Ultra's NVFP4, 1.5.
    more = speed * _peak(kin) / _peak(device)
    by_power = constants.flops_per_s * _by_power(device, kin) * more**CARRY.more_of
    if ample or most < by_power:
        return replace(scaled, flops_per_s=most, throttle=0.0)
    return replace(scaled, flops_per_s=by_power)


def _without_tables(constants: GemmConstants, kin: Device) -> GemmConstants:
    """The closed form, for a device on which ``kin``'s tables of kernel choice do not hold, with what they showed.

    Libraries split few tiles along a long k, and have tiles of few rows. The constants of memory and caches come from
    small products, as large ones hardly tell them and may leave them on the bounds of their fit.
    """
    keys = "bandwidth_bytes_per_s", "cache_bandwidth_bytes_per_s", "cache_bytes"
    least = {key: min(getattr(constants, key), getattr(constants.small or constants, key)) for key in keys}
    more = LOW_TILES[: CARRY.low_tiles.get(kin.architecture, 0)]
    bare = constants.both(correction=None, cells=None, split_steps=CARRY.split_steps, tiles=more + constants.tiles)
    return replace(bare, **least)


def asymptote(device: Device, dtype: str) -> float:
    """Share of the peak that a long product's tiles reach where nothing else slows them; never more than all of it."""
    if dtype in device.compute.vector_dtypes:
        return PLAIN_CORES.reached_shared if device.compute_capability in PLAIN_CORES.shared else PLAIN_CORES.reached
    if published := _published(device, dtype, "bf16", "fp16"):
        return min(1.0, CARRY.over_published * published)
    return CARRY.boosted if _watts_per_tflops(device) >= CARRY.boosting_w_per_tflops else CARRY.asymptote


def _published(device: Device, *dtypes: str) -> float:
    """Published achievable matmul FLOP/s over the peak, of the first of ``dtypes`` that has one; 0 of none."""
    return next((device.mamf_flops[one] / device.peak_flops[one] for one in dtypes if one in device.mamf_flops), 0.0)


def power_is_ample(device: Device, kin: Device) -> bool:
    """Whether the power limit that slows ``kin`` does not slow the device."""
    return not _limited_by_power(device) and _watts_per_tflops(device) >= CARRY.ample * _watts_per_tflops(kin)


def _limited_by_power(device: Device) -> bool:
    """Whether sustained products run at what power allows throughout."""
    return _watts_per_tflops(device) < CARRY.power_limited_w_per_tflops


def _watts_per_tflops(device: Device) -> float:
    return device.power_w / _peak(device) * 1e12


def _by_power(device: Device, kin: Device, power: float = 0.5) -> float:
    """Speed over ``kin``'s where power decides: the root of power times silicon (units and FLOP a clock of each).

    Clock and voltage rise together, so that power grows faster than speed: b300, gb200 and gb300 are off by 5 to 6%
    from b200's constants. Where the relative itself is hardly limited (A100), the root of the root: A100 PCIe reaches
    0.93 of A100 SXM (S. Bekman, maximum achievable matmul FLOPS) at 0.75 of its power.
    """
    per_clock = [one.compute.flops_per_clock_per_unit.get("fp16", 0.0) for one in (device, kin)]
    silicon = device.compute.units / kin.compute.units * (per_clock[0] / per_clock[1] if all(per_clock) else 1.0)
    root = power if _limited_by_power(kin) else 0.25
    return (device.power_w / kin.power_w / silicon) ** root * silicon


def achievable(device: Device) -> float:
    """Published achievable matmul FLOP/s over the peak; two thirds where nobody has published one."""
    return _published(device, "bf16", "fp16") or CARRY.unpublished


@lru_cache(256)
def alignment_constants(device: Device, dtype: str) -> AlignmentConstants:
    """Constants of misaligned products of ``dtype``: without matrix units nothing asks for alignment."""
    return AlignmentConstants.from_table(
        family_table(device) if device.has_matrix_units(dtype) else NO_FAMILY, device, dtype
    )


@frozen
class CollectiveConstants:
    """One kind of collective by the ``ranks`` of a group within a node: a value each.

    ``latency_s``, the share of the link's data-sheet bandwidth that long messages reach, and the bytes sent at which
    half of that is reached.
    """

    ranks: Ints
    latency_s: Floats
    bandwidth_share: Floats
    half_bytes: Floats

    @classmethod
    def from_table(cls, table: Named) -> CollectiveConstants:
        return cls(*(tuple(table[name]) for name in cls.__match_args__))

    def among(self, ranks: int) -> tuple[float, float, float]:
        """Latency, share and half_bytes of a group: between measured groups by the logarithm of the ranks.

        Beyond the largest of three, latency goes on by as much a rank as between the last two; the others stay.
        """
        latency, share, half = (
            float(np.interp(log2(ranks), np.log2(self.ranks), values))
            for values in (self.latency_s, self.bandwidth_share, self.half_bytes)
        )
        if len(self.ranks) > 2:
            a_rank = (self.latency_s[-1] - self.latency_s[-2]) / (self.ranks[-1] - self.ranks[-2])
            latency += max(0.0, a_rank) * max(0, ranks - self.ranks[-1])
        return latency, share, half


@lru_cache(256)
def collective_constants(device: Device, what: str) -> CollectiveConstants:
    """NCCL's constants of one kind; a send between two ranks moves its bytes as an all-gather's two do."""
    kin = relative(device, "collective")
    table = kin.cost["collective"].get("all_gather" if what == "send_recv" else what)
    if not isinstance(table, Mapping):
        raise InputError("expected a table for each kind of collective", f"cost.collective.{what}", where=kin.origin)
    return CollectiveConstants.from_table(table)


def direct_constants(device: Device, what: str, ranks: int) -> CollectiveConstants | None:
    """Constants of serving engines' own kernels, if they were measured among so few ranks."""
    table = relative(device, "collective").cost["collective"].get(f"direct_{what}")
    return CollectiveConstants.from_table(table) if table and table["ranks"][0] <= ranks else None


def moving_constants(device: Device) -> tuple[GemmConstants, Origin]:
    """Constants of operators that only move bytes: those of 16-bit products, whatever types can be multiplied."""
    return gemm_constants(device, "bf16" if "bf16" in device.peak_flops else "fp16")


#: Added when the dtype's constants are another dtype's, scaled by the peaks: fp8 by bf16 was off by this much.
OTHER_DTYPE = 0.25


#: Prefix of the regimes of misaligned products, before their class (shapes.cost.corrections.CLASSES).
MISALIGNED_AS = "misaligned, "

#: The regime of grouped products; a misaligned one's class follows it.
GROUPED = "grouped"

#: Ends the regimes of products whose m and n are a cell of the tables (shapes.cost.corrections).
IN_CELL = "_cell"
#: Tiers of a figure, the best first: measured here, fitted on this device's published tables, published by others for
#: this kind of device, borrowed from a relative, extrapolated to what nobody measured.
TIERS = ("measured", "fitted", "published", "borrowed", "extrapolated")
#: 95th percentile over mean of an absolute error that is normally spread: where none was judged.
P95_OVER_MEAN = 2.45


@frozen
class Expected:
    """Relative error of a prediction, its 95th percentile, and its tier (one of TIERS)."""

    error: float
    p95: float
    tier: str

    @classmethod
    def of(cls, error: float, tier: str) -> Expected:
        """The expectation of a mean error whose percentile nobody judged."""
        return cls(error, P95_OVER_MEAN * error, tier)

    @classmethod
    def said(cls, errors: Named, key: str, tier: str) -> Expected:
        """The error in a table under ``key``."""
        usual = cls.of(errors[key], tier)
        return replace(usual, p95=errors.get(f"{key}_p95", usual.p95))

    def combined(self, other: Expected) -> Expected:
        """The error of a price with two independent errors."""
        errors = hypot(self.error, other.error), hypot(self.p95, other.p95)
        return Expected(*errors, least_certain((self.tier, other.tier)))


def expected(device: Device, origin: Origin, regime: str, dtype: str) -> Expected:
    """The error of a prediction in ``regime``; the device's own held-out figures where it has them."""
    if regime.startswith(f"{GROUPED}, "):
        rest = expected(device, origin, regime.removeprefix(f"{GROUPED}, "), dtype)
        return expected(device, origin, GROUPED, dtype).combined(rest)
    if regime.startswith(MISALIGNED_AS):
        return expected(device, origin, "large", dtype).combined(_misaligned(device, regime, dtype))
    tier = _tier(device, origin, regime)
    for errors in (device.errors.get(origin.table, {}), device.errors) if origin.own_dtype else ():
        if regime in errors:
            return Expected.said(errors, regime, tier)
    errors = (device if origin.own_device else load_device(origin.device)).errors
    error = errors.get(origin.table, {}).get(regime) or errors.get(regime, 0.5)
    # Another element type's constants add to it, and another device's.
    alike = CARRY.same_architecture if origin.same_architecture else CARRY.same_vendor
    other = alike if origin.same_vendor else CARRY.other_vendor
    return Expected.of(hypot(error, (not origin.own_dtype) * OTHER_DTYPE, (not origin.own_device) * other), tier)


#: Added where weights alone are quantised: bytes are exact, arithmetic is priced as other kernels' is.
WEIGHTS_ALONE = Expected.of(OTHER_DTYPE, "borrowed")


def _misaligned(device: Device, regime: str, dtype: str) -> Expected:
    """The error that the kernels of misaligned products add."""
    kernels, at = alignment_constants(device, dtype), CLASSES.index(regime.removeprefix(MISALIGNED_AS))
    # Sweeps have 16-bit elements alone.
    known = kernels.tier if BYTES[dtype] == 2 else "extrapolated"
    if known == "published" and (mean := kernels.error[at]):
        return Expected(mean, kernels.error_p95[at], known)
    return Expected.of(CARRY.misaligned[known], known)


def least_certain(tiers: Iterable[str]) -> str:
    """The last of TIERS that is among ``tiers``."""
    return max(tiers, key=TIERS.index)


def _tier(device: Device, origin: Origin, regime: str) -> str:
    if not origin.same_vendor:
        return "extrapolated"
    if regime == "memory_bound" or not origin.own_dtype:
        return "borrowed"
    own = regime in device.cost if regime in (GROUPED, "collective") else origin.own_device
    return "fitted" if own else "borrowed"


#: Seconds of the launch, of moving and of arithmetic.
Parts = tuple[Any, Any, Any]
#: Ends the name of an origin's table for what nobody measured.
_GUESSED = " by another's"


@cache
def _tables() -> Mapping[str, Mapping[str, Numbers]]:
    """Form -> device -> its constants and errors."""
    return {key: table for name in CARRY.files for key, table in content(DATA / f"{name}.toml").items()}


@cache
def published_origin(form: str, judged: bool, device: Device) -> Origin:
    """The device whose constants of ``form`` are used: the device itself, else one of its architecture, else vendor.

    Hopper comes first among equals. ``judged``: whether the tables hold what is priced.
    """
    kin = min(
        map(load_device, _tables()[form]),
        key=lambda one: (
            one.architecture != device.architecture
            and 1 + any(key in CARRY.apart for key in (one.architecture, f"{form} {one.architecture}")),
            one.vendor != device.vendor,
            one.architecture != "hopper",
            one.name != device.base,
            abs(one.compute.units - device.compute.units),
        ),
    )
    return replace(origin_of(device, kin, "bf16", "bf16"), table=form if judged else form + _GUESSED)


def published(form: str, device: Device, dtype: str) -> Numbers:
    """Constants that price ``form`` on ``device`` in ``dtype``, scaled by its memory and peaks; its units and L2 too.

    Another vendor's units have another size. The nearest is then the whole device's rate at the relative's units.
    """
    kin = load_device(published_origin(form, True, device).device)
    faster = device.memory.bandwidth_bytes_per_s / kin.memory.bandwidth_bytes_per_s
    # Indexers were measured in fp8, experts in what their form names, everything else in 16 bits.
    fitted_in = "fp8" if form.startswith("index") else form.split("_")[1] if form.startswith("experts") else "bf16"
    speed = _peak(device, dtype) / _peak(kin, fitted_in)
    units = (device if device.vendor == kin.vendor else kin).compute.units
    # A slower unit's chunks take the longer; on a faster one they wait for one another as long as they did.
    slower = max(1.0, units / kin.compute.units / speed)
    by = {"flops_per_s": speed, "step_s": slower, "start_s": slower}
    constants = {
        key: value * (faster if key.endswith("bytes_per_s") else by.get(key, 1))
        for key, value in _tables()[form][kin.name].items()
    }
    return constants | {"units": units, "l2_bytes": device.memory.l2_bytes}


def read_seconds(moved: Any, c: Numbers) -> Any:
    """Seconds of ``moved`` bytes, the share that a cache still holds at its own rate: tables repeat one step."""
    hit = 1 / (1 + (moved / (c["cache_share"] * c["l2_bytes"])) ** c.get("cache_power", 4))
    return moved * (hit / c["cache_bytes_per_s"] + (1 - hit) / c["bandwidth_bytes_per_s"])


def published_error(origin: Origin) -> Expected:
    """The error of a price by ``origin``."""
    form = origin.table.removesuffix(_GUESSED)
    own, guessed = _tables()[form][origin.device], form != origin.table
    alike = (CARRY.alike, "borrowed") if origin.same_architecture else (CARRY.other, "extrapolated")
    borrowed, tier = (0.0, "fitted") if origin.own_device else alike
    more = Expected.of(hypot(borrowed, CARRY.unjudged * guessed), "extrapolated" if guessed else tier)
    return Expected.said(own, "error", tier).combined(more)
