"""Measurements of one device -> the [cost], [error] and [provenance] tables of its file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from shapes.calibrate.alignment import by_dtype, fit_alignment
from shapes.calibrate.attention import attention_seconds, fit_attention, read_attentions
from shapes.calibrate.collective import fit_collectives, predicted, read_collectives
from shapes.calibrate.data import Record, products, read_records
from shapes.calibrate.gemm import Products, bounds, fit_closed_form, fit_products
from shapes.calibrate.grouped import fit_slowdown, layer_seconds, read_layers
from shapes.calibrate.hold_out import held_out
from shapes.calibrate.tables import attention_table, gemm_table
from shapes.cost.alignment import OPERANDS
from shapes.cost.constants import GemmConstants, alignment_constants, gemm_constants
from shapes.device import Device
from shapes.dtypes import BYTES

#: Fewest products of which a device's constants are fitted anew; with fewer, those there are get refined.
FULL_FIT = 1000
#: How far a refined constant may stray from where it was, in log units: what differs between relatives.
PRIOR = 0.15
#: Stated, not measured: no public table holds backward attention, misaligned products or fused elementwise kernels.
STATED = {"attention_backward": 0.2, "memory_bound": 0.15, "misaligned": 0.25}

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a calibration found: the owned tables of a device file, and a line for each error."""

    device: str
    cost: dict[str, Any]
    error: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        return {"cost": self.cost, "error": self.error, "provenance": self.provenance}


def calibrate(
    device: Device, paths: Iterable[str | Path] = (), *, records: Sequence[Record] = (), seed: int = 0,
    starts: int = 3, today: date | None = None, progress: Progress = lambda _: None,
) -> Calibration:  # fmt: skip
    """Fit ``device`` to ``records`` and the measurements in ``paths`` (files, or folders of aiconfigurator's tables).

    Errors are those of constants that have not seen the held-out n (or sequence lengths), which are the constants
    returned. InputError: nothing to fit, unreadable files.
    """
    files = [Path(path) for path in paths]
    folders = [path for path in files if path.is_dir()]
    cost, error = _plain(device.cost), {**STATED, **_plain(device.errors)}
    records = [*records, *(read_records(files) if files else ())]
    provenance: dict[str, Any] = {
        "data": "; ".join(map(describe_source, files)) or "; ".join(sorted({record.source for record in records})),
        "date": (today or date.today()).isoformat(),
        "seed": seed,
        "held_out": "30% of the n values whole; of the sequence lengths for attention",
    }
    for dtype, group in by_dtype(records).items():
        if dtype not in device.peak_flops:
            continue
        _fit_dtype(device, dtype, group, cost, error, provenance, (seed, starts), progress)
    _fit_alignment(device, records, cost, error, progress)
    for folder in folders:
        _fit_tables(device, folder, cost, error, seed, progress)
    return Calibration(device.name, cost, error, provenance)


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


def _fit_dtype(
    device: Device, dtype: str, records: Sequence[Record], cost: dict[str, Any], error: dict[str, Any],
    provenance: dict[str, Any], how: tuple[int, int], progress: Progress,
) -> None:  # fmt: skip
    seed, starts = how
    measured = products(records, dtype)
    if len(measured) == 0:
        return
    hidden = held_out(measured.n, seed)
    sizes = (BYTES[dtype], max(2, BYTES[dtype]))
    if len(measured) >= FULL_FIT:
        constants = fit_products(measured[~hidden], device, dtype, starts=starts, seed=seed, progress=progress)
    else:
        constants = refine(measured[~hidden], device, dtype, seed)
    off, large = measured.errors(constants, *sizes), measured.large
    cost[dtype] = gemm_table(constants)
    error[dtype] = {
        name: round(float(off[rows & hidden].mean()), 4)
        for name, rows in (("large", large), ("small", ~large))
        if (rows & hidden).any()
    }
    provenance[dtype] = {
        "shapes": len(measured),
        "sources": sorted({record.source for record in records}),
        "held_out_n": [int(n) for n in np.unique(measured.n[hidden])],
    }
    figures = ", ".join(f"{name} {value:.1%}" for name, value in error[dtype].items())
    progress(f"{device.name} {dtype}: error on held-out n: {figures}")


