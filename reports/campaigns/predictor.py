"""Predicted products: finite, no faster than the device's peak, and (almost) never faster for more work.

``count`` shapes in all, over devices, dtypes and layouts; sides from 1 to 2^17, half of them near a tile's edge.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from reports.campaigns.outcome import Outcome
from shapes import predict_gemm
from shapes.device import list_devices, load_device

#: Doubling a side may make a product faster by so much at most: tiles and splits of k are chosen anew.
SLACK = 0.02
_CHUNK = 200_000


def _sides(rng: np.random.Generator, size: int) -> np.ndarray:
    sides = np.exp2(rng.uniform(0, 17, size)).astype(np.int64)
    edge = 64 * rng.integers(1, 512, size) + rng.integers(-2, 3, size)
    return np.where(rng.random(size) < 0.5, sides, edge)


def run(count: int, rng: random.Random, folder: Path) -> Outcome:
    outcome, numbers = Outcome(), np.random.default_rng(rng.randrange(2**32))
    while outcome.tried < count:
        device = load_device(rng.choice(list_devices()))
        dtype, layout = rng.choice(list(device.peak_flops)), rng.choice(("tn", "nn", "nt", "tt"))
        size = min(_CHUNK, count - outcome.tried)
        m, n, k = (_sides(numbers, size) for _ in range(3))
        seconds = predict_gemm(device, m, n, k, dtype=dtype, layout=layout)
        outcome.tried += size
        outcome.kinds["shapes"] += size
        what = f"{device.name} {dtype} {layout}"
        for name, wrong in (
            ("no finite time", ~(np.isfinite(seconds) & (seconds > 0))),
            ("faster than the peak", 2.0 * m * n * k / seconds > device.peak(dtype) * 1.001),
        ):
            if wrong.any():
                at = int(np.argmax(wrong))
                outcome.violation(
                    name, (what, int(m[at]), int(n[at]), int(k[at]), float(seconds[at]), int(wrong.sum()))
                )
        sides = {"m": m, "n": n, "k": k}
        axis = rng.choice("mnk")
        double = predict_gemm(device, **{**sides, axis: 2 * sides[axis]}, dtype=dtype, layout=layout)
        faster = double < seconds * (1 - SLACK)
        outcome.kinds["doubled sides"] += size
        outcome.kinds["faster doubled"] += int(faster.sum())
        # An odd side doubled is better aligned, which may well be faster: of those only the others count.
        both = faster & (sides[axis] % 64 == 0)
        outcome.kinds["faster doubled, aligned before"] += int(both.sum())
        if both.any():
            at = int(np.argmin(np.where(both, double / seconds, np.inf)))
            shape = tuple(int(sides[name][at]) for name in "mnk")
            outcome.violation(
                f"faster for twice the work ({what})", (shape, axis, float(double[at] / seconds[at]), int(both.sum()))
            )
    return outcome
