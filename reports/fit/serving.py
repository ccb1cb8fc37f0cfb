"""Constants of serving engines: each half of the published models and devices judged by constants of the other half.

python -m reports.fit.serving --data ../shared/evidence/serving.csv.gz            # what it finds
python -m reports.fit.serving --data ../shared/evidence/serving.csv.gz --write    # reports/bench/serving_engines/*.toml

A model on a device is on one side whole, so that no row has a near-copy on the other. One set of constants serves every
engine but for its all-reduce and the fixed part of its first token. Intervals are quantiles of every row's error where
its half was left out; the constants written are those of all rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from serving_model import FOLDER, ServingEngine
from serving_rows import Row, read_rows

#: The constants of each metric with where the search starts (the study's); those after "@" are an engine's own.
FITTED: dict[str, dict[str, float]] = {
    "tpot_ms": {
        "dense": 1.21, "experts": 1.11, "attention": 0.99, "kernel_s": 3.75e-6, "moe_layer_s": 44e-6,
        "request_s": 28e-6, "prompt": 1.61, "communication": 1.38, "all_reduce_s@tensorrt-llm": 6.6e-6,
        "all_reduce_s@sglang": 5.6e-6, "all_reduce_s@vllm": 12.5e-6,
    },
    "ttft_ms": {
        "first_steps": 6.0, "token_s": 8.3e-6, "waiting": 0.15, "arrival_s": 0.33e-3, "first_s@tensorrt-llm": 42e-3,
        "first_s@vllm": 1e-3, "first_s@sglang": 1e-3,
    },
    "output_tokens_per_s_total": {"occupancy": 0.61, "steady": 0.74},
}  # fmt: skip
TITLES = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt-llm": "TensorRT-LLM"}
#: The others are judged on what these teach.
SOURCES = ("aic-silicon", "trtllm-docs")


def start() -> dict[str, ServingEngine]:
    """Every engine with the study's constants."""
    found = {}
    for name, title in TITLES.items():
        own = {
            key.split("@")[0]: value
            for constants in FITTED.values()
            for key, value in constants.items()
            if "@" not in key or key.endswith("@" + name)
        }
        found[name] = ServingEngine(name=name, title=title, tier="fitted", coverage=0.9, source="", intervals={}, **own)
    return found


def changed(engines: dict[str, ServingEngine], keys: Sequence[str], values: Sequence[float]) -> dict[str, Any]:
    found = dict(engines)
    for key, value in zip(keys, values, strict=True):
        field, _, own = key.partition("@")
        for name in [own] if own else list(found):
            found[name] = replace(found[name], **{field: float(value)})
    return found


def fit(engines: dict[str, ServingEngine], rows: Sequence[Row]) -> dict[str, ServingEngine]:
    """Each metric's constants in turn: later ones take the earlier as they are."""
    for metric, constants in FITTED.items():
        own = [row for row in rows if row.metric == metric]
        first = np.log(list(constants.values()))
        asked = (own, list(constants), first, engines)
        best = least_squares(residuals, first, loss="soft_l1", f_scale=0.15, max_nfev=40, args=asked).x
        engines = changed(engines, list(constants), np.exp(best))
    return engines


def residuals(
    logs: np.ndarray, rows: Sequence[Row], keys: Sequence[str], first: np.ndarray, known: dict[str, ServingEngine]
) -> np.ndarray:
    """Logarithms of predicted over measured, and a weak pull to where the search started."""
    tried = changed(known, keys, np.exp(logs))
    off = np.log([row.predicted(tried[row.engine]) / row.value for row in rows])
    return np.concatenate([off, 0.3 * (logs - first)])


def usable(row: Row) -> bool:
    """Trusted, not faster than memory allows, of the sources it learns from, as a server
    answers."""
    if not row.trusted or row.source not in SOURCES or (row.source, row.metric) == ("trtllm-docs", "ttft_ms"):
        return False
    floor = row.step.dense_s + row.step.experts_s + row.step.attention_s
    return row.metric != "tpot_ms" or row.value >= 1e3 * floor


def half(row: Row) -> bool:
    return crc32(row.group.encode()) % 2 == 0


Pairs = list[tuple[Row, float]]


def quantiles(pairs: Pairs) -> dict[str, tuple[float, float]]:
    """Metric, dense or moe -> measured over predicted at 5 and 95%, of rows left out."""
    found = {}
    for key in sorted({f"{row.metric} {row.kind}" for row, _ in pairs}):
        own = [row.value / price for row, price in pairs if f"{row.metric} {row.kind}" == key]
        low, high = np.quantile(own, (0.05, 0.95))
        found[key] = (min(1.0, float(low)), max(1.0, float(high)))
    return found


def report(pairs: Pairs) -> str:
    """Bias, MAPE and median error by metric and kind."""
    lines = []
    for key in sorted({f"{row.metric} {row.kind}" for row, _ in pairs}):
        off = np.array([price / row.value - 1 for row, price in pairs if f"{row.metric} {row.kind}" == key])
        size = np.abs(off)
        figures = f"bias {off.mean():+.1%}, MAPE {size.mean():.1%}, median {np.median(size):.1%}"
        lines.append(f"{key}: {len(off)} rows, {figures}")
    return "\n".join(lines)


def priced(rows: Sequence[Row], engines: dict[str, ServingEngine]) -> Pairs:
    return [(row, row.predicted(engines[row.engine])) for row in rows]


def say(line: str) -> None:
    print(line)  # noqa: T201  # a script whose output is its purpose


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help="write reports/bench/serving_engines")
    options = parser.parse_args()
    rows = [row for row in read_rows(options.data, []) if usable(row)]
    halves = [[row for row in rows if half(row) is which] for which in (True, False)]
    left = [pair for own, other in (halves, halves[::-1]) for pair in priced(own, fit(start(), other))]
    engines = fit(start(), rows)
    say(f"left out:\n{report(left)}\n\nfitted on all {len(rows)}:\n{report(priced(rows, engines))}")
    ranges = quantiles(left)
    engines["gpt-fast"] = replace(engines["tensorrt-llm"], name="gpt-fast", title="gpt-fast", tier="extrapolated")
    for engine in engines.values():
        known = ranges if engine.tier == "fitted" else dict.fromkeys(ranges, UNKNOWN)
        text = as_toml(engine, known, len(rows))
        if options.write:
            (FOLDER / f"{engine.name}.toml").write_text(text)
        else:
            say(f"\n{text}")


#: Of an engine that nothing was fitted on: a factor of two either way.
UNKNOWN = (0.5, 2.0)


def as_toml(engine: ServingEngine, ranges: dict[str, tuple[float, float]], rows: int) -> str:
    """The engine's file."""
    source = f"reports/fit/serving.py on {rows} rows of serving.csv.gz; intervals: models and devices left out"
    said = {"name": engine.name, "title": engine.title, "tier": engine.tier, "source": source}
    lines = [f"{key} = {json.dumps(value)}" for key, value in said.items()]
    for one in fields(ServingEngine):
        value = getattr(engine, one.name)
        lines += [f"{one.name} = {value:.4g}"] if isinstance(value, float) else []
    lines += ["", "[intervals]", *(f'"{key}" = [{low:.3f}, {high:.3f}]' for key, (low, high) in ranges.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
