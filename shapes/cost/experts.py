"""Seconds of a serving engine's fused experts, by constants fitted to published tables (reports/fit/experts.py).

    seconds = launch + latency + (moving^q + arithmetic^q)^(1/q) + rows' traffic

The fullest share x of the experts has load x / (1 + (load - 1) x) of the rows: ``load`` is the fullest one's over the
mean, 1 is even, and 5 to 15 what a power law of 1 to 1.2 draws. Each expert takes whole tiles of ``TILES`` rows and 128
columns, the kernel's choice; weights are read of experts with rows, from a cache that the tables' repeated steps leave
warm. ``prologue_rows`` and ``prologue_keys``: what a tile adds, in rows and in steps of k. Where engines pad weights,
both widths are multiples of ``pads`` (gate's and up's each). The tables' layers hold what sizer lists apart (permuting,
activation, quantising), which the fit subtracts. Every part grows with rows, columns and k.
"""

from functools import reduce

import numpy as np

from shapes.dtypes import BYTES, QUANTISED
from shapes.frozen import Numbers
from shapes.operators.types import RoutedGemm

from .constants import Parts, read_seconds
from .scans import beyond
from .sparse import paid

#: Rows of the tiles that kernels choose among, and their columns; k goes in slices.
TILES, COLUMNS, SLICE = (16, 32, 64, 128, 256), 128, 64
#: Element types whose kernels multiply 4 bits by 4.
FOUR_BITS = ("mxfp4", "nvfp4")
#: Sixteenths of the experts, whose rows are taken to be alike, and their borders x as (1 - x) / x.
PARTS = 16
ODDS = np.append(np.inf, PARTS / np.arange(1, PARTS + 1) - 1)


def form_of(one: RoutedGemm) -> tuple[str, bool]:
    """The table that prices it, by arithmetic and what is quantised, and whether just this was measured."""
    kind = one.dtype if one.dtype in FOUR_BITS else "fp8" if one.dtype in QUANTISED else "bf16"
    narrow = (one.weight_bytes or 1) < 1 and kind not in FOUR_BITS
    suffix = "_4bit" if narrow else "_blockwise" * (one.recipe == "blockwise")
    return f"experts_{kind}{suffix}", one.dtype in (kind, "fp16")


def routed_parts(one: RoutedGemm, c: Numbers, units: int, l2_bytes: float) -> Parts:
    """Seconds of launch and latency, of moving, and of what arithmetic takes beyond it; sizes may be columns."""
    shares = np.diff(1 / (1 + np.divide.outer(ODDS, one.load)), axis=0)
    rows = [one.m / one.groups * PARTS * share for share in shares]
    size, used = BYTES[one.dtype], one.groups / PARTS * sum(np.minimum(each, 1.0) for each in rows)
    n, k = (np.ceil(width / pads) * pads for width, pads in ((one.n, 2 * c["pads"]), (one.k, c["pads"])))
    step = 2 * COLUMNS * units * (np.ceil(k / SLICE) * SLICE + c["prologue_keys"]) / c["flops_per_s"]
    blocks = one.groups / PARTS * np.ceil(n / COLUMNS)
    choices = [
        (tile + c["prologue_rows"]) * paid(blocks * sum(np.minimum(each, np.ceil(each / tile)) for each in rows), units)
        for tile in TILES
    ]
    computing = step * reduce(np.minimum, choices)
    reading = read_seconds(used * n * k * (one.weight_bytes or size), c, l2_bytes)
    passing = one.m * (2 * one.n + size * one.k) / c["rows_bytes_per_s"]
    waiting = c["latency_s"] * one.m / (c["latency_rows"] + one.m)
    return c["launch_s"] + waiting, reading + passing, beyond(reading, computing, c["q"])
