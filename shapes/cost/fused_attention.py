"""Fused attention, forward and backward, by kernel.

A thread block owns QUERIES queries of one head and walks the keys its mask leaves, in whole blocks at the mask's edge.
With the head dimensions that the kernel computes (shapes.kernels: the next ones up that it is built for):

    pair = 2 (d_qk + d_v) forward, 6 d_qk + 4 d_v backward            FLOPs of a query and a key
    block = pair QUERIES (visible keys + edge + prologue_keys) x units / flops_per_s x (1 + partial)
    compute = (quantization ceil(x) + (1 - quantization) max(x, 1)) x block          x = blocks / units
    seconds = (compute^q + (bytes / bandwidth)^q)^(1/q) x throttling + launch_s + copies

``partial`` is paid where the head does not fill the dimension it is computed in, ``copies`` where Q, K and V are padded
with a copy first or (serving) K and V are written to a cache, and what ``deterministic`` adds for a backward that has
to be reproducible. `attention_times` takes arrays.

Constants are a device's own fitted ones (``shapes/data/attention/<kernel>.toml``, by device and element type, forward
and backward; reports/fit writes the files), or the nearest device's, scaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from math import hypot
from typing import Any, NamedTuple

import numpy as np

from shapes.device import Device, load_device
from shapes.dtypes import next_multiple
from shapes.frozen import Items, Named, among, frozen, replace
from shapes.kernels import Run, load_kernel
from shapes.operators.types import Attention
from shapes.toml_table import content, names, shipped

from .constants import CARRY, OTHER_DTYPE, Expected, achievable, clock_share, relative
from .corrections import Array
from .gemm import overlapped, paid_waves, throttled

ByBucket = tuple[tuple[float, float], ...]


@frozen
class AttentionConstants:
    """Constants of one kernel, phase and element type on a device (shapes.cost.fused_attention).

    ``flops_per_s`` and ``prologue_keys`` (a block's start and end in keys) are by computed head dimension (the mean of
    both). ``partial``: the share of time added if the head does not fill it. ``uneven``: the share added under a
    causal mask, whose blocks are unevenly long; ``ignores_window``: a window is masked but not skipped.
    ``copy_bytes_per_s``: the rate of copies before the kernel; ``cache_bytes_per_s``: that of writing K and V to a
    server's cache (0: not known to be written). ``deterministic``: share added by a reproducible backward, by head
    dimension. The others are `WaveConstants`.
    """

    flops_per_s: ByBucket
    prologue_keys: ByBucket
    bandwidth_bytes_per_s: float
    copy_bytes_per_s: float
    launch_s: float
    quantization: float
    overlap: float
    throttle: float
    throttle_s: float
    throttle_width: float
    units: int
    partial: float = 0.0
    uneven: float = 0.0
    cache_bytes_per_s: float = 0.0
    ignores_window: bool = False
    deterministic: ByBucket = ()

    @classmethod
    def from_table(cls, table: Named, units: int) -> AttentionConstants:
        numbers = among(table, NUMBERS)
        tables = {
            key: tuple(sorted((float(at), value) for at, value in table[key].items())) for key in TABLES if key in table
        }
        return cls(units=units, ignores_window=table.get("ignores_window", False), **numbers, **tables)  # type: ignore[arg-type] # by name

    def rate(self, bucket: Array) -> Array:
        """FLOP/s at a head dimension; below the smallest fitted one matrix units idle in proportion."""
        return _at(bucket, self.flops_per_s) * np.minimum(bucket / self.flops_per_s[0][0], 1.0)


#: Keys of one set in a constants file: single numbers, and tables by head dimension.
NUMBERS, TABLES = (
    tuple(field.name for field in fields(AttentionConstants) if field.type == kind) for kind in ("float", "ByBucket")
)


def _at(bucket: Array, fitted: ByBucket) -> Array:
    """The fitted constant, between its neighbours, or the nearest end's."""
    buckets, values = zip(*fitted, strict=True)
    return np.interp(bucket, buckets, values)


#: Sets of a kernel's constants. A forward in training has its own set ("training") if servers' rows, with keys and
#: values in pages, gave that of the forward. A served encoder has no cache: it has rows of its own for heads of 64 to
#: 80, else training's set.
PHASES = ("forward", "backward", "training", "encoder")
LARGEST_ENCODER_HEAD = 80


