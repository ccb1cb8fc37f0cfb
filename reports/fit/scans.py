"""Measured scans of recurrences -> shapes/data/scans.toml; half of the shapes are left out and judged on.

    python reports/fit/scans.py .../aiconfigurator_core/systems/data

What serves is vLLM's fused kernels, what trains SGLang's, which are fla's chunked ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fit.decode import sizes_of
from fit.tables import parquet_columns
from shapes.cost.scans import parts_of
from shapes.device import Device, load_device
from shapes.operators.types import Scan
from shapes.toml_table import DATA

Array = NDArray[np.float64]
#: The tables' folders of the devices that the model knows.
FOLDERS = {
    "h100-sxm": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "l40s": "l40s",
    "rtx-pro-6000-server": "rtx_pro_6000_server",
}
#: (use, form, kernel_source, framework)
KERNELS = (
    ("serving", "gated_delta", "chunk_gated_delta_rule_flashinfer", "vllm"),
    ("serving", "kda", "flashkda_fwd", "vllm"),
    ("training", "gated_delta", "chunk_gated_delta_rule", "sglang"),
    ("training", "kda", "chunk_kda", "sglang"),
)
#: Where fits start: launch, step, start and a row in us, share, TB/s, by how much more the cache gives, over that, the
#: share of the cache, and logits of ``whole`` and of q - 1.
STARTS = (
    (4.0, 3.0, 5.0, 0.1, 1.0, 2.5, 1.0, 0.5, 0.0, 0.6),
    (20.0, 3.0, 2.0, 0.2, 1.2, 0.8, 3.0, 0.5, -3.0, -0.5),
)
LOGARITHMS = 8
#: Logarithm of a row's time where none is solved.
NEVER = -30.0
FEWEST = 100
#: A table that something else ran beside: up to five times H100's time at the same sizes, which it is no slower than
#: elsewhere. H200 takes H100's constants.
DISTURBED = ("training", "gated_delta", "h200")


def read_scans(folder: Path, kernel: str, framework: str) -> Array:
    """Columns batch, tokens, heads, groups, state, head_dim, seconds of one kernel."""
    rows = set()
    for path in sorted(folder.glob(f"*/{framework}/*/*_perf.parquet")):
        columns = parquet_columns(path)
        if "head_k_dim" not in columns:
            continue
        names = ("batch_size", "seq_len", "num_v_heads", "num_k_heads", "head_k_dim", "head_v_dim", "latency")
        for source, phase, *sizes in zip(*(columns[name] for name in ("kernel_source", "phase", *names)), strict=True):
            if source == kernel and phase == "context":
                rows.add((*sizes[:-1], sizes[-1] * 1e-3))
    return np.array(sorted(rows), dtype=float).reshape(-1, 7)


NAMES = ("launch_s", "step_s", "start_s", "row_s", "share", "bandwidth_bytes_per_s", "cache_bytes_per_s", "cache_share")
NAMES += ("whole", "q")
UNITS = (1e-6, 1e-6, 1e-6, 1e-6, 1.0, 1e12, 1.0, 1.0)


def constants(x: Array) -> dict[str, float]:
    launch, step, start, row, share, bandwidth, more, cached = np.exp(x[:LOGARITHMS]) * UNITS
    whole, q = 1 / (1 + np.exp(-x[LOGARITHMS])), 1 + np.exp(x[LOGARITHMS + 1])
    values = (launch, step, start, row, share, bandwidth, bandwidth * (1 + more), cached, whole, q)
    return dict(zip(NAMES, values, strict=True))


def ratio(x: Array, rows: Array, form: str, training: bool, device: Device) -> Array:
    """Predicted over measured."""
    batch, tokens, heads, groups, state, head_dim, seconds = rows.T
    sizes = (batch, tokens, heads, groups, head_dim, state, 64)
    scan = Scan("", "forward", form, *sizes, training=training)  # type: ignore[arg-type] # columns
    found: Array = sum(parts_of(scan, constants(x) | sizes_of(device))) / seconds
    return found


def fit(rows: Array, form: str, training: bool, device: Device) -> Array:
    """Logarithms of the constants; no more bytes a second than the data sheet's."""

    def residuals(x: Array) -> Array:
        return np.log(ratio(x, rows, form, training, device))

    starts = [np.array([*np.log(one[:LOGARITHMS]), *one[LOGARITHMS:]]) for one in STARTS]
    most = np.full(len(NAMES), 12.0)
    # A cache holds no more than its size, and is twenty times as fast at the most.
    most[NAMES.index("cache_bytes_per_s")], most[NAMES.index("cache_share")] = np.log(19), 0.0
    least, row = np.full(len(NAMES), -12.0), NAMES.index("row_s")
    if not training:
        # Fused kernels solve nothing ahead of the walk.
        least[row], most[row] = NEVER - 1, NEVER

    def found() -> Array:
        tried = [np.minimum(one, most - 0.1) for one in starts]
        fits = [least_squares(residuals, one, loss="soft_l1", f_scale=0.1, bounds=(least, most)) for one in tried]
        best: Array = min(fits, key=lambda one: one.cost).x
        return best

    free, place = found(), NAMES.index("bandwidth_bytes_per_s")
    most[place] = np.log(device.memory.bandwidth_bytes_per_s / 1e12)
    return free if free[place] <= most[place] else found()


def halves(rows: Array) -> tuple[Array, Array]:
    """Rows of half of the shapes (batch, tokens, heads), and the others."""
    shapes, which = np.unique(rows[:, :3], axis=0, return_inverse=True)
    first = np.random.default_rng(27).random(len(shapes))[which] < 0.5
    return rows[first], rows[~first]


def main() -> None:
    data, lines = Path(sys.argv[1]), [HEAD]
    for use, form, kernel, framework in KERNELS:
        for device, folder in FOLDERS.items():
            rows = read_scans(data / folder, kernel, framework)
            if len(rows) < FEWEST or (use, form, device) == DISTURBED:
                continue
            own, training = load_device(device), use == "training"
            seen, unseen = halves(rows)
            off = np.abs(ratio(fit(seen, form, training, own), unseen, form, training, own) - 1)
            error, p95 = float(off.mean()), float(np.percentile(off, 95))
            c = constants(fit(rows, form, training, own))
            print(  # noqa: T201 # a script says how it went
                f"{use} {form} {device}: {len(rows)} rows, left out {error:.1%}, 95% within {p95:.1%}", flush=True
            )
            lines += [f"[{use}_{form}.{device}]", f"# {len(rows)} rows of {kernel} ({framework})"]
            c["row_s"] *= training
            lines += [f"{name} = {value:.4g}" for name, value in c.items()]
            lines += [f"error = {error:.3f}", f"error_p95 = {p95:.3f}", ""]
    (DATA / "scans.toml").write_text("\n".join(lines))


HEAD = """# Scans of recurrences, by use and form, and device: constants of shapes/cost/scans.py, and the mean and 95th
# percentile of their relative error on shapes left out. Written by
# reports/fit/scans.py on aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0), systems/data: kda and linear_attention.
"""


if __name__ == "__main__":
    main()
