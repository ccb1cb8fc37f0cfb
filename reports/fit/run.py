"""A shipped device's constants from NVIDIA's published tables: gemm, experts and collectives.

    python reports/fit/run.py --device h100-sxm --from .../aiconfigurator_core/systems/data/h100_sxm --write

Three to four minutes a device; ``--only fp8`` fits one table and leaves the rest, ``--only cells`` the cells over the
constants as they are (half a minute). ``--polish`` fits nothing anew: it binds the present tables where a draw
(``--seed``) finds that work which grows saves time, as A100's and L40S's were, and fits their cells again.
The same code, libraries and seed give the same file. The bf16 tables in the files are of earlier code, A100's and
L40S's polished since; what the command gives today is as good (reports/accuracy.md); their cells are today's.
Low-precision products are those of frameworks that time them without quantising, which is an operator of its own.
``fp8_blockwise`` is of ``--fp8 gemm_fp8.csv.gz``, kernels alone, where that holds rows of the device; of Blackwell's
tables; H200 takes H100's, since its tables time frameworks that quantise besides (1.23 times the kernel).
``fp8_blockwise_served`` differs where a dimension is small: up to 128 rows are DeepGEMM's, in SGLang's table, which has
narrower tiles than those kernels (1.3 times as fast up to 64 rows).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fit.alignment import add_alignment
from fit.cells import fit_cells
from fit.collective import fit_collectives, predicted, read_messages
from fit.correction import Case, polished
from fit.evidence import read_rows
from fit.gemm import BLOCKWISE_TILES, first_guess, fit_products, relatives
from fit.grouped import fit_slowdown, layer_seconds, read_layers
from fit.tables import parquet_columns
from fit.written import gemm_table
from shapes.calibrate import (
    Calibration,
    Products,
    Progress,
    Record,
    bounds,
    calibrate,
    fit_closed_form,
    held_out,
    products,
    write_tables,
)
from shapes.cost.constants import IN_CELL, GemmConstants
from shapes.cost.corrections import LEAST_K, STEP_K
from shapes.device import Device, load_device
from shapes.dtypes import BYTES
from shapes.frozen import plain

#: The table of constants that cells stand over: of 16-bit products, which fp16 borrows.
CELLS_OF = "bf16"
#: aiconfigurator's dtype names that are plain products of one of ours.
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "nvfp4": "nvfp4"}
#: Frameworks whose rows are of the product alone, in the kernels made for it: others quantise its input inside the
#: timing (TensorRT-LLM), or fall back to Triton (vLLM's blocks of 128 are 4 to 30 times slower on Blackwell).
PURE = {"fp8": ("SGLang",), "nvfp4": ("SGLang", "VLLM"), "fp8_block": ("SGLang", "TRTLLM")}
#: But where the others are faster all the same: SGLang's fp8 kernel of SM120 splits nothing along k.
EVERY = {("rtx_pro_6000_server", "fp8")}
#: The table of a recipe's own kernels: aiconfigurator's name, ours, and the element type.
BLOCKWISE, BLOCKWISE_TABLE = "fp8_block", "fp8_blockwise"
#: As engines run them on Hopper: the table, rows up to which they take DeepGEMM's narrow tiles, those, the least other
#: sides of the products fitted on, and how many of them.
SERVED_TABLE, SERVED_ROWS, SERVED_SIDE, SERVED_MOST = "fp8_blockwise_served", 128, 256, 3000
SERVED_TILES = (*BLOCKWISE_TILES, (16, 64), (32, 64), (64, 64), (64, 128))


def read_published(folder: Path) -> tuple[Record, ...]:
    """Every plain product in the gemm_perf.parquet files below ``folder``: ``gemm_dtype, m, n, k, latency`` (ms)."""
    return tuple(record for file in sorted(folder.rglob("gemm_perf.parquet")) for record in _products(file, DTYPES))


def read_blockwise(folder: Path, fp8: Path | None, device: Device) -> tuple[Record, ...]:
    """fp8 products in blocks of 128: the device's rows of ``fp8``, else, but for Hopper, those of the tables."""
    published = read_fp8(fp8, device) if fp8 else ()
    files = [] if device.architecture == "hopper" else sorted(folder.rglob("gemm_perf.parquet"))
    return published or tuple(record for file in files for record in _products(file, {BLOCKWISE: "fp8"}))


