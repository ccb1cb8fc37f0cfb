"""Figures of merit of predicted against measured products: errors, ranks, concordance, regret."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shapes.calibrate import Products

Array = NDArray[np.float64]
Rows = NDArray[np.bool_]

#: Pairs whose measured TFLOPS differ by less are not statistically distinguishable between frameworks.
DECIDABLE = 0.05


def mape(predicted: Array, measured: Array) -> float:
    """Mean absolute relative error."""
    return float(np.mean(np.abs(predicted / measured - 1)))


def tflops(data: Products, seconds: Array) -> Array:
    rate: Array = 2 * data.m * data.n * data.k / seconds / 1e12
    return rate


def spearman(data: Products, predicted: Array) -> float:
    """Rank correlation of TFLOPS."""
    from scipy.stats import spearmanr

    return float(spearmanr(tflops(data, predicted), tflops(data, data.seconds)).statistic)


def lines(data: Products, along: str) -> Iterator[NDArray[np.intp]]:
    """Rows of each group that differs only in the dimension ``along``, in its order."""
    others = [getattr(data, name) for name in "mnk" if name != along]
    order = np.lexsort((getattr(data, along), *others))
    keys = np.stack([other[order] for other in others], axis=1)
    starts = np.flatnonzero(np.any(np.diff(keys, axis=0) != 0, axis=1)) + 1
    for rows in np.split(order, starts):
        if len(rows) > 2:
            yield rows


def concordance(data: Products, predicted: Array, along: str) -> float:
    """Share of decidable pairs along a dimension whose order of TFLOPS is predicted."""
    right = total = 0
    measured, guessed = tflops(data, data.seconds), tflops(data, predicted)
    for rows in lines(data, along):
        a, b = measured[rows], guessed[rows]
        ratio = a[:, None] / a[None, :]
        pairs = np.triu(np.abs(np.log(ratio)) > np.log(1 + DECIDABLE), 1)
        right += int(((b[:, None] > b[None, :]) == (ratio > 1))[pairs].sum())
        total += int(pairs.sum())
    return right / total


def regret(data: Products, predicted: Array, along: str) -> float:
    """Mean share of TFLOPS lost by taking the predicted best along a dimension instead of the measured best."""
    measured, guessed = tflops(data, data.seconds), tflops(data, predicted)
    lost = [1 - measured[rows[np.argmax(guessed[rows])]] / measured[rows].max() for rows in lines(data, along)]
    return float(np.mean(lost))
