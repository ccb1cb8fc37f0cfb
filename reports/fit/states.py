"""Measured decode steps of recurrences -> shapes/data/states.toml.

    python reports/fit/states.py --tables .../aiconfigurator_core/systems/data --write

Sources: NVIDIA's aiconfigurator-core, gdn_perf and kda_perf: vLLM's updates of the state and of the convolution's
window, which are one operator here. Held out are 30% of the shapes (sequences, heads), drawn by their hash. The form is
`state_parts` of shapes/cost/scans.py. Ten seconds.
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
from shapes.cost.scans import state_parts
from shapes.device import Device, load_device
from shapes.operators.types import StateUpdate

Array = NDArray[np.float64]
#: Form -> file; file -> the kernels that update the state; the convolution's is one.
FILES = {"state_gated_delta": "gdn_perf", "state_kda": "kda_perf"}
SOURCES = {
    "gdn_perf": ("fused_recurrent_gated_delta_rule_packed_decode",),
    "kda_perf": ("fused_recurrent_kda_packed_decode",),
}
CONVOLUTION = "causal_conv1d_update"
#: Frameworks of each device, the first that has rows.
FRAMEWORKS = ("vllm", "sglang", "trtllm")
OTHER = {"a100-sxm": ("fused_recurrent_gated_delta_rule",)}


def rows(tables: Path, device: str, file: str) -> dict[tuple[int, ...], tuple[float, float]]:
    """Bytes that both kernels read and write of a shape, and their seconds."""
    kernels = OTHER.get(device, SOURCES[file])
    for framework in FRAMEWORKS:
        states: dict[tuple[int, ...], list[float]] = {}
        convolutions: dict[tuple[int, ...], list[float]] = {}
        widths: dict[tuple[int, ...], int] = {}
        for path in sorted((tables / FOLDERS[device]).glob(f"*/{framework}/*/{file}.parquet")):
            columns = parquet_columns(path)
            names = ("batch_size", "num_v_heads", "num_k_heads", "head_k_dim", "head_v_dim", "d_conv")
            named = (columns[name] for name in ("kernel_source", "phase", "latency", *names))
            for source, phase, ms, *sizes, conv in zip(*named, strict=True):
                key = tuple(map(int, sizes))
                if phase == "generation" and source in (*kernels, CONVOLUTION) and ms > 0:
                    (convolutions if source == CONVOLUTION else states).setdefault(key, []).append(ms * 1e-3)
                    widths[key] = int(conv)
        both = states.keys() & convolutions.keys()
        if both:
            return {
                key: (_bytes(key, widths[key]), float(np.median(states[key]) + np.median(convolutions[key])))
                for key in sorted(both)
            }
    return {}


def _bytes(key: tuple[int, ...], convolution: int) -> float:
    """The state in fp32 and the convolution's window in 16 bits, read and written."""
    batch, heads, groups, state, head_dim = key
    return (
        2.0 * batch * (4 * heads * state * head_dim + 2 * (convolution - 1) * (heads * head_dim + 2 * groups * state))
    )


def predicted(moved: Array, c: dict[str, float], device: Device) -> Array:
    one: Any = StateUpdate("", "forward", "gated_delta", moved / 2, moved / 2)  # type: ignore[arg-type] # columns
    found: Array = sum(state_parts(one, c | sizes_of(device)))
    return found


def fit(moved: Array, seconds: Array, device: Device, out: NDArray[np.bool_]) -> dict[str, float]:
    bandwidth = device.memory.bandwidth_bytes_per_s
    # (start, least, most): nothing moves faster than the data sheet says, but from the cache.
    limits = {
        "launch_s": (5e-6, 1e-7, 1e-4),
        "bandwidth_bytes_per_s": (0.7 * bandwidth, 0.1 * bandwidth, bandwidth),
        "cache_bytes_per_s": (1.5 * bandwidth, 0.5 * bandwidth, 20 * bandwidth),
        "cache_share": (0.5, 0.05, 2.0),
        # How sharply what a cache holds of repeated steps ends.
        "cache_power": (4.0, 2.0, 30.0),
    }
    start, least, most = np.log(list(limits.values())).T

    def constants(logs: Array) -> dict[str, float]:
        return dict(zip(limits, np.exp(logs).tolist(), strict=True))

    def off(logs: Array) -> Any:
        return np.log(predicted(moved[~out], constants(logs), device) / seconds[~out])

    return constants(least_squares(off, start, bounds=(least, most), loss="soft_l1", f_scale=0.1).x)


def lines(tables: Path) -> Iterator[str]:
    for form, file in FILES.items():
        for name in FOLDERS:
            found, device = rows(tables, name, file), load_device(name)
            if not found:
                continue
            moved, seconds = np.array(list(found.values())).T
            out = np.array([crc32(repr(key[:2]).encode()) % 10 < 3 for key in found])
            c = fit(moved, seconds, device, out)
            off = np.abs(predicted(moved, c, device) / seconds - 1)[out]
            sys.stderr.write(f"{form} {name}: {len(out)} {off.mean():.1%} {np.quantile(off, 0.95):.1%}\n")
            errors = {"error": float(off.mean()), "error_p95": float(np.quantile(off, 0.95))}
            yield f"\n[{form}.{name}]\n# {len(out)} shapes\n" + "".join(
                f"{key} = {value:.4g}\n" for key, value in (c | errors).items()
            )


HEADER = """# Decode steps of recurrences on devices they were timed on; the form is in shapes/cost/scans.py. Written by
# reports/fit/states.py of NVIDIA's aiconfigurator-core 0.12 (systems/data): error is the mean relative error on 30% of
# the shapes, which were left out, error_p95 its 95th percentile.
"""


if __name__ == "__main__":
    main(__doc__, "states.toml", HEADER, lines)