def _products(file: Path, dtypes: Mapping[str, str]) -> Iterator[Record]:
    columns = parquet_columns(file)
    names = ("m", "n", "k", "gemm_dtype", "latency", "framework")
    pure = {dtype: own for dtype, own in PURE.items() if not {(part, dtype) for part in file.parts} & EVERY}
    for m, n, k, dtype, latency, framework in zip(*(columns[name] for name in names), strict=True):
        if dtype in dtypes and latency and latency > 0 and framework in pure.get(dtype, (framework,)):
            yield Record(m, n, k, 1, dtypes[dtype], "tn", latency * 1e-3, str(framework))


def read_fp8(path: Path, device: Device) -> tuple[Record, ...]:
    """The device's rows of a file of published fp8 products (``gemm_fp8.csv``)."""
    return tuple(
        Record(int(row["m"]), int(row["n"]), int(row["k"]), 1, "fp8", "tn", float(row["us"]) * 1e-6, row["source"])
        for row in read_rows(path)
        if row["device"] == device.name
    )


def fit_device(
    device: Device,
    folder: Path,
    *,
    seed: int = 0,
    starts: int = 2,
    fp8: Path | None = None,
    only: str | None = None,
    progress: Progress = lambda _: None,
) -> Calibration:
    """What `calibrate` finds from the tables below ``folder``, every constant fitted anew."""

    def anew(seen: Products, device: Device, dtype: str, seed: int) -> GemmConstants:
        return fit_products(seen, device, dtype, starts=starts, seed=seed, progress=progress)

    published = read_published(folder)
    records = tuple(record for record in published if only in (None, record.dtype))
    data = describe_source(folder)
    found = calibrate(device, records, seed=seed, fit=anew, data=data, progress=progress)
    add_alignment(device, records, found.cost, progress)
    for dtype in found.error.keys() & {record.dtype for record in records}:
        constants = GemmConstants.from_table(found.cost[dtype], device.compute.units)
        unseen = set(found.provenance[dtype]["held_out_n"])
        judged = [one for one in published if one.dtype == dtype and one.n in unseen]
        found.error[dtype] = user_errors(judged, constants)
    if only in (None, BLOCKWISE_TABLE) and (blocks := read_blockwise(folder, fp8, device)):
        alone = calibrate(device, blocks, seed=seed, fit=partial(_blockwise, starts), progress=progress)
        constants = GemmConstants.from_table(alone.cost["fp8"], device.compute.units)
        unseen = set(alone.provenance["fp8"]["held_out_n"])
        found.cost[BLOCKWISE_TABLE] = alone.cost["fp8"]
        found.error[BLOCKWISE_TABLE] = user_errors([one for one in blocks if one.n in unseen], constants)
        found.provenance[BLOCKWISE_TABLE] = alone.provenance["fp8"]
    if only in (None, SERVED_TABLE) and device.architecture == "hopper" and fp8:
        add_served(found, device, folder, read_blockwise(folder, fp8, device), seed)
    if only is None:
        fit_tables(device, folder, found.cost, found.error, seed, progress)
    if only in (None, CELLS_OF):
        add_cells(found, device, published, seed, progress)
    return found


