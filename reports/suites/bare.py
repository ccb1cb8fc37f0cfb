"""`python -m sizer bench all` of a working tree where there is no click: it needs torch and numpy alone."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from shapes.errors import InputError
from shapes.measure.store import Store
from shapes.program import install
from sizer.answers.bench import Bench, Bencher, every_suite, local_executor


def main() -> None:
    parser = argparse.ArgumentParser("sizer", description=f"All other commands and options: {install('click')}")
    parser.add_argument("command", choices=["bench"])
    parser.add_argument("what", choices=["all"])
    parser.add_argument("--minutes", type=float, default=25.0)
    for option in ("--out", "--store", "--device"):
        parser.add_argument(option)
    given = parser.parse_args()
    try:
        with Store.open(given.store, measuring=True) as store:
            executor = local_executor(given.device, None, say)
            out = Path(given.out) if given.out else None
            bencher = Bencher(executor, store, {}, lambda _: None, 60 * given.minutes, out=out)
            groups, passed = bencher.everything(every_suite(), say, None)
    except InputError as error:
        say(str(error))
        sys.exit(2)
    answer = Bench(tuple(groups))
    say(answer.failed or f"{len(answer.measurements)} measured")
    sys.exit(bool(answer.failed) or not passed)


def say(line: str) -> None:
    """On standard error, at once."""
    sys.stderr.write(f"sizer: {line}\n")


main()
