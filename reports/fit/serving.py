"""Constants of serving engines: each fold of the published models and devices judged by constants of the others.

python -m reports.fit.serving --data ../shared/evidence/serving.csv.gz            # what it finds
python -m reports.fit.serving --data ../shared/evidence/serving.csv.gz --write    # and its files
python -m reports.fit.serving --data ../shared/evidence/serving.csv.gz --left-out model    # each one's rows left out

A model on a device is in one fold whole, so that no row has a near-copy among those that it is judged by. One set of
constants serves every engine but for its all-reduce and the fixed part of its first token. An interval is the narrowest
that holds enough of the rows both where their fold was left out and where their source was, of all and of those of few
requests; the constants written are those of all rows.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from scipy.optimize import least_squares
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from opening import with_answer
from serving import REQUESTS
from serving import requests as sized
from serving_rows import EARLY, METRICS, Requests, Row, predicted, read_rows

from shapes.step.serving import Load, ServingStack
from shapes.toml_table import shipped

#: Constants with where the search starts. "@": of one engine, or on Hopper alone.
STEP: dict[str, float] = {
    "dense": 1.23, "experts": 1.26, "experts_nvfp4": 0.93, "attention": 1.06, "attention_fp8": 1.6, "arithmetic": 1.4,
    "experts_arithmetic": 1.8, "padding": 40.0, "communication": 1.9, "communication@hopper": 1.5, "passes": 1.8,
    "kernel_s": 3.7e-6, "moe_layer_s": 9.4e-6, "moe_layer_s@hopper": 47e-6, "all_reduce_s": 8.5e-6,
    "all_reduce_s@vllm": 13e-6, "request_s": 26e-6, "batch_request_s": 13e-6, "batch_step_s": 1e-3,
    "exchange_s": 4e-6, "exchange_s@hopper": 4e-6, "exchange_s@vllm": 4e-6, "kernel_s@tensorrt-llm-0.12": 20e-6,
    "batch_request_s@tensorrt-llm-0.12": 3e-6, "attention@tensorrt-llm-0.12": 1.0,
    "attention_fp8@tensorrt-llm-0.12": 1.1, "all_reduce_s@tensorrt-llm-0.12": 40e-6,
}  # fmt: skip
FIRST: dict[str, float] = {
    "first_steps": 4.0, "first_steps@tensorrt-llm": 2.5, "first_steps@sglang": 6.0, "token_s": 6e-6,
    "token_s@vllm": 6e-6, "first_s": 1e-3, "first_s@vllm": 5e-3, "first_s@tensorrt-llm": 20e-3,
    "moe_first_s@tensorrt-llm@hopper": 40e-3,
}  # fmt: skip
#: Of requests in lockstep the steps between them pass twice: before a first token, and not between later ones.
LOCKSTEP = "first_steps@tensorrt-llm"
TITLES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tensorrt-llm": "TensorRT-LLM",
    "tensorrt-llm-0.12": "TensorRT-LLM to 0.12, without CUDA graphs",
}
#: Engines without rows of their own to fit on, with what is known of them otherwise: transformers launches every kernel
#: (10 us each, of stacks/transformers-eager.toml), three where engines have one, and reads out no graph; gpt-fast is a
#: loop without a scheduler.
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-fast": ("gpt-fast", {"batch_step_s": 0.0}),
    "transformers": ("Hugging Face transformers, eager", {"kernel_s": 30e-6, "graphs": False}),
}
#: The column of ``Load.products`` with the share of experts that a token is routed to.
CHOSEN = 5
#: The others are judged on what these teach.
SOURCES = ("aic-silicon", "trtllm-docs")
ARCHITECTURES = ("", "hopper")
FOLDS = 6
#: Share of what was left out that an interval holds, a little more than it says it does: errors of a new model on a new
#: device are all of one kind. With these the folds that an interval has not seen are 89 to 94% inside (``covered``).
HELD = 0.93
#: Weight of a throughput's logarithm: one run's occupancy is noisier than a server's mean time.
WEIGHTS = {METRICS[2]: 0.5}


@dataclass(frozen=True)
class Many:
    """Rows that one set of constants and one form price at once. ``total``: 0 where the run does not end."""

    key: tuple[str, str]
    metric: str
    load: Load
    asked: Requests
    total: Any
    value: np.ndarray
    places: np.ndarray


def stacked(rows: Sequence[Row]) -> list[Many]:
    """``rows`` by engine, architecture and metric, and by whether they are streamed and end."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        architecture = row.device.architecture if row.device.architecture in ARCHITECTURES else ""
        key = (row.engine, architecture, row.metric, row.asked.streamed, row.asked.apart)
        key = (*key, row.asked.at_random, row.asked.lockstep, row.total is None)
        groups[key].append(place)
    found = []
    for key, places in groups.items():
        own = [rows[place] for place in places]
        widest = max(len(row.load.products) for row in own)
        columns = {
            one.name: np.array([_padded(getattr(row.load, one.name), widest) for row in own]) for one in fields(Load)
        }
        asked = {
            name: np.array([float(getattr(row.asked, name)) for row in own])
            for name in (
                "concurrency",
                "input_tokens",
                "output_tokens",
                "replicas",
                "most",
                "waves",
                "held",
                "cached",
                "eager",
                "late_s",
            )
        }
        requests = replace(own[0].asked, **asked)
        total = None if own[0].total is None else np.array([float(row.total or 0) for row in own])
        value = np.array([row.value for row in own])
        found.append(Many(key[:2], key[2], Load(**columns), requests, total, value, np.array(places)))
    return found


