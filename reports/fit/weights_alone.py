"""Products whose weights alone are quantised against the one published table of them: TensorRT-LLM 1.0's on A100.

    python reports/fit/weights_alone.py --tables .../aiconfigurator_core/systems/data

Nothing is fitted. The plugin is timed with more around it than bare products are: its smallest ones take longer by what
is taken off all of them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from tabulate import tabulate

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fit.tables import parquet_columns
from shapes.cost.gemm import ProductKernels, gemm_seconds
from shapes.device import load_device

TABLE = "a100_sxm/gemm/trtllm/1.0.0/gemm_perf.parquet"
#: Names of the table -> bytes an element of the weights, which have a scale a column.
WEIGHTS = {"int4_wo": 0.5, "int8_wo": 1.0}
#: Rows of A, up to and with; weights of a layer of a model of 7 billion parameters and more.
ROWS, LARGE = (16, 64, 256, 2**20), 2**24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, required=True)
    columns = {name: np.array(one) for name, one in parquet_columns(parser.parse_args().tables / TABLE).items()}
    kinds, seconds = columns["gemm_dtype"], 1e-3 * columns["latency"]
    bare, lines = seconds[kinds == "bfloat16"].min(), []
    for kind, weights in WEIGHTS.items():
        own = kinds == kind
        around = seconds[own].min() - bare
        m, n, k = (columns[name][own].astype(np.int64) for name in "mnk")
        by = ProductKernels(load_device("a100-sxm"), "bf16", weights=weights)
        off = gemm_seconds(np.array([m, n, k, np.ones_like(m)]), by) / (seconds[own] - around) - 1
        for least, most in zip((0, *ROWS), ROWS, strict=False):
            for large, what in ((True, "large"), (False, "small")):
                rows = (least < m) & (m <= most) & ((n * k >= LARGE) == large)
                figures = (f"{100 * one:.1f}%" for one in (np.abs(off[rows]).mean(), off[rows].mean()))
                lines.append((f"{kind}, {what}", f"{least + 1} to {most}", rows.sum(), *figures))
    sys.stdout.write(tabulate(lines, ["weights", "rows of A", "products", "MAPE", "bias"], tablefmt="github") + "\n")


if __name__ == "__main__":
    main()
