"""How far off predictions are: reports/accuracy.md and its plots.

    python reports/bench/accuracy.py --data .../aiconfigurator_core/systems/data [--heuristics PYTHON] [--seeds 3]

The constants judged are the committed ones, on the n values their fit has not seen. ``--heuristics`` is an interpreter
that has nvidia-matmul-heuristics; without it that column is left out.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import on_path  # noqa: F401  # reports/fit
from accuracy_measures import Array, Rows, concordance, mape, regret, spearman
from accuracy_peers import boosting, by_framework, fitted_roofline, framework_noise, heuristics, rescaled, roofline
from accuracy_plots import scatter, staircase
from fit.gemm import fit_products
from fit.run import _products as products_of
from fit.run import read_published, user_errors
from opening import with_answer
from tabulate import tabulate

from shapes.calibrate import Products, Record, held_out, products, refine, write_tables
from shapes.cost.constants import gemm_constants
from shapes.cost.gemm import predict_gemm
from shapes.device import Device, load_device
from shapes.frozen import plain

REPORTS = Path(__file__).resolve().parents[1]
FITTED = {"a100_sxm": "a100-sxm", "h100_sxm": "h100-sxm", "h200_sxm": "h200", "l40s": "l40s", "b200_sxm": "b200"}
#: Never fitted on, not once: what a device is worth whose file holds only its data sheet.
SPEC_ONLY = {"b300_sxm": "b300", "gb200": "gb200", "gb300": "gb300", "rtx_pro_6000_server": "rtx-pro-6000-server"}
TARGETS = {"a100-sxm": 0.042, "h100-sxm": 0.040, "h200": 0.038, "l40s": 0.063, "b200": 0.046}
SPEC_TARGETS = {"b300": 0.06, "gb200": 0.06, "gb300": 0.06, "rtx-pro-6000-server": 0.15}
#: Shapes that the slow peer is asked for.
HEURISTIC_SHAPES = 1500


@dataclass(frozen=True)
class Case:
    """One device's bf16 consensus with what the committed constants say of it.

    ``predicted`` is without cells, which have seen 70% of the k of every n; ``priced`` is what a user gets.
    """

    device: Device
    records: tuple[Record, ...]
    data: Products
    hidden: Rows
    predicted: Array
    priced: Array

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def judged(self) -> Rows:
        """Large products of unseen n."""
        rows: Rows = self.hidden & self.data.large
        return rows


def load(folder: Path, name: str) -> Case:
    device = load_device(name)
    records = read_published(folder)
    data = products(records, "bf16")
    m, n, k = (getattr(data, axis).astype(np.int64) for axis in "mnk")
    bare = data.predicted(replace(gemm_constants(device, "bf16")[0], cells=None))
    return Case(device, records, data, held_out(data.n), bare, predict_gemm(device, m, n, k))


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def verdict(value: float, target: float) -> str:
    return f"{percent(value)} ({'met' if value <= target + 5e-4 else 'missed'}: {percent(target)})"


def errors_table(cases: list[Case], python: Path | None) -> tuple[str, list[str]]:
    """Error, and that of the peers, on the same unseen shapes, and lines on speed."""
    rows, speeds = [], []
    for case in cases:
        data, judged, device = case.data, case.judged, case.device
        seen = ~case.hidden & data.large
        truth = data.seconds[judged]
        line = fitted_roofline(data, seen, device)[judged]
        sheet = roofline(data[judged], device.peak("bf16"), device.memory.bandwidth_bytes_per_s)
        learned = boosting(data, seen, device.compute.units)[judged]
        own = mape(case.predicted[judged], truth)
        peer = "-"
        if python is not None:
            some = np.random.default_rng(0).permutation(np.flatnonzero(judged))[:HEURISTIC_SHAPES]
            answer = heuristics(case.name, data[some], python)
            if answer is not None:
                peer = percent(rescaled(answer[0], data.seconds[some]))
                speeds.append(
                    f"nvidia-matmul-heuristics on {case.name}: {answer[1]:,.0f} shapes a second of one core's time."
                )
        base = mape(line, truth)
        rows.append(
            [
                case.name,
                int(judged.sum()),
                verdict(own, TARGETS[case.name]),
                percent(base),
                percent(1 - own / base),
                percent(mape(sheet, truth)),
                peer,
                percent(mape(learned, truth)),
                percent(framework_noise(case.records, lambda one: min(one.m, one.n, one.k) >= 512)),
            ]
        )
    headers = [
        "device",
        "shapes",
        "this (target)",
        "fitted roofline",
        "below it by",
        "spec roofline",
        "nvidia-matmul-heuristics",
        "gradient boosting",
        "framework against framework",
    ]
    return tabulate(rows, headers, tablefmt="github"), speeds


def files_table() -> str:
    """What the device files say of large bf16 products of unseen n, as fitted last."""
    rows = []
    for name in (*FITTED.values(), *SPEC_ONLY.values()):
        error = load_device(name).errors["bf16"]
        keys = ("large_consensus", "large", "large_p95", "small_consensus", "small", "small_p95")
        rows.append([name, *(percent(error[key]) for key in keys)])
    headers = [
        "device",
        "large: median of frameworks",
        "single frameworks",
        "95th percentile",
        "small: median of frameworks",
        "single frameworks",
        "95th percentile",
    ]
    return tabulate(rows, headers, tablefmt="github")


def seeds_table(cases: list[Case], seeds: int) -> str:
    """The same error under other draws of the held-out n, each with constants fitted anew, growth left unbound."""
    rows = []
    for case in cases:
        errors = []
        for seed in range(1, seeds + 1):
            hidden = held_out(case.data.n, seed)
            seen = case.data[~hidden & case.data.large]
            constants = fit_products(seen, case.device, "bf16", starts=1, seed=seed, bounded=False)
            judged = hidden & case.data.large
            errors.append(float(case.data[judged].errors(constants).mean()))
        rows.append([case.name, *(percent(error) for error in errors), percent(float(np.mean(errors)))])
    return tabulate(rows, ["device", *(f"seed {seed}" for seed in range(1, seeds + 1)), "mean"], tablefmt="github")


def ranks_table(cases: list[Case]) -> str:
    """Spearman and concordance; pairs are of all large shapes, of which 30% of n were never seen."""
    rows = []
    for case in cases:
        data, predicted = case.data[case.data.large], case.priced[case.data.large]
        unseen = spearman(case.data[case.judged], case.predicted[case.judged])
        whole, agreed = spearman(data, predicted), concordance(data, predicted, "n")
        floor = by_framework(case.records, data)
        noise = [spearman(data, seconds) for seconds in floor.values()]
        pairs = [concordance(data, seconds, "n") for seconds in floor.values()]
        rows.append(
            [
                case.name,
                f"{unseen:.3f}",
                at_least(whole, 0.92 if case.name == "a100-sxm" else 0.85),
                spread(noise),
                at_least(agreed, 0.8 if case.name == "l40s" else 0.9),
                spread(pairs),
                percent(concordance(data, predicted, "k")),
                percent(concordance(data, predicted, "m")),
            ]
        )
    headers = [
        "device",
        "Spearman, unseen n",
        "all n (target)",
        "one framework's",
        "concordance n (target)",
        "one framework's",
        "k",
        "m",
    ]
    return tabulate(rows, headers, tablefmt="github")


def at_least(value: float, target: float) -> str:
    return f"{value:.3f} ({'met' if value >= target - 5e-4 else 'missed'}: {target})"


def spread(values: list[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}" if len(values) > 1 else "-"


def regret_table(cases: list[Case]) -> str:
    """Regret of the model, and of choosing by one framework's own measurements, which is the data's noise."""
    rows = []
    for case in cases:
        data, predicted = case.data[case.data.large], case.priced[case.data.large]
        middle = (data.m >= 1024) & (data.m <= 4352)
        floor = by_framework(case.records, data)
        row = [case.name]
        for axis, target in (("n", 0.015), ("k", 0.015), ("m", 0.03)):
            keep = middle if axis == "m" else np.ones(len(data), bool)
            limit = 0.04 if case.name == "l40s" else target
            noise = [regret(data[keep], seconds[keep], axis) for seconds in floor.values()]
            row += [verdict(regret(data[keep], predicted[keep], axis), limit), spread([100 * x for x in noise])]
        rows.append(row)
    headers = [
        "device",
        "over n",
        "by one framework, %",
        "over k",
        "by one framework, %",
        "over m in 1024..4352",
        "by one framework, %",
    ]
    return tabulate(rows, headers, tablefmt="github")


def cells_table(cases: list[Case]) -> str:
    """What cells are worth on k that they have not seen."""
    rows = []
    for case in cases:
        data = case.data
        unseen = np.isin(data.k, case.device.provenance["bf16"]["held_out_k"])
        row = [case.name]
        for part in (unseen & data.large, unseen & case.judged, unseen & case.hidden & ~data.large):
            row += [percent(mape(seconds[part], data.seconds[part])) for seconds in (case.predicted, case.priced)]
        large = unseen & data.large
        row += [percent(regret(data[large], seconds[large], "n")) for seconds in (case.predicted, case.priced)]
        rows.append(row)
    headers = [
        "device",
        "large, unseen k: without",
        "with",
        "unseen n and k: without",
        "with",
        "small, unseen n and k: without",
        "with",
        "regret over n, unseen k: without",
        "with",
    ]
    return tabulate(rows, headers, tablefmt="github")


def small_table(cases: list[Case]) -> str:
    """Small and skinny products of unseen n."""
    rows = []
    for case in cases:
        data, hidden = case.data, case.hidden
        skinny = hidden & (data.m < 512) & (np.minimum(data.n, data.k) >= 512)
        other = hidden & (np.minimum(data.n, data.k) < 512)
        parts = [mape(case.predicted[part], data.seconds[part]) for part in (skinny, other)]
        decode = skinny & (data.m <= 32)
        noise = framework_noise(case.records, lambda one: one.m < 512 <= min(one.n, one.k))
        rows.append(
            [
                case.name,
                verdict(parts[0], 0.1),
                percent(noise),
                percent(mape(case.predicted[decode], data.seconds[decode])),
                percent(parts[1]),
            ]
        )
    headers = ["device", "m < 512; n, k >= 512", "framework against framework", "of which m <= 32", "n or k < 512"]
    return tabulate(rows, headers, tablefmt="github")


def spec_table(root: Path) -> str:
    """Devices known by their data sheet alone, and the same after 50 of their shapes, drawn thrice."""
    rows = []
    for gpu, name in SPEC_ONLY.items():
        case = load(root / gpu, name)
        judged = case.data.large
        error = mape(case.predicted[judged], case.data.seconds[judged])
        _, origin = gemm_constants(case.device, "bf16")
        scale = rescaled(case.predicted[judged], case.data.seconds[judged])
        target = 0.10 if origin.device == "l40s" else 0.06
        quick = float(np.mean([quick_error(case, seed) for seed in range(3)]))
        rows.append(
            [
                name,
                origin.device,
                int(judged.sum()),
                verdict(error, SPEC_TARGETS[name]),
                percent(scale),
                verdict(quick, target),
            ]
        )
    headers = [
        "device",
        "constants of",
        "shapes",
        "data sheet only (aim)",
        "after one global scale",
        "after 50 measured shapes (target)",
    ]
    return tabulate(rows, headers, tablefmt="github")


def write_borrowed_errors(root: Path) -> None:
    """What was judged of constants that are borrowed goes into the files of who borrows: errors, never constants."""
    for gpu, name in SPEC_ONLY.items():
        device = load_device(name)
        error = plain(device.errors)
        for table, dtype, recipe, theirs in LOW_PRECISION:
            files = sorted((root / gpu).rglob("gemm_perf.parquet"))
            records = [one for file in files for one in products_of(file, {theirs: dtype})]
            if table not in device.cost and dtype in device.peak_flops and records:
                error[table] = user_errors(records, gemm_constants(device, dtype, recipe)[0])
        write_tables(Path(device.origin), {"error": error})


#: Tables of ``[cost]`` and ``[error]``: our element type and recipe, aiconfigurator-core's name.
LOW_PRECISION = (
    ("bf16", "bf16", None, "bfloat16"),
    ("fp8", "fp8", None, "fp8"),
    ("fp8_blockwise", "fp8", "blockwise", "fp8_block"),
    ("nvfp4", "nvfp4", None, "nvfp4"),
)


def low_precision_table() -> str:
    """What the device files say of products in fewer bits, as fitted or judged last."""
    rows = []
    for name in (*FITTED.values(), *SPEC_ONLY.values()):
        device = load_device(name)
        for table, dtype, recipe, _ in LOW_PRECISION[1:]:
            if (
                dtype in device.peak_flops
                and table in device.errors
                and table in gemm_constants(device, dtype, recipe)[1].table
            ):
                figures = (device.errors[table].get(key) for key in ("large", "large_p95", "small", "small_p95"))
                rows.append(
                    [
                        name,
                        table,
                        "fitted" if table in device.cost else "borrowed",
                        *("-" if one is None else percent(one) for one in figures),
                    ]
                )
    headers = ["device", "products", "tier", "large", "95th percentile", "small", "95th percentile"]
    return tabulate(rows, headers, tablefmt="github")


def quick_error(case: Case, seed: int) -> float:
    """Error on all other large shapes after `sizer calibrate` with 50 random ones (35 large, 15 skinny)."""
    random = np.random.default_rng(seed)
    large, skinny = np.flatnonzero(case.data.large), np.flatnonzero((case.data.m <= 128) & (case.data.n >= 512))
    chosen = np.concatenate([random.choice(large, 35, replace=False), random.choice(skinny, 15, replace=False)])
    constants = refine(case.data[chosen], case.device, "bf16", seed)
    rest = np.setdiff1d(large, chosen)
    return float(case.data[rest].errors(constants).mean())


def speed() -> str:
    random = np.random.default_rng(0)
    m, n, k = (64 * random.integers(8, 256, 1_000_000) for _ in range(3))
    best = 0.0
    for _ in range(5):
        start = time.process_time()
        predict_gemm("h100-sxm", m, n, k)
        best = max(best, len(m) / (time.process_time() - start))
    return (
        f"This: {best:,.0f} predictions a second of one core's time (best of five runs of a million; target 1,000,000)."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--heuristics", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write-errors", action="store_true", help="into the files of data-sheet-only devices")
    parser.add_argument("--out", type=Path, default=REPORTS / "accuracy.md")
    options = parser.parse_args()
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731, T201  # progress of a script
    cases = [load(options.data / gpu, name) for gpu, name in FITTED.items()]
    say("loaded")
    if options.write_errors:
        write_borrowed_errors(options.data)
    plots = options.out.parent / "plots"
    plots.mkdir(exist_ok=True)
    pictures = [scatter(case.name, case.data, case.predicted, case.judged, plots) for case in cases]
    pictures += [staircase(case.device, case.data, plots) for case in cases]
    say("plotted")
    compared, speeds = errors_table(cases, options.heuristics)
    say("compared")
    text = (Path(__file__).parent / "accuracy_template.md").read_text(encoding="utf-8")
    values = {
        "files": files_table(),
        "errors": compared,
        "ranks": ranks_table(cases),
        "regret": regret_table(cases),
        "small": small_table(cases),
        "cells": cells_table(cases),
        "spec": spec_table(options.data),
        "fp8": low_precision_table(),
        "speed": "\n".join([speed(), *speeds]),
        "seeds": seeds_table(cases, options.seeds),
        "plots": "\n".join(f"![{path.stem}](plots/{path.name})" for path in pictures),
        "held_out_k": ", ".join(str(k) for k in cases[0].device.provenance["bf16"]["held_out_k"]),
        "held_out": ", ".join(str(int(n)) for n in np.unique(cases[0].data.n[cases[0].hidden])),
    }
    for key, value in values.items():
        text = text.replace("{{" + key + "}}", value)
    options.out.write_text(with_answer("accuracy", text), encoding="utf-8")
    say(f"wrote {options.out}")


if __name__ == "__main__":
    main()
