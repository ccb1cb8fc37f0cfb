"""Fits the constants of shapes/data/stacks/*.toml on published steps: two minutes.

    python reports/bench/steps_fit.py --data ../shared/evidence/steps.csv            # cross-validated errors
    python reports/bench/steps_fit.py --data ../shared/evidence/steps.csv --write    # written into the files, too
    python reports/bench/steps_fit.py --data ../shared/evidence/steps.csv --intervals # hold sources left out, written
    python reports/bench/steps_fit.py --data ../shared/evidence/steps.csv --nested   # priors chosen within the folds

Least squares on log time with a robust loss. Each constant has a prior (steps_priors.py):
what the rows do not hold stays there. Errors are those of rows left out: by configuration, devices, layout (both
and the split), and at random; intervals are quantiles of the left-out residuals, and hold sources left out whole.
scoreboard.py --rescale then makes the fitted ones as wide as runs take that no fit has used.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit
from scipy.optimize import least_squares
from step_rows import Row, read_rows, works
from steps_priors import FITTED, TIED

from shapes.calibrate import written
from shapes.device import Device
from shapes.step import schedule_of
from shapes.step.seconds import Region, Schedule, Work, microbatch, step_parts
from shapes.step.stack import SoftwareStack, list_stacks, load_stack, stack_from_mapping
from shapes.toml_table import shipped

#: Stacks that no row was run on -> what they take over from one that was, when that is written: its tables, and of
#: the classes of ``kernels`` those that its runs say something of.
BORROWED: dict[str, dict[str, tuple[str, ...]]] = {
    "pytorch-fsdp-2023": {
        "pytorch-ddp": ("kernels.gemm", "kernels.elementwise", "by_dtype", "attention"),
        "transformers-eager": ("kernels.gemm", "kernels.elementwise", "by_dtype", "attention"),
        "transformers-compile": ("kernels.gemm", "by_dtype", "attention"),
        "pytorch-fsdp-2025": ("kernels.gemm", "by_dtype", "attention.ampere"),
    }
}

#: Constants that are shares of a whole.
SHARES = ("communication.*.hidden", "communication.*.overlapped", "communication.*.contention")
#: Errors on rows left out, as the last fit that was written found them.
HELD_OUT = Path(__file__).parents[1] / "data" / "steps-held-out.json"
#: Relative error of a row that counts as one: near the noise of repeated runs.
NOISE = 0.04
#: A stack's rows -> the loss and the errors that it takes as one (in ``NOISE``). vTrain's 716 rows are 32 timings of a
#: layer, some off by 13 to 29% against every law of launches (reports/steps.md): that loss lets them pull less. Chosen
#: by rows left out; Megatron-Core's few rows of many constants are worse by it (left out by layout 14.7% for 7.7%).
LOSSES = {"megatron-2021": ("cauchy", 0.25)}
#: A constant is at most a hundredfold off its prior's centre. Where a robust loss discounts most rows, the solver's
#: steps know no end, and a stack's file takes no such figure.
REACH = np.log(100)
#: Tables of a stack's file that the fit owns.
OWNED = ("kernels", "by_dtype", "by_device", "attention", "host", "communication", "optimizer", "release", "interval")
#: Where what is priced by the nearest other stack is recorded, and what by the others' constants.
UNKNOWN = "priced by the nearest other stack"
POOLED = "facts known, constants of the others"
#: Constants whose centre is what the software's source says: launches an operator takes, what it overlaps.
FACTS = ("host.kernels.*", "communication.*.hidden", "communication.*.overlapped")
#: Folds of rows left out; folds within those kept, and the priors' widths that they choose from.
FOLDS, INNER_FOLDS = 5, 3
WIDTHS = (0.5, 1.0, 2.0)
#: Where errors with priors chosen so are recorded.
NESTED = "priors chosen by folds within"


def stacked(works: Sequence[Work]) -> Work:
    """Many steps as one, whose values are arrays of their length."""

    def columns(dicts: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
        keys = dict.fromkeys(key for one in dicts for key in one)
        return {key: np.array([one.get(key, 0.0) for one in dicts], float) for key in keys}

    def region(own: Sequence[Region]) -> Region:
        return Region(
            columns([one.seconds for one in own]),
            columns([one.runs for one in own]),
            np.array([one.fallbacks for one in own], float),
        )

    return Work(
        region([one.layers for one in works]),
        region([one.ends for one in works]),
        columns([one.communication for one in works]),
        np.array([one.update_s for one in works], float),
    )


@dataclass(frozen=True)
class Batch:
    """Rows of one device and release as arrays: ``order`` are their places among the stack's rows."""

    device: Device
    release: str
    order: np.ndarray
    stage: Work
    whole: Work
    schedule: Schedule


