"""`python -m sizer bench` of a working tree where there is no click: it needs torch and numpy alone.

`bench --self-test`, `bench all --dry-run`, `bench all` and `store export --dataset DIR`.
"""

from __future__ import annotations

import argparse
import sys
from math import sqrt
from pathlib import Path
from runpy import run_path
from types import ModuleType
from typing import Any

import numpy as np

from shapes.errors import InputError
from shapes.measure.dataset import export_dataset
from shapes.measure.executor import Executor, Settings
from shapes.measure.store import Store
from shapes.measure.workers import here
from shapes.program import install
from sizer.answers.bench import Bench, Bencher, self_test, suites_of

TREE = run_path(str(Path(__file__).with_name("everything.py")))
WORDS = {True: "pass", False: "FAIL", None: "n/a"}


def student(freedom: int, values: Any) -> Any:
    """scipy.special.stdtr of an even number of degrees of freedom (Abramowitz and Stegun 26.7.4)."""
    scale = np.hypot(values, sqrt(freedom))
    series = np.cumprod([1.0, *((2 * term - 1) / (2 * term) for term in range(1, freedom // 2))])
    terms = np.polynomial.polynomial.polyval(freedom / scale**2, series)
    return np.maximum(0.0, (1 + values / scale * terms) / 2)


def stand_in_for_scipy() -> None:
    """What a race asks of it, where it is not installed."""
    try:
        import scipy.special  # noqa: F401
    except ImportError:
        special: Any = ModuleType("scipy.special")
        special.stdtr = student
        sys.modules |= {"scipy": ModuleType("scipy"), "scipy.special": special}


def _seconds(text: str) -> float:
    """90, 90s or 25min."""
    return 60 * float(text[:-3]) if text.endswith("min") else float(text.removesuffix("s"))


def main() -> None:
    parser = argparse.ArgumentParser("sizer", description=f"All other commands and options: {install('click')}")
    parser.add_argument("command", choices=["bench", "store"])
    parser.add_argument("what", choices=["all", "export"], nargs="?")
    parser.add_argument("--time-limit", type=_seconds, default=60.0 * 25, help="90, 90s or 25min")
    for option in ("--self-test", "--dry-run"):
        parser.add_argument(option, action="store_true")
    for option in ("--out", "--store", "--device", "--dataset"):
        parser.add_argument(option)
    given = parser.parse_args()
    exports = given.command == "store"
    if exports and not (given.what == "export" and given.dataset):
        parser.error("expected store export --dataset DIR")
    if not exports and not (given.what == "all" or given.self_test):
        parser.error("expected all or --self-test")
    try:
        if exports:
            _exported(given)
            return
        sys.exit(_planned() if given.dry_run else _measured(given))
    except InputError as error:
        say(str(error))
        sys.exit(2)


def _exported(given: argparse.Namespace) -> None:
    with Store.open(given.store, create=False) as store:
        written = export_dataset(store.measurements(), Path(given.dataset))
    sys.stdout.write(
        "".join(f"{one.path}: {one.added} rows of {one.device}\n" for one in written) or "no measurements\n"
    )


def _planned() -> bool:
    for suite in suites_of(TREE["every_suite"](), 1.0, None):
        each_s = {"time_s": Settings().time_s, **suite.settings}["time_s"]
        sys.stdout.write(
            f"{suite.name}: {len(suite.jobs)} jobs, {len(suite.jobs) * each_s:.0f} s of device time at most\n"
        )
    return False


def _measured(given: argparse.Namespace) -> bool:
    """Whether something failed."""
    with Store.open(given.store, measuring=True) as store:
        executor = here(given.device, say)
        return _all(given, store, executor) if given.what else _tested(executor)


def _all(given: argparse.Namespace, store: Store, executor: Executor) -> bool:
    out = Path(given.out) if given.out else None
    bencher = Bencher(executor, store, {}, lambda _: None, given.time_limit, False, out)
    groups, passed = TREE["everything"](bencher, TREE["every_suite"](), say, None)
    answer = Bench(tuple(groups))
    say(answer.failed or f"{len(answer.measurements)} measured")
    return bool(answer.failed) or not passed


def _tested(executor: Executor) -> bool:
    found = self_test(executor)
    sys.stdout.write(f"{found.device}\n")
    for one in found.checks:
        sys.stdout.write(f"{WORDS[one.passed]:<4}  {one.name}: {one.said}\n")
    return not found.passed


def say(line: str) -> None:
    """On standard error, at once."""
    sys.stderr.write(f"sizer: {line}\n")


if __name__ != "bare":
    stand_in_for_scipy()
    main()
