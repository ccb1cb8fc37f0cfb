"""How wide the interval of a step is whose recomputation nobody states (`--checkpointing unknown`), judged.

    E=../shared/evidence
    python reports/bench/steps_policy.py --data $E/steps.csv --data $E/steps_more.csv --data $E/mlperf.csv

Runs whose table does not state it, and those that recompute all layers priced as if theirs did not: the share of them
that the interval holds with and without what it allows for, as their own stack runs them, and where their stack, and
with it their whole source, is taken not to be known.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from step_rows import Row, price_step, read_rows
from steps import say

from shapes.errors import InputError


def held(row: Row) -> Iterator[tuple[str, bool, bool]]:
    """How the stack is known, and whether the measurement is held as if stated, and unstated."""
    for how, stack, known in (("own stack", row.stack, row.known), ("left out", row.nearest_other, False)):
        ways = (replace(row.workload, checkpointing=policy) for policy in ("none", "unknown"))
        costs = (price_step(row.model, one, row.device, stack, row.accumulation, known=known) for one in ways)
        said, unsaid = (cost.low <= row.step_s <= cost.high for cost in costs)
        yield how, said, unsaid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, action="append", required=True, help="CSV with the columns of steps.csv")
    found: dict[tuple[str, str, str], list[tuple[bool, bool]]] = defaultdict(list)
    for row in (row for path in parser.parse_args().data for row in read_rows(path, [])):
        if row.workload.checkpointing in ("unknown", "full"):
            stated = "not stated" if row.workload.checkpointing == "unknown" else "full, as if not stated"
            try:
                for how, said, unsaid in held(row):
                    found[stated, row.source, how].append((said, unsaid))
            except InputError:  # its products have no price there
                continue
    for (stated, source, how), each in sorted(found.items()):
        said, unsaid = (sum(one) / len(each) for one in zip(*each, strict=True))
        say(f"{stated}; {source}, {how}: {said:.0%} inside as none, {unsaid:.0%} as unknown, of {len(each)}")


if __name__ == "__main__":
    main()
