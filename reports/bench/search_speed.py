"""What searches of over a hundred thousand candidates take, and predictions of single products.

    python reports/bench/search_speed.py

Processor seconds of this process and microseconds a candidate; the last column is how many closed-form predictions
would take as long, which does not depend on how fast the machine is.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import sizer
from shapes.cost.gemm import predict_gemm
from sizer.searching.space import Limits

CONFIGS = Path(__file__).parents[2] / "tests" / "data" / "configs"
#: All head dimensions and numbers of heads that kernels take: many candidates.
SHAPES: dict[str, Any] = {"head_dims": (64, 96, 128), "tp_ready": 1}
#: name -> keywords of ``sizer.search``
SEARCHES: dict[str, dict[str, object]] = {
    "whole models at 1.3e9 parameters": {"params": 1.3e9, "limits": Limits(0.3, step=1, aspect=(8, 800), **SHAPES)},
    "mixtures like Mixtral-8x7B": {
        "config": str(CONFIGS / "mixtral-8x7b.json"),
        "what": "model",
        "limits": Limits(0.25, step=64, aspect=(64, 256), **SHAPES),
    },
    "SwiGLU widths of one MLP": {"h": 4096, "d_ff": 62_500, "limits": Limits(0.8, step=1)},
}
PREDICTIONS = 1_000_000


def main() -> int:
    m, n, k = np.random.default_rng(0).integers(64, 16_384, (3, PREDICTIONS))
    predict_gemm("h100-sxm", m[:10], n[:10], k[:10])
    start = time.process_time()
    predict_gemm("h100-sxm", m, n, k)
    each = (time.process_time() - start) / PREDICTIONS
    sys.stdout.write(f"{PREDICTIONS:,} predictions  {each * PREDICTIONS:.2f} s\n")
    for name, keywords in SEARCHES.items():
        start = time.process_time()
        found = sizer.search(device="h100-sxm", **keywords)  # type: ignore[arg-type] # by name
        spent = time.process_time() - start
        sys.stdout.write(
            f"{name}: {found.considered:,} candidates  {spent:.2f} s  {spent / found.considered * 1e6:.0f} us each  "
            f"{spent / found.considered / each:.0f} predictions each\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