def _padded(value: Any, widest: int) -> Any:
    """Products of none of a model's, whose share of experts nothing is divided by in vain."""
    if not isinstance(value, np.ndarray):
        return value
    rest = np.zeros((widest - len(value), value.shape[1]))
    rest[:, CHOSEN] = 1
    return np.concatenate([value, rest])


def stacks(
    constants: dict[str, float], source: str = "", devices: tuple[str, ...] = ()
) -> dict[tuple[str, str], ServingStack]:
    """(engine, architecture) -> its stack: constants of fewer "@" give way to those of more."""
    found = {}
    for name, title in TITLES.items():
        for architecture in ARCHITECTURES:
            own = {"moe_first_s": 0.0}
            for key, value in sorted(constants.items(), key=lambda pair: pair[0].count("@")):
                field, *of = key.split("@")
                if set(of) <= {name, "tensorrt-llm" if name == EARLY else name, architecture}:
                    own[field] = value
            found[name, architecture] = ServingStack(
                name=name, title=title, tier="fitted", coverage=0.9, source=source, intervals={}, devices=devices,
                reserved=1.0 if name.startswith("tensorrt-llm") else 0.5, of_free=name.startswith("tensorrt-llm"),
                graphs=name != EARLY, **own,
            )  # fmt: skip
    return found


def priced(many: Sequence[Many], constants: dict[str, float], rows: int) -> np.ndarray:
    found = np.zeros(rows)
    own = stacks(constants)
    for one in many:
        found[one.places] = predicted(own[one.key], one.metric, one.load, one.asked, one.total)
    return found


def fit(rows: Sequence[Row]) -> dict[str, float]:
    """What a step and a prompt take, then what a first token takes more.

    Fitted together, sources that neither is of are priced worse.
    """
    constants = STEP | FIRST
    for keys, metrics in (([*STEP, LOCKSTEP], METRICS[1:]), (list(FIRST), METRICS[:1])):
        own = [row for row in rows if row.metric in metrics]
        many, first = stacked(own), np.log([constants[key] for key in keys])
        weights = np.array([WEIGHTS.get(row.metric, 1.0) for row in own])
        asked = (many, np.log([row.value for row in own]), weights, keys, first, constants)
        best = least_squares(residuals, first, loss="soft_l1", f_scale=0.1, max_nfev=40, args=asked).x
        constants = constants | dict(zip(keys, map(float, np.exp(best)), strict=True))
    return constants


def residuals(
    logs: np.ndarray,
    many: Sequence[Many],
    measured: np.ndarray,
    weights: np.ndarray,
    keys: Sequence[str],
    first: np.ndarray,
    known: dict[str, float],
) -> np.ndarray:
    """Logarithms of predicted over measured, and a weak pull to where the search started."""
    tried = priced(many, known | dict(zip(keys, np.exp(logs), strict=True)), len(measured))
    return np.concatenate([weights * (np.log(tried) - measured), 0.3 * (logs - first)])


