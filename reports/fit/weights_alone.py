"""Products whose weights alone are quantised against what is published of them: TensorRT-LLM 1.0's on A100, and Marlin.

    python reports/fit/weights_alone.py --tables .../aiconfigurator_core/systems/data

How well such kernels hide what they fetch (3; between 2.5 and 6 all the same) was chosen on a quarter of the table's
(n, k), which are left out here. The plugin is timed with more around it than bare products are: its smallest ones take
longer by what is taken off all of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

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

#: Rows of A -> milliseconds, to 0.01, of Marlin's bench.py for the four products of a layer of Llama 13B, in groups of
#: 128: vllm-project/vllm, pull request 2497 (January 2024). Its device is not named; its 16-bit products are an A100's.
MARLIN = {1: 0.14, 8: 0.14, 16: 0.14, 32: 0.18, 64: 0.29, 128: 0.57, 256: 1.13, 512: 2.27, 1024: 4.55}
LLAMA_13B = ((15360, 5120), (5120, 5120), (27648, 5120), (5120, 13824))


def marlin() -> Iterator[tuple[int, float, str]]:
    """Rows of A, milliseconds published, predicted over them less one."""
    by = ProductKernels(load_device("a100-sxm"), "fp16", weights=(4 + 16 / 128) / 8)
    for rows, published in MARLIN.items():
        priced = 1e3 * gemm_seconds(np.array([(rows, n, k, 1) for n, k in LLAMA_13B]).T, by).sum()
        yield rows, published, f"{100 * (priced / published - 1):+.0f}%"


def chosen_on(n: int, k: int) -> bool:
    return crc32(f"{n} {k}".encode()) % 4 == 0


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
        judged = np.array([not chosen_on(*pair) for pair in zip(n, k, strict=True)])
        for least, most in zip((0, *ROWS), ROWS, strict=False):
            for large, what in ((True, "large"), (False, "small")):
                rows = judged & (least < m) & (m <= most) & ((n * k >= LARGE) == large)
                figures = (f"{100 * one:.1f}%" for one in (np.abs(off[rows]).mean(), off[rows].mean()))
                lines.append((f"{kind}, {what}", f"{least + 1} to {most}", rows.sum(), *figures))
    sys.stdout.write(tabulate(lines, ["weights", "rows of A", "products", "MAPE", "bias"], tablefmt="github") + "\n\n")
    sys.stdout.write(tabulate(marlin(), ["rows of A", "Marlin, ms", "priced"], tablefmt="github") + "\n")


if __name__ == "__main__":
    main()
