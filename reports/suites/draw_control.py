"""Draw control.toml: 300 aligned shapes of NVIDIA's h200 data, spread over time, with every framework's figure.

    python reports/suites/draw_control.py

needs aiconfigurator-core and pyarrow (``pip install -e '.[fit]'``). The draw is seeded: running it again writes the
same file for the same data.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import aiconfigurator_core
import numpy as np
import pyarrow.parquet as pq

HERE = Path(__file__).parent
SHAPES = 300
SEED = 0
#: Under this a launch is most of the time, over it a sample takes too long for a suite of nine minutes.
LEAST_MS, MOST_MS = 0.02, 5.0
MULTIPLE = 64


def main() -> None:
    root = Path(aiconfigurator_core.__file__).parent / "systems" / "data" / "h200_sxm" / "gemm"
    times: dict[tuple[int, int, int], dict[str, float]] = defaultdict(dict)
    for path in sorted(root.glob("*/*/gemm_perf.parquet")):
        for row in pq.read_table(path).to_pylist():
            if row["gemm_dtype"] == "bfloat16":
                times[row["m"], row["n"], row["k"]][path.parent.parent.name] = float(row["latency"])
    frameworks = max(len(each) for each in times.values())
    usable = sorted(
        shape
        for shape, each in times.items()
        if len(each) == frameworks
        and all(size % MULTIPLE == 0 for size in shape)
        and LEAST_MS <= np.median(list(each.values())) <= MOST_MS
    )
    # Even over the logarithm of time: most of the table's shapes are short.
    logs = np.log([np.median(list(times[shape].values())) for shape in usable])
    edges = np.linspace(logs.min(), logs.max(), 31)[1:-1]
    bins = np.digitize(logs, edges)
    random = np.random.default_rng(SEED)
    queues = [list(random.permutation(np.flatnonzero(bins == number))) for number in range(30)]
    drawn: list[int] = []
    while len(drawn) < min(SHAPES, len(usable)):
        for queue in queues:
            if queue and len(drawn) < SHAPES:
                drawn.append(int(queue.pop()))
    chosen = [usable[index] for index in sorted(drawn)]
    lines = [
        "# Drawn by draw_control.py; control.reference.json holds NVIDIA's figures of these shapes.",
        'title = "300 aligned shapes of NVIDIA\'s own h200 data, to compare this harness with theirs"',
        "precision = 0.01",
        "time_s = 0.2",
        "",
        "[[sweep]]",
        'op = "gemm"',
        'label = "control"',
        "shapes = [",
        *(f"    {list(shape)}," for shape in chosen),
        "]",
    ]
    (HERE / "control.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    reference = [{"m": m, "n": n, "k": k, "milliseconds": times[m, n, k]} for m, n, k in chosen]
    text = "[\n" + ",\n".join(json.dumps(row) for row in reference) + "\n]\n"
    (HERE / "control.reference.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
