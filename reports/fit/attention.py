"""Measured fused attention, by kernel -> shapes/data/attention/<kernel>.toml.

    python reports/fit/attention.py --tables .../aiconfigurator_core/systems/data --evidence attention.csv --write

Three sources: the context_attention_perf.parquet files of NVIDIA's aiconfigurator-core, whose ``kernel_source`` names
the kernel of each row (causal, forward, as servers run them: K and V are written to a cache of pages first); published
rows of cuDNN and of torch's SDPA (``attention.csv``, columns source, device, kernel, dtype, b, s_q, s_kv, heads,
kv_heads, d_qk, d_v, causal, window, phase, us, note); and FlashAttention-3's own figures (arXiv 2407.08608, H100 SXM5,
16k tokens, h 2048), of FlashAttention 2 and 3 without a cache, in attention_figures.csv here, whose rows of
other sources judge alone. Held out are 30% of the sequence lengths of the tables, of the evidence in turn each model
(each block of 16 head dimensions), and of the figures each one. About two minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fit.attention_rows import (
    ENCODERS_OF,
    FIGURES,
    TABLES_OF,
    Rows,
    by_authors,
    read_encoders,
    read_evidence,
    read_tables,
)
from shapes.calibrate import held_out, replaced
from shapes.cost.fused_attention import NUMBERS, PHASES, TABLES, AttentionConstants, attention_times
from shapes.device import Device, load_device
from shapes.dtypes import BYTES
from shapes.toml_table import DATA

Array = NDArray[np.float64]

#: Backward over forward where no row holds a backward. FlashAttention 2's speed: arXiv 2307.08691, figures 5 and 6 (196
#: of 230 TFLOPS on A100); bandwidth: what its figures on H100 say of both. flashinfer has none of its own.
BACKWARD: dict[str, dict[str, float]] = {
    "fa2": {"speed": 0.85, "bandwidth": 0.65},
    "fa3": {"speed": 0.76},
    "flashinfer": {"speed": 0.76},
}
#: How far off that may be: FlashAttention 2's on A100 was 15% off on H100's figures; else a guess.
BACKWARD_ERROR = {
    "fa2": {"backward": 0.2, "backward_p95": 0.3},
    "fa3": {"backward": 0.41, "backward_p95": 0.75},
    "flashinfer": {"backward": 0.41, "backward_p95": 0.75},
}
#: H200's die is H100's: measured 4% slower forward and 3.5% faster backward (Dao-AILab/flash-attention#1438).
SAME_DIE = 0.04

#: FlashAttention 2 at head dimension 64 over 128 on A100, where no row holds 64: arXiv 2307.08691, figure 5.
SIXTY_FOUR_ON_A100 = 0.85

#: Exponentials a clock and unit on NVIDIA: CUDA C++ Programming Guide, throughput of native arithmetic instructions.
EXPONENTIALS = 16

#: How suddenly the power limit is felt: not told apart from its onset by these data.
THROTTLE_WIDTH = 2 / 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What a fit may move: a constant's name -> (least, first guess, most, how far in log units it strays easily)."""

    numbers: Mapping[str, tuple[float, float, float, float]]
    buckets: tuple[float, ...]
    rate: tuple[float, float, float]
    expected: Array
    fixed: Mapping[str, Any]


def plan(rows: Rows, device: Device, dtype: str, fixed: Mapping[str, Any]) -> Plan:
    """Bounds are physics: no rate above the peak, no bandwidth above the data sheet's."""
    peak = device.peak_flops.get(dtype) or device.peak_flops["fp8"]
    bandwidth = device.memory.bandwidth_bytes_per_s
    # Published sweeps of a few dozen rows do not tell these apart: they stay near what the large tables say.
    loose = 3.0 if len(rows) > 500 else 0.35
    numbers = {
        "launch_s": (2e-6, 8e-6, 2e-4 if device.vendor == "intel" else 3e-5, loose),
        "throttle": (1e-3, 0.05, 0.5, loose),
        "throttle_s": (1e-4, 1e-3, 5e-2, loose),
        "quantization": (0.02, 0.7, 1.0, loose),
        "overlap": (1.0, 1.3, 8.0, loose),
        "bandwidth_bytes_per_s": (0.2 * bandwidth, 0.5 * bandwidth, bandwidth, loose),
    }
    work = rows.work
    if (work.copied > 0).any():
        numbers["copy_bytes_per_s"] = (0.1 * bandwidth, 0.5 * bandwidth, bandwidth, 1.0)
    if (work.cached > 0).any():
        # What was just computed may still be in the L2 cache: no faster than the data sheet's memory all the same.
        numbers["cache_bytes_per_s"] = (0.1 * bandwidth, 0.7 * bandwidth, bandwidth, loose)
    if (work.c_qk > np.ceil(work.d_qk / 8) * 8).any():
        numbers["partial"] = (1e-3, 0.05, 0.5, 1.0)
    buckets = tuple(float(bucket) for bucket in np.unique(work.bucket))
    return Plan(numbers, buckets, (0.02 * peak, 0.5 * peak, peak), expected_rates(buckets, device, peak), fixed)