def batches(rows: Sequence[Row]) -> list[Batch]:
    """The rows' work as arrays, by device."""
    found = []
    done = [works(row.model, row.workload, row.device, row.stack) for row in rows]
    keys = [(row.device.name, _release(row)) for row in rows]
    for key in dict.fromkeys(keys):
        order = np.array([i for i, own in enumerate(keys) if own == key])
        device = rows[order[0]].device
        stages, wholes = zip(*(done[i] for i in order), strict=True)
        schedules = [_schedule(rows[i]) for i in order]
        schedule = Schedule(*(np.array([getattr(one, field.name) for one in schedules]) for field in fields(Schedule)))
        found.append(Batch(device, key[1], order, stacked(stages), stacked(wholes), schedule))
    return found


def _schedule(row: Row) -> Schedule:
    return replace(schedule_of(row.workload), accumulation=row.accumulation)


def _release(row: Row) -> str:
    """One name for all rows of a release that the stack tells apart, "" for its newest."""
    releases = load_stack(row.stack.name).releases
    return next((release.match for release in releases if fnmatchcase(row.stack_name, release.match)), "")


def predicted(parts: Sequence[Batch], stack: SoftwareStack, number: int) -> np.ndarray:
    """Seconds of every row."""
    seconds = np.empty(number)
    for batch in parts:
        own = stack.of_release(batch.release)
        seconds[batch.order] = step_seconds(batch.stage, batch.whole, batch.schedule, own, batch.device)
    return seconds


def step_seconds(stage: Work, whole: Work, schedule: Schedule, stack: SoftwareStack, device: Device) -> Any:
    """Seconds of a global step of the slowest stage's work and all stages'."""
    own = microbatch(stage, stack, device)
    everything = own if stage is whole else microbatch(whole, stack, device)
    return sum(step_parts(stage, schedule, stack, own, everything).values())


def with_constants(data: Mapping[str, Any], names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """The stack file's content with constants at dotted keys replaced."""
    result = _copied(data)
    for name, value in zip(names, values, strict=True):
        *path, last = name.split(".")
        table = result
        for key in path:
            table = table.setdefault(key, {})
        table[last] = value
    return result


def _copied(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, Mapping) else value for key, value in table.items()}


