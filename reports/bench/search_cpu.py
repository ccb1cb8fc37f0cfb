"""Racing judged on latencies measured on this machine: reports/search-cpu.md.

    python reports/bench/search_cpu.py --record 330    # measures every candidate: reports/data/search-cpu/
    python reports/bench/search_cpu.py --race 300      # the search itself, judged by the record
    python reports/bench/search_cpu.py                 # replays what was recorded

Recording times all candidates of a search in rounds of random order, a burst of runs each. Replaying draws the recorded
bursts of a round at random, each as another candidate's error, so that the clock states of the machine, which a burst
shares, are met as they were.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from opening import with_answer
from search_replay import Landscape
from tabulate import tabulate

from shapes.device import DEFAULT_DEVICE, load_device
from shapes.measure import InProcess
from shapes.measure.record import Measurement
from shapes.step import Pricer
from sizer.render import render
from sizer.searching import search
from sizer.searching.measuring import weighted_jobs
from sizer.searching.pricing import price
from sizer.searching.space import Baseline, Limits, Scope, Space
from sizer.searching.spaces import make_space
from sizer.searching.strategies import Outcome, Race, Sample, racing

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from reports.suites.everything import exhaustive

REPORTS = Path(__file__).resolve().parents[1]
DATA = REPORTS / "data" / "search-cpu"
TOLERANCE = 0.1
#: Whose races reports/data/search-cpu/*.race.json are: they need a quiet machine, so that they are run seldom.
RACED = "96af5b9"
#: Runs of a burst.
BURST = 6


@dataclass(frozen=True)
class Case:
    """A search of the SwiGLU width."""

    name: str
    h: int
    tokens: int
    step: int
    gemm_only: bool = False

    @property
    def limits(self) -> Limits:
        return Limits(TOLERANCE, step=self.step)

    @property
    def space(self) -> Space:
        workload = {"b": 1, "s": self.tokens, "dtype": "fp32"}
        device = load_device(DEFAULT_DEVICE)
        scope: Scope = "product" if self.gemm_only else "mlp"
        return make_space(
            "swiglu",
            Baseline.from_dimensions(self.h, dimensions={"d_ff": 8 * self.h // 3}, scope=scope, **workload),
            device,
            self.limits,
        )


CASES = (
    Case("mlp-h256-tokens256", 256, 256, 2),
    Case("mlp-h512-tokens64", 512, 64, 4),
    Case("product-h512-tokens512", 512, 512, 4, gemm_only=True),
)


@dataclass(frozen=True)
class Recorded(Landscape):
    """``bursts``: seconds by round, candidate and run."""

    bursts: np.ndarray

    def sampler(self, seed: int) -> Sample:
        """A turn, the baseline first, is taken from one round; more runs than a burst from further ones.

        A run is the candidate's true time, off as a candidate's of that round was that is drawn anew each turn: all
        err alike, so that every way to average them has the same truth.
        """
        rng, (rounds, candidates, runs) = np.random.default_rng(seed), self.bursts.shape
        off = self.bursts / self.truth[:, None]
        turn, whose = 0, rng.permutation(candidates)

        def sample(index: int, count: int) -> np.ndarray:
            nonlocal turn, whose
            if index == 0:
                turn, whose = int(rng.integers(rounds)), rng.permutation(candidates)
            further = rng.integers(rounds, size=-(-count // runs) - 1)
            return self.truth[index] * off[[turn, *further], whose[index]].ravel()[:count]

        return sample


def record(case: Case, seconds: float) -> None:
    """Every candidate's runs, a row each in the order of time, in the folder of the data."""
    space, session, order = case.space, InProcess(), random.Random(0)
    changes = [space.baseline, *space.candidates]
    jobs = [replace(weighted_jobs(space, change)[0][0], label=json.dumps(change)) for change in changes]
    candidates = [session.prepare(job) for job in jobs]
    started, rounds = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        for candidate in order.sample(candidates, len(candidates)):
            session.sample(candidate, BURST)
        rounds += 1
    rows = [session.finish(candidate) for candidate in candidates]
    DATA.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row.row(), sort_keys=True) + "\n" for row in rows)
    (DATA / f"{case.name}.jsonl").write_text("".join(lines), encoding="utf-8")
    sys.stderr.write(f"{case.name}: {len(rows)} candidates, {rounds} rounds\n")


