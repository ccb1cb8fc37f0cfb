"""What `sizer bench all` runs: the self-test, every suite, then the ML Engineering book's width search."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from shapes.errors import InputError
from shapes.frozen import replace
from shapes.measure.workers import Session
from sizer.answers.bench import Bencher, MeasuredTable, self_test, suites_of
from sizer.searching.strategies import MOST_SAMPLES, START, Outcome, PairedSamples, Race, racing

#: The one that is worth most a second first.
ALL = ["swiglu-4096", "control", "layers", "attention-heads", "misalignment", "mamf"]

#: Samples of a candidate, at least, where all are measured.
LEAST = 20

#: The shares of its time that are kept for writing, and for a search for the width that the book starts from, by brute
#: force and by racing; and how much smaller everything is on a processor, where it only shows that the command works.
RESERVE, RACED, BOOK, ON_A_CPU = 0.05, 0.08, 4096, 0.02


def every_suite() -> list[Path]:
    return [Path(__file__).with_name(f"{name}.toml") for name in ALL]


def everything(
    bencher: Bencher, paths: Sequence[Path], say: Callable[[str], None], shard: str | None
) -> tuple[list[MeasuredTable], bool]:
    """What was measured, and whether the self-test passed: a line for each check that did not."""
    start, limit_s = time.monotonic(), (bencher.time_limit_s or 0.0) * (1 - RESERVE)
    tested = self_test(bencher.executor)
    for one in tested.checks:
        if one.passed is False:
            say(f"self-test: {one.name}: {one.said}")
    scale, race_s = ON_A_CPU if bencher.executor.environment.cpu else 1.0, RACED * limit_s
    rest = replace(bencher, time_limit_s=max(0.0, limit_s - race_s - (time.monotonic() - start)))
    tables = rest.suites(suites_of(paths, scale, shard), "" if shard else "all")
    for line in race(round(BOOK * scale), race_s / 2, bencher.executor) if not shard else ():
        say(line)
    return tables, tested.passed


def race(hidden: int, each_s: float, executor: Session) -> Iterator[str]:
    """The book's width by brute force and by racing, neither with the other's samples: a line each."""
    try:
        from sizer.searching import search
        from sizer.searching.space import Limits

        for how in (exhaustive, racing):
            with TemporaryDirectory() as folder:
                found = search(
                    h=hidden,
                    gemm_only=True,
                    limits=Limits(step=1),
                    measure=executor,
                    strategy=how,
                    store=f"{folder}/s",
                    time_limit_s=each_s,
                )
            yield f"{how.__name__}: {found.verdict}, in {found.elapsed_s:.0f} s; {found.notes[1]}"
    except InputError as error:
        yield f"exhaustive against racing: {error}"


def exhaustive(race: Race) -> Outcome:
    """Every candidate measured as a sweep measures it, in rounds of random order: what racing is judged by.

    Each sample is a ratio to the baseline paired with it, from which clock states cancel, so that LEAST of them
    will do. The likeliest first: time runs out on the unlikeliest. Classes change nothing where all are
    seen; nothing is prepared twice, as in a sweep.
    """
    paired = PairedSamples(replace(race, classes=None, renew=None))
    finished = True
    for index in sorted(range(1, len(race.predicted_s)), key=paired.prior.__getitem__):
        if not (finished := paired.take([index], START)):
            break
        paired.tell(paired.unseen)
    while finished and (loose := _loose(paired, race.regret / 2)):
        paired.tell(loose)
        finished = paired.take(loose, rounds=paired.rounds(loose))
    return paired.outcome(finished=finished)


def _loose(paired: PairedSamples, precision: float) -> list[int]:
    errors = paired.errors()
    return [
        index
        for index, ratios in paired.ratios.items()
        if len(ratios) < MOST_SAMPLES and (len(ratios) < LEAST or 2 * errors[index] > precision)
    ]