class Fit:
    """One stack's rows, and its constants fitted on some of them."""

    def __init__(self, name: str, rows: Sequence[Row]) -> None:
        self.name, self.rows = name, list(rows)
        self.path = shipped("stacks", name)
        self.data = tomllib.loads(self.path.read_text(encoding="utf-8"))
        self.spec = FITTED[name]
        self.measured = np.log([row.step_s for row in self.rows])
        self.batches = batches(self.rows)
        self.weight = weights(self.rows)
        self.start = np.log([value for _, value, _ in self.spec])

    def stack(self, theta: np.ndarray) -> SoftwareStack:
        names = [name for name, _, _ in self.spec]
        return stack_from_mapping(with_constants(self.data, names, self.values(theta).tolist()), str(self.path))

    def values(self, theta: np.ndarray) -> np.ndarray:
        """The constants of their logarithms; a share is 1 at most."""
        shares = [any(fnmatchcase(name, share) for share in SHARES) for name, _, _ in self.spec]
        found: np.ndarray = np.where(shares, np.minimum(np.exp(theta), 1.0), np.exp(theta))
        return found

    def residuals(self, theta: np.ndarray) -> np.ndarray:
        """log of predicted over measured."""
        return np.log(predicted(self.batches, self.stack(theta), len(self.rows))) - self.measured

    def constants(self, keep: np.ndarray, trust: float = 1.0) -> np.ndarray:
        """Logarithms of the constants, fitted on the rows of ``keep``; ``trust`` widens the priors."""
        names, centre = [name for name, _, _ in self.spec], np.log([value for _, value, _ in self.spec])
        tied = [[*map(names.index, (name, *pair))] for name, pair in TIED.items() if name in names]
        spread = trust * np.array([value for _, _, value in self.spec])

        def deviations(theta: np.ndarray) -> np.ndarray:
            own = (self.residuals(theta) * self.weight)[keep] / NOISE
            near = centre.copy()
            for place, over, under in tied:
                near[place] = theta[over] - theta[under]
            return np.concatenate([own, (theta - near) / spread])

        reach = centre - REACH, centre + REACH
        loss, scale = LOSSES.get(self.name, ("soft_l1", 1.0))
        return np.asarray(least_squares(deviations, self.start, bounds=reach, loss=loss, f_scale=scale, max_nfev=60).x)

    def held_out(self, group: np.ndarray) -> np.ndarray:
        """log of predicted over measured of each row, its group not fitted on."""
        left = np.zeros(len(self.rows))
        folds = group % FOLDS
        for fold in np.unique(folds):
            left[folds == fold] = self.residuals(self.constants(folds != fold))[folds == fold]
        return left

    def nested(self, group: np.ndarray) -> tuple[np.ndarray, list[float]]:
        """As ``held_out``, the priors' width chosen anew for each fold by folds within the rows that it leaves."""
        left, chosen = np.zeros(len(self.rows)), []
        folds, inner = group % FOLDS, group // FOLDS % INNER_FOLDS
        for fold in np.unique(folds):
            keep = folds != fold

            def error(trust: float, keep: np.ndarray = keep) -> float:
                off = [
                    self.residuals(self.constants(keep & (inner != own), trust))[keep & (inner == own)]
                    for own in range(INNER_FOLDS)
                ]
                return float(np.abs(np.expm1(np.concatenate(off))).mean())

            chosen.append(min(WIDTHS, key=error))
            left[~keep] = self.residuals(self.constants(keep, chosen[-1]))[~keep]
        return left, chosen


def weights(rows: Sequence[Row]) -> np.ndarray:
    """Runs that recur (other releases, near-identical batches) count as the root of their number, not each.

    So a source of a few rows is not outvoted by one of hundreds.
    """
    keys = [(row.source, row.config, row.gpus, row.dtype, row.workload.t, row.workload.p) for row in rows]
    sources = {row.source: sum(other.source == row.source for other in rows) for row in rows}
    own = np.array(
        [keys.count(key) ** -0.25 * sources[row.source] ** -0.15 for key, row in zip(keys, rows, strict=True)]
    )
    return own / own.max()


def layout(row: Row) -> tuple[object, ...]:
    """What runs share whose configuration, devices and split are one."""
    return row.config, row.gpus, row.workload.t, row.workload.p


def groups(rows: Sequence[Row], key: str) -> np.ndarray:
    own = {"layout": layout, "device": lambda row: row.device.name}
    names = [own[key](row) if key in own else getattr(row, key) for row in rows]
    order = {name: number for number, name in enumerate(dict.fromkeys(names))}
    shuffled = np.random.default_rng(0).permutation(len(order))
    return np.array([shuffled[order[name]] for name in names])


def summary(residuals: np.ndarray) -> str:
    error = np.expm1(residuals)
    return f"bias {error.mean():+.1%} MAPE {np.abs(error).mean():.1%} median {np.median(np.abs(error)):.1%}"