def add_served(found: Calibration, device: Device, folder: Path, blocks: Sequence[Record], seed: int) -> None:
    """The blockwise table with its small products as engines run them: DeepGEMM's up to so many rows, else ``blocks``.

    Judged on n that nothing has seen.
    """
    table = found.cost.get(BLOCKWISE_TABLE) or plain(device.cost[BLOCKWISE_TABLE])
    errors = found.error.get(BLOCKWISE_TABLE) or plain(device.errors[BLOCKWISE_TABLE])
    listed = [one for file in sorted(folder.rglob("gemm_perf.parquet")) for one in _products(file, {BLOCKWISE: "fp8"})]
    few = [
        one for one in listed if one.source == "SGLang" and one.m <= SERVED_ROWS and min(one.n, one.k) >= SERVED_SIDE
    ]
    own, others = products(few, "fp8"), products(blocks, "fp8")
    hidden = held_out(own.n, seed)
    seen = own[~hidden]
    some = seen[np.random.default_rng(seed).permutation(len(seen))[:SERVED_MOST]]
    more = others[~others.large & (others.m > SERVED_ROWS)]
    fitted = Products(
        *(np.concatenate([getattr(part, key) for part in (some, more)]) for key in ("m", "n", "k", "seconds"))
    )
    guess = replace(first_guess(device, "fp8", SERVED_TILES), throttle=0.001)
    small = fit_closed_form(fitted, guess, bounds(device, "fp8"), (1, 2), 2, seed)
    off = own[hidden].errors(small, 1, 2)
    found.cost[SERVED_TABLE] = table | {"small": gemm_table(small)}
    figures = {"small": off.mean(), "small_p95": np.quantile(off, 0.95), "small_consensus": off.mean()}
    found.error[SERVED_TABLE] = errors | {name: round(float(value), 4) for name, value in figures.items()}
    unseen = np.unique(own.n[hidden]).astype(int).tolist()
    found.provenance[SERVED_TABLE] = {"shapes": len(own), "sources": ["SGLang"], "held_out_n": unseen}


def present_tables(device: Device) -> Calibration:
    """What the device's file says now."""
    return Calibration(device.name, *(plain(table) for table in (device.cost, device.errors, device.provenance)))


def add_cells(found: Calibration, device: Device, published: Sequence[Record], seed: int, progress: Progress) -> None:
    """Cells over the constants of CELLS_OF, of 70% of the k values; judged on n and k that nothing has seen."""
    records = [one for one in published if one.dtype == CELLS_OF and one.k >= LEAST_K and one.k % STEP_K == 0]
    measured = products(records, CELLS_OF)
    hidden = held_out(measured.k, seed)
    bare = replace(GemmConstants.from_table(found.cost[CELLS_OF], device.compute.units), cells=None)
    cells = fit_cells(measured[~hidden], bare, device, progress)
    constants = replace(bare, cells=cells)
    unseen_k = np.unique(measured.k[hidden]).astype(int).tolist()
    found.provenance[CELLS_OF]["held_out_k"] = unseen_k
    unseen_n = set(found.provenance[CELLS_OF]["held_out_n"])
    judged = [one for one in records if one.k in unseen_k and one.n in unseen_n]
    found.cost[CELLS_OF] = gemm_table(constants)
    found.error[CELLS_OF] |= user_errors(judged, constants, IN_CELL)
    figures = ", ".join(f"{name} {value:.1%}" for name, value in found.error[CELLS_OF].items() if IN_CELL in name)
    progress(f"{device.name} cells: error on held-out n and k: {figures}")


def polish(device: Device, folder: Path, seed: int = 0, progress: Progress = lambda _: None) -> Calibration:
    """The device's bf16 tables, bound anew where a draw finds that something falls; all else stays as it is."""
    published = [one for one in read_published(folder) if one.dtype == "bf16"]
    measured = products(published, "bf16")
    present = replace(GemmConstants.from_table(device.cost["bf16"], device.compute.units), cells=None)
    case = Case(present.both(correction=None, cells=None), BYTES["bf16"], BYTES["bf16"])
    unseen = set(device.provenance["bf16"]["held_out_n"])
    seen = measured[~np.isin(measured.n, list(unseen))]
    bound = (case, *relatives(device, "bf16", present.both(correction=None, cells=None)))
    constants = polished(seen, present, bound, seed=seed, progress=progress)
    found = present_tables(device)
    found.cost["bf16"] = gemm_table(constants)
    found.error["bf16"] = user_errors([one for one in published if one.n in unseen], constants)
    add_cells(found, device, published, seed, progress)
    return found


def _blockwise(starts: int, seen: Products, device: Device, dtype: str, seed: int) -> GemmConstants:
    return fit_products(seen, device, dtype, starts=starts, seed=seed, tiles=BLOCKWISE_TILES)


