"""Seconds of a serving engine's fused experts, by constants fitted to published tables (reports/fit/experts.py).

    seconds = launch + latency + held + choices + (moving^q + arithmetic^q)^(1/q)

Rows of experts follow a power law of 1.2: the one at place x of them, from the fullest, has (1 + fall x)^-5 of the
fullest's. ``load`` is the fullest one's over the mean, 1 is even, and 5 to 15 what the tables' power laws draw. Each
expert takes whole tiles of rows, of the kernel's ``tiles`` those that take least, and 128 columns; weights are read of
experts with rows, and rows ``row_reads`` times, from a cache that the tables' repeated steps leave warm. ``held_s`` and
``choice_s``: what each expert on the device takes, with rows or without, and each that the router chooses among.
``prologue_rows`` and ``prologue_keys``: what a tile adds, in rows and steps of k. Where engines pad weights, widths
are multiples of ``pads`` (gate's and up's each). The tables' layers hold what sizer lists apart (the sum over a token's
experts, activation, quantising), which the fit subtracts. Every part grows with rows, columns and k.
"""

import numpy as np

from shapes.dtypes import BYTES, QUANTISED, next_multiple
from shapes.frozen import Named
from shapes.operators.types import RoutedGemm

from .constants import Parts, read_seconds
from .scans import beyond
from .sparse import paid

#: Columns of a tile; k goes in slices.
COLUMNS, SLICE = 128, 64
#: Element types whose kernels multiply 4 bits by 4.
FOUR_BITS = ("mxfp4", "nvfp4")
#: Middles of sixteenths of the experts: all experts of a sixteenth count with the rows at its middle.
PLACES = np.arange(1, 33, 2) / 32


def form_of(one: RoutedGemm) -> tuple[str, bool]:
    """The table that prices it, by arithmetic and what is quantised, and whether just this was measured."""
    kind = one.dtype if one.dtype in FOUR_BITS else "fp8" if one.dtype in QUANTISED else "bf16"
    suffix = "_blockwise" * (one.recipe == "blockwise")
    # Of several ranks each holds half the choices or fewer; those behind which there is no expert are under two fifths.
    if suffix and np.all(one.held < 0.6 * one.choices):
        suffix += "_spread"
    if (one.weight_bytes or 1) < 1 and kind not in FOUR_BITS:
        suffix = "_mxfp4" if (kind, one.recipe) == ("bf16", "mxfp4") else "_4bit"
    return f"experts_{kind}{suffix}", one.dtype in (kind, "fp16")


def routed_parts(one: RoutedGemm, c: Named) -> Parts:
    """Seconds of launch and latency, of moving, and of arithmetic beyond it; sizes may be columns."""
    # Solves load = 4 fall / (1 - (1 + fall)^-4) for ``fall``, within 2%.
    load = one.load
    fall = (load - 1) * (3 * load + 5) / (12 * load + 8)
    held = (1 + np.multiply.outer(PLACES, fall)) ** -5
    rows = np.array([share * one.m / one.groups for share in held / held.mean(axis=0)])
    size, used = BYTES[one.dtype], one.groups * np.minimum(rows, 1.0).mean(axis=0)
    n, k = next_multiple(one.n, 2 * c["pads"]), next_multiple(one.k, c["pads"])
    step = 2 * COLUMNS * c["units"] * (next_multiple(k, SLICE) + c["prologue_keys"]) / c["flops_per_s"]
    blocks = one.groups * np.ceil(n / COLUMNS)
    choices = [
        (tile + c["prologue_rows"]) * paid(blocks * np.minimum(rows, np.ceil(rows / tile)).mean(axis=0), c)
        for tile in c["tiles"]
    ]
    rows_bytes = one.m * (2 * one.n + size * one.k)
    reading = read_seconds(used * n * k * (one.weight_bytes or size) + c["row_reads"] * rows_bytes, c)
    waiting = c["latency_s"] * one.m / (c["latency_rows"] + one.m)
    waiting += c["launch_s"] + c["held_s"] * one.held + c["choice_s"] * one.choices
    return waiting, reading, beyond(reading, step * np.min(choices, axis=0), c["q"])
