"""What corrections beyond tiles and waves are worth: the table under "What was tried" in reports/accuracy.md.

    python reports/bench/accuracy_tried.py --data .../aiconfigurator_core/systems/data

Each line corrects the committed closed forms (14 constants) on the n values that were seen and is judged on those held
out; large bf16 products. Trees are scikit-learn's, on the features the tables use.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from accuracy import FITTED, percent
from accuracy_measures import Array, mape, regret
from tabulate import tabulate

from shapes.calibrate.correction import RIDGES, TAIL_TILES, Choice, fitted
from shapes.calibrate.data import products, read_records
from shapes.calibrate.gemm import Products
from shapes.calibrate.hold_out import held_out
from shapes.cost.constants import GemmConstants, gemm_constants
from shapes.cost.correction import REFERENCE_TILE, waves_of
from shapes.device import load_device

Correct = Callable[[Products, Products, GemmConstants], Array]


def table(*choice: object) -> Correct:
    """Predictions with tables of ``choice`` (tiles whose tails count, ridge penalty)."""

    def predicted(seen: Products, data: Products, plain: GemmConstants) -> Array:
        chosen: Choice = choice  # type: ignore[assignment]
        return data.predicted(fitted(seen, plain, (2, 2), chosen, 0, pairs=0))

    return predicted


def features(data: Products, units: int) -> Array:
    ones = np.ones(len(data))
    waves = [waves_of(tile, data.m, data.n, ones, units) for tile in TAIL_TILES]
    reference = np.log2(waves_of(REFERENCE_TILE, data.m, data.n, ones, units))
    return np.column_stack([reference, np.log2(data.k), *(np.ceil(one) - one for one in waves)])


def trees(number: int, leaves: int, rate: float) -> Correct:
    """Predictions with boosted trees on the residual's logarithm."""

    def predicted(seen: Products, data: Products, plain: GemmConstants) -> Array:
        from sklearn.ensemble import HistGradientBoostingRegressor

        model = HistGradientBoostingRegressor(
            max_iter=number, learning_rate=rate, max_leaf_nodes=leaves, l2_regularization=1.0, random_state=0
        )
        model.fit(features(seen, plain.units), np.log(seen.seconds / seen.predicted(plain)))
        return data.predicted(plain) * np.exp(model.predict(features(data, plain.units)))

    return predicted


TRIED: dict[str, Correct] = {
    "closed form alone": lambda _, data, plain: data.predicted(plain),
    "table by waves and k": table((), RIDGES[0]),
    "and by three tiles' tails": table(TAIL_TILES, RIDGES[0]),
    "and by those of 192": table((*TAIL_TILES, (128, 192), (192, 128)), RIDGES[0]),
    "40 trees of 8 leaves": trees(40, 8, 0.2),
    "300 trees of 31 leaves": trees(300, 31, 0.05),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    rows: dict[str, list[str]] = {name: [] for name in TRIED}
    for gpu, name in FITTED.items():
        data = products(read_records([options.data / gpu]), "bf16")
        hidden = held_out(data.n)[data.large]
        data = data[data.large]
        plain = replace(gemm_constants(load_device(name), "bf16")[0].uncorrected(), small=None)
        for tried, correct in TRIED.items():
            predicted = correct(data[~hidden], data, plain)
            unseen, seen = (mape(predicted[part], data.seconds[part]) for part in (hidden, ~hidden))
            rows[tried].append(f"{percent(unseen)} ({percent(seen)}), {percent(regret(data, predicted, 'n'))}")
    print(tabulate([(name, *cells) for name, cells in rows.items()], ["", *FITTED.values()], tablefmt="github"))  # noqa: T201  # a script whose output is its purpose


if __name__ == "__main__":
    main()