def phase_of(backward: bool, training: bool) -> int:
    """Index into PHASES, of all but encoders."""
    return 1 if backward else 2 if training else 0


@frozen
class KernelConstants:
    """Constants of PHASES, and where they are from: ``device`` and ``dtype`` they were fitted on.

    ``expected``, in PHASES' order: errors, and tiers: "fitted" on this device's measurements of this kernel,
    "published" by its authors, "borrowed" from another device or element type, "extrapolated" from another vendor's.
    """

    phases: tuple[AttentionConstants, ...]
    kernel: str
    device: str
    dtype: str
    expected: tuple[Expected, ...]

    def source(self, device: Device) -> str:
        """The ``source`` of a prediction: "predicted:<device>", saying so where constants were borrowed."""
        if self.device == device.base and self.expected[0].tier in ("fitted", "published"):
            return f"predicted:{device.name}"
        return f"predicted:{device.name} ({self.kernel} constants of {self.device}, scaled)"


def _file(kernel: str) -> Named:
    return content(shipped("attention", kernel))


@lru_cache(256)
def constants_of(kernel: str, device: Device, dtype: str) -> KernelConstants:
    """Constants of ``kernel`` in ``dtype`` on ``device``; InputError when the device has no such dtype."""
    peak = device.peak(dtype)
    # A kernel that nobody measured is priced as fa2.
    named = load_kernel(kernel).costs
    kernel = named if named in names("attention") else "fa2"
    kin = _kin(kernel, device)
    sets = _file(kernel)[kin.name]
    alike = dtype, CARRY.equal.get(dtype, dtype)
    base = next(filter(sets.__contains__, (*alike, "bf16")))
    own_dtype = base in alike
    phases = _phases(sets[base], kin.compute.units)
    own = kin.name == device.base and own_dtype
    if not own or device.limit_w:
        phases = tuple(_scaled(one, device, kin, base, peak) for one in phases)
    extra = hypot(OTHER_DTYPE * (not own_dtype), _distance(device, kin))
    tier = "fitted" if own else "borrowed" if device.vendor == kin.vendor else "extrapolated"
    judged = tuple(_judged(sets[base], phase, tier, extra) for phase in PHASES)
    return KernelConstants(phases, kernel, kin.name, base, judged)


def _judged(table: Named, phase: str, tier: str, extra: float) -> Expected:
    """The phase's error (the forward's where it has none), ``extra`` being added where constants are borrowed."""
    errors = table["error"]
    known = next(one for one in (phase, "training", "forward") if one in errors)
    own = Expected.said(errors, known, table.get("tiers", {}).get(known, tier))
    return own.combined(Expected.of(extra, tier))


def _kin(kernel: str, device: Device) -> Device:
    """The nearest fitted device: itself, its architecture's, its relative, or the file's first."""
    fitted = tuple(_file(kernel))  # the one to borrow from in doubt first
    if device.base in fitted:
        return load_device(device.base)
    usual = relative(device).base

    def rank(other: Device) -> int:
        near = other.architecture == device.architecture
        # A kernel that leaves a newer generation's instructions alone says nothing of another vendor's own build of it.
        stands_in = other.name == usual and other.vendor == device.vendor
        # Compute capability 8.6 (GA102) is built like 8.9 (Ada): `relative` knows.
        if stands_in and device.compute_capability == "8.6":
            return 1
        return 2 if near else 3 if stands_in else 4

    return min(map(load_device, fitted), key=rank)


def _speed(device: Device, kin: Device, peak: float, base: str) -> float:
    """FLOP/s relative to ``kin``'s: by the peaks inside an architecture.

    Between architectures a kernel keeps the instructions it was written in: FlashAttention 2 on H100 is 1.6 times
    A100's, as units and clocks are, not 3.2 times as the peaks are (arXiv 2407.08608, figure 5).
    """
    by_peak = peak / kin.peak(base) * clock_share(device)
    if device.architecture == kin.architecture:
        return by_peak
    if device.vendor != kin.vendor:
        return by_peak * achievable(device) / achievable(kin)
    # Kernels that leave most of the matrix units idle are not slowed by power: they run at the highest clock.
    both = device.compute, kin.compute
    clocks = [one.units * max(one.clock_mhz or 0.0, *one.clock_mhz_of.values(), 0.0) for one in both]
    return min(by_peak, clocks[0] / clocks[1]) if all(clocks) else by_peak