def say(line: str) -> None:
    print(line)  # noqa: T201  # a script whose output is its purpose


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--stack", action="append", choices=sorted(FITTED), help="only these")
    parser.add_argument("--write", action="store_true", help="write the constants into shapes/data/stacks")
    parser.add_argument(
        "--intervals", action="store_true", help="only widen the intervals to sources left out, written"
    )
    parser.add_argument("--nested", action="store_true", help="choose the priors' width within the folds, record that")
    options = parser.parse_args()
    rows = [row for row in read_rows(options.data) if row.known]
    fits = {}
    for name in options.stack or FITTED:
        fit = fits[name] = Fit(name, [row for row in rows if row.stack.name == name])
        if options.nested or options.intervals:
            (record_nested if options.nested else widen)(fit)
            continue
        # Those of some rows are near, and found from there in a fifth of the time.
        theta = fit.start = fit.constants(np.ones(len(fit.rows), bool))
        say(f"{name}: {len(fit.rows)} rows; in sample {summary(fit.residuals(theta))}")
        for (key, centre, spread), value in zip(fit.spec, fit.values(theta), strict=True):
            say(f"    {key:34s} {value:10.4g}   prior {centre:g} x/{np.exp(spread):.2f}")
        left = {key: fit.held_out(groups(fit.rows, key)) for key in ("config", "gpus", "layout", "id")}
        if len({row.device.name for row in fit.rows}) > 1:
            left["device"] = fit.held_out(groups(fit.rows, "device"))
        for key, residuals in left.items():
            say(f"  left out by {key}: {summary(residuals)}")
        for source in sorted({row.source for row in fit.rows}):
            own = np.array([row.source == source for row in fit.rows])
            within, without = summary(fit.residuals(theta)[own]), summary(left["layout"][own])
            say(f"    {source} ({own.sum()}): in sample {within}; left out {without}")
        if options.write:
            write(fit, theta, left["layout"], left["id"])
            record(fit, theta, left)
    if options.write and not options.stack and not options.nested:
        newest_in_bf16(fits)
        unknown(rows)
        pooled(fits)