def user_errors(records: Sequence[Record], constants: GemmConstants, suffix: str = "") -> dict[str, float]:
    """Errors that a user meets: against single frameworks, by regime and ``suffix``, with the 95th percentile.

    ``*_consensus`` is against the median over frameworks, which fits are of and nobody runs.
    """
    dtype = records[0].dtype
    sizes = (BYTES[dtype], max(2, BYTES[dtype]))
    columns = [np.array([float(getattr(one, name)) for one in records]) for name in ("m", "n", "k", "seconds")]
    single, consensus = Products(*columns), products(records, dtype)
    errors: dict[str, float] = {}
    for regime in ("large", "small"):
        off, agreed = (
            one[one.large if regime == "large" else ~one.large].errors(constants, *sizes) for one in (single, consensus)
        )
        if len(off):
            figures = {"": off.mean(), "_p95": np.quantile(off, 0.95), "_consensus": agreed.mean()}
            errors |= {regime + suffix + name: round(float(value), 4) for name, value in figures.items()}
    return errors


def fit_tables(
    device: Device,
    folder: Path,
    cost: dict[str, Any],
    error: dict[str, Any],
    seed: int,
    progress: Progress,
) -> None:
    """Experts and collectives, from the tables of theirs below ``folder``."""
    if files := sorted(folder.rglob("moe_perf.parquet")):
        layers = read_layers(files)
        layers = layers[layers[:, 0] >= 512]
        hidden = held_out(layers[:, 1], seed, border=0)
        products_of = GemmConstants.from_table(cost["bf16"], device.compute.units)
        slowdown = fit_slowdown(layers[~hidden], products_of)
        off = np.abs(slowdown * layer_seconds(layers[hidden], products_of) / layers[hidden, 5] - 1)
        cost["grouped"], error["grouped"] = {"slowdown": round(slowdown, 3)}, round(float(off.mean()), 4)
        progress(f"{device.name} experts: error on held-out hidden sizes: {off.mean():.1%}")
    add_collectives(device, folder, cost, error, progress)


def add_collectives(
    device: Device, folder: Path, cost: dict[str, Any], error: dict[str, Any], progress: Progress
) -> None:
    """Collectives within a node; kinds that no table has are an all-gather's."""
    if messages := read_messages(folder):
        collective = fit_collectives(messages, device)
        collective.setdefault("all_to_all", collective["all_gather"])
        off = np.abs(predicted(messages, device, collective) / np.array(list(messages.values())) - 1)
        cost["collective"] = {what: asdict(constants) for what, constants in collective.items()}
        error["collective"] = round(float(off.mean()), 4)
        progress(f"{device.name} collectives: error {off.mean():.1%}")


def describe_source(path: Path) -> str:
    """A path by what it is: the package and version for aiconfigurator's tables, else its name."""
    if "aiconfigurator_core" not in path.parts:
        return path.name
    from importlib.metadata import PackageNotFoundError, version

    try:
        release = version("aiconfigurator-core")
    except PackageNotFoundError:
        release = "of unknown version"
    return f"aiconfigurator-core {release} (NVIDIA, Apache-2.0): systems/data/{path.name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True)
    parser.add_argument("--from", dest="folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fp8", type=Path, metavar="FILE", help="published fp8 products in blocks of 128")
    tables = sorted({*DTYPES.values(), BLOCKWISE_TABLE, SERVED_TABLE, "cells", "collective"})
    parser.add_argument("--only", choices=tables, help="fit this table alone")
    parser.add_argument("--polish", action="store_true", help="move the present bf16 tables as little as nothing falls")
    parser.add_argument("--write", action="store_true", help="write the constants to the device's file")
    options = parser.parse_args()
    device, progress = load_device(options.device), partial(print, file=sys.stderr, flush=True)
    if options.polish:
        found = polish(device, options.folder, options.seed, progress)
    elif options.only == "cells":
        found = present_tables(device)
        add_cells(found, device, read_published(options.folder), options.seed, progress)
    elif options.only == "collective":
        found = present_tables(device)
        add_collectives(device, options.folder, found.cost, found.error, progress)
    else:
        found = fit_device(
            device, options.folder, seed=options.seed, fp8=options.fp8, only=options.only, progress=progress
        )
    if options.write:
        write_tables(Path(device.origin), found.tables)


if __name__ == "__main__":
    main()
