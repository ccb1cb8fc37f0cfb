"""Predicted steps judged on published ones: reports/steps.md, or any file with the columns of evidence/steps.csv.

python reports/bench/steps.py --data ../shared/evidence/steps.csv                    # the tables
python reports/bench/steps.py --data FILE --format json --rows                       # for programs
python reports/bench/steps.py --data ../shared/evidence/steps.csv --write            # reports/steps.md and its plots
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from step_rows import Row, price_step, read_rows
from tabulate import tabulate

from shapes.device import Device
from shapes.errors import InputError
from shapes.step import StepCost


@dataclass(frozen=True)
class Judged:
    """A published run and its prediction."""

    row: Row
    cost: StepCost

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.cost.seconds / self.row.step_s - 1

    @property
    def covered(self) -> bool:
        return self.cost.low <= self.row.step_s <= self.cost.high


def judged(rows: Sequence[Row]) -> tuple[list[Judged], list[tuple[str, str]]]:
    """Every row with its prediction; and (id, reason) of those that cannot be priced."""
    done, refused = [], []
    for row in rows:
        try:
            done.append(Judged(row, predicted(row)))
        except InputError as error:
            refused.append((row.id, str(error)))
    return done, refused


def predicted(row: Row) -> StepCost:
    """The row's step, in a wider interval where its stack is not known or its devices' power is not."""

    def on(device: Device) -> StepCost:
        return price_step(row.model, row.workload, device, row.stack, row.accumulation, known=row.known)

    cost = on(row.device)
    if row.least_power is None:
        return cost
    longer = np.log([cost.high / cost.seconds, on(row.least_power).seconds / cost.seconds])
    high = float(cost.seconds * np.exp(np.hypot(*longer)))
    return replace(cost, high=high, unknown=(*cost.unknown, "power limit not stated"))


def figures(some: Sequence[Judged]) -> dict[str, Any]:
    """Bias, MAPE, coverage, Spearman's rank correlation and the median error of ratios of two runs; None of no rows."""
    if not some:
        return {"rows": 0} | dict.fromkeys(("bias", "mape", "coverage", "spearman", "ratio_error"))
    errors = np.array([one.error for one in some])
    measured = [one.row.step_s for one in some]
    rank = spearmanr([one.cost.seconds for one in some], measured).statistic if len(some) > 2 else None
    return {
        "rows": len(some),
        "bias": float(errors.mean()),
        "mape": float(np.abs(errors).mean()),
        "coverage": float(np.mean([one.covered for one in some])),
        "spearman": None if rank is None or np.isnan(rank) else float(rank),
        "ratio_error": ratio_error(some),
    }


def ratio_error(some: Sequence[Judged]) -> float | None:
    """Median relative error of the ratio of two steps, over all pairs of one stack and device."""
    groups: dict[tuple[str, str], list[float]] = {}
    for one in some:
        groups.setdefault((one.row.stack_name, one.row.device.name), []).append(float(np.log1p(one.error)))
    pairs = []
    for logs in groups.values():
        first, second = np.triu_indices(len(logs), 1)
        own = np.array(logs)
        pairs.append(np.abs(np.expm1(own[first] - own[second])))
    every = np.concatenate(pairs) if pairs else np.zeros(0)
    return float(np.median(every)) if every.size else None


def by(done: Sequence[Judged], key: Callable[[Judged], str]) -> dict[str, dict[str, Any]]:
    found: dict[str, list[Judged]] = {}
    for one in done:
        found.setdefault(key(one), []).append(one)
    return {name: figures(found[name]) for name in sorted(found)}


KEYS: dict[str, Callable[[Judged], str]] = {
    "stack": lambda one: one.row.stack_name,
    "priced_by": lambda one: one.row.stack.name + ("" if one.row.known else " (nearest)"),
    "source": lambda one: one.row.source,
    "device": lambda one: one.row.device.name,
    "tier": lambda one: one.cost.tier,
}


def answer(done: Sequence[Judged], refused: Sequence[tuple[str, str]], *, rows: bool) -> dict[str, Any]:
    """Everything as plain data."""
    found: dict[str, Any] = {"schema_version": 1, "all": figures(done)}
    found |= {f"by_{name}": by(done, key) for name, key in KEYS.items()}
    found["nearest"] = {one.row.stack_name: one.row.stack.name for one in done if not one.row.known}
    found["refused"] = [{"id": identity, "reason": reason} for identity, reason in refused]
    if rows:
        found["rows"] = [
            {"id": one.row.id, "predicted_s": one.cost.seconds, "low_s": one.cost.low, "high_s": one.cost.high}
            for one in done
        ]
    return found


def table(found: dict[str, dict[str, Any]], first: str) -> str:
    def percent(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    rows = [
        [
            name,
            own["rows"],
            "-" if own["bias"] is None else f"{own['bias']:+.1%}",
            percent(own["mape"]),
            percent(own["coverage"]),
            "-" if own["spearman"] is None else f"{own['spearman']:.3f}",
            percent(own["ratio_error"]),
        ]
        for name, own in found.items()
    ]
    headers = [first, "rows", "bias", "MAPE", "coverage", "Spearman", "ratio error"]
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def text(done: Sequence[Judged], refused: Sequence[tuple[str, str]]) -> str:
    blocks = [table({"all": figures(done)}, "")]
    blocks += [table(by(done, key), name.replace("_", " ")) for name, key in KEYS.items()]
    nearest = sorted({(one.row.stack_name, one.row.stack.name) for one in done if not one.row.known})
    blocks += [f"{name}: not known, priced by the nearest, {stack}" for name, stack in nearest]
    reasons: dict[str, list[str]] = {}
    for identity, reason in refused:
        reasons.setdefault(reason, []).append(identity)
    blocks += [
        f"not judged: {', '.join(rows[:3])}{f' and {len(rows) - 3} more' if len(rows) > 3 else ''}: {reason}"
        for reason, rows in reasons.items()
    ]
    return "\n\n".join(blocks)


def say(line: str) -> None:
    print(line)  # noqa: T201  # a script whose output is its purpose


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="CSV with the columns of evidence/steps.csv")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--rows", action="store_true", help="with --format json: every row's prediction and interval")
    parser.add_argument("--write", action="store_true", help="write reports/steps.md and its plots")
    options = parser.parse_args()
    unread: list[tuple[str, str]] = []
    try:
        done, refused = judged(list(read_rows(options.data, unread)))
    except InputError as error:
        sys.stderr.write(f"steps.py: {error}\n")
        sys.exit(2)
    refused = [*unread, *refused]
    if options.write:
        from steps_report import write

        write(done, refused)
    say(
        json.dumps(answer(done, refused, rows=options.rows), indent=2)
        if options.format == "json"
        else text(done, refused)
    )


if __name__ == "__main__":
    main()