def unknown(rows: Sequence[Row]) -> None:
    """Every stack's rows priced by the nearest other one: what is recorded of unknown stacks, and their interval."""
    residuals: dict[str, list[float]] = {}
    others: dict[str, set[str]] = {}
    # As the fit has just written them.
    files = {name: shipped("stacks", name) for name in list_stacks()}
    texts = {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    written = {name: stack_from_mapping(tomllib.loads(text), str(files[name])) for name, text in texts.items()}
    for row in rows:
        other = written[row.nearest_other.name]
        stage, whole = works(row.model, row.workload, row.device, other)
        seconds = step_seconds(stage, whole, _schedule(row), other, row.device)
        residuals.setdefault(row.stack.name, []).append(float(np.log(seconds / row.step_s)))
        others.setdefault(row.stack.name, set()).add(row.nearest_other.name)
    # Each stack counts as much as another, whatever its rows.
    even = np.concatenate([np.quantile(own, np.linspace(0.005, 0.995, 100)) for own in residuals.values()])
    found = json.loads(HELD_OUT.read_text(encoding="utf-8"))
    found[UNKNOWN] = {
        name: {"rows": len(own), "by": ", ".join(sorted(others[name]))} | _errors(np.array(own))
        for name, own in residuals.items()
    }
    HELD_OUT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8", newline="\n")
    for name in list_stacks():
        path = shipped("stacks", name)
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        # What no row was run on keeps the ratio's error that its file states.
        interval = data["interval"]
        ratio = 2 * interval["borrowed"]["ratio"] if name in FITTED else interval["extrapolated"]["ratio"]
        data["interval"]["extrapolated"] = _interval(even, float(data["coverage"]), ratio)
        rewrite(path, {"interval": data["interval"]})


def rewrite(path: Path, tables: Mapping[str, Any]) -> None:
    """A stack's file with its ``tables`` replaced, and the comments before their keys and headers kept."""
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    _put(document, tables)
    path.write_text(tomlkit.dumps(document), encoding="utf-8", newline="\n")


def _put(table: Any, values: Mapping[str, Any]) -> None:
    """``values`` in place of a table's, key by key: what is between them stays."""
    for key, value in values.items():
        if not isinstance(value, Mapping) or key not in table:
            table[key] = written(value)
            continue
        for gone in table[key].keys() - value.keys():
            del table[key][gone]
        _put(table[key], value)


def newest_in_bf16(fits: Mapping[str, Fit]) -> None:
    """In bf16 the newest stack's experts, whose faster kernels are of narrow types, take what megatron-core-te's do."""
    path = fits["megatron-bridge-2026"].path
    own, other = (tomllib.loads(one.read_text(encoding="utf-8")) for one in (path, fits["megatron-core-te"].path))
    release, theirs = own["release"]["bf16"], other["release"]["bf16"]
    experts = other["kernels"]["grouped"] * theirs["experts"] / own["kernels"]["grouped"]
    release |= {"kernels": theirs["kernels"], "experts": float(f"{experts:.4g}")}
    rewrite(path, {"release": own["release"]})


def pooled(fits: Mapping[str, Fit]) -> None:
    """Each stack's rows priced by its own facts and the mean of the others' constants, as if none of them were fitted.

    This is recorded for stacks whose software is known and that have no run.
    """
    found = json.loads(HELD_OUT.read_text(encoding="utf-8"))
    found[POOLED] = {}
    for name, fit in fits.items():
        others = [tomllib.loads(other.path.read_text(encoding="utf-8")) for other in fits.values() if other is not fit]
        theta = [np.log(max(_of_others(key, centre, others), 1e-9)) for key, centre, _ in fit.spec]
        residuals = fit.residuals(np.array(theta))
        say(f"{name}, {POOLED}: {summary(residuals)}")
        for source in sorted({row.source for row in fit.rows}):
            own = np.array([row.source == source for row in fit.rows])
            found[POOLED].setdefault(name, {})[source] = {"rows": int(own.sum())} | _errors(residuals[own])
    HELD_OUT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8", newline="\n")


def _of_others(key: str, centre: float, others: Sequence[Mapping[str, Any]]) -> float:
    """Geometric mean of the ``others``' values at ``key``; a class that none tells apart takes their elementwise."""
    if any(fnmatchcase(key, fact) for fact in FACTS):
        return centre
    if key.startswith("release."):
        return 1.0
    values = [value for value in (_at(other, key) for other in others) if value is not None]
    if not values and key.startswith("kernels."):
        return _of_others("kernels.elementwise", centre, others)
    positive = [value for value in values if value > 0]
    return float(np.exp(np.mean(np.log(positive)))) if positive else float(not values)


def _at(table: Mapping[str, Any], key: str) -> float | None:
    value: Any = table
    for part in key.split("."):
        value = value.get(part, {})
    return None if isinstance(value, Mapping) else float(value)


def _errors(residuals: np.ndarray) -> dict[str, float]:
    return {"bias": float(np.expm1(residuals).mean()), "mape": float(np.abs(np.expm1(residuals)).mean())}


def write(fit: Fit, theta: np.ndarray, new: np.ndarray, alike: np.ndarray) -> None:
    """The stack's file with its fitted tables replaced; the interval holds layouts that are new and that are alike."""
    rounded = [float(f"{value:.4g}") for value in fit.values(theta)]
    data = with_constants(fit.data, [name for name, _, _ in fit.spec], rounded)
    data["interval"] = fit.data["interval"] | intervals(fit, new, alike)
    rewrite(fit.path, {key: data[key] for key in OWNED if key in data})
    for name, keys in BORROWED.get(fit.name, {}).items():
        _lend(data, shipped("stacks", name), keys)


def _lend(data: Mapping[str, Any], path: Path, keys: Sequence[str]) -> None:
    """``data``'s values of ``keys`` written into another stack's file, to three digits: they are borrowed."""
    own = tomllib.loads(path.read_text(encoding="utf-8"))
    for key in keys:
        value: Any = data
        for part in key.split("."):
            value = value[part]
        own = with_constants(own, [key], [_rounded(value)])
    rewrite(path, {key: own[key] for key in OWNED if key in own})


def _rounded(value: Any) -> Any:
    return {key: _rounded(one) for key, one in value.items()} if isinstance(value, Mapping) else float(f"{value:.3g}")


def record(fit: Fit, theta: np.ndarray, left: Mapping[str, np.ndarray]) -> None:
    """What the fit was worth, for reports/steps.md: errors on the rows fitted and on rows left out, by source."""
    found: dict[str, Any] = json.loads(HELD_OUT.read_text(encoding="utf-8")) if HELD_OUT.exists() else {}
    ways = {"in sample": fit.residuals(theta), **{f"left out by {key}": own for key, own in left.items()}}
    sources = np.array([row.source for row in fit.rows])
    found[fit.name] = {
        source: {"rows": int((sources == source).sum())}
        | {way: _errors(own[sources == source]) for way, own in ways.items()}
        for source in sorted(set(sources.tolist()))
    }
    HELD_OUT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8", newline="\n")


def record_nested(fit: Fit) -> None:
    left, chosen = fit.nested(groups(fit.rows, "id"))
    say(f"{fit.name}: {summary(left)}, widths {chosen}")
    found: dict[str, Any] = json.loads(HELD_OUT.read_text(encoding="utf-8"))
    found.setdefault(NESTED, {})[fit.name] = _errors(left) | {"rows": len(fit.rows)}
    HELD_OUT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8", newline="\n")


def intervals(fit: Fit, new: np.ndarray, alike: np.ndarray) -> dict[str, dict[str, float]]:
    """Quantiles of measured over predicted, on rows left out: their layout, at random, or all of their architecture."""
    coverage = float(fit.data["coverage"])
    ratio = float(np.quantile(np.concatenate([near_ratios(fit.rows, new), near_ratios(fit.rows, alike)]), coverage))
    found = {"fitted": _wider(_interval(np.concatenate([new, alike]), coverage, ratio), unseen(fit))}
    own = found["fitted"]
    architectures = np.array([sorted(fit.data["architectures"]).index(row.device.architecture) for row in fit.rows])
    elsewhere = {"low": own["low"] * 0.85, "high": own["high"] * 1.15, "ratio": own["ratio"] * 1.5}
    if len(set(architectures.tolist())) > 1:
        other = _interval(fit.held_out(architectures), coverage, 1.5 * ratio)
        elsewhere |= {"low": min(elsewhere["low"], other["low"]), "high": max(elsewhere["high"], other["high"])}
    found["borrowed"] = {key: round(value, 3) for key, value in elsewhere.items()}
    return found


def unseen(fit: Fit) -> dict[str, float]:
    """The interval of sources left out whole, one counting as much as another; of one alone, of its configurations."""
    several = len({row.source for row in fit.rows}) > 1
    left = fit.held_out(groups(fit.rows, "source" if several else "config"))
    sources = np.array([row.source for row in fit.rows])
    even = [np.quantile(left[sources == source], np.linspace(0.005, 0.995, 100)) for source in sorted(set(sources))]
    return _interval(np.concatenate(even), float(fit.data["coverage"]), 0.0)


def _wider(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return dict(one) | {"low": min(one["low"], other["low"]), "high": max(one["high"], other["high"])}


def widen(fit: Fit) -> None:
    """The stack's file with intervals that hold sources left out whole, its constants as they are."""
    interval = fit.data["interval"]
    interval["fitted"] = _wider(interval["fitted"], unseen(fit))
    interval["borrowed"] = _wider(interval["borrowed"], interval["fitted"])
    say(f"{fit.name}: {interval}")
    rewrite(fit.path, {"interval": interval})


def _interval(residuals: np.ndarray, coverage: float, ratio: float) -> dict[str, float]:
    tail = (1 - coverage) / 2
    high, low = np.exp(-np.quantile(residuals, [tail, 1 - tail]))
    return {"low": round(min(float(low), 0.99), 3), "high": round(max(float(high), 1.01), 3), "ratio": round(ratio, 3)}


def near_ratios(rows: Sequence[Row], residuals: np.ndarray) -> np.ndarray:
    """Relative errors of the ratios of two runs on one device in one split whose steps differ by less than 1.5 times.

    They are of two neighbouring configurations, which is what a finding or a search compares.
    """
    keys: dict[tuple[object, ...], list[int]] = {}
    for index, row in enumerate(rows):
        keys.setdefault((row.device.name, row.gpus, row.dtype, row.workload.t, row.workload.p), []).append(index)
    found = []
    for alike in keys.values():
        own = residuals[alike]
        steps = np.log([rows[index].step_s for index in alike])
        first, second = np.triu_indices(len(alike), 1)
        near = np.abs(steps[first] - steps[second]) < np.log(1.5)
        found.append(np.abs(np.expm1(own[first] - own[second]))[near])
    return np.concatenate(found)


if __name__ == "__main__":
    main()
