"""What a residual by (m, n) would be worth where both are the tables': a trial, reported in accuracy.md, not shipped.

    python reports/bench/residual_by_cell.py --data .../aiconfigurator_core/systems/data

A cell's residual is the mean logarithm of measured over predicted seconds on 70% of the k values, drawn towards 0; it
is judged on the others. *within room*: no larger than half of what a tile more or less of m or n leaves, so that growth
saves nothing; without it growth from a table's cell to a size beside it may.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import on_path  # noqa: F401  # reports/fit
from accuracy import FITTED, Case, load
from accuracy_measures import Array, mape, regret
from tabulate import tabulate

from shapes.calibrate.hold_out import held_out
from shapes.cost import predict_gemm

#: Products by which a cell's mean is drawn towards 0; a tile; draws of the held-out k.
SHRINKAGE, TILE, SEEDS = 3, 256, 3
#: What a tile more may save at the most, in log units.
ALLOWED = 0.0085


def row(case: Case) -> list[str]:
    data, predicted = case.data[case.data.large], case.predicted[case.data.large]
    m, n, k = (getattr(data, axis).astype(np.int64) for axis in "mnk")
    cells = np.unique(m * 1_000_000 + n, return_inverse=True)[1]
    grown = [predict_gemm(case.device, m + dm, n + dn, k) for dm, dn in ((TILE, 0), (0, TILE))]
    shrunk = [predict_gemm(case.device, m - dm, n - dn, k) for dm, dn in ((TILE, 0), (0, TILE))]
    above = np.log(np.minimum(*grown) / predicted) + ALLOWED
    below = np.log(predicted / np.maximum(*shrunk)) + ALLOWED
    figures = []
    for seed in range(SEEDS):
        hidden = held_out(data.k, seed)
        residual = _residual(np.log(data.seconds / predicted)[~hidden], cells[~hidden], int(cells.max()) + 1)[cells]
        free, bound = (predicted * np.exp(one) for one in (residual, np.clip(residual, -below / 2, above / 2)))
        figures.append([
            *(mape(one[hidden], data.seconds[hidden]) for one in (predicted, free, bound)),
            *(regret(data[hidden], one[hidden], "n") for one in (predicted, free, bound)),
            float((np.minimum(*grown) < (1 - 0.01) * free).mean()),
        ])  # fmt: skip
    return [case.name, *(f"{100 * value:.1f}%" for value in np.mean(figures, axis=0))]


def _residual(off: Array, cells: np.ndarray, count: int) -> Array:
    many = np.bincount(cells, minlength=count)
    residual: Array = np.bincount(cells, off, minlength=count) / (many + SHRINKAGE)
    return residual


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    rows = [row(load(options.data / gpu, name)) for gpu, name in FITTED.items()]
    headers = ["device", "unseen k: without", "by cell", "within room", "regret over n: without", "by cell",
               "within room", "by cell: a tile more saves over 1%"]  # fmt: skip
    print(tabulate(rows, headers, tablefmt="github"))  # noqa: T201  # a script whose output is its purpose


if __name__ == "__main__":
    main()
