"""Measured aligned products as arrays, and the consensus of those who measured them."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shapes.calibrate.data import Record
from shapes.cost.constants import GemmConstants
from shapes.cost.gemm import LARGE, aligned_seconds
from shapes.frozen import frozen

Array = NDArray[np.float64]

Key = TypeVar("Key", bound=tuple[Any, ...])


@frozen
class Products:
    """Measured aligned products: dimensions and seconds, arrays of one length."""

    m: Array
    n: Array
    k: Array
    seconds: Array

    def __len__(self) -> int:
        return len(self.m)

    def __getitem__(self, rows: NDArray[np.generic]) -> Products:
        return Products(self.m[rows], self.n[rows], self.k[rows], self.seconds[rows])

    @property
    def large(self) -> NDArray[np.bool_]:
        """Where m, n and k are all at least LARGE."""
        large: NDArray[np.bool_] = np.minimum(np.minimum(self.m, self.n), self.k) >= LARGE
        return large

    def predicted(self, constants: GemmConstants, size: int = 2, out: int = 2) -> Array:
        one = np.ones_like(self.m)
        seconds = aligned_seconds(self.m, self.n, self.k, one, size, out, constants)
        if constants.cells is None:
            return seconds
        m, n, k, batch = (dims.astype(np.int64) for dims in (self.m, self.n, self.k, one))
        return constants.cells.corrected(seconds, m, n, k, batch)

    def errors(self, constants: GemmConstants, size: int = 2, out: int = 2) -> Array:
        """Absolute relative error of each product's prediction."""
        errors: Array = np.abs(self.predicted(constants, size, out) / self.seconds - 1)
        return errors


def consensus(values: Iterable[tuple[Key, str, float]]) -> dict[Key, float]:
    """(shape, source, seconds) -> the median over sources of each source's median: one source is a noisy truth."""
    by_shape: dict[Key, dict[str, list[float]]] = {}
    for shape, source, seconds in values:
        by_shape.setdefault(shape, {}).setdefault(source, []).append(seconds)
    return {shape: median(median(runs) for runs in sources.values()) for shape, sources in by_shape.items()}


def products(records: Iterable[Record], dtype: str) -> Products:
    """The consensus of all aligned, forward, unbatched products of ``dtype``."""
    wanted = (
        ((record.m, record.n, record.k), record.source, record.seconds)
        for record in records
        if record.dtype == dtype and record.batch == 1 and record.layout == "tn" and record.aligned
    )
    truth = consensus(wanted)
    table = np.array([(*shape, seconds) for shape, seconds in sorted(truth.items())], dtype=float).reshape(-1, 4)
    return Products(table[:, 0], table[:, 1], table[:, 2], table[:, 3])
