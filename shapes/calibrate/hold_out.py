"""Which measurements a fit must not see."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Share of the n values (or sequence lengths) held out whole: random rows would leak their neighbours.
HELD_OUT = 0.3


def held_out(values: NDArray[np.float64], seed: int = 0, border: float = 512) -> NDArray[np.bool_]:
    """Which rows belong to the 30% of distinct values that are held out whole, drawn below and from ``border`` on."""
    random = np.random.default_rng(seed)
    distinct = np.unique(values)
    parts = (distinct[distinct >= border], distinct[distinct < border])
    drawn = [random.choice(part, round(HELD_OUT * len(part)), replace=False) for part in parts]
    rows: NDArray[np.bool_] = np.isin(values, np.concatenate(drawn))
    return rows
