"""Measured kernels of sparse attention -> shapes/data/sparse.toml.

    python reports/fit/sparse.py --tables .../aiconfigurator_core/systems/data --write

Sources: NVIDIA's aiconfigurator-core, the ``sparse_attention`` tables of single kernels (glm5_mqa_logits, glm5_topk,
glm5_dsa_attn, dsv4_paged_mqa_logits). Held out are 30% of the shapes (sequences, queries, keys), drawn by their hash.
The forms are those of shapes/cost/sparse.py, which the fit calls. Ten seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fit.decode import BLACKWELL, sizes_of
from fit.tables import main
from shapes.cost.sparse import FORMS, Sizes
from shapes.device import load_device

Array = NDArray[np.float64]

#: Our device, its folder.
DEVICES = {"h100-sxm": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "b300": "b300_sxm"}
DEVICES |= {"gb200": "gb200", "gb300": "gb300"}


_RATES = {"launch_s": 3e-6, "flops_per_s": 8e14, "bandwidth_bytes_per_s": 3e12}
_CACHE = {"cache_bytes_per_s": 1e13, "cache_share": 0.7}
#: Where the fit of each form's constants starts.
START = {
    "index_scores": {**_RATES, **_CACHE, "prologue_keys": 100.0},
    "index_decode": {**_RATES, **_CACHE, "sequence_s": 1e-8},
    "top_k": {"launch_s": 3e-6, "bandwidth_bytes_per_s": 3e12, "choice_s": 3e-6, "key_s": 2e-10},
    "sparse_attention": {**_RATES, "prologue_keys": 100.0, "bandwidth_bytes_per_s": 2e13},
}


class Source(NamedTuple):
    """``files`` of a form's rows; ``sizes``: of a row."""

    files: str
    sizes: Callable[[Mapping[str, Any]], Sizes | None]


def _scores(row: Mapping[str, Any]) -> Sizes | None:
    b, q, before = row["batch_size"], row["isl"], row["step"]
    # GLM-5 has 32 heads; one query is a decode step's, which another kernel scores.
    return Sizes(b * q, before + (q + 1) / 2, 32, 128, b, before + q) if q > 1 else None


def _paged(row: Mapping[str, Any]) -> Sizes | None:
    b, q, before = row["batch_size"], row["isl"], row["step"]
    keys = (before + q) // 4
    # A decode step scores one query, or a few speculated ones, of each sequence.
    return Sizes(b * q, keys, 64, 128, b, keys) if q == 1 and keys else None


def _top_k(row: Mapping[str, Any]) -> Sizes | None:
    b, q, before = row["batch_size"], row["isl"], row["step"]
    return Sizes(b * q, before + (q + 1) / 2, 1, 2048, b, before + q) if row["score_mode"] == "flat" else None


def _attention(row: Mapping[str, Any]) -> Sizes | None:
    b, q = row["batch_size"], row["isl"]
    return Sizes(b * q, 2048, 64, 576 + 512, b, row["step"] + q)


SOURCES = {
    "index_scores": Source("sparse_attention/*/*/glm5_mqa_logits_module_perf.parquet", _scores),
    "index_decode": Source("sparse_attention/sglang/*/dsv4_paged_mqa_logits_module_perf.parquet", _paged),
    "top_k": Source("sparse_attention/*/*/glm5_topk_module_perf.parquet", _top_k),
    "sparse_attention": Source("sparse_attention/*/*/glm5_dsa_attn_module_perf.parquet", _attention),
}


def rows(tables: Path, folder: str, source: Source) -> tuple[list[Sizes], Array]:
    """Sizes and seconds of a form's rows, the median of equal ones."""
    import pyarrow.parquet as pq

    found: dict[Sizes, list[float]] = {}
    for path in sorted((tables / folder).glob(source.files)):
        for row in pq.read_table(path).to_pylist():
            sizes = source.sizes(row)
            if sizes is not None and row["latency"] > 0:
                found.setdefault(sizes, []).append(row["latency"] / 1e3)
    return list(found), np.array([float(np.median(each)) for each in found.values()])


def held_out(sizes: list[Sizes]) -> NDArray[np.bool_]:
    """30% of the shapes, by their hash."""
    return np.array([crc32(repr(one).encode()) % 10 < 3 for one in sizes])


def fit(name: str, sizes: list[Sizes], seconds: Array, device: Any) -> tuple[dict[str, float], dict[str, float]]:
    """A form's constants by 70% of the shapes and its errors on the others."""
    known = {"together": 2.0 if device.name in BLACKWELL else 1.0} if name == "sparse_attention" else {}
    first, table = dict(START[name]), Sizes(*map(np.array, zip(*sizes, strict=True)))
    if "flops_per_s" in first:
        first["flops_per_s"] *= known.get("together", 1.0)
    out = held_out(sizes)
    start = np.log(list(first.values()))

    def constants(logs: Array) -> dict[str, float]:
        return dict(zip(first, np.exp(logs).tolist(), strict=True)) | known

    def off(logs: Array) -> Array:
        found: Array = np.log(sum(FORMS[name](table, constants(logs) | sizes_of(device))) / seconds)
        return found

    # Nothing multiplies faster than the peak or moves faster than the memory, but from the cache, which keys that many
    # queries gather come from; no decode step's table is larger than it. No wait is negligible to the digit.
    sparse, bandwidth = name == "sparse_attention", device.memory.bandwidth_bytes_per_s
    limits = {"flops_per_s": device.peak("bf16" if sparse else "fp8"), "cache_bytes_per_s": 20 * bandwidth}
    limits |= {"cache_share": 1.0} | ({} if sparse else {"bandwidth_bytes_per_s": bandwidth})
    most = [np.log(limits.get(key, np.inf)) for key in first]
    least = [np.log(1e-6) if key == "launch_s" else -np.inf for key in first]
    start = np.minimum(start, most)
    best = least_squares(lambda logs: off(logs)[~out], start, bounds=(least, most), loss="soft_l1", f_scale=0.1)
    wrong = np.abs(np.expm1(off(best.x)[out]))
    errors = {"error": float(wrong.mean()), "error_p95": float(np.quantile(wrong, 0.95))}
    return constants(best.x), errors


def lines(tables: Path) -> Iterator[str]:
    for device, folder in DEVICES.items():
        for name, source in SOURCES.items():
            sizes, seconds = rows(tables, folder, source)
            if not sizes:
                continue
            found, errors = fit(name, sizes, seconds, load_device(device))
            yield f"\n[{name}.{device}]\n" + "".join(
                f"{key} = {value:.4g}\n" for key, value in (found | errors).items()
            )


HEADER = """# Kernels of sparse attention on the devices they were measured on; the forms are in shapes/cost/sparse.py.
# Written by reports/fit/sparse.py of NVIDIA's aiconfigurator-core 0.12 (systems/data, SGLang 0.5.14 and vLLM 0.24):
# error is the mean relative error on the 30% of the shapes that were left out, error_p95 its 95th percentile.
"""


if __name__ == "__main__":
    main(__doc__, "sparse.toml", HEADER, lines)
