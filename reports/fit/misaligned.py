"""Ceilings of the kernels that serve misaligned products: shapes/data/misaligned.toml's figures.

    python reports/fit/misaligned.py --data FOLDER        # of gemm_misaligned.csv

Prints what each family's rows ask for, and by alignment how far off each sweep is by a fit to the others; the file's
figures are rounded from it. Sweeps weigh alike whatever their number of points, since their points are neighbours.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fit.evidence import Array, Measured, grouped, read_rows
from shapes.cost.constants import alignment_constants, gemm_constants
from shapes.cost.corrections import CLASSES, AlignmentConstants, misaligned_seconds, moved_bytes
from shapes.cost.gemm import aligned_seconds, throttled
from shapes.device import load_device
from shapes.dtypes import BYTES

#: FLOP a clock and unit of odd, narrow and vector loads; prologue in steps of k; a tile alone; C's share.
LOW = (300.0, 600.0, 1200.0, 100.0, 1.0, 1e-3)
HIGH = (1500.0, 2500.0, 8000.0, 600.0, 1.6, 0.05)
GUESS = (630.0, 1220.0, 2500.0, 290.0, 1.2, 0.02)
#: A row within this of the host's time a call is bound by the host.
HOST_BOUND = 1.05


def constants(device: str, theta: Array) -> AlignmentConstants:
    target = load_device(device)
    per_clock = (target.compute.clock_mhz or 0.0) * 1e6 * target.compute.units
    odd, narrow, vector, prologue, alone, share = theta.tolist()
    present = alignment_constants(target, "fp16")
    return replace(
        present,
        ceiling=(odd * per_clock, narrow * per_clock, vector * per_clock),
        prologue_steps=prologue,
        alone=alone,
        c_share=(share, share, 0.0),
    )


def seconds(group: Measured, c: AlignmentConstants) -> Array:
    """`predict_gemm` with other alignment constants, as the group's harness times it."""
    base, _ = gemm_constants(load_device(group.device), group.dtype)
    size = BYTES[group.dtype]
    dims = (group.m, group.n, group.k, group.batch)
    sizes = np.array(dims, dtype=float)
    aligned = aligned_seconds(sizes, moved_bytes(sizes, size, size), base)
    sustained = partial(throttled, c=base)
    extra = misaligned_seconds(dims, (size, size, size), group.layout, aligned, base.launch_s, c, sustained)  # type: ignore[arg-type]
    return group.as_timed(aligned + sum(extra))


def fit(groups: list[Measured], device: str) -> tuple[Array, float]:
    """Constants of one device's misaligned rows, and their mean error there."""
    from scipy.optimize import least_squares

    mine = [group for group in groups if group.device == device]
    off = [group.classes() < 3 for group in mine]
    weights = []
    for group, rows in zip(mine, off, strict=True):
        sweeps = np.array([f"{row.get('sweep')}" for row in group.rows])[rows]
        weights.append(np.array([(sweeps == sweep).sum() ** -0.5 for sweep in sweeps]))

    def errors(theta: Array) -> list[Array]:
        c = constants(device, np.exp(theta))
        return [np.log(seconds(group, c) / group.seconds)[rows] for group, rows in zip(mine, off, strict=True)]

    found = least_squares(
        lambda theta: np.concatenate([e * w for e, w in zip(errors(theta), weights, strict=True)]),
        np.log(GUESS),
        bounds=np.log([LOW, HIGH]),
        loss="soft_l1",
        f_scale=0.02,
        diff_step=1e-3,
    )
    return np.exp(found.x), float(np.abs(np.expm1(np.concatenate(errors(found.x)))).mean())


def left_out(groups: list[Measured], device: str) -> dict[str, Array]:
    """Alignment -> relative errors on rows of each sweep by constants that were fitted to the others.

    Rows that take as long as the harness's host, whatever runs on the device, tell nothing and are left out.
    """
    mine = [group for group in groups if group.device == device]
    sweeps = [np.array([row["sweep"] for row in group.rows]) for group in mine]
    found: dict[str, list[Array]] = {}
    for sweep in dict.fromkeys(np.concatenate(sweeps).tolist()):
        seen = [group.rows_of(of != sweep) for group, of in zip(mine, sweeps, strict=True)]
        c = constants(device, fit(seen, device)[0])
        for group, of in zip(mine, sweeps, strict=True):
            bound = (group.seconds < HOST_BOUND * max(group.protocol.host_s)) & group.protocol.queued
            off = seconds(group, c) / group.seconds - 1
            for index, name in enumerate(CLASSES[:3]):
                found.setdefault(name, []).append(off[(of == sweep) & ~bound & (group.classes() == index)])
    return {name: np.concatenate(parts) for name, parts in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    path = parser.parse_args().data / "gemm_misaligned.csv"
    groups = grouped(read_rows(path), str(path))
    for device in sorted({group.device for group in groups}):
        theta, error = fit(groups, device)
        odd, narrow, vector, prologue, alone, share = theta.tolist()
        print(  # noqa: T201  # a script whose output is its purpose
            f"{device}: odd {odd:.0f}, narrow {narrow:.0f}, vector {vector:.0f} FLOP a clock and unit; prologue "
            f"{prologue:.0f} steps, alone {alone:.2f}, C {share:.3f}: off by {error:.1%}"
        )
        for name, errors in left_out(groups, device).items():
            off = np.abs(errors)
            if off.size:
                p95 = np.quantile(off, 0.95)
                print(f"  {name}: {off.size} rows of left-out sweeps off by {off.mean():.1%}, 95% within {p95:.1%}")  # noqa: T201


if __name__ == "__main__":
    main()