def expected_rates(buckets: Sequence[float], device: Device, peak: float) -> Array:
    """FLOP/s forward that the peak and the exponentials of the softmax allow: one a pair, 4 d FLOPs.

    Neighbouring head dimensions are taken to differ as these do, where few rows (or only those of short windows) tell.
    """
    clock = 1e6 * max(device.compute.clock_mhz or 0.0, *device.compute.clock_mhz_of.values(), 1000.0)
    exponentials = EXPONENTIALS * device.compute.units * clock
    rates: Array = np.minimum(0.75 * peak, 4 * np.array(buckets) * exponentials)
    return rates


def fit_rows(rows: Rows, device: Device, dtype: str, backward: bool, how: Plan, seed: int = 0) -> AttentionConstants:
    """Constants by robust least squares on log time."""
    from scipy.optimize import least_squares

    random = np.random.default_rng(seed)
    seen = rows if len(rows) <= 3000 else rows[random.choice(len(rows), 3000, replace=False)]
    names, count = tuple(how.numbers), len(how.buckets)
    low, guess, high = np.log(
        np.array([how.numbers[name][:3] for name in names] + [how.rate] * count + [(1.0, 60.0, 1000.0)] * count)
    ).T
    strays = np.array([how.numbers[name][3] for name in names])
    target, size = np.log(seen.seconds), float(BYTES[dtype])
    steps = np.zeros(count - 1) if backward else np.diff(np.log(how.expected))

    def constants(theta: Array) -> AttentionConstants:
        values = np.exp(theta).tolist()
        numbers = dict(zip(names, values, strict=False))
        rates, prologues = values[len(names) : len(names) + count], values[len(names) + count :]
        numbers.setdefault("copy_bytes_per_s", 0.5 * device.memory.bandwidth_bytes_per_s)
        tables = {
            "flops_per_s": tuple(zip(how.buckets, rates, strict=True)),
            "prologue_keys": tuple(zip(how.buckets, prologues, strict=True)),
        }
        return AttentionConstants(
            units=device.compute.units, throttle_width=THROTTLE_WIDTH, **{**numbers, **tables, **how.fixed}
        )

    def residuals(theta: Array) -> Array:
        off = np.log(attention_times(seen.work, constants(theta), backward, size).seconds) - target
        n = len(names)
        rates, prologues = theta[n : n + count], theta[n + count :]
        # Neighbouring head dimensions run alike; one that few rows hold leans on the others.
        priors = [
            (theta[:n] - guess[:n]) / strays,
            (np.diff(rates) - steps) / 0.15,
            np.diff(prologues) / 1.0,
            (prologues - guess[n + count :]) / 1.5,
        ]
        return np.concatenate([off, *(0.1 * np.atleast_1d(prior) for prior in priors)])

    found = least_squares(residuals, guess, bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=80)
    return constants(found.x)


def errors(rows: Rows, c: AttentionConstants, backward: bool, dtype: str) -> Array:
    predicted = attention_times(rows.work, c, backward, float(BYTES[dtype])).seconds
    off: Array = predicted / rows.seconds - 1
    return off


def fit_phase(
    rows: Rows, device: Device, dtype: str, backward: bool, fixed: Mapping[str, Any], seed: int = 0
) -> tuple[AttentionConstants, Array]:
    """The constants that ship, and errors on rows that a fit had not seen (no row where all are of one model)."""
    plain = rows if not backward else rows[rows.work.deterministic == 0]
    plain = plain if len(plain) else rows
    how = plan(plain, device, dtype, fixed)

    def fitted(seen: Rows) -> AttentionConstants:
        # The plan is the whole's, so that a head dimension that only the held-out rows have leans on its neighbours.
        return fit_rows(seen, device, dtype, backward, how, seed)

    if len(plain) > 500:
        hidden = held_out(plain.work.q_len, seed)
        c = fitted(plain[~hidden])
        judged = plain[hidden & (plain.work.q_len >= 512)]
        return c, errors(judged, c, backward, dtype)
    off = []
    for group in np.unique(plain.groups):
        out = plain.groups == group
        if out.all():
            continue
        off.append(errors(plain[out], fitted(plain[~out]), backward, dtype))
    c = fitted(plain)
    return (_deterministic(rows, c, dtype) if backward else c), np.concatenate(off) if off else np.zeros(0)


