"""``python -m reports.campaigns.run NAME --count N --seed S``: one campaign, its seed and what it found as JSON.

``--record`` keeps that in reports/data/campaigns.json, the newest of each campaign, and writes the answer and the first
table of reports/robustness.md of it. Exit code 1 with violations.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import tabulate

REPORTS = Path(__file__).parents[1]
RECORD, REPORT = REPORTS / "data" / "campaigns.json", REPORTS / "robustness.md"
BEGIN, END = "<!-- by python -m reports.campaigns.run NAME --record -->\n", "<!-- end -->\n"
NAMES = ("configurations", "options", "stores", "outputs", "predictor", "signals", "faults")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--count", type=int, default=1000, help="tries")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="store_true", help="keep what it found, and write the report")
    asked = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        module = import_module(f"reports.campaigns.{asked.name}")
        outcome = module.run(asked.count, random.Random(asked.seed), Path(folder))
    took = round(time.monotonic() - start)
    sys.stdout.write(f"{asked.name} --count {asked.count} --seed {asked.seed}: {took} s\n")
    sys.stdout.write(outcome.text() + "\n")
    if asked.record:
        record(asked.name, asked.count, asked.seed, took, json.loads(outcome.text()))
    sys.exit(1 if outcome.broken else 0)


def record(name: str, count: int, seed: int, seconds: int, found: dict[str, Any]) -> None:
    kept = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    asked = ["git", "-C", str(REPORTS), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    kept[name] = {"count": count, "seed": seed, "commit": commit, "seconds": seconds, **found}
    RECORD.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    REPORT.write_text(written(REPORT.read_text(encoding="utf-8"), kept), encoding="utf-8")


def written(report: str, kept: dict[str, Any]) -> str:
    """``report`` with the answer and table of what is ``kept``, a line a campaign."""
    head, _, rest = report.partition(BEGIN)
    _, _, tail = rest.partition(END)
    tried, broken = (sum(one[key] for one in kept.values()) for key in ("tried", "violations"))
    rows = [
        (
            f"`{name} --count {one['count']} --seed {one['seed']}`",
            one["commit"],
            f"{one['tried']:,}",
            ", ".join(f"{number:,} {kind}" for kind, number in sorted(one["ended"].items())),
            one["seconds"],
            f"{one['violations']} {'; '.join(one['examples'])}".strip(),
        )
        for name, one in sorted(kept.items())
    ]
    faults = kept.get("faults", {"tried": 0, "ended": {"rows": 0}, "violations": 0})
    answer = (
        f"The last run of each of {len(kept)} campaigns made {tried:,} tries; violations: {broken}.\n"
        f"{faults['tried']:,} of them are faults of a device in a sweep of {faults['ended']['rows']:,} products;\n"
        f"rows lost, doubled or changed in it, and culprits not named: {faults['violations']}.\n\n"
    )
    headers = ("campaign", "commit", "tries", "how they ended", "seconds", "violations")
    tabulate.MIN_PADDING = 0  # as sizer.render.text has it, so that both write the same in one process
    table = tabulate.tabulate(rows, headers, tablefmt="github", disable_numparse=True)
    return f"{head}{BEGIN}{answer}{table}\n\n{END}{tail}"


if __name__ == "__main__":
    main()
