"""The sample of NVIDIA's tables that the tests judge the committed constants on: tests/data/products/<device>.csv.

python reports/bench/accuracy_extract.py --data .../aiconfigurator_core/systems/data
"""

from __future__ import annotations

import argparse
from importlib.metadata import version
from pathlib import Path

import numpy as np
import on_path  # noqa: F401  # reports/fit
from fit.run import read_published

from shapes.calibrate import held_out, products

OUT = Path(__file__).resolve().parents[2] / "tests" / "data" / "products"
DEVICES = {
    "a100_sxm": "a100-sxm",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200",
    "l40s": "l40s",
    "b200_sxm": "b200",
    "gb200": "gb200",
}
LARGE, SMALL = 250, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    for gpu, name in DEVICES.items():
        data = products(read_published(options.data / gpu), "bf16")
        hidden, random = held_out(data.n), np.random.default_rng(0)
        rows = np.concatenate(
            [
                random.choice(np.flatnonzero(hidden & part), count, replace=False)
                for part, count in ((data.large, LARGE), (~data.large, SMALL))
            ]
        )
        lines = [
            f"# Sampled from aiconfigurator-core {version('aiconfigurator-core')} (c) NVIDIA, Apache-2.0: median over "
            f"frameworks of systems/data/{gpu}/gemm,",
            "# bf16 latencies at n held out from the fit. By reports/bench/accuracy_extract.py",
            "m,n,k,dtype,seconds",
        ]
        for row in np.sort(rows):
            m, n, k = (int(getattr(data, axis)[row]) for axis in "mnk")
            lines.append(f"{m},{n},{k},bf16,{data.seconds[row]:.6g}")
        (OUT / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
