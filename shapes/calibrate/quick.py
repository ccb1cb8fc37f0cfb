"""About 50 products, chosen to tell a device's constants apart, measured on the device at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from shapes.calibrate.data import Record
from shapes.errors import InputError
from shapes.operators.types import Gemm

if TYPE_CHECKING:
    from shapes.measure.executor import Executor
    from shapes.measure.store import Store

COUNT = 50
#: Share of them that are large products; the others are skinny, which alone show bandwidth and launch.
LARGE_SHARE = 0.7


def chosen(dtype: str = "bf16", count: int = COUNT, largest: int = 16384, seed: int = 0) -> tuple[Gemm, ...]:
    """Aligned products spread evenly over the logarithm of m, n and k, up to ``largest``; skinny ones in m."""
    random = np.random.default_rng(seed)
    large = round(count * LARGE_SHARE)
    products = []
    for index in range(count):
        low = 512 if largest > 512 else 64
        dims = np.exp(random.uniform(np.log(low), np.log(largest), 3))
        m, n, k = (int(max(64, round(value / 64) * 64)) for value in dims)
        if index >= large:
            m = int(2 ** random.integers(0, 8))
        products.append(Gemm(f"calibration.{index}", "forward", m, n, k, dtype=dtype))
    return tuple(products)


def measure_quick(
    dtype: str = "bf16",
    *,
    count: int = COUNT,
    largest: int = 16384,
    executor: Executor,
    store: Store | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Record, ...]:
    """Records of `chosen` measured here, kept in ``store``; InputError when fewer than half could be measured."""
    from shapes.measure.jobs import Job
    from shapes.measure.runner import measure

    jobs = [Job(product) for product in chosen(dtype, count, largest)]
    progress(f"measuring {len(jobs)} products")
    sweep = measure(jobs, executor=executor, store=store)
    records = []
    for one in sweep.results.values():
        row = one.row(samples=False)
        if one.ok and one.seconds is not None:
            records.append(Record(row["m"], row["n"], row["k"], 1, dtype, "tn", one.seconds, one.environment.source))
    if len(records) < len(jobs) / 2:
        reasons = "; ".join(sorted({f"{one.status}: {one.message}" for one in sweep.failed}))
        raise InputError(f"expected at least {len(jobs) // 2} measured products, got {len(records)} ({reasons})")
    return tuple(records)
