"""How much slower than usual a network that nobody states may be: `SLOWEST` of shapes/step/stack.py, judged.

    python reports/bench/steps_network.py --data ../shared/evidence/steps_more.csv --data ../shared/evidence/mlperf.csv

Runs over several nodes whose table does not state the network, and those of InternEvo and BLOOM priced as if theirs did
not: the share of them that the interval holds, by the factor that its upper edge allows for.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from pathlib import Path

from step_rows import MAX_BYTES, Row, price_step, read_rows
from steps import say

from shapes.device import load_device
from shapes.errors import read_text
from shapes.step import StepCost
from shapes.step import stack as stacks

#: Sources whose network is stated and not the usual one: priced as if it were not stated.
UNSAID = ("internevo", "bigscience-bloom")
FACTORS = (1.0, 2.0, 4.0, 8.0)


def rows_of(path: Path) -> list[Row]:
    """Rows of several nodes on the network that is usual for their device."""
    lines = {line["id"]: line for line in csv.DictReader(read_text(path, MAX_BYTES).splitlines(keepends=True))}
    found = []
    for row in read_rows(path, []):
        usual = replace(row, device=load_device(row.device.base))
        unsaid = "nics=not stated" in (lines[row.id].get("interconnect") or "")
        if row.gpus > row.device.link.domain_devices and (unsaid or row.source in UNSAID):
            found.append(row if unsaid else usual)
    return found


def priced(row: Row, factor: float) -> StepCost:
    stacks.SLOWEST = factor
    return price_step(row.model, row.workload, row.device, row.stack, row.accumulation)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, action="append", required=True, help="CSV with the columns of steps.csv")
    rows = [row for path in parser.parse_args().data for row in rows_of(path)]
    for factor in FACTORS:
        held = 0
        for source in sorted({row.source for row in rows}):
            costs = [(row, priced(row, factor)) for row in rows if row.source == source]
            inside = [cost.low <= row.step_s <= cost.high for row, cost in costs]
            edge = sorted(cost.high / cost.seconds for _, cost in costs)[len(costs) // 2]
            say(f"{factor:g} times slower, {source}: {sum(inside)} of {len(inside)} inside, upper edge {edge:.2f}")
            held += sum(inside)
        say(f"{factor:g} times slower: {held / len(rows):.0%} of {len(rows)} inside")


if __name__ == "__main__":
    main()
