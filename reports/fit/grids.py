"""The tables that cells are fitted by: cells from an array."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shapes.cost.corrections import UNIT, Cells

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


def cells_of_array(m: Integers, n: Integers, log2_k: tuple[float, ...], log_factor: Array) -> Cells:
    """From an array by m, n and knot; NaN where nothing was measured."""
    lines = (
        " ".join("-" if np.isnan(one) else str(round(one / UNIT)) for one in row.ravel().tolist()) + "\n"
        for row in log_factor
    )
    return Cells(tuple(m.tolist()), tuple(n.tolist()), log2_k, "".join(lines))