#: What a step takes at the least: everything read and computed once at the data sheet's rates.
FLOOR = dict.fromkeys(("dense", "experts", "experts_nvfp4", "attention", "attention_fp8"), 1.0)
FLOOR |= {"arithmetic": 1.0, "experts_arithmetic": 1.0, "padding": 0.0, "communication": 0.0, "passes": 0.0}
FLOOR |= {one.name: 0.0 for one in fields(ServingStack) if one.name.endswith("_s")}


def usable(row: Row) -> bool:
    """Trusted, of the sources it learns from, as a server answers."""
    return row.trusted and row.source in SOURCES and (row.source, row.metric) != ("trtllm-docs", "ttft_ms")


def possible(row: Row) -> bool:
    """Not faster than memory allows, as a run of several engines that is told as one is."""
    running = min(row.asked.most, -(-row.asked.concurrency // row.asked.replicas))
    least_s = row.load.step_s(replace(row.stack, **FLOOR), running)
    return row.metric != "tpot_ms" or row.value >= 1e3 * float(least_s)


def fold(row: Row) -> int:
    return crc32(row.group.encode()) % FOLDS


#: What may be left out whole, one after the other.
PARTS: dict[str, Callable[[Row], Any]] = {
    "model": lambda row: row.group.rsplit(" ", 1)[0],
    "device": lambda row: row.device.name,
    "engine": lambda row: row.engine,
    "source": lambda row: row.source,
}


def left_out(rows: Sequence[Row], part: Callable[[Row], Any] = fold) -> np.ndarray:
    """Each row priced by the constants of the other parts."""
    found, parts = np.zeros(len(rows)), [part(row) for row in rows]
    for which in sorted(set(parts)):
        others = fit([row for row, own in zip(rows, parts, strict=True) if own != which])
        places = [place for place, own in enumerate(parts) if own == which]
        found[places] = priced(stacked([rows[place] for place in places]), others, len(places))
    return found


def keyed(rows: Sequence[Row]) -> np.ndarray:
    """Of each row its metric, and whether it is dense or moe."""
    return np.array([f"{row.metric} {row.kind}" for row in rows])


def of_few(rows: Sequence[Row]) -> np.ndarray:
    """Whether as few requests are in flight as in the least of the tables' bands."""
    return np.array([sized(row) == REQUESTS[0][1] for row in rows])


def by_metric_and_kind(rows: Sequence[Row], prices: np.ndarray) -> dict[str, np.ndarray]:
    """Metric, dense or moe -> measured over predicted."""
    keys, ratios = keyed(rows), np.array([row.value for row in rows]) / prices
    return {key: ratios[keys == key] for key in sorted(set(keys))}


def report(rows: Sequence[Row], prices: np.ndarray) -> str:
    """Bias, MAPE and median error by metric and kind."""
    lines = []
    for key, ratios in by_metric_and_kind(rows, prices).items():
        off = 1 / ratios - 1
        size = np.abs(off)
        figures = f"bias {off.mean():+.1%}, MAPE {size.mean():.1%}, median {np.median(size):.1%}"
        lines.append(f"{key}: {len(off)} rows, {figures}")
    return "\n".join(lines)


def say(line: str) -> None:
    print(line)  # noqa: T201  # a script whose output is its purpose


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help="write shapes/data/serving and reports/serving.md")
    parser.add_argument("--left-out", choices=PARTS, help="judge alone, with each of these left out whole")
    options = parser.parse_args()
    every = list(read_rows(options.data, []))
    learnt = [row for row in every if usable(row)]
    rows = [row for row in learnt if possible(row)]
    if options.left_out:
        say(report(rows, left_out(rows, PARTS[options.left_out])))
        return
    left, whole, constants = left_out(rows), left_out(rows, PARTS["source"]), fit(rows)
    say(f"left out:\n{report(rows, left)}\n\nfitted on all {len(rows)}:")
    say(report(rows, priced(stacked(rows), constants, len(rows))))
    kinds = [by_metric_and_kind(rows, prices) for prices in (left, whole)]
    keys, few = keyed(rows), of_few(rows)
    ranges = {key: narrowest([ratios[key] for ratios in kinds], few[keys == key]) for key in kinds[0]}
    intervals = "models and devices left out, and sources, few requests too"
    source = f"reports/fit/serving.py on {len(rows)} rows of serving.csv.gz; intervals: {intervals}"
    for name in (*TITLES, *OTHERS):
        like = name if name in TITLES else "vllm"
        devices = tuple(sorted({row.device.name for row in rows if row.engine == name}))
        own = {key[1]: stack for key, stack in stacks(constants, source, devices).items() if key[0] == like}
        text = as_toml(name, own, ranges)
        if options.write:
            shipped("serving", name).write_text(text)
        else:
            say(f"\n{text}")
    if options.write:
        others = [row for row in every if row.trusted and row.source not in SOURCES]
        text = page(rows, left, whole, len(learnt) - len(rows), others)
        PAGE.write_text(with_answer("serving", text), encoding="utf-8")


def page(rows: Sequence[Row], left: np.ndarray, whole: np.ndarray, impossible: int, others: Sequence[Row]) -> str:
    """reports/serving.md: left out by metric and by requests, and sources that nothing was fitted on."""
    values = np.array([row.value for row in rows])
    ratios, of_sources = left / values, whole / values
    inside, inside_of_sources = covered(rows, [1 / ratios, 1 / of_sources])

    def table(groups: Callable[[Row], str | None], ratios: np.ndarray = ratios, inside: np.ndarray = inside) -> str:
        places = defaultdict(list)
        for place, row in enumerate(rows):
            places[groups(row)].append(place)
        listed = [[name, *_figures(ratios[own], inside[own])] for name, own in places.items() if name is not None]
        return tabulate(sorted(listed, key=_order), HEAD, tablefmt="github", disable_numparse=True)

    def metric_and_kind(row: Row) -> str:
        return f"{NAMES[row.metric]}, {row.kind}"

    def off(prices: np.ndarray, metric: str) -> list[str]:
        found = by_metric_and_kind(rows, prices)
        return [f"{np.abs(1 / found[f'{metric} {kind}'] - 1).mean():.1%}" for kind in ("dense", "moe")]

    def by_part(name: str) -> list[str]:
        prices = whole if name == "source" else left_out(rows, PARTS[name])
        return [f"an {name}" if name == "engine" else f"a {name}", *(", ".join(off(prices, one)) for one in METRICS)]

    released = left_out(rows, lambda row: row.release) / values
    by_release = defaultdict(list)
    for place, row in enumerate(rows):
        by_release[metric_and_kind(row)].append(released[place])

    def requests(row: Row) -> str | None:
        return f"{sized(row)} {row.kind}" if row.metric == METRICS[1] else None

    found = defaultdict(list)
    for row in others:
        price = float(predicted(row.stack, row.metric, row.load, row.asked, row.total))
        low, high = row.stack.intervals[row.kind][row.metric]
        key = f"{row.source}, {NAMES[row.metric]}"
        found[key].append((price / row.value, low * price <= row.value <= high * price))
    judged = [[name, *_figures(*map(np.array, zip(*own, strict=True)))] for name, own in sorted(found.items())]
    odd = np.array(
        [row.metric == METRICS[1] and row.kind == "dense" and "Llama-3.1-8B" not in row.group for row in rows]
    )
    own = np.array(
        [row.metric == METRICS[0] and row.kind == "dense" and "Llama-3.1-8B" not in row.group for row in rows]
    )
    gh200 = np.array(
        [row.metric != METRICS[2] or row.kind != "moe" or row.group == "trtllm-docs Mixtral 8x7B gh200" for row in rows]
    )
    words = ["plan", "Qwen/Qwen3-32B", "--phase", "decode", "--device", "h200", "--gpus", "8", "--ttft", "500ms"]
    words += ["--tpot", "30ms", "--top", "4"]
    command = [sys.executable, "-m", "sizer", *words]
    said = {
        "constants": str(len(STEP) + len(FIRST)),
        "rows": f"{len(rows):,}",
        "groups": str(len({row.group for row in rows})),
        "left_out": table(metric_and_kind),
        "sources": table(metric_and_kind, of_sources, inside_of_sources),
        "requests": table(requests),
        "releases": str(len({row.release for row in rows})),
        "released": tabulate(
            [[name, *_figures(np.array(own), np.zeros(1))[:-1]] for name, own in sorted(by_release.items())],
            HEAD[:-1],
            tablefmt="github",
            disable_numparse=True,
        ),
        "token_by_offline": " and ".join(off(whole, METRICS[1])),
        "by_part": tabulate(
            [by_part(name) for name in PARTS],
            ["left out", *(f"{NAMES[metric]}, dense, moe" for metric in METRICS)],
            tablefmt="github",
            disable_numparse=True,
        ),
        "others": tabulate(judged, HEAD, tablefmt="github", disable_numparse=True),
        "impossible": str(impossible),
        "without": f"{np.abs(ratios[odd] - 1).mean():.1%}",
        "first_without": f"{np.abs(ratios[own] - 1).mean():.1%}",
        "moe_without": f"{np.abs(ratios[~gh200] - 1).mean():.1%}",
        "plan_words": " ".join(words),
        "plan": subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip(),
    }
    return (Path(__file__).parents[1] / "bench" / "serving_template.md").read_text(encoding="utf-8").format(**said)


def covered(rows: Sequence[Row], left: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Whether each row's measured over predicted is in the interval of the other folds, by way of leaving out."""
    keys, folds, few = keyed(rows), np.array([fold(row) for row in rows]), of_few(rows)
    found = [np.zeros(len(rows), dtype=bool) for _ in left]
    for key in set(keys):
        for which in range(FOLDS):
            own, others = (keys == key) & (folds == which), (keys == key) & (folds != which)
            low, high = narrowest([ratios[others] for ratios in left], few[others])
            for inside, ratios in zip(found, left, strict=True):
                inside[own] = (min(1.0, low) <= ratios[own]) & (ratios[own] <= max(1.0, high))
    return found


def narrowest(left: Sequence[np.ndarray], few: np.ndarray) -> tuple[float, float]:
    """The narrowest interval, by the ratio of its ends, that holds ``HELD`` of measured over predicted in each way.

    A way is one of leaving out: of all rows, and of the ``few`` whose steps are mostly launches and the host's.
    """
    sets, found = [*left, *(ratios[few] for ratios in left if few.any())], []
    for low in np.unique(np.concatenate(left)):
        shares = [(ratios < low).mean() + HELD for ratios in sets]
        if max(shares) <= 1:
            high = max(np.quantile(ratios, share) for ratios, share in zip(sets, shares, strict=True))
            found.append((float(low), float(high)))
    return min(found, key=lambda ends: ends[1] / ends[0])


def _figures(ratios: np.ndarray, inside: np.ndarray) -> list[str]:
    off = np.abs(ratios - 1)
    shares = (f"{ratios.mean() - 1:+.1%}", f"{off.mean():.1%}", f"{np.median(off):.1%}", f"{inside.mean():.0%}")
    return [f"{len(off):,}", *shares]


def _order(row: Sequence[str]) -> tuple[int, str]:
    return int(re.split(r"\D", row[0])[0] or 999) if row[0][0].isdigit() else 1000, row[0]


PAGE = Path(__file__).parents[1] / "serving.md"
HEAD = ("rows of", "rows", "bias", "MAPE", "median", "covered")
NAMES = dict(zip(METRICS, ("first token", "output token", "throughput"), strict=True))


#: Of an engine that nothing was fitted on: a factor of two either way.
UNKNOWN = (0.5, 2.0)


def as_toml(name: str, own: dict[str, ServingStack], ranges: dict[str, tuple[float, ...]]) -> str:
    """The engine's file: its constants, and on an architecture those that differ."""
    plain = own[""]
    if name in OTHERS:
        title, known = OTHERS[name]
        own = {key: replace(stack, name=name, title=title, tier="extrapolated", **known) for key, stack in own.items()}
        plain, ranges = own[""], dict.fromkeys(ranges, UNKNOWN)
    said = {key: getattr(plain, key) for key in ("name", "title", "tier", "source", "devices")}
    lines = [f"{key} = {json.dumps(value)}" for key, value in said.items()]
    numbers = [one.name for one in fields(ServingStack) if isinstance(getattr(plain, one.name), float)]
    lines += [f"{key} = {getattr(plain, key):.4g}" for key in numbers]
    lines += [f"{key} = {str(getattr(plain, key)).lower()}" for key in ("of_free", "graphs")]
    for kind in ("dense", "moe"):
        lines += ["", f"[intervals.{kind}]"]
        lines += [
            f"{key.split()[0]} = [{min(1.0, low):.3f}, {max(1.0, high):.3f}]"
            for key, (low, high) in ranges.items()
            if key.endswith(kind)
        ]
    for architecture in ARCHITECTURES[1:]:
        other = own[architecture]
        differ = [key for key in numbers if getattr(other, key) != getattr(own[""], key)]
        lines += ["", f"[architecture.{architecture}]", *(f"{key} = {getattr(other, key):.4g}" for key in differ)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
