"""Constants of fp32 products on plain cores: ``[cost.fp32]`` of A100, V100 and T4; others borrow them by data sheets.

    python reports/fit/plain_cores.py --data FOLDER [--write]        # of gemm_fp32.csv.gz

Fitted on each architecture's rows with 30% of the n values held out whole. What A100's constants, carried by the data
sheets, are off by on V100 and T4 is printed too: that is what a device without rows of its own has to expect. Under
half a minute.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fit.evidence import NEUSIGHT_FELT_S, Array, Measured, grouped, read_rows
from fit.gemm import TILES, first_guess
from fit.written import gemm_table
from shapes.calibrate import bounds, held_out, write_tables
from shapes.cost.constants import NUMBERS as OF_PRODUCTS
from shapes.cost.constants import PLAIN_CORES, GemmConstants, carried, origin_of
from shapes.cost.corrections import moved_bytes
from shapes.cost.gemm import aligned_seconds
from shapes.device import load_device
from shapes.frozen import plain

#: Whose rows give whose constants.
FITTED_ON = {PLAIN_CORES.usual: ("a100-pcie", "a100-pcie-40")} | {name: (name,) for name in PLAIN_CORES.of.values()}
#: Kernels without matrix units have small tiles too.
SMALL_TILES = ((32, 32), (32, 64), (64, 32), (32, 128), (128, 32), *TILES)
#: Relative residual from which a product pulls less than in proportion.
ROBUST_SCALE = 0.1
#: What is not fitted: the share of the peak is stated (`carried`), and of a launch these rows, whose host takes longer,
#: tell nothing.
STATED = ("flops_per_s", "throttle", "throttle_s", "throttle_width", "launch_s")
#: What is. A library splits few tiles along a long k, which on matrix units tables of kernel choice tell.
NUMBERS = (*(name for name in OF_PRODUCTS if name not in STATED), "split_steps")
#: A card of 70 W cannot feed its cores: by how much and, in these single calls, from which duration on is fitted.
SHORT_OF_POWER = {"t4": ("throttle", "throttle_s")}


def seconds(group: Measured, constants: GemmConstants, kin: str) -> Array:
    """What the group's harness would report by ``kin``'s constants."""
    own, c = load_device(group.device), constants
    if kin != group.device:
        c = carried(c, own, load_device(kin), "fp32", origin_of(own, load_device(kin), "fp32", "fp32"))
    dims = np.array([group.m, group.n, group.k, group.batch], dtype=float)
    return aligned_seconds(dims, moved_bytes(dims, 4, 4), c) - c.launch_s + np.array(group.protocol.host_s[0])


def fit(groups: list[Measured], kin: str, seed: int = 0) -> GemmConstants:
    """Robust least squares on log time over the groups' n that are not held out."""
    from scipy.optimize import least_squares

    device = load_device(kin)
    names = (*NUMBERS, *SHORT_OF_POWER.get(kin, ()))
    guess = replace(
        first_guess(device, "fp32", SMALL_TILES),
        flops_per_s=PLAIN_CORES.reached * device.peak("fp32"),
        load_steps=20.0,
        prologue_steps=5.0,
        split_steps=2000.0,
        throttle=0.5 if kin in SHORT_OF_POWER else 0.0,
        throttle_s=1e-3,
    )
    limits = {**bounds(device, "fp32"), "split_steps": (64.0, 65536.0), "throttle": (0.1, 2.0)}
    low, high = np.log([limits[name] for name in names]).T
    seen = [~held_out(group.n.astype(float), seed) for group in groups]

    def constants(theta: Array) -> GemmConstants:
        return replace(guess, **dict(zip(names, np.exp(theta).tolist(), strict=True)))

    def residuals(theta: Array) -> Array:
        c = constants(theta)
        pairs = zip(groups, seen, strict=True)
        return np.concatenate([np.log(seconds(g, c, kin) / g.seconds)[rows] for g, rows in pairs])

    start = np.clip(np.log([getattr(guess, name) for name in names]), low + 1e-6, high - 1e-6)
    found = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=ROBUST_SCALE, max_nfev=60)
    return constants(found.x)


def errors(groups: list[Measured], constants: GemmConstants, kin: str) -> dict[str, float]:
    """Mean and 95th percentile on held-out n, of large products and of small ones."""
    off: dict[str, list[Array]] = {"large": [], "small": []}
    for group in groups:
        size, unseen = np.abs(seconds(group, constants, kin) / group.seconds - 1), held_out(group.n.astype(float), 0)
        large = np.minimum(np.minimum(group.m, group.n), group.k) >= 512
        off["large"].append(size[unseen & large])
        off["small"].append(size[unseen & ~large])
    found: dict[str, float] = {}
    for name, parts in off.items():
        every = np.concatenate(parts)
        found |= {name: round(float(every.mean()), 4), f"{name}_p95": round(float(np.quantile(every, 0.95)), 4)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help="write the constants to the devices' files")
    options = parser.parse_args()
    path = options.data / "gemm_fp32.csv.gz"
    every = grouped(read_rows(path), str(path))
    for name, devices in FITTED_ON.items():
        groups = [group for group in every if group.device in devices]
        constants, device = fit(groups, name), load_device(name)
        means = errors(groups, constants, name)
        print(name, means)  # noqa: T201  # a script whose output is its purpose
        if name == PLAIN_CORES.usual:
            for other in PLAIN_CORES.of.values():
                rows = [group for group in every if group.device == other]
                print(f"{other} by {name}'s", errors(rows, constants, name))  # noqa: T201  # as above
        if constants.throttle:
            print(f"{name} felt from {constants.throttle_s:.2g} s on, taken {NEUSIGHT_FELT_S:g}")  # noqa: T201
            constants = replace(constants, throttle_s=PLAIN_CORES.sustained_s)
        if options.write:
            source = {"sources": ["neusight"], "devices": list(devices)}
            write_tables(
                Path(device.origin),
                {
                    "cost": {**plain(device.cost), "fp32": gemm_table(constants)},
                    "error": {**plain(device.errors), "fp32": means},
                    "provenance": {**plain(device.provenance), "fp32": source},
                },
            )


if __name__ == "__main__":
    main()
