"""Measured attention of decode steps -> shapes/data/decode.toml.

    python reports/fit/decode.py --tables .../aiconfigurator_core/systems/data --write

Sources: NVIDIA's aiconfigurator-core, generation_attention and generation_mla, of each device the kernel that serving
software runs there. Held out are 30% of the shapes (heads, key heads, head dimension, requests), drawn by their hash.
The form is that of shapes/cost/decode.py, which the fit calls. Three minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fit.tables import main, parquet_columns
from shapes.cost.decode import cached_parts
from shapes.device import Device, load_device
from shapes.operators.types import CachedAttention

Array = NDArray[np.float64]
#: Devices' folders in the tables.
FOLDERS = {"a100-sxm": "a100_sxm", "h100-sxm": "h100_sxm", "h200": "h200_sxm", "l40s": "l40s"}
FOLDERS |= {"b200": "b200_sxm", "b300": "b300_sxm", "gb200": "gb200", "gb300": "gb300"}
FOLDERS |= {"rtx-pro-6000-server": "rtx_pro_6000_server", "b60": "b60"}
_FA2_A100 = _XPU = ("vllm", "vllm_flash_attn")
_TRTLLM_DECODE = ("vllm", "vllm_flashinfer_trtllmdecode")
_FA3, _FA2, _FLASHINFER = ("vllm", "vllm_flash_attn_fa3"), ("vllm", "vllm_flash_attn_fa2"), "vllm_flashinfer_fidecode"
BLACKWELL = ("b200", "b300", "gb200", "gb300")
HOPPER, WORKSTATION = ("h100-sxm", "h200"), ("l40s", "rtx-pro-6000-server")
#: Form -> device -> (framework, kernel_source).
KERNELS: dict[str, dict[str, tuple[str, str]]] = {
    "decode_bf16": {
        **dict.fromkeys(HOPPER, _FA3),
        **dict.fromkeys(BLACKWELL, _TRTLLM_DECODE),
        **dict.fromkeys(WORKSTATION, _FA2),
        "a100-sxm": _FA2_A100,
        "b60": _XPU,
    },
    "decode_fp8": {
        **dict.fromkeys(HOPPER, _FA3),
        **dict.fromkeys(BLACKWELL, _TRTLLM_DECODE),
        **dict.fromkeys(WORKSTATION, ("vllm", _FLASHINFER)),
        "b60": _XPU,
    },
    "latent_decode_bf16": {
        **dict.fromkeys(HOPPER, ("sglang", "flash_attention")),
        **dict.fromkeys(BLACKWELL, ("sglang", "trtllm_mla")),
        **dict.fromkeys(WORKSTATION, ("sglang", "triton")),
        "a100-sxm": ("trtllm", "default"),
    },
    # On Hopper SGLang's flash_attention takes six times as long as with a cache of 16 bits: fp8 runs in another.
    "latent_decode_fp8": {
        **dict.fromkeys(BLACKWELL, ("sglang", "trtllm_mla")),
        **dict.fromkeys((*HOPPER, "rtx-pro-6000-server"), ("trtllm", "default")),
    },
}
#: Kernels that do not always share keys among query heads; Intel's of the same name do.
APART = (_FA2, _FA2_A100)
#: Devices whose rows the host's jitter doubles here and there: a row is its fastest release's, as of experts.
JITTERY = ("b60",)
#: Where fits start; what is not here follows the device.
START = {
    "launch_s": 1e-5,
    "split_keys": 128.0,
    "block_s": 3e-6,
    "block_power": 0.5,
    "latency_s": 2e-6,
    "latency_keys": 4096.0,
    "cache_share": 0.6,
    "cache_power": 4.0,
    "alone": 1.1,
    "wide_power": 0.5,
    "q": 2.0,
}
#: Of kernels that do not always share keys: what bringing queries to their key head takes where they do.
GATHER = {"gather_s": 5e-6}
#: Query heads of a table that run another kernel than the others, and are left out: a single one that of plain
#: attention (SGLang's decode_attention_fwd_normal), 128 one of their own, up to four times as fast (TensorRT-LLM's),
#: which can have no price of its own where growth is to save nothing.
APART_HEADS = {("latent_decode_bf16", name): 1 for name in WORKSTATION} | {("latent_decode_fp8", WORKSTATION[1]): 128}
#: Rows of queries that a block may take: Triton's takes 16 (SGLang's decode_attention.py, BLOCK_H).
ROWS = (16.0, 64.0, 128.0)
#: What rows of a table differ in.
SIZES = ("batch", "heads", "kv_heads", "kv_len", "head_dim", "v_head_dim", "windowed")
#: MLA's widths in the tables: DeepSeek's.
LATENT, ROTARY = 512, 64


def rows(tables: Path, form: str, device: str) -> dict[CachedAttention, float]:
    """Operators and their seconds: the median over releases, of JITTERY devices the least."""
    framework, kernel = KERNELS[form][device]
    latent, kv = form.startswith("latent"), form.rpartition("_")[2]
    name = "generation_mla" if latent else "generation_attention"
    found: dict[CachedAttention, list[float]] = {}
    for path in sorted((tables / FOLDERS[device]).glob(f"*/{framework}/*/{name}_perf.parquet")):
        columns = parquet_columns(path)
        many = len(columns["latency"])
        key_heads, dims, windows = (
            columns.get(key, [0] * many) for key in ("num_key_value_heads", "head_dim", "window_size")
        )
        named = (columns[key] for key in ("kernel_source", "kv_cache_dtype", "batch_size", "num_heads", "isl", "step"))
        for source, kept, b, heads, isl, step, own, d, window, ms in zip(
            *named, key_heads, dims, windows, columns["latency"], strict=True
        ):
            if heads == APART_HEADS.get((form, device)):
                continue
            if source != kernel or kept != {"bf16": "bfloat16", "fp8": "fp8"}[kv] or ms <= 0:
                continue
            keys = min(isl + step, window or isl + step)
            shared, d_k, d_v = (1, LATENT + ROTARY, LATENT) if latent else (own or heads, d, d)
            one = CachedAttention("", b, heads, shared, 1, keys, d_k, d_v, latent, kv_dtype=kv, windowed=bool(window))
            found.setdefault(one, []).append(ms * 1e-3)
    of_releases = min if device in JITTERY else np.median
    return {one: float(of_releases(each)) for one, each in found.items()}


def held_out(listed: list[CachedAttention]) -> NDArray[np.bool_]:
    """30% of the shapes, by their hash."""
    keys = (f"{one.heads} {one.kv_heads} {one.head_dim} {one.batch}" for one in listed)
    return np.array([crc32(key.encode()) % 10 < 3 for key in keys])


def fit(
    found: dict[CachedAttention, float], device: Device, apart: bool, out: NDArray[np.bool_]
) -> tuple[dict[str, float], Array]:
    """Constants by the rows that are not ``out``, and predicted over measured, less 1, of all rows."""
    tried = (_fit(found, device, {"shares_always": float(not apart), "rows": rows}, out) for rows in ROWS)
    return min(tried, key=lambda one: float(np.abs(one[1][~out]).mean()))


def _fit(
    found: dict[CachedAttention, float], device: Device, fixed: dict[str, float], out: NDArray[np.bool_]
) -> tuple[dict[str, float], Array]:
    sizes: dict[str, Any] = {name: np.array([getattr(one, name) for one in found]) for name in SIZES}
    table = replace(next(iter(found)), **sizes)
    seconds, peak = np.array(list(found.values())), device.peak("bf16")
    bandwidth = device.memory.bandwidth_bytes_per_s
    start = (START if fixed["shares_always"] else START | GATHER) | {
        "bandwidth_bytes_per_s": 0.8 * bandwidth,
        "cache_bytes_per_s": 2 * bandwidth,
        "flops_per_s": 0.6 * peak,
    }
    # Nothing moves or multiplies faster than the data sheet says, but from the cache.
    bounds = {key: (1e-3 * value, 1e3 * value) for key, value in start.items()} | {
        "launch_s": (1e-6, 1e-4),
        "bandwidth_bytes_per_s": (0.2 * bandwidth, bandwidth),
        "cache_bytes_per_s": (bandwidth, 20 * bandwidth),
        "flops_per_s": (0.01 * peak, peak),
        "block_power": (0.01, 1.0),
        # Some kernels split no sequence: a block walks all of its keys.
        "split_keys": (16.0, 2.0**20),
        "cache_power": (2.0, 30.0),
        "cache_share": (0.1, 1.0),
        "alone": (0.5, 8.0),
        "wide_power": (0.001, 4.0),
        "q": (1.0, 10.0),
    }

    def constants(logs: Array) -> dict[str, float]:
        return dict(zip(start, np.exp(logs).tolist(), strict=True)) | fixed

    def off(logs: Array) -> Array:
        parts = cached_parts(table, constants(logs) | sizes_of(device))
        ratio: Array = np.log(sum(parts) / seconds)
        return ratio

    limits = np.log([bounds[key] for key in start]).T
    first = np.log(list(start.values()))
    best = least_squares(lambda logs: off(logs)[~out], first, bounds=limits, loss="soft_l1", f_scale=0.1).x
    return constants(best), np.expm1(off(best))


def sizes_of(device: Device) -> dict[str, float]:
    """What forms ask of a device besides their constants."""
    return {"units": device.compute.units, "l2_bytes": device.memory.l2_bytes}


def lines(tables: Path) -> Iterator[str]:
    for form, devices in KERNELS.items():
        for name, kernel in devices.items():
            found, device = rows(tables, form, name), load_device(name)
            out = held_out(list(found))
            found_constants, wrong = fit(found, device, kernel in APART and device.vendor == "nvidia", out)
            off = np.abs(wrong[out])
            sys.stderr.write(f"{form} {name}: {off.mean():.1%} {np.quantile(off, 0.95):.1%} {wrong[out].mean():+.1%}\n")
            errors = {"error": float(off.mean()), "error_p95": float(np.quantile(off, 0.95))}
            yield f"\n[{form}.{name}]\n# {len(found)} rows of {kernel[1]} ({kernel[0]})\n" + "".join(
                f"{key} = {value:.4g}\n" for key, value in (found_constants | errors).items()
            )


HEADER = """# Attention of decode steps on the devices it was measured on; the form is in shapes/cost/decode.py. Written
# by reports/fit/decode.py of NVIDIA's aiconfigurator-core 0.12 (systems/data): error is the mean relative error on 30%
# of the shapes, which were left out, error_p95 its 95th percentile.
"""


if __name__ == "__main__":
    main(__doc__, "decode.toml", HEADER, lines)