def _scaled(one: AttentionConstants, device: Device, kin: Device, base: str, peak: float) -> AttentionConstants:
    speed = _speed(device, kin, peak, base)
    bandwidth = device.memory.bandwidth_bytes_per_s / kin.memory.bandwidth_bytes_per_s
    rates = tuple((bucket, min(rate * speed, peak)) for bucket, rate in one.flops_per_s)
    keys = "bandwidth_bytes_per_s", "copy_bytes_per_s", "cache_bytes_per_s"
    moved = {key: getattr(one, key) * bandwidth for key in keys}
    return replace(one, flops_per_s=rates, units=device.compute.units, **moved)


def _distance(device: Device, kin: Device) -> float:
    if device.base == kin.name:
        return 0.0
    if device.architecture == kin.architecture:
        return CARRY.borrowed_within
    newer = CARRY.asynchronous
    if kin.architecture in newer and device.vendor == kin.vendor and device.architecture not in newer:
        return CARRY.borrowed_back
    return CARRY.borrowed_between if device.vendor == kin.vendor else CARRY.other_vendor


def _phases(table: Named, units: int) -> tuple[AttentionConstants, ...]:
    """In PHASES' order; a backward known only by its speed has the training forward's other constants."""
    back, own = table["backward"], table.get("training", table)
    sets = table, own, table.get("encoder", own)
    forward, training, encoder = (AttentionConstants.from_table(one, units) for one in sets)
    if "flops_per_s" in back:
        return forward, AttentionConstants.from_table(back, units), training, encoder
    speed = float(back["speed"])
    rates = tuple((bucket, rate * speed) for bucket, rate in training.flops_per_s)
    bandwidth = training.bandwidth_bytes_per_s * float(back.get("bandwidth", 1.0))
    return forward, replace(training, flops_per_s=rates, bandwidth_bytes_per_s=bandwidth), training, encoder


#: Queries a thread block owns.
QUERIES = 128


@frozen
class AttentionBatch:
    """Attentions of one phase as arrays of one length; ``window`` 0 is none, ``copied`` 0 is no copy.

    ``d_qk`` and ``d_v`` are the model's head dimensions, ``c_qk`` and ``c_v`` those that the kernel computes,
    ``copied`` that to which Q, K and V are copied first. ``cached``: a prefill; a server first writes its K and V to
    the cache.
    """

    batch: Array
    heads: Array
    kv_heads: Array
    q_len: Array
    kv_len: Array
    d_qk: Array
    d_v: Array
    c_qk: Array
    c_v: Array
    causal: Array
    window: Array
    copied: Array
    deterministic: Array
    cached: Array

    @property
    def queries(self) -> Array:
        return self.batch * self.heads * self.q_len

    @property
    def keys(self) -> Array:
        return self.batch * self.kv_heads * self.kv_len

    @property
    def bucket(self) -> Array:
        """The key that constants are looked up by: the mean of the two computed head dimensions."""
        return (self.c_qk + self.c_v) / 2


def attention_row(one: Attention, run: Run) -> Items:
    """The operator's `AttentionBatch`, numbers or columns, computed as the run says."""
    masked = one.causal, one.window or 0, run.copied or 0, one.deterministic, one.causal and not one.trains
    return *one.sizes, run.d_qk, run.d_v, *masked


def work_of(operators: Sequence[Attention], runs: Sequence[Run]) -> AttentionBatch:
    """The operators as arrays, each computed as its run says."""
    rows = [attention_row(*one) for one in zip(operators, runs, strict=True)]
    return AttentionBatch(*np.array(rows, dtype=float).reshape(-1, len(fields(AttentionBatch))).T)


