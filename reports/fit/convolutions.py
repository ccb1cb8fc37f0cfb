"""Measured convolutions of prompts -> shapes/data/convolutions.toml.

    python reports/fit/convolutions.py --tables .../aiconfigurator_core/systems/data --write

Sources: NVIDIA's aiconfigurator-core, mamba2_perf of TensorRT-LLM: causal_conv1d_fn, which Mamba-2's, delta nets' and
LFM2's layers run. The tables time no scan of Mamba-2. Held out are 30% of the shapes (sequences, tokens), drawn by
their hash. The form is `convolution_parts` of shapes/cost/scans.py. Twenty seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fit.decode import FOLDERS, sizes_of
from fit.tables import main, parquet_columns
from shapes.cost.scans import convolution_parts
from shapes.device import Device, load_device
from shapes.operators.types import Convolution

Array = NDArray[np.float64]
SIZES = ("batch_size", "seq_len", "nheads", "head_dim", "n_groups", "d_state")


def rows(tables: Path, device: str) -> Array:
    """Sequences, tokens of each, channels and median seconds of each shape, as columns."""
    found: dict[tuple[int, int, int], list[float]] = {}
    for path in sorted((tables / FOLDERS[device]).glob("*/trtllm/*/mamba2_perf.parquet")):
        columns = parquet_columns(path)
        named = (columns[name] for name in ("kernel_source", "latency", *SIZES))
        for source, ms, batch, tokens, heads, head_dim, groups, state in zip(*named, strict=True):
            if source == "causal_conv1d_fn" and ms > 0:
                key = int(batch), int(tokens), int(heads * head_dim + 2 * groups * state)
                found.setdefault(key, []).append(ms * 1e-3)
    return np.array([(*key, np.median(found[key])) for key in sorted(found)]).reshape(-1, 4).T


def predicted(sizes: Array, c: dict[str, float], device: Device) -> Array:
    batch, tokens, channels = sizes[:3]
    moved, count = 2 * batch * tokens * channels, batch * channels
    one: Any = Convolution("", "forward", "conv", moved, moved, rows=count, tokens=tokens)  # type: ignore[arg-type] # columns
    found: Array = sum(convolution_parts(one, c | sizes_of(device)))
    return found


def fit(sizes: Array, device: Device) -> dict[str, float]:
    bandwidth = device.memory.bandwidth_bytes_per_s
    # (start, least, most): nothing moves faster than the data sheet says, but from the cache.
    limits = {
        "launch_s": (4e-6, 1e-7, 1e-4),
        "step_s": (2e-8, 1e-10, 1e-6),
        "start_s": (8e-8, 1e-10, 1e-6),
        "bandwidth_bytes_per_s": (0.7 * bandwidth, 0.1 * bandwidth, bandwidth),
        "cache_bytes_per_s": (2 * bandwidth, 0.5 * bandwidth, 20 * bandwidth),
        "cache_share": (1.0, 0.05, 4.0),
        "q": (2.0, 1.05, 5.0),
    }
    start, least, most = np.log(list(limits.values())).T

    def constants(logs: Array) -> dict[str, float]:
        return dict(zip(limits, np.exp(logs).tolist(), strict=True))

    def off(logs: Array) -> Any:
        return np.log(predicted(sizes, constants(logs), device) / sizes[3])

    return constants(least_squares(off, start, bounds=(least, most), loss="soft_l1", f_scale=0.1).x)


def lines(tables: Path) -> Iterator[str]:
    for name in FOLDERS:
        sizes, device = rows(tables, name), load_device(name)
        if not sizes.size:
            continue
        out = np.array([crc32(repr((int(batch), int(tokens))).encode()) % 10 < 3 for batch, tokens in sizes[:2].T])
        off = np.abs(predicted(sizes, fit(sizes[:, ~out], device), device) / sizes[3] - 1)[out]
        sys.stderr.write(f"{name}: {len(out)} {off.mean():.1%} {np.quantile(off, 0.95):.1%}\n")
        errors = {"error": float(off.mean()), "error_p95": float(np.quantile(off, 0.95))}
        yield f"\n[convolution.{name}]\n# {len(out)} shapes\n" + "".join(
            f"{key} = {value:.4g}\n" for key, value in (fit(sizes, device) | errors).items()
        )


HEADER = """# Convolutions of prompts on devices they were timed on; the form is in shapes/cost/scans.py. Written by
# reports/fit/convolutions.py of NVIDIA's aiconfigurator-core 0.12 (systems/data): error is the mean relative error on
# 30% of the shapes, which were left out, error_p95 its 95th percentile.
"""


if __name__ == "__main__":
    main(__doc__, "convolutions.toml", HEADER, lines)
