"""Measured casts to fp8 by a scale that is known -> shapes/data/casts.toml.

    python reports/fit/casts.py --tables .../aiconfigurator_core/systems/data --write

Sources: NVIDIA's aiconfigurator-core, scale_matrix_perf of TensorRT-LLM, replayed from CUDA graphs. (computescale_perf
is of a whole dynamic cast in one framework, a difference of timings in another and zero in the third: of no use.) Held
out are 30% of the widths k. The form is `state_parts` of shapes/cost/scans.py. Ten seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fit.decode import FOLDERS
from fit.states import Array, fit, predicted
from fit.tables import main, parquet_columns
from shapes.device import load_device


def rows(tables: Path, device: str) -> Array:
    """Rows, widths and seconds of each cast, as columns."""
    found: dict[tuple[int, int], list[float]] = {}
    for path in sorted((tables / FOLDERS[device]).glob("quantize/trtllm/*/scale_matrix_perf.parquet")):
        columns = parquet_columns(path)
        for m, k, ms in zip(*(columns[name] for name in ("m", "k", "latency")), strict=True):
            if ms > 0:
                found.setdefault((int(m), int(k)), []).append(ms * 1e-3)
    return np.array([(*key, np.median(found[key])) for key in sorted(found)]).reshape(-1, 3).T


def lines(tables: Path) -> Iterator[str]:
    for name in FOLDERS:
        (m, k, seconds), device = rows(tables, name), load_device(name)
        if not m.size:
            continue
        out = np.array([crc32(repr(int(one)).encode()) % 10 < 3 for one in k])
        moved = 3 * m * k
        off = np.abs(predicted(moved, fit(moved, seconds, device, out), device) / seconds - 1)[out]
        sys.stderr.write(f"cast {name}: {len(out)} {off.mean():.1%} {np.quantile(off, 0.95):.1%}\n")
        errors = {"error": float(off.mean()), "error_p95": float(np.quantile(off, 0.95))}
        whole = fit(moved, seconds, device, np.zeros(len(out), dtype=bool))
        yield f"\n[cast.{name}]\n# {len(out)} shapes\n" + "".join(
            f"{key} = {value:.4g}\n" for key, value in (whole | errors).items()
        )


HEADER = """# Static casts to fp8 on devices they were timed on; the form is in shapes/cost/scans.py. Written by
# reports/fit/casts.py of NVIDIA's aiconfigurator-core 0.12 (systems/data): error is the mean relative error on 30% of
# the widths, which were left out, error_p95 its 95th percentile.
"""


if __name__ == "__main__":
    main(__doc__, "casts.toml", HEADER, lines)
