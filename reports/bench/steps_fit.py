"""Fits the constants of shapes/stacks/*.toml on published steps: two minutes.

    python reports/bench/steps_fit.py --data ../shared/evidence/steps.csv            # judge only: cross-validated errors
    python reports/bench/steps_fit.py --data ../shared/evidence/steps.csv --write    # and write constants and intervals

Least squares on log time with a robust loss. Each constant has a prior (its centre and spread in logarithms, below):
what the rows do not hold stays there. Errors are those of rows left out whole, by configuration and by number of devices;
intervals are quantiles of the left-out residuals.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares
from step_rows import Row, read_rows

from shapes.calibrate.device_file import replaced
from shapes.cost.step import Region, Schedule, Work, schedule_of, step_parts, works
from shapes.software_stack import STACKS_DIR, SoftwareStack, stack_from_mapping

#: Stack -> constants fitted, each (dotted key, centre, spread in logarithms).
FITTED: dict[str, tuple[tuple[str, float, float], ...]] = {
    "megatron-2021": (
        ("kernels.gemm", 0.95, 0.1), ("kernels.bmm", 1.5, 0.3), ("kernels.elementwise", 1.3, 0.3),
        ("kernels.softmax", 2.0, 0.4), ("host.launch_s", 2e-5, 0.7), ("host.collective_s", 4e-5, 0.7),
        ("host.softmax_fallback_s", 1e-3, 0.7), ("host.kernels.elementwise", 2.0, 0.3),
        ("communication.tensor.speed", 0.8, 0.3), ("communication.data.speed", 0.8, 0.3),
        ("communication.pipeline.speed", 0.8, 0.5), ("optimizer.update", 1.0, 0.5), ("optimizer.fixed_s", 5e-3, 0.7),
    ),
    "pytorch-fsdp-2023": (
        ("kernels.gemm", 1.0, 0.1), ("by_dtype.fp8", 0.9, 0.3), ("attention.ampere.64", 1.0, 0.4),
        ("attention.ampere.128", 1.5, 0.4), ("attention.hopper.64", 1.5, 0.4), ("attention.hopper.128", 2.5, 0.4),
        ("kernels.elementwise", 2.0, 0.4), ("host.launch_s", 8e-6, 0.5), ("communication.data.contention", 0.5, 0.5),
        ("communication.data.hidden", 0.7, 0.3), ("communication.data.speed", 0.8, 0.3), ("optimizer.update", 1.0, 0.5),
        ("optimizer.fixed_s", 2e-2, 0.7),
    ),
    "megatron-core-te": (
        ("kernels.gemm", 1.0, 0.1), ("by_dtype.fp8", 1.0, 0.3), ("by_dtype.mxfp8", 1.0, 0.3),
        ("by_dtype.nvfp4", 0.6, 0.3), ("kernels.grouped", 1.2, 0.4), ("kernels.attention", 1.1, 0.3),
        ("kernels.elementwise", 1.5, 0.4), ("host.launch_s", 4e-6, 0.6), ("communication.tensor.hidden", 0.3, 0.5),
        ("communication.expert.speed", 0.7, 0.5), ("communication.pipeline.speed", 0.8, 0.5),
        ("communication.data.speed", 0.8, 0.5), ("optimizer.update", 1.0, 0.5), ("optimizer.fixed_s", 2e-2, 0.7),
    ),
}  # fmt: skip

#: Relative error of a row that counts as one: near the noise of repeated runs.
NOISE = 0.04
#: Folds of rows left out.
FOLDS = 5


@dataclass(frozen=True)
class Batch:
    """Rows of one architecture as arrays: ``order`` are their places among the stack's rows."""

    architecture: str
    order: np.ndarray
    stage: Work
    whole: Work
    schedule: Schedule


def batches(rows: Sequence[Row]) -> list[Batch]:
    """The rows' work as arrays, by architecture."""
    found = []
    done = [works(row.model, row.workload, row.device, recipe=row.dtype) for row in rows]
    for architecture in sorted({row.device.architecture for row in rows}):
        order = np.array([i for i, row in enumerate(rows) if row.device.architecture == architecture])
        stages, wholes = zip(*(done[i] for i in order), strict=True)
        schedules = [schedule_of(rows[i].workload, rows[i].accumulation) for i in order]
        schedule = Schedule(*(np.array([getattr(one, field.name) for one in schedules]) for field in fields(Schedule)))
        found.append(Batch(architecture, order, _stacked(stages), _stacked(wholes), schedule))
    return found


def _stacked(all_work: Sequence[Work]) -> Work:
    def columns(dicts: Sequence[Mapping[Any, float]]) -> dict[Any, np.ndarray]:
        keys = dict.fromkeys(key for one in dicts for key in one)
        return {key: np.array([one.get(key, 0.0) for one in dicts], float) for key in keys}

    def region(name: str) -> Region:
        own = [getattr(one, name) for one in all_work]
        return Region(
            columns([one.seconds for one in own]), columns([one.runs for one in own]),
            np.array([one.fallbacks for one in own], float),
        )  # fmt: skip

    return Work(
        region("layers"), region("ends"), columns([one.communication for one in all_work]),
        columns([one.messages for one in all_work]), np.array([one.update_s for one in all_work]),
    )  # fmt: skip