def refine(measured: Products, device: Device, dtype: str, seed: int = 0) -> GemmConstants:
    """The device's present (or borrowed) constants, pulled towards a few tens of measured products.

    The correction tables stay; both sets move, the small one by the same factors.
    """
    present, _ = gemm_constants(device, dtype)
    sizes = (BYTES[dtype], max(2, BYTES[dtype]))
    limits = {
        name: (low if low < getattr(present, name) else 0.5 * getattr(present, name),
               high if high > getattr(present, name) else 2 * getattr(present, name))
        for name, (low, high) in bounds(device, dtype).items()
    }  # fmt: skip
    refined = fit_closed_form(measured, present, limits, sizes, starts=1, seed=seed, prior=PRIOR)
    small = present.small
    if small is not None:
        moved = {
            name: getattr(small, name) * exp(log(getattr(refined, name) / getattr(present, name)))
            for name in ("flops_per_s", "bandwidth_bytes_per_s", "cache_bandwidth_bytes_per_s", "launch_s")
        }
        small = replace(small, **moved)
    return replace(refined, small=small)


def _fit_alignment(
    device: Device, records: Sequence[Record], cost: dict[str, Any], error: dict[str, Any], progress: Progress
) -> None:
    """Penalties from records off the alignment, if there are any; else those of the public figures stay."""
    present = alignment_constants(device)
    kept = [record for record in records if record.dtype in ("bf16", "fp16")]
    if any(not record.aligned for record in kept):
        constants, _ = gemm_constants(device, "bf16" if "bf16" in device.peak_flops else "fp16")
        present = fit_alignment(kept, constants, present, "measured")
        error["misaligned"] = round(0.5 * error["misaligned"], 4)
        progress(f"{device.name}: alignment fitted on {len(kept)} products")
    cost["alignment"] = {"source": present.source, "further": present.further} | {
        operand: list(row) for operand, row in zip(OPERANDS, present.penalty, strict=True)
    }


def _fit_tables(
    device: Device, folder: Path, cost: dict[str, Any], error: dict[str, Any], seed: int, progress: Progress
) -> None:
    """Attention, experts and collectives, from the tables of theirs below ``folder``."""
    if files := sorted(folder.rglob("context_attention_perf.parquet")):
        data = read_attentions(files)
        hidden = held_out(data.s, seed)
        constants = fit_attention(data[~hidden], device, seed)
        off = np.abs(attention_seconds(data, constants) / data.seconds - 1)[hidden & (data.s >= 512)]
        cost["attention"], error["attention"] = attention_table(constants), round(float(off.mean()), 4)
        progress(f"{device.name} attention: error on held-out lengths from 512 on: {off.mean():.1%}")
    if files := sorted(folder.rglob("moe_perf.parquet")):
        layers = read_layers(files)
        layers = layers[layers[:, 0] >= 512]
        hidden = held_out(layers[:, 1], seed, border=0)
        products_of = GemmConstants.from_table(cost["bf16"], device.compute.units)
        slowdown = fit_slowdown(layers[~hidden], products_of)
        off = np.abs(slowdown * layer_seconds(layers[hidden], products_of) / layers[hidden, 5] - 1)
        cost["grouped"], error["grouped"] = {"slowdown": round(slowdown, 3)}, round(float(off.mean()), 4)
        progress(f"{device.name} experts: error on held-out hidden sizes: {off.mean():.1%}")
    # Beside NCCL's own tables there are copies made by frameworks; only comm/nccl is NCCL's.
    if files := sorted(folder.rglob("nccl/*/nccl_perf.parquet")):
        messages = read_collectives(files)
        collective = fit_collectives(messages, device)
        off = np.abs(predicted(messages, device, collective) / np.array(list(messages.values())) - 1)
        cost["collective"] = {name: float(f"{value:.4g}") for name, value in asdict(collective).items()}
        error["collective"] = round(float(off.mean()), 4)
        progress(f"{device.name} collectives: error {off.mean():.1%}")


def _plain(value: Any) -> Any:
    """Read-only device tables as plain dicts and lists."""
    if hasattr(value, "items"):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