def stated(phase: str, off: Array) -> dict[str, float]:
    """Mean and 95th percentile of absolute errors, as a constants file holds them."""
    size = np.abs(off)
    return {phase: round(float(size.mean()), 4), f"{phase}_p95": round(float(np.quantile(size, 0.95)), 4)}


def _deterministic(rows: Rows, c: AttentionConstants, dtype: str) -> AttentionConstants:
    """Time that a reproducible backward adds, by head dimension: the median of its rows over the prediction."""
    made = rows[rows.work.deterministic > 0]
    if not len(made) or len(made) == len(rows):
        return c
    ratio = 1 / (1 + errors(made, c, True, dtype))
    table = {
        float(b): max(0.0, float(np.median(ratio[made.work.bucket == b])) - 1) for b in np.unique(made.work.bucket)
    }
    return replace(c, deterministic=tuple(sorted(table.items())))


def constants_table(c: AttentionConstants) -> dict[str, Any]:
    """One set as a constants file holds it; four digits, which is more than is identified."""
    table: dict[str, Any] = {
        name: float(f"{getattr(c, name):.4g}") for name in NUMBERS if name != "cache_bytes_per_s" or c.cache_bytes_per_s
    }
    if c.ignores_window:
        table["ignores_window"] = True
    for name in TABLES:
        if getattr(c, name):
            table[name] = {f"{bucket:g}": float(f"{value:.4g}") for bucket, value in getattr(c, name)}
    return table


