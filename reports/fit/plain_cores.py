"""Constants of fp32 products on plain cores: ``[cost.fp32]`` of A100, which other devices borrow by their data sheets.

    python reports/fit/plain_cores.py --data FOLDER [--write]        # of gemm_fp32.csv.gz

Fitted on both A100s with 30% of the n values held out whole; V100 and T4 are looked at, never fitted.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fit.evidence import Array, Measured, grouped, read_rows
from fit.gemm import TILES, first_guess
from shapes.calibrate import write_tables
from shapes.calibrate.closed_form import bounds
from shapes.calibrate.hold_out import held_out
from shapes.calibrate.run import _plain
from shapes.calibrate.tables import gemm_table
from shapes.cost.constants import NUMBERS as OF_PRODUCTS
from shapes.cost.constants import PLAIN_CORES, VECTOR, GemmConstants, carried, origin_of
from shapes.cost.gemm import aligned_seconds
from shapes.device import load_device

FITTED_ON = ("a100-pcie", "a100-pcie-40")
#: Kernels without matrix units have small tiles too.
SMALL_TILES = ((32, 32), (32, 64), (64, 32), (32, 128), (128, 32), *TILES)
#: Relative residual from which a product pulls less than in proportion.
ROBUST_SCALE = 0.1
#: What is not fitted: the share of the peak and the power limit are stated (`carried`), and of a launch these rows,
#: whose host takes longer, tell nothing.
STATED = ("flops_per_s", "throttle", "throttle_s", "throttle_width", "launch_s")
#: What is. A library splits few tiles along a long k, which on matrix units tables of kernel choice tell.
NUMBERS = (*(name for name in OF_PRODUCTS if name not in STATED), "split_steps")


def seconds(group: Measured, constants: GemmConstants) -> Array:
    """What the group's harness would report."""
    own, kin = load_device(group.device), load_device(PLAIN_CORES)
    c = carried(constants, own, kin, "fp32", origin_of(own, kin, "fp32", "fp32"))
    dims = (array.astype(float) for array in (group.m, group.n, group.k, group.batch))
    return aligned_seconds(*dims, 4, 4, c) - c.launch_s + np.array(group.protocol.host_s[0])


def fit(groups: list[Measured], seed: int = 0) -> GemmConstants:
    """Robust least squares on log time over the groups' n that are not held out."""
    from scipy.optimize import least_squares

    device = load_device(PLAIN_CORES)
    guess = replace(
        first_guess(device, "fp32", SMALL_TILES), flops_per_s=VECTOR * device.peak("fp32"), throttle=0.0,
        load_steps=20.0, prologue_steps=5.0, split_steps=2000.0,
    )  # fmt: skip
    limits = {**bounds(device, "fp32"), "split_steps": (64.0, 65536.0)}
    low, high = np.log([limits[name] for name in NUMBERS]).T
    seen = [~held_out(group.n.astype(float), seed) for group in groups]

    def constants(theta: Array) -> GemmConstants:
        return replace(guess, **dict(zip(NUMBERS, np.exp(theta).tolist(), strict=True)))

    def residuals(theta: Array) -> Array:
        c = constants(theta)
        return np.concatenate([np.log(seconds(g, c) / g.seconds)[rows] for g, rows in zip(groups, seen, strict=True)])

    start = np.clip(np.log([getattr(guess, name) for name in NUMBERS]), low + 1e-6, high - 1e-6)
    found = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=ROBUST_SCALE, max_nfev=60)
    return constants(found.x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help="write the constants to the device's file")
    options = parser.parse_args()
    path = options.data / "gemm_fp32.csv.gz"
    groups = grouped(read_rows(path), str(path))
    constants = fit([group for group in groups if group.device in FITTED_ON])
    errors: dict[str, list[Array]] = {}
    for group in groups:
        off, unseen = np.abs(seconds(group, constants) / group.seconds - 1), held_out(group.n.astype(float), 0)
        large = np.minimum(np.minimum(group.m, group.n), group.k) >= 512
        for name, rows in (("large", large), ("small", ~large)):
            errors.setdefault(name if group.device in FITTED_ON else group.device, []).append(off[unseen & rows])
    means = {name: round(float(np.concatenate(parts).mean()), 4) for name, parts in errors.items()}
    print(means)  # noqa: T201  # a script whose output is its purpose
    if options.write:
        device = load_device(PLAIN_CORES)
        kept = {name: means[name] for name in ("large", "small")}
        write_tables(Path(device.origin), {
            "cost": {**_plain(device.cost), "fp32": gemm_table(constants)},
            "error": {**_plain(device.errors), "fp32": kept},
            "provenance": {**_plain(device.provenance), "fp32": {"sources": ["neusight"], "devices": list(FITTED_ON)}},
        })  # fmt: skip


if __name__ == "__main__":
    main()
