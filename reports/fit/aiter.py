"""AMD's constants from the winners of aiter's tunings (gemm_aiter.csv of the evidence).

    python reports/fit/aiter.py --data .../evidence/gemm_aiter.csv.gz --write

One set of constants a table (no small set, no throttling, no split k), over sixteen tiles: what paid on (n, k) left
out. Times are of kernels alone over rotated buffers. Products scaled by blocks of 128 are those of plain weights: files
with shuffled ones (``bpreshuffle``) time another kernel; rowwise ones are shuffled. Errors in the device files are
those of 30% of the (n, k) pairs, left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fit.evidence import Row, read_rows
from fit.gemm import first_guess
from fit.run import present_tables
from fit.written import gemm_table
from shapes.calibrate import Products, bounds, fit_closed_form, write_tables
from shapes.cost.constants import GemmConstants, gemm_constants
from shapes.device import Device, load_device
from shapes.dtypes import BYTES
from shapes.recipes import load_recipe

TILES = tuple(
    (m, n)
    for m, n in (
        *((16, n) for n in (16, 64, 128, 256)),
        *((32, n) for n in (64, 128, 256)),
        *((64, n) for n in (64, 128, 256)),
        *((128, n) for n in (64, 128, 256)),
        *((256, n) for n in (64, 128, 256)),
    )
)
#: Table of ``[cost]`` -> the dtype in aiter's rows, ours, and whether the weights are shuffled (None: either).
TABLES = {
    "bf16": ("bf16", "bf16", None),
    "fp8": ("fp8-rowwise", "fp8", True),
    "fp8_blockwise": ("fp8-block128", "fp8", False),
    "fp8_blockwise-shuffled": ("fp8-block128", "fp8", True),
    "int8": ("int8", "int8", None),
    "mxfp4": ("mxfp4", "mxfp4", None),
}
#: Device -> tables with rows enough.
FITTED = {
    "mi300x": ("fp8_blockwise",),
    "mi308x": ("bf16", "fp8", "fp8_blockwise-shuffled"),
    "mi355x": ("bf16", "fp8", "fp8_blockwise", "fp8_blockwise-shuffled", "int8", "mxfp4"),
    "mi455x": ("bf16", "fp8", "fp8_blockwise-shuffled"),
}
HELD_OUT = 0.3
#: Devices of few rows, whose fit is held near their relative's constants (a tenth of a log unit): of five draws of
#: pairs left out, fp8 is 17% off by it, 29% without, 22% unfitted.
CARRIED = ("mi455x",)
#: A row this much faster than the peak allows is a mistake of the file.
ABOVE_PEAK = 1.0
#: A row this much slower than a larger product of its file is its tuner's miss: the larger one's kernel would do.
MISSED = 1.2


def rows_of(rows: list[Row], device: Device, table: str) -> Products:
    """The device's rows of a table, seconds of the kernel; those above the peak and tuners' misses are left out."""
    theirs, ours, shuffled = TABLES[table]
    peak = device.peak(ours)
    known: dict[tuple[str, float, float], list[tuple[float, float]]] = {}
    for row in rows:
        wanted = row["device"] == device.name and row["dtype"] == theirs
        if wanted and shuffled in (None, "bpreshuffle" in row["file"]):
            m, n, k, us = (float(row[name]) for name in ("m", "n", "k", "us"))
            known.setdefault((row["file"], n, k), []).append((m, us * 1e-6))

    def kept() -> Iterator[tuple[float, ...]]:
        for (_, n, k), times in known.items():
            for m, seconds in times:
                missed = any(more > m and MISSED * less < seconds for more, less in times)
                if 2 * m * n * k / seconds <= ABOVE_PEAK * peak and not missed:
                    yield m, n, k, seconds

    return Products(*np.array(list(kept())).T)


def hidden(products: Products, seed: int) -> np.ndarray:
    """Which rows are of the (n, k) pairs left out."""
    pairs, place = np.unique(np.stack([products.n, products.k]), axis=1, return_inverse=True)
    out = np.random.default_rng(seed).random(pairs.shape[1]) < HELD_OUT
    found: np.ndarray = out[place.reshape(-1)]
    return found


def fit(products: Products, device: Device, table: str, seed: int) -> GemmConstants:
    """One set over ``TILES``, within what is physical; short kernels' starts and ends are long here."""
    dtype = TABLES[table][1]
    limits = bounds(device, dtype) | {
        "prologue_steps": (0.1, 800.0),
        "throttle": (1e-12, 1e-9),
        "wave_s": (1e-9, 1e-7),
        "cache_bytes": (1e5, 6e8),
    }
    low, high = limits["bandwidth_bytes_per_s"]
    limits["bandwidth_bytes_per_s"] = (low, 1.1 * high)
    if device.name not in CARRIED:
        return fit_closed_form(products, first_guess(device, dtype, TILES), limits, sizes(dtype), 3, seed)
    recipe = table.partition("_")[2] or None
    plain, _ = gemm_constants(replace(device, cost={}), dtype, recipe)
    guess = replace(plain, tiles=TILES, small=None)
    return fit_closed_form(products, guess, limits, sizes(dtype), 2, seed, prior=0.1)


def sizes(dtype: str) -> tuple[float, int]:
    """Bytes an element of the operands, with its share of scales, and of the output."""
    return (load_recipe(dtype).quantise.bytes_per_element if dtype == "mxfp4" else BYTES[dtype]), 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=TABLES, help="fit this table and leave the rest")
    parser.add_argument("--device", choices=FITTED, help="fit this device's tables and leave the others'")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = read_rows(options.data)
    for name, tables in FITTED.items():
        if options.device not in (None, name):
            continue
        device = load_device(name)
        found = present_tables(device)
        for table in (one for one in tables if options.only in (None, one)):
            dtype = TABLES[table][1]
            products = rows_of(rows, device, table)
            out, tall = hidden(products, options.seed), products.m >= 512
            judged = fit(products[~out], device, table, options.seed)
            off = products.errors(judged, *sizes(dtype))
            figures = {
                "large" + suffix: round(float(of(off[out & tall])), 4)
                for suffix, of in (("", np.mean), ("_p95", lambda x: np.quantile(x, 0.95)))
            } | {"small": round(float(off[out & ~tall].mean()), 4)}
            sys.stdout.write(f"{name} {table}: {len(products)} products, left out {figures}\n")
            found.cost[table] = gemm_table(fit(products, device, table, options.seed))
            found.error[table] = figures
            found.provenance[table] = {
                "shapes": len(products),
                "sources": ["ROCm/aiter @ e4048607 (MIT): configs, winners of tunings; kernels alone"],
                "held_out_pairs": HELD_OUT,
                "seed": options.seed,
                "date": date.today().isoformat(),
            }
        if options.write:
            write_tables(Path(device.origin), found.tables)


if __name__ == "__main__":
    main()
