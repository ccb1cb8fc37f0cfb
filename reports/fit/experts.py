"""Measured experts of serving engines -> shapes/data/experts.toml.

    python reports/fit/experts.py --tables .../aiconfigurator_core/systems/data --write

Sources: NVIDIA's aiconfigurator-core, moe_perf, of each device the kernel that serving software runs there. A row is a
layer: both products, and what sizer lists apart (permuting, activation, quantising), priced as sizer does and left as
it is. Its tokens are spread evenly or by a power law, drawn as the collector draws it (ai-dynamo/aiconfigurator,
collector/helper.py). The fit sees what a user gives of it: the rank's rows, its experts, the fullest one's load.
Under expert parallelism the busiest rank was timed with all ranks' tokens at hand, which costs bytes of its own
(``remote``: of several passes in a row, each of which may find its own in the cache, so that a few times its size comes
from there). Held out are 30% of the shapes (hidden, width, experts, top_k, split), drawn by their hash.
The form is that of shapes/cost/experts.py, which the fit calls. Ten minutes. B60's table in 16 bits and L40S's but of 4
bits are of today's form of other ranks' bytes; in the others a cache holds its size of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fit.decode import BLACKWELL, FOLDERS, HOPPER, sizes_of
from fit.tables import main, parquet_columns
from shapes.cost.constants import read_seconds
from shapes.cost.experts import routed_parts
from shapes.cost.moving import elementwise_parts
from shapes.device import Device, load_device
from shapes.dtypes import QUANTISED
from shapes.operators.types import Elementwise, RoutedGemm

Array = NDArray[np.float64]
_BLACKWELL_GEN = "vllm_compressedtensorsw4a4nvfp4moe_flashinfer_trtllm_trtllmnvfp4expertsmonolithic"
_TRITON = "vllm_unquantizedfusedmoe_triton_tritonexperts"
_TRITON_FP8 = "vllm_fp8moe_triton_tritonexperts"
_SERVER, _ADA = "rtx-pro-6000-server", "l40s"
_XPU_MXFP4 = {"b60": ("w4a16_mxfp4", "vllm_xpu_moe_mxfp4")}
_GPT_OSS_MARLIN = "vllm_gptossmxfp4moe_marlin_marlinexperts"
_TRITON_MXFP4 = "vllm_gptossmxfp4moe_triton_oaitritonmxfp4expertsmonolithic"
_MARLIN = "vllm_compressedtensorswna16marlinmoe_marlin_marlinexperts"
#: Form -> device -> moe_dtype, kernel_source, and its release where others are of other kernels.
KERNELS: dict[str, dict[str, tuple[str, ...]]] = {
    "experts_bf16": {
        **dict.fromkeys((*HOPPER, _ADA), ("bfloat16", _TRITON)),
        **dict.fromkeys(BLACKWELL, ("bfloat16", "vllm_unquantizedfusedmoe_flashinfer_trtllm_trtllmbf16experts")),
        _SERVER: ("bfloat16", "vllm_unquantizedfusedmoe_flashinfer_cutlass_flashinferexperts"),
        "a100-sxm": ("bfloat16", "moe_torch_flow"),
        # 0.20 leaves its tile of 8 rows at 4 rows an expert, 0.26 at 16, where it steps up by a half to twice.
        "b60": ("bfloat16", "vllm_xpu_moe", "0.2[6-9].0"),
    },
    "experts_fp8": {
        "h200": ("fp8", "vllm_fused_moe"),
        _SERVER: ("fp8", "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts"),
        **dict.fromkeys(BLACKWELL, ("fp8", "vllm_modeloptfp8moe_flashinfer_trtllm_trtllmfp8expertsmonolithic")),
        _ADA: ("fp8", "moe_torch_flow_cutlass"),
    },
    # On Hopper vLLM runs Triton's where each rank has all experts (SGLang, too), TensorRT-LLM's CUTLASS by FlashInfer
    # where ranks share them (_get_priority_backends of model_executor/layers/fused_moe/oracle/fp8.py at 001a058b; since
    # February 2026).
    "experts_fp8_blockwise": {
        **dict.fromkeys(HOPPER, ("fp8_block", _TRITON_FP8)),
        **dict.fromkeys(BLACKWELL, ("fp8_block", "vllm_fp8moe_flashinfer_trtllm_trtllmfp8expertsmonolithic")),
        _ADA: ("fp8_block", _TRITON_FP8),
        _SERVER: ("fp8_block", "sglang_fused_moe_triton"),
    },
    "experts_nvfp4": {
        **dict.fromkeys(BLACKWELL, ("nvfp4", _BLACKWELL_GEN)),
    },
    "experts_bf16_4bit": {
        **dict.fromkeys((*HOPPER, _ADA, _SERVER), ("int4_wo", "sglang_marlin_moe", "0.5.14")),
        **dict.fromkeys(BLACKWELL, ("int4_wo", _MARLIN)),
        **_XPU_MXFP4,
    },
    # What vLLM runs gpt-oss by: Triton's kernels on Hopper, TensorRT-LLM's on Blackwell, Marlin elsewhere.
    "experts_bf16_mxfp4": {
        **dict.fromkeys(HOPPER, ("w4a16_mxfp4", _TRITON_MXFP4)),
        **dict.fromkeys((_ADA, _SERVER), ("w4a16_mxfp4", _GPT_OSS_MARLIN)),
        **dict.fromkeys(BLACKWELL, ("w4a16_mxfp4", "sglang_flashinfer_trtllm_moe")),
        **_XPU_MXFP4,
    },
    "experts_fp8_4bit": dict.fromkeys(BLACKWELL, ("w4a8_mxfp4_mxfp8", "sglang_flashinfer_trtllm_moe")),
}
KERNELS["experts_fp8_blockwise_spread"] = KERNELS["experts_fp8_blockwise"] | dict.fromkeys(
    HOPPER, ("fp8_block", "moe_torch_flow_cutlass")
)
#: Bytes an element of the weights, scales included, where it is not the arithmetic's.
WEIGHTS = {"nvfp4": 0.5625, "int4_wo": 0.53125, "w4a16_mxfp4": 0.53125, "w4a8_mxfp4_mxfp8": 0.53125}
#: What kernels' engines pad both widths to (`sizer deploy` quotes the lines): SGLang for TensorRT-LLM's of MXFP4, whose
#: widths of 96 and 192 take the same time; those of NVFP4 take rows of weights by 128; vLLM for Marlin's of MXFP4 a
#: hidden size by 256; Triton's of MXFP4 64, as Marlin's of int4 (no row is off that).
PADS = {
    "sglang_flashinfer_trtllm_moe": 256,
    _BLACKWELL_GEN: 128,
    _GPT_OSS_MARLIN: 256,
    **dict.fromkeys(("sglang_marlin_moe", _MARLIN, _TRITON_MXFP4), 64),
}
#: (hidden, width) of models whose experts have no gate, which the tables do not say: Nemotron 3's.
UNGATED = {(2688, 1856), (2048, 5120), (1024, 2688)}
#: (experts, top_k, hidden) that choose among groups of experts first, so that even logits fill some of them alone.
LIMITED = (256, 8, 7168)
#: Where fits start; what is not here follows the device.
START = {
    "launch_s": 5e-6,
    "latency_s": 5e-6,
    "latency_rows": 64.0,
    "prologue_rows": 20.0,
    "prologue_keys": 100.0,
    "row_reads": 0.5,
    "held_s": 5e-9,
    "choice_s": 5e-10,
    "cache_share": 0.6,
    "cache_power": 4.0,
    "q": 2.0,
}
#: How fast bytes of other ranks' tokens are, which no layer of sizer's holds: from memory and from the cache, and how
#: many times its size comes from there.
REMOTE = ("remote_bytes_per_s", "remote_cached_bytes_per_s", "remote_cache_share")
ALPHA = {"balanced": 0.0, "power_law_1.01": 1.01, "power_law_1.2": 1.2}
DRAWS = 8
#: Rows that are fitted on at the most, drawn; fewer to choose the smallest tile by.
MOST, SOME = 5000, 1200
#: Rows of the tiles that a kernel may choose among, from the smallest on: Marlin's and TensorRT-LLM's, Triton's,
#: CUTLASS's.
TILES = (8, 16, 32, 64, 128, 256)
SETS = tuple(tuple(tile for tile in TILES if tile >= least) for least in (8, 16, 64))
#: Kernels whose sources say theirs: Triton's from 16 rows on (vLLM's get_default_config), w16a16_policy and
#: w16a16_policy_m_8 of vllm-xpu-kernels (csrc, grouped products of Xe), and block_size_m of vLLM's Marlin
#: (fused_marlin_moe.py). int4's by Marlin are as far off by either.
KNOWN = {_TRITON_FP8: SETS[1:2], "vllm_xpu_moe": ((8, 256),), _GPT_OSS_MARLIN: ((8, 16, 32, 48, 64),)}


#: Columns of a product.
SIZES = ("groups", "m", "n", "k", "load", "held", "choices")


@dataclass(frozen=True)
class Layers:
    """Columns of a table's layers: both products, what is listed apart, bytes of other ranks' tokens, seconds."""

    gate_up: RoutedGemm
    down: RoutedGemm
    apart_s: Array
    remote_bytes: Array
    seconds: Array
    shapes: tuple[str, ...]

    def seconds_by(self, c: Mapping[str, Any], device: Device) -> Array:
        """Seconds of the layers by these constants."""
        sizes = sizes_of(device)
        products = sum(sum(routed_parts(one, {**c, **sizes})) for one in (self.gate_up, self.down))
        memory, cached, share = (c[key] for key in REMOTE)
        rates = {"bandwidth_bytes_per_s": memory, "cache_bytes_per_s": cached, "cache_share": share} | sizes
        found: Array = products + self.apart_s + read_seconds(self.remote_bytes, rates)
        return found

    def only(self, places: NDArray[np.intp]) -> Layers:
        gate_up, down = (
            replace(one, **{name: getattr(one, name)[places] for name in SIZES}) for one in (self.gate_up, self.down)
        )
        rest = (getattr(self, name)[places] for name in ("apart_s", "remote_bytes", "seconds"))
        return Layers(gate_up, down, *rest, tuple(self.shapes[place] for place in places))


@lru_cache(maxsize=100_000)
def spread(tokens: int, experts: int, top_k: int, ranks: int, alpha: float) -> tuple[float, float]:
    """Rows of the busiest rank and of its fullest expert; ``alpha`` 0: even."""
    pairs = tokens * top_k
    if not alpha:
        stride, token, choice = -(-experts // top_k), np.arange(min(tokens, 4096))[:, None], np.arange(top_k)[None]
        first = token if tokens >= stride else token * stride / tokens
        counts = np.bincount(((first + choice * stride) % experts).astype(int).ravel(), minlength=experts)
        local = counts[: experts // ranks] * (pairs / counts.sum())
        return float(local.sum()), float(local.max())
    rng = np.random.default_rng(crc32(f"{tokens} {experts} {top_k} {ranks} {alpha}".encode()))
    low, high = (1.0, 0.8 * tokens) if pairs > experts else (0.01, 2.0)
    found = [_draw(rng, tokens, experts, pairs, ranks, alpha, low, high) for _ in range(DRAWS)]
    rows, fullest = np.mean(found, axis=0)
    return float(rows), float(fullest)


def _draw(rng: Any, tokens: int, experts: int, pairs: int, ranks: int, alpha: float, low: float, high: float) -> Any:
    """Rows of the busiest rank and of its fullest expert of one draw."""
    drawn = (low ** (1 - alpha) + rng.random(experts) * (high ** (1 - alpha) - low ** (1 - alpha))) ** (1 / (1 - alpha))
    local = np.minimum(np.round(drawn / drawn.sum() * pairs), tokens).reshape(ranks, -1)
    left = int(pairs - local.sum())
    step = 1 if left > 0 else -1
    while left:
        for own in local:
            # One more to the emptiest expert of each rank in turn, or one less of the fullest.
            place = own.argmin() if step > 0 else own.argmax()
            if left and 0 <= own[place] + step <= tokens:
                own[place] += step
                left -= step
    busiest = local[local.sum(axis=1).argmax()]
    return busiest.sum(), busiest.max()


def layers(tables: Path, form: str, device: str) -> Layers:
    """Rows of a kernel, the fastest release of each: autotuners of single ones miss by two to five times."""
    dtype, kernel, *release = KERNELS[form][device]
    fastest: dict[tuple[Any, ...], float] = {}
    sizes = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
    for path in sorted((tables / FOLDERS[device]).glob(f"moe/*/{''.join(release) or '*'}/moe_perf.parquet")):
        columns = parquet_columns(path)
        named = (columns[name] for name in ("kernel_source", "moe_dtype", "latency", "distribution", *sizes))
        for source, kind, ms, routing, *numbers in zip(*named, strict=True):
            key = (routing, *map(int, numbers))
            if (source, kind) == (kernel, dtype) and ms > 0 and _usable(dtype, *key):
                fastest[key] = min(ms * 1e-3, fastest.get(key, np.inf))
    return _columns(fastest, form, dtype, load_device(device))


def _usable(
    dtype: str, spread: str, _: int, hidden: int, inter: int, top_k: int, experts: int, tp: int, ep: int
) -> bool:
    """Not of widths off 16 elements, which engines pad or refuse; nor of even logits that fill a group of experts."""
    limited = dtype == "nvfp4" and spread == "balanced" and (experts, top_k, hidden) == LIMITED
    return not (limited or inter % (16 * tp) or experts % ep)


def _columns(rows: Mapping[tuple[Any, ...], float], form: str, dtype: str, device: Device) -> Layers:
    known, kind = [], form.split("_")[1]
    for (distribution, tokens, hidden, inter, top_k, experts, tp, ep), seconds in rows.items():
        own, fullest = spread(tokens, experts, top_k, ep, ALPHA[distribution])
        own, width = max(own, 1.0), inter / tp
        groups, gates = min(experts // ep, own), 1 if (hidden, inter) in UNGATED else 2
        remote = 2.0 * max(0.0, tokens * top_k - own) * (2 * hidden + 3 * width)
        read = 4 * own * hidden + 2 * (gates + 1) * own * width
        # Activations are quantised before both products.
        quantised = 3 * (tokens * hidden + own * width) if kind in QUANTISED else 0.0
        load = max(1.0, fullest * groups / own)
        sizes = own, groups, load, hidden, width, experts // ep, experts
        known.append((*sizes, gates, remote, read, quantised, seconds))
    own, groups, load, hidden, width, held, choices, *rest = np.array(known, dtype=float).T
    gates, remote, read, quantised, seconds = rest
    shapes = tuple(" ".join(map(str, key[2:])) for key in rows)
    recipe = "blockwise" if "blockwise" in form else None
    shared: dict[str, Any] = {"dtype": kind, "recipe": recipe, "weight_bytes": WEIGHTS.get(dtype), "load": load}
    shared |= {"held": held, "choices": choices}
    gate_up = RoutedGemm("", "forward", groups, own, gates * width, hidden, **shared)  # type: ignore[arg-type] # columns
    apart = _moved(read, 2, device) + (_moved(quantised, 2, device) if kind in QUANTISED else 0.0)
    return Layers(gate_up, replace(gate_up, n=hidden, k=width), apart, remote, seconds, shapes)  # type: ignore[arg-type]


def _moved(moved: Array, launches: int, device: Device) -> Array:
    """Seconds of so many memory-bound kernels that move so much in all."""
    launch_s, moving = elementwise_parts(Elementwise("", "forward", "moe", moved, 0, "bf16"), device)  # type: ignore[arg-type]
    found: Array = launches * launch_s + moving
    return found


def held_out(shapes: tuple[str, ...]) -> NDArray[np.bool_]:
    """30% of the shapes, by their hash."""
    return np.array([crc32(shape.encode()) % 10 < 3 for shape in shapes])


def fit(
    found: Layers,
    device: Device,
    dtype: str,
    out: NDArray[np.bool_],
    known: Mapping[str, Any],
    tiles: tuple[tuple[int, ...], ...] = SETS,
) -> tuple[dict[str, Any], Array]:
    """Constants by the rows that are not ``out``, and predicted over measured, less 1, of all rows.

    ``known`` constants are kept. The kernel's are the ``tiles`` by which those rows are nearest, fitted on some.
    """
    seen = np.random.default_rng(0).permutation(np.flatnonzero(~out))

    def within(own: tuple[int, ...], most: int) -> tuple[float, dict[str, Any]]:
        constants = _fitted(found.only(seen[:most]), device, dtype, {**known, "tiles": own})
        return float(np.abs(found.only(seen).seconds_by(constants, device) / found.seconds[seen] - 1).mean()), constants

    _, constants = min((within(own, SOME) for own in tiles), key=itemgetter(0))
    _, constants = within(constants["tiles"], MOST)
    return constants, found.seconds_by(constants, device) / found.seconds - 1


def _fitted(some: Layers, device: Device, dtype: str, known: dict[str, Any]) -> dict[str, Any]:
    """All constants by these rows, ``known`` ones kept."""
    bandwidth, peak = device.memory.bandwidth_bytes_per_s, device.peak(dtype)
    start = START | {
        "bandwidth_bytes_per_s": 0.8 * bandwidth,
        "cache_bytes_per_s": 2 * bandwidth,
        **dict.fromkeys(REMOTE[:2], bandwidth),
        REMOTE[2]: 1.0,
        "flops_per_s": 0.6 * peak,
    }
    start = {key: value for key, value in start.items() if key not in known}
    # Nothing moves or multiplies faster than the data sheet says, but from the cache.
    bounds = {key: (1e-3 * value, 1e3 * value) for key, value in start.items()} | {
        "launch_s": (1e-7, 1e-4),
        "latency_s": (1e-8, 1e-4),
        "bandwidth_bytes_per_s": (0.2 * bandwidth, bandwidth),
        "cache_bytes_per_s": (bandwidth, 20 * bandwidth),
        "cache_share": (0.05, 1.0),
        "cache_power": (1.0, 16.0),
        REMOTE[2]: (0.2, 8.0),
        "row_reads": (1e-3, 3.0),
        "flops_per_s": (0.01 * peak, peak),
        "q": (1.0, 10.0),
    }

    def constants(logs: Array) -> dict[str, Any]:
        return dict(zip(start, np.exp(logs).tolist(), strict=True)) | known

    def off(logs: Array) -> Array:
        return cast(Array, np.log(some.seconds_by(constants(logs), device) / some.seconds))

    limits = np.log([bounds[key] for key in start]).T
    best = least_squares(off, np.log(list(start.values())), bounds=limits, loss="soft_l1", f_scale=0.1, max_nfev=60).x
    return constants(best)


def lines(tables: Path) -> Iterator[str]:
    for form, devices in KERNELS.items():
        for name, (_, kernel, *_) in devices.items():
            found, device = layers(tables, form, name), load_device(name)
            out = held_out(found.shapes)
            tiles = KNOWN.get(kernel, SETS)
            constants, wrong = fit(found, device, form.split("_")[1], out, {"pads": PADS.get(kernel, 1.0)}, tiles)
            off = np.abs(wrong[out])
            sys.stderr.write(
                f"{form} {name}: {len(wrong)} {off.mean():.1%} {np.quantile(off, 0.95):.1%} {wrong[out].mean():+.1%}\n"
            )
            for key in REMOTE:
                constants.pop(key)
            errors = {"error": float(off.mean()), "error_p95": float(np.quantile(off, 0.95))}
            yield f"\n[{form}.{name}]\n# {len(wrong)} rows of {kernel}\n" + "".join(
                map(as_line, (constants | errors).items())
            )


def as_line(pair: tuple[str, Any]) -> str:
    """A constant as TOML has it: rows of tiles are a list."""
    key, value = pair
    return f"{key} = {list(value) if key == 'tiles' else format(value, '.4g')}\n"


HEADER = """# Experts of serving engines on devices they were timed on; the form is in shapes/cost/experts.py. Written
# by reports/fit/experts.py of NVIDIA's aiconfigurator-core 0.12 (systems/data): error is the mean relative error on 30%
# of the shapes, which were left out, error_p95 its 95th percentile; even and power-law routing together.
"""


if __name__ == "__main__":
    main(__doc__, "experts.toml", HEADER, lines)