def race(case: Case, seconds: float) -> None:
    """One measured search, with a store of its own."""
    with tempfile.TemporaryDirectory() as folder:
        found = search(
            h=case.h,
            tokens=case.tokens,
            dtype="fp32",
            limits=case.limits,
            gemm_only=case.gemm_only,
            measure=True,
            time_limit_s=seconds,
            store=f"{folder}/store.db",
            top=1000,
        )
    (DATA / f"{case.name}.race.json").write_text(str(render("search", "json", found)), encoding="utf-8")


@cache
def recorded(case: Case) -> tuple[Recorded, list[Measurement]]:
    """The landscape of what was recorded, its truth the medians of the runs against their round's."""
    text = (DATA / f"{case.name}.jsonl").read_text(encoding="utf-8")
    rows = [Measurement.from_row(json.loads(line)) for line in text.splitlines()]
    space, pricer = case.space, Pricer(load_device(DEFAULT_DEVICE))
    priced = price(space, [json.loads(row.label) for row in rows], pricer)
    predicted = [one.timing for one in priced]
    error = max((one.high - one.low) / 2 / one.seconds for one in predicted)
    kinds = list(dict.fromkeys(one.structure for one in priced))
    classes = np.array([kinds.index(one.structure) for one in priced])
    bursts = np.stack([row.samples.reshape(-1, BURST) for row in rows], axis=1)
    truth = np.median(against_rounds(bursts), axis=(0, 2))
    seconds = np.array([one.seconds for one in predicted])
    landscape = Recorded(truth, seconds, np.ones(len(rows)), error, classes, bursts)
    return landscape, rows


def against_rounds(bursts: np.ndarray) -> np.ndarray:
    """Runs over their round's median: what a round shares is taken out."""
    return bursts / np.median(bursts, axis=(1, 2), keepdims=True)


def spread(landscape: Recorded) -> float:
    """Of one run around its candidate's median, by quartiles, when what its round shares is taken out."""
    ratios = against_rounds(landscape.bursts) / landscape.truth[:, None]
    low, high = np.percentile(ratios, [25, 75])
    return float(high - low) / 1.349


def replayed(trials: int) -> str:
    with ProcessPoolExecutor() as pool:
        everything = pool.map(_exhaustive, CASES)
        jobs = [(case, seed) for case in CASES for seed in range(trials)]
        outcomes = pool.map(_racing, *zip(*jobs, strict=True), chunksize=4)
        replays = [_replay_row(case, next(everything), [next(outcomes) for _ in range(trials)]) for case in CASES]
    races = [_race_row(case) for case in CASES]
    source = recorded(CASES[0])[1][0].environment.source.removeprefix("measured:")
    replay_headers = [
        "search",
        "candidates",
        "rounds",
        "one run's spread",
        "within 1%",
        "exhaustive's loss",
        "exhaustive, runs",
        "racing, runs",
        "time, mean",
        "time, 95th percentile",
        "stated certainty, mean",
    ]
    race_headers = [
        "search",
        "best by the record",
        "found by the race",
        "its loss by the record",
        "runs",
        "seconds",
        "what it said",
    ]
    table = partial(tabulate, tablefmt="github")
    return TEXT.format(
        trials=trials,
        source=source,
        raced=RACED,
        replays=table(replays, replay_headers),
        burst=BURST,
        races=table(races, race_headers),
    )


@dataclass(frozen=True)
class Replayed:
    """``spent_s``: of all that it sampled."""

    best: int
    samples: int
    spent_s: float
    sure: float


def _exhaustive(case: Case) -> Replayed:
    return _replayed(case, exhaustive, 0)


def _racing(case: Case, seed: int) -> Replayed:
    return _replayed(case, racing, seed, classes=recorded(case)[0].classes.tolist())


