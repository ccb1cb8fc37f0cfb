"""How often the stated 95% intervals hold the truth, and how often equal candidates are called different.

    python reports/bench/measure_coverage.py [TRIALS]

prints the tables of reports/measure.md. Synthetic samples only, seeded; no device is involved.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from compare import compare  # next to this script
from numpy.typing import NDArray
from tabulate import tabulate

from shapes.measure.stats import Stopping, summarise

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Array]
SIZES = (12, 20, 30, 60, 120, 200, 400)


def states(random: np.random.Generator, n: int, flip: float) -> Array:
    """Two clocks 1% apart that change with probability ``flip`` a sample."""
    state = (np.cumsum(random.random(n) < flip) + random.integers(2)) % 2
    return 1 + 0.01 * state + 0.004 * random.standard_normal(n)


NOISES: dict[str, tuple[Draw, float]] = {
    "normal, 0.5%": (lambda random, n: 1 + 0.005 * random.standard_normal(n), 1.0),
    "heavy tail (lognormal 1.2)": (lambda random, n: 1 + 0.004 * random.lognormal(0, 1.2, n), 1.004),
    "two clocks, independent": (lambda random, n: states(random, n, 0.5), 1.005),
    "two clocks, 2.5 samples each": (lambda random, n: states(random, n, 0.4), 1.005),
    "two clocks, 5 samples each": (lambda random, n: states(random, n, 0.2), 1.005),
    "two clocks, 10 samples each": (lambda random, n: states(random, n, 0.1), 1.005),
    "drift of 2%, noise 0.4%": (
        lambda random, n: 1 + np.linspace(-0.01, 0.01, n) + 0.004 * random.standard_normal(n),
        1.0,
    ),
}


def stopped(draw: Draw, truth: float, trials: int) -> tuple[str, str, str]:
    """Coverage of the rows that the stopping rule calls precise, which share of all they are, and their length."""
    rule, held, lengths = Stopping(), [], []
    for seed in range(trials):
        row = draw(np.random.default_rng(seed), rule.most_samples)
        taken, reason = rule.least_samples, None
        while reason is None:
            summary = summarise(row[:taken])
            reason = rule.reason(summary, out_of_time=False)
            taken = taken if reason else rule.next_look(taken)
        if reason == "precision":
            held.append(summary.low <= truth <= summary.high)
            lengths.append(taken)
    if not held:
        return "-", "0%", "-"
    return f"{100 * np.mean(held):.1f}", f"{100 * len(held) / trials:.0f}%", f"{np.median(lengths):.0f}"


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    rows = []
    for name, (draw, truth) in NOISES.items():
        cells = []
        for n in SIZES:
            random = np.random.default_rng(n)
            found = [summarise(draw(random, n)) for _ in range(trials)]
            cells.append(f"{100 * np.mean([one.low <= truth <= one.high for one in found]):.1f}")
        rows.append((name, *cells))
    print(f"Coverage of the 95% interval in percent, {trials} trials each, by number of samples\n")  # noqa: T201  # a script whose output is its purpose
    print(tabulate(rows, ("noise", *SIZES), tablefmt="github", disable_numparse=True))  # noqa: T201  # a script whose output is its purpose
    # Where time drifts, the truth depends on when the row ends: left out.
    rows = [(name, *stopped(*noise, trials // 2)) for name, noise in NOISES.items() if not name.startswith("drift")]
    print(f"\nRows that the stopping rule calls precise to 0.5%, {trials // 2} trials each\n")  # noqa: T201  # a script whose output is its purpose
    head = ("noise", "coverage, percent", "of all rows", "samples")
    print(tabulate(rows, head, tablefmt="github", disable_numparse=True))  # noqa: T201  # a script whose output is its purpose
    rows = []
    for apart in (0.0, 0.005, 0.01):
        cells = []
        for n in SIZES:
            random = np.random.default_rng(n)
            told = 0
            for _ in range(trials // 2):
                common = states(random, n, 0.2) * np.exp(np.cumsum(random.normal(0, 0.002, n)))
                one, two = (common * (1 + 0.005 * random.lognormal(0, 1, n)) for _ in range(2))
                told += compare(one * (1 + apart), two).significant
            cells.append(f"{100 * told / (trials // 2):.1f}")
        rows.append((f"{100 * apart:.1f}%", *cells))
    print(f"\nPairs called different in percent, {trials // 2} trials each, by number of rounds\n")  # noqa: T201  # a script whose output is its purpose
    print(tabulate(rows, ("truly apart", *SIZES), tablefmt="github", disable_numparse=True))  # noqa: T201  # a script whose output is its purpose


if __name__ == "__main__":
    main()