def predicted(parts: Sequence[Batch], stack: SoftwareStack, number: int) -> np.ndarray:
    """Seconds of every row."""
    seconds = np.empty(number)
    for batch in parts:
        seconds[batch.order] = sum(step_parts(batch.stage, batch.whole, batch.schedule, stack, batch.architecture).values())
    return seconds


def with_constants(data: Mapping[str, Any], names: Sequence[str], values: Sequence[float]) -> dict[str, Any]:
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
        self.path = STACKS_DIR / f"{name}.toml"
        self.data = tomllib.loads(self.path.read_text(encoding="utf-8"))
        self.spec = FITTED[name]
        self.measured = np.log([row.step_s for row in self.rows])
        self.batches = batches(self.rows)
        self.weight = weights(self.rows)

    def stack(self, theta: np.ndarray) -> SoftwareStack:
        names = [name for name, _, _ in self.spec]
        return stack_from_mapping(with_constants(self.data, names, np.exp(theta).tolist()), str(self.path))

    def residuals(self, theta: np.ndarray) -> np.ndarray:
        """log of predicted over measured."""
        return np.log(predicted(self.batches, self.stack(theta), len(self.rows))) - self.measured

    def constants(self, keep: np.ndarray) -> np.ndarray:
        """Logarithms of the constants, fitted on the rows of ``keep``."""
        centre = np.log([value for _, value, _ in self.spec])
        spread = np.array([value for _, _, value in self.spec])

        def deviations(theta: np.ndarray) -> np.ndarray:
            own = (self.residuals(theta) * self.weight)[keep] / NOISE
            return np.concatenate([own, (theta - centre) / spread])

        return np.asarray(least_squares(deviations, centre, loss="soft_l1", max_nfev=60).x)

    def held_out(self, group: np.ndarray) -> np.ndarray:
        """log of predicted over measured of each row, its group not fitted on."""
        left = np.zeros(len(self.rows))
        folds = group % FOLDS
        for fold in np.unique(folds):
            left[folds == fold] = self.residuals(self.constants(folds != fold))[folds == fold]
        return left


def weights(rows: Sequence[Row]) -> np.ndarray:
    """Runs that recur (other releases, near-identical batches) count as the root of their number, not each; a source

    of a few rows is not outvoted by one of hundreds.
    """
    keys = [(row.source, row.config, row.gpus, row.dtype, row.workload.t, row.workload.p) for row in rows]
    sources = {row.source: sum(other.source == row.source for other in rows) for row in rows}
    own = np.array([keys.count(key) ** -0.25 * sources[row.source] ** -0.15 for key, row in zip(keys, rows, strict=True)])
    return own / own.max()


def groups(rows: Sequence[Row], key: str) -> np.ndarray:
    names = [getattr(row, key) if key != "layout" else (row.config, row.gpus, row.workload.t, row.workload.p) for row in rows]
    order = {name: number for number, name in enumerate(dict.fromkeys(names))}
    shuffled = np.random.default_rng(0).permutation(len(order))
    return np.array([shuffled[order[name]] for name in names])


def summary(residuals: np.ndarray) -> str:
    error = np.expm1(residuals)
    return f"bias {error.mean():+.1%} MAPE {np.abs(error).mean():.1%} median {np.median(np.abs(error)):.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--stack", action="append", choices=sorted(FITTED), help="only these")
    parser.add_argument("--write", action="store_true", help="write the constants into shapes/stacks")
    options = parser.parse_args()
    rows = [row for row in read_rows(options.data) if row.known]
    for name in options.stack or FITTED:
        fit = Fit(name, [row for row in rows if row.stack.name == name])
        theta = fit.constants(np.ones(len(fit.rows), bool))
        print(f"{name}: {len(fit.rows)} rows; in sample {summary(fit.residuals(theta))}")
        for (key, centre, spread), value in zip(fit.spec, np.exp(theta), strict=True):
            print(f"    {key:34s} {value:10.4g}   prior {centre:g} x/{np.exp(spread):.2f}")
        left = {key: fit.held_out(groups(fit.rows, key)) for key in ("config", "gpus", "layout")}
        for key, residuals in left.items():
            print(f"  left out by {key}: {summary(residuals)}")
        for source in sorted({row.source for row in fit.rows}):
            own = np.array([row.source == source for row in fit.rows])
            print(f"    {source} ({own.sum()}): in sample {summary(fit.residuals(theta)[own])}; left out {summary(left['layout'][own])}")
        if options.write:
            write(fit, theta, left["layout"])


def write(fit: Fit, theta: np.ndarray, left: np.ndarray) -> None:
    """The stack's file with its fitted tables replaced."""
    rounded = [float(f"{value:.4g}") for value in np.exp(theta)]
    data = with_constants(fit.data, [name for name, _, _ in fit.spec], rounded)
    low, high = np.exp(-np.quantile(left, [0.95, 0.05]))
    data["interval"]["fitted"] |= {"low": round(float(low), 3), "high": round(float(high), 3)}
    owned = ("kernels", "by_dtype", "attention", "host", "communication", "optimizer", "interval")
    text = replaced(fit.path.read_text(encoding="utf-8"), {key: data[key] for key in owned if key in data})
    fit.path.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