def visible_keys(work: AttentionBatch, windowed: bool = True) -> Array:
    """Keys that a query sees on average; causal masks are aligned at the bottom right."""
    q, kv = work.q_len, work.kv_len
    width = np.where((work.window > 0) & windowed, np.minimum(work.window, kv), kv)
    first = np.maximum(kv - q + 1, 0)
    ramp = np.clip(width - first, 0, q)
    causal = np.where(first >= width, width, (ramp * first + ramp * (ramp - 1) / 2 + (q - ramp) * width) / q)
    return np.where(work.causal > 0, causal, width)


class AttentionTimes(NamedTuple):
    """Seconds of attentions and what they consist of, arrays, in the order in which the parts add up.

    ``ideal_s``: what the mask leaves at the kernel's rate; then with the computed head dimension; with the head that
    does not fill it; with whole blocks; with blocks' start and end; with unfilled waves (``compute_s``).
    """

    seconds: Array
    ideal_s: Array
    padded_s: Array
    partial_s: Array
    walked_s: Array
    started_s: Array
    compute_s: Array
    memory_s: Array
    body_s: Array
    copies_s: Array
    blocks: Array
    waves: Array

    def only(self, row: int) -> Any:
        """The ``row``'s, with numbers for arrays."""
        return AttentionTimes(*(column[row].item() for column in self))


def attention_times(work: AttentionBatch, c: AttentionConstants, backward: bool, size: float) -> AttentionTimes:
    """Predicted seconds of one run of each; ``size``: bytes an element."""
    by_qk, by_v = (6, 4) if backward else (2, 2)
    rate, prologue = c.rate(work.bucket), _at(work.bucket, c.prologue_keys)
    queries, d_qk, d_v = work.queries, work.d_qk, work.d_v
    keys = visible_keys(work)
    flops = queries * keys * (by_qk * d_qk + by_v * d_v)
    pair = by_qk * work.c_qk + by_v * work.c_v
    padded = queries * keys * pair / rate
    short = (work.c_qk > next_multiple(d_qk, 8)) | (work.c_v > next_multiple(d_v, 8))
    partial = padded * (1 + c.partial * short)
    walked = _walked(work, keys, c)
    rows = np.ceil(work.q_len / QUERIES)
    in_blocks = partial * rows * QUERIES / work.q_len * walked / keys
    started = in_blocks * (1 + prologue / walked)
    blocks = work.batch * work.heads * rows
    waves = paid_waves(blocks, c)
    compute = started * waves * c.units / blocks
    slower = _at(work.bucket, c.deterministic) if c.deterministic else 0.0
    # As Attention.bytes counts them.
    moved = (queries + work.keys) * (d_qk + d_v) * (1 + backward) + queries * d_v * backward
    memory = moved * size / c.bandwidth_bytes_per_s
    body = overlapped(compute, memory, c) * (1 + slower * work.deterministic)
    # Padding Q, K and V fills the wide tensor, then reads the narrow one and writes it there.
    padding = queries * (d_qk + 2 * work.copied) + work.keys * (d_qk + d_v + 4 * work.copied)
    copies = padding * (work.copied > 0) * size / c.copy_bytes_per_s
    if c.cache_bytes_per_s:
        # K and V, computed in 16 bits, go to a server's cache in the kernel's element type; to 8 bits Q goes, too.
        written = work.keys * (d_qk + d_v) + (size < 2) * queries * d_qk
        copies += work.cached * written * (2 + size) / c.cache_bytes_per_s
    seconds = throttled(body, c) + c.launch_s + copies
    return AttentionTimes(
        seconds, flops / rate, padded, partial, in_blocks, started, compute, memory, body, copies, blocks, waves
    )


def _walked(work: AttentionBatch, keys: Array, c: AttentionConstants) -> Array:
    """Keys that a block walks.

    They are the mean that its queries see, half a block more at each edge of the mask, and what blocks of uneven length
    cost in addition, which is less the fewer of them end before a window does.
    """
    ramp = np.where(work.window > 0, np.minimum(work.window / work.kv_len, 1), 1)
    if c.ignores_window:
        keys = np.maximum(keys, visible_keys(work, windowed=False))
        ramp = np.ones_like(ramp)
    edges = 0.5 * QUERIES * (work.causal + (ramp < 1))
    walked = np.minimum(keys + edges, np.maximum(keys, next_multiple(work.kv_len, QUERIES)))
    return walked * (1 + c.uneven * (work.causal > 0) * ramp**2)