def _replayed(case: Case, strategy: Callable[[Race], Outcome], seed: int, **more: Any) -> Replayed:
    landscape, _ = recorded(case)
    spent, drawn = [], landscape.sampler(seed)

    def sample(index: int, count: int) -> np.ndarray:
        spent.append(taken := drawn(index, count))
        return taken

    found = strategy(Race(list(landscape.predicted), landscape.error, sample, **more))
    return Replayed(found.best, found.samples, float(np.concatenate(spent).sum()), found.sure)


def _replay_row(case: Case, everything: Replayed, races: Sequence[Replayed]) -> list[object]:
    """Racing so many times, and everything once: its time hardly varies."""
    landscape, _ = recorded(case)
    truth = landscape.truth
    loss = np.array([truth[one.best] for one in races]) / truth.min() - 1
    share = np.array([one.spent_s for one in races]) / everything.spent_s
    return [
        case.name,
        len(truth),
        len(landscape.bursts),
        f"{spread(landscape):.1%}",
        f"{np.mean(loss <= 0.01):.1%}",
        f"{truth[everything.best] / truth.min() - 1:.1%}",
        everything.samples,
        round(float(np.mean([one.samples for one in races]))),
        f"{share.mean():.1%}",
        f"{np.quantile(share, 0.95):.1%}",
        f"{np.mean([one.sure for one in races]):.1%}",
    ]


def _race_row(case: Case) -> list[object]:
    landscape, rows = recorded(case)
    race = json.loads((DATA / f"{case.name}.race.json").read_text(encoding="utf-8"))
    widths = [json.loads(row.label)["d_ff"] for row in rows]
    true = dict(zip(widths, landscape.truth, strict=True))
    ranked = [race["baseline"], *race["candidates"]]
    found = min(ranked, key=lambda one: one["seconds"])["change"]["d_ff"]
    loss = true[found] / min(true.values()) - 1
    said = next(note for note in race["notes"] if "sure" in note)
    return [
        case.name,
        min(true, key=true.__getitem__),
        found,
        f"{loss:.1%}",
        race["measurements"],
        f"{race['elapsed_s']:.0f}",
        said,
    ]


TEXT = """# Racing, judged on latencies measured on a CPU

    python reports/bench/search_cpu.py --record 330
    python reports/bench/search_cpu.py --race 300
    python reports/bench/search_cpu.py --trials {trials}

The SwiGLU width near 8h/3 within 10% of its parameters, fp32, on {source}, two cores of a shared
machine: *mlp* is gate, up and down forward and backward, *product* the down projection alone. The predictions that
order the candidates are those of h100-sxm, which a CPU does not resemble.

## Replayed

Every candidate was timed in rounds of random order, bursts of {burst} runs. A candidate's true time is the median of
its runs against their round's, which the record knows to 1% or so: other averages of the same runs (means, medians of
differences within rounds) order its best otherwise. So that no average is judged by another, a replay's run is its
candidate's true time, off as the runs of some candidate were in a random round: all err alike, with the record's clock
states and tails. Clock states that last longer than a round are not in it.

{replays}

*one run's spread*: around its candidate's median, by quartiles. *within 1%*: how often the candidate that racing chose
is within 1% of the record's best. *time*: that of racing's runs over that of the exhaustive search's (both stop by
their own rules: a regret of 1% at 95% confidence, an interval of half a percent). Target: within 1% in at least 95% of
trials at no more than 10% of the time.

## Raced

`search(..., measure=True)` once each on the same machine, at most 300 s, at commit {raced}, before classes were looked
at and finalists prepared anew. The record itself is known to about 1%.

{races}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=float, metavar="SECONDS", help="measure so long a search first")
    parser.add_argument("--race", type=float, metavar="SECONDS", help="search so long, each")
    parser.add_argument("--trials", type=int, default=100, help="replays of each search")
    options = parser.parse_args()
    if options.record or options.race:
        for case in CASES:
            if options.record:
                record(case, options.record)
            if options.race:
                race(case, options.race)
        return
    text = replayed(options.trials)
    (REPORTS / "search-cpu.md").write_text(with_answer("search-cpu", text), encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
