"""Racing judged on landscapes whose best is known: reports/search.md.

    python reports/bench/search_replay.py --data .../aiconfigurator_core/systems/data

Recorded latencies (NVIDIA's aiconfigurator tables, consensus of frameworks, bf16) are replayed with timing noise along
n, k and m; the cost model's predictions order the candidates. Synthetic landscapes have tile steps and worse
predictions.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from accuracy import FITTED, Case, load
from accuracy_measures import lines
from tabulate import tabulate

from shapes.cost import predict
from shapes.operators import Gemm
from sizer.searching.strategies import exhaustive, racing
from sizer.searching.strategies.paired import Sample

REPORTS = Path(__file__).resolve().parents[1]
#: One run's relative noise: the right half of a Student t with 3 degrees of freedom, of this scale.
NOISE = 0.005
#: Fewest candidates for which searching is worth the word.
FEWEST = 10
#: Synthetic predictions' error, and what is said of it.
ERROR = 0.04


@dataclass(frozen=True)
class Landscape:
    """True seconds of candidates (0 is the baseline), what was predicted with what error, what a second is worth."""

    truth: np.ndarray
    predicted: np.ndarray
    weights: np.ndarray
    error: float

    def sampler(self, seed: int) -> Sample:
        rng = np.random.default_rng(seed)
        return lambda index, count: self.truth[index] * (1 + NOISE * np.abs(rng.standard_t(3, count)))


@dataclass(frozen=True)
class Trial:
    """``loss``: against the true best. ``share``: racing's time over that of measuring everything."""

    loss: float
    share: float
    sure: float
    exhaustive_loss: float


def trial(landscape: Landscape, seed: int) -> Trial:
    values = landscape.truth * landscape.weights
    outcomes = [
        run(list(landscape.predicted), landscape.error, landscape.sampler(seed), weights=list(landscape.weights))
        for run in (racing.run, exhaustive.run)
    ]
    race, all_of_them = outcomes
    loss, other = (float(values[one.best] / values.min() - 1) for one in outcomes)
    return Trial(loss, race.spent_s / all_of_them.spent_s, race.sure, other)


def stated(case: Case) -> float:
    """The error that `search` takes from the device's file for large products."""
    cost = predict(Gemm("", "forward", 4096, 4096, 4096), case.device)
    return (cost.high - cost.low) / 2 / cost.seconds


def recorded(root: Path, axis: str) -> Iterator[Landscape]:
    """Lines of each fitted device along one axis, others fixed; what is minimised is time a FLOP."""
    for gpu, name in FITTED.items():
        case = load(root / gpu, name)
        data, predicted = case.data[case.data.large], case.predicted[case.data.large]
        for rows in lines(data, axis):
            if len(rows) >= FEWEST:
                flops = 2.0 * data.m[rows] * data.n[rows] * data.k[rows]
                yield Landscape(data.seconds[rows], predicted[rows], 1 / flops, stated(case))


def dense(root: Path, axis: str) -> Iterator[Landscape]:
    """A whole plane of each device (the axis and the one fixed dimension next to it): a hundred candidates and more."""
    for gpu, name in FITTED.items():
        case = load(root / gpu, name)
        data, predicted = case.data[case.data.large], case.predicted[case.data.large]
        fixed = getattr(data, axis)
        for value in np.unique(fixed):
            rows = np.flatnonzero(fixed == value)
            flops = 2.0 * data.m[rows] * data.n[rows] * data.k[rows]
            yield Landscape(data.seconds[rows], predicted[rows], 1 / flops, stated(case))


def synthetic(count: int) -> Iterator[Landscape]:
    """Tile steps of 8%, ripples of 3%, predictions off by 4%: 200 neighbouring widths."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        size = np.arange(200)
        steps = 1 + 0.08 * (size % 8 != 0) + 0.06 * (size % 32 >= 16)
        truth = 1e-3 * (1 + 0.001 * size) * steps * np.exp(rng.normal(0, 0.03, 200))
        yield Landscape(truth, truth * np.exp(rng.normal(0, ERROR, 200)), np.ones(200), ERROR)


def row(name: str, landscapes: Callable[[], Iterator[Landscape]], most: int) -> list[object]:
    found = list(landscapes())
    order = np.random.default_rng(0).permutation(len(found))[:most].tolist()
    with ProcessPoolExecutor() as pool:
        trials = list(pool.map(trial, [found[index] for index in order], order, chunksize=4))
    sizes = [len(found[index].truth) for index in order]
    share = np.array([one.share for one in trials])
    return [
        name, len(trials), f"{min(sizes)} to {max(sizes)}",
        f"{np.mean([one.loss <= 0.01 for one in trials]):.1%}",
        f"{np.mean([one.exhaustive_loss <= 0.01 for one in trials]):.1%}",
        f"{np.mean(share):.1%}", f"{np.quantile(share, 0.95):.1%}", f"{np.mean([one.sure for one in trials]):.1%}",
    ]  # fmt: skip


TEXT = """# Racing: how good, at what share of the time

    {command}

Racing against measuring every candidate (`--strategy exhaustive`: to an interval of half a percent and at least 20
samples) on landscapes whose best is known. A run's noise is {noise:.1%} x |Student t, 3 degrees of freedom|; regret
1%, confidence 95%. *Recorded* lines replay measured latencies (NVIDIA's aiconfigurator tables, see accuracy.md) along
one dimension, the candidate with most TFLOPS being sought; *planes* hold one dimension fixed and search the other
two. The predictions are the committed constants', fitted on 70% of the n values. Nothing in this table was measured
by this project.

{table}

*within 1%*: how often the candidate chosen is truly within 1% of the true best. *time*: device time of racing's samples
over that of the exhaustive search's. Target: within 1% in at least 95% of trials at no more than 10% of the time.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--most", type=int, default=400, help="trials a row")
    options = parser.parse_args()
    text = replayed(options.data, options.most)
    (REPORTS / "search.md").write_text(text, encoding="utf-8")
    sys.stdout.write(text)


def replayed(data: Path, most: int) -> str:
    rows = [row(f"recorded, along {axis}", lambda axis=axis: recorded(data, axis), most) for axis in "nkm"]
    rows += [row(f"recorded, planes at fixed {axis}", lambda axis=axis: dense(data, axis), most) for axis in "mk"]
    rows.append(row("synthetic", lambda: synthetic(most), most))
    headers = ["landscapes", "trials", "candidates", "within 1%", "exhaustive within 1%", "time, mean",
               "time, 95th percentile", "stated certainty, mean"]  # fmt: skip
    command = f"python reports/bench/search_replay.py --data .../aiconfigurator_core/systems/data --most {most}"
    return TEXT.format(command=command, noise=NOISE, table=tabulate(rows, headers, tablefmt="github"))


if __name__ == "__main__":
    main()