def fit_all(tables: Path, evidence: Path, say: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    """kernel -> device -> dtype -> its sets, with error and provenance."""
    published = read_evidence(evidence)
    result: dict[str, dict[str, Any]] = {}
    for kernel, devices in TABLES_OF.items():
        for name, (folder, *sources) in devices.items():
            device = load_device(name)
            files = sorted((tables / folder / "attention").rglob("context_attention_perf.parquet"))
            for dtype in ("bf16", "fp8"):
                if dtype == "fp8" and (kernel == "fa2" or name == "l40s"):
                    continue
                rows = read_tables(files, sources, dtype, kernel, name)
                same = published.get(("sdpa", name, "fp16", "forward")) if kernel == "fa2" and dtype == "bf16" else None
                _fit_set(result, kernel, device, dtype, rows, same, say)
    for (kernel, name, dtype, phase), rows in published.items():
        if kernel != "cudnn" or phase != "forward":
            continue
        device = load_device(name)
        c, off = fit_phase(rows, device, dtype, False, {})
        back = published[kernel, name, dtype, "dgrad"]
        fixed = {"ignores_window": True} if dtype != "bf16" and device.architecture == "blackwell" else {}
        if dtype == "fp8" and device.architecture == "hopper":
            fixed = {"uneven": UNEVEN_FP8_HOPPER}
        b, back_off = fit_phase(back, device, dtype, True, fixed)
        sets = result.setdefault(kernel, {}).setdefault(name, {})
        # Of a type that one model alone was timed in: as bf16's, whose other models were left out.
        known = sets["bf16"]["error"] if dtype != "bf16" else {}
        error = {
            key: value
            for phase, left in (("forward", off), ("backward", back_off))
            for key, value in (stated(phase, left) if left.size else known).items()
            if key.startswith(phase)
        }
        say(f"{kernel} {name} {dtype}: left-out models, forward {error['forward']:.1%}, {error['backward']:.1%}")
        sets[dtype] = {
            **constants_table(c),
            "backward": constants_table(b),
            "error": error,
            "provenance": {
                "data": "attention.csv: NVIDIA/cudnn-frontend @ 3929da2e",
                "rows": len(rows) + len(back),
                "held_out": "each model in turn",
            },
        }
    rates = result["fa2"]["a100-sxm"]["bf16"]
    rates["flops_per_s"]["64"] = float(f"{SIXTY_FOUR_ON_A100 * rates['flops_per_s']['128']:.4g}")
    rates["prologue_keys"]["64"] = rates["prologue_keys"]["128"]
    _figures(result, say)
    for devices in result.values():
        _lend_head_dimensions(devices)
    _encoders(result, tables, say)
    return result


def _encoders(result: dict[str, dict[str, Any]], tables: Path, say: Callable[[str], None]) -> None:
    """A served encoder's own sets."""
    for kernel, devices in ENCODERS_OF.items():
        for name, (folder, heads, sources) in devices.items():
            device, own = load_device(name), result[kernel][name]["bf16"]
            files = sorted((tables / folder / "encoder_attention").rglob("encoder_attention_perf.parquet"))
            rows = read_encoders(files, heads, sources, kernel, name)
            c, off = fit_phase(rows, device, "bf16", False, {})
            own["encoder"] = constants_table(c)
            own["error"] |= stated("encoder", off)
            own.setdefault("tiers", {})["encoder"] = "fitted"
            say(f"{kernel} {name} encoder: {len(rows)} shapes, held-out lengths from 512 on {np.abs(off).mean():.1%}")


def _figures(result: dict[str, dict[str, Any]], say: Callable[[str], None]) -> None:
    """FlashAttention 2 on H100, and 3 as training runs it there and on H200, from their authors' own figures."""
    device, kin = load_device("h100-sxm"), load_device("h200")
    data = "arXiv 2407.08608, figures 5 and 6 (H100); held out: each figure in turn"
    # Blocks of a causal mask are unevenly long to FlashAttention 2; the third starts the longest first.
    sets, error = _from_figures("fa2", device, {"uneven": result["fa2"]["a100-sxm"]["bf16"]["uneven"]}, say)
    result["fa2"][device.name] = {
        "bf16": sets.pop("training")
        | sets
        | {
            "tiers": dict.fromkeys(PHASES[:3], "published"),
            "provenance": {"data": data},
            "error": {key.replace("training", "forward"): value for key, value in error.items()},
        }
    }
    sets, error = _from_figures("fa3", device, {}, say)
    share = kin.memory.bandwidth_bytes_per_s / device.memory.bandwidth_bytes_per_s
    for name, scale, tier, off_by in ((device.name, 1.0, "published", 0.0), (kin.name, share, "borrowed", SAME_DIE)):
        table = result["fa3"][name]["bf16"]
        for phase, one in sets.items():
            moved = {key: float(f"{one[key] * scale:.4g}") for key in one if key.endswith("bytes_per_s")}
            table[phase] = {**one, **moved, "flops_per_s": dict(one["flops_per_s"])}
        table["tiers"] = dict.fromkeys(sets, tier)
        table["error"] |= {key: round(hypot(value, off_by), 4) for key, value in error.items()}
        table["provenance"]["backward"] = data


def _from_figures(
    kernel: str, device: Device, fixed: Mapping[str, Any], say: Callable[[str], None]
) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
    """Training's forward and backward, and errors on figures left out and on what others published."""
    own = read_evidence(FIGURES, by_authors)
    others = read_evidence(FIGURES, lambda source: not by_authors(source))
    sets: dict[str, dict[str, Any]] = {}
    error: dict[str, float] = {}
    for phase, dtype, name in (("forward", "fp16", "training"), ("dgrad", "bf16", "backward")):
        c, off = fit_phase(own[kernel, device.name, dtype, phase], device, "bf16", phase != "forward", fixed)
        sets[name] = constants_table(c)
        unseen = others.get((kernel, device.name, "bf16", phase))
        alone = errors(unseen, c, phase != "forward", "bf16") if unseen else off[:0]
        error |= stated(name, np.concatenate([off, alone]))
        judges = f", others' {np.abs(alone).mean():.1%}" if alone.size else ""
        say(f"{kernel} {device.name} {name}: left-out figures {np.abs(off).mean():.1%}{judges}")
    return sets, error


def _lend_head_dimensions(devices: dict[str, dict[str, Any]]) -> None:
    """A head dimension that one device's rows lack: another's ratio to their nearest common one."""
    for sets in devices.values():
        for own, other in ((own, other) for own in sets.values() for one in devices.values() for other in one.values()):
            pairs = [(own, other), (own["backward"], other["backward"]), (own.get("training", {}), own)]
            for mine, theirs in pairs:
                if "flops_per_s" in mine and "flops_per_s" in theirs:
                    _lend(mine, theirs)


def _lend(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    common = [bucket for bucket in mine["flops_per_s"] if bucket in theirs["flops_per_s"]]
    if not common:
        return
    for bucket in theirs["flops_per_s"].keys() - mine["flops_per_s"].keys():
        near = min(common, key=lambda one: abs(float(one) - float(bucket)))
        ratio = theirs["flops_per_s"][bucket] / theirs["flops_per_s"][near]
        mine["flops_per_s"][bucket] = float(f"{mine['flops_per_s'][near] * ratio:.4g}")
        mine["prologue_keys"][bucket] = mine["prologue_keys"][near]
    for name in ("flops_per_s", "prologue_keys"):
        mine[name] = dict(sorted(mine[name].items(), key=lambda item: float(item[0])))


#: What cuDNN 9.19's fp8 backward adds under a causal mask on Hopper: 1.5 to 1.8 times half of the whole square's time.
UNEVEN_FP8_HOPPER = 0.65


def _fit_set(
    result: dict[str, dict[str, Any]],
    kernel: str,
    device: Device,
    dtype: str,
    rows: Rows,
    also: Rows | None,
    say: Callable[[str], None],
) -> None:
    # Intel's build multiplies most of what a window hides: 128 keys of 16,384 take two thirds of all of them.
    other = device.vendor == "intel"
    tier = "extrapolated" if other else "published"
    c, off = fit_phase(rows, device, dtype, False, {"ignores_window": True} if other else {})
    unseen = {}
    if also is not None:
        unseen = {"sweep": round(_left_out(c, rows, also, device), 4)}
        c = _with_sweep(c, rows, also, device)
    error = stated("forward", off)
    say(f"{kernel} {device.name} {dtype}: {len(rows)} shapes, held-out lengths from 512 on {error['forward']:.1%}")
    result.setdefault(kernel, {}).setdefault(device.name, {})[dtype] = {
        **constants_table(c),
        "backward": dict(BACKWARD[kernel]),
        "tiers": {"backward": tier},
        "error": {**error, **BACKWARD_ERROR["fa3" if other else kernel], **unseen},
        "provenance": {
            "data": "aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0)"
            + ("; attention.csv: JihaoXin/GAC @ 2b0a2a41" if also is not None else ""),
            "rows": len(rows) + (0 if also is None else len(also)),
            "held_out": "30% of the sequence lengths",
            "backward": f"{tier}, see reports/fit/attention.py",
        },
    }


def _left_out(c: AttentionConstants, rows: Rows, sweep: Rows, device: Device) -> float:
    """Error on each group of head dimensions by a fit to the others."""
    off = [
        errors(sweep[out], _with_sweep(c, rows, sweep[~out], device), False, "bf16")
        for out in (sweep.groups == group for group in np.unique(sweep.groups))
    ]
    return float(np.abs(np.concatenate(off)).mean())


def _with_sweep(c: AttentionConstants, rows: Rows, sweep: Rows, device: Device) -> AttentionConstants:
    """Rates by head dimension, part-filled heads and copies from a sweep; the rest stays the tables'."""
    kept = (
        "launch_s",
        "throttle",
        "throttle_s",
        "quantization",
        "overlap",
        "bandwidth_bytes_per_s",
        "cache_bytes_per_s",
    )
    fixed = {name: getattr(c, name) for name in kept}
    numbers: dict[str, tuple[float, float, float, float]] = {}
    bandwidth = device.memory.bandwidth_bytes_per_s
    numbers["copy_bytes_per_s"] = (0.1 * bandwidth, 0.45 * bandwidth, bandwidth, 1.0)
    numbers["partial"] = (1e-3, 0.05, 0.5, 1.0)
    # The sweep is of whole squares, the tables of causal ones: what their long last blocks cost beyond their FLOPs.
    numbers["uneven"] = (1e-3, 0.03, 0.3, 1.0)
    random = np.random.default_rng(0)
    joined = sweep.joined(rows[random.choice(len(rows), min(len(rows), 4 * len(sweep)), replace=False)])
    buckets = tuple(float(bucket) for bucket in np.unique(joined.work.bucket))
    peak = device.peak("bf16")
    return fit_rows(
        joined,
        device,
        "bf16",
        False,
        Plan(numbers, buckets, (0.02 * peak, 0.5 * peak, peak), expected_rates(buckets, device, peak), fixed),
    )


def write(found: Mapping[str, Mapping[str, Any]], folder: Path = DATA / "attention") -> None:
    """One file a kernel."""
    for kernel, devices in found.items():
        head = "# Written by reports/fit/attention.py; facts of the kernel are in ../kernels/" + kernel + ".toml.\n"
        (folder / f"{kernel}.toml").write_text(replaced(head, devices), encoding="utf-8", newline="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--evidence", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    found = fit_all(options.tables, options.evidence, print)
    if options.write:
        write(found)


if __name__ == "__main__":
    main()
