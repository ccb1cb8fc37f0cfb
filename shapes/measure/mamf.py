"""Maximum achievable matmul FLOPS, found by asking the cost model where to look.

Brute force (mamf-finder) times thousands of shapes. Here a grid is ranked by predicted rate, a spread of the best is
timed coarsely, the neighbours of the best few are tried until nothing improves, and the winners are timed well. The
answer is a maximum over what was tried, so it is a lower bound of what the device can do.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shapes.device import Device
from shapes.frozen import frozen
from shapes.measure.executor import Executor, Settings
from shapes.measure.jobs import Job
from shapes.measure.record import Measurement
from shapes.measure.runner import Progress, measure
from shapes.operators import Gemm

if TYPE_CHECKING:
    from shapes.measure.store import Store

Shape = tuple[int, int, int]

#: Sizes of the grid: what training and mamf-finder's winners use; under 1024 launches and edges weigh too much.
GRID = (1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192, 10240, 12288, 14336, 16384)
#: Steps to a neighbour, as a share of the size, rounded to a multiple of this.
MULTIPLE = 256
#: How many of the grid are timed coarsely, how many lead on to neighbours, and how well the winners are timed.
FIRST, LEADERS, COARSE = 48, 3, 0.02


@frozen
class Maximum:
    """The best shape and everything tried, fastest first; ``left`` shapes were not reached in time."""

    dtype: str
    tried: tuple[Measurement, ...]
    left: int
    elapsed_s: float

    @property
    def best(self) -> Measurement | None:
        return self.tried[0] if self.tried else None


def find_maximum(
    dtype: str,
    *,
    executor: Executor,
    device: Device | None = None,
    store: Store | None = None,
    settings: Settings | None = None,
    time_limit_s: float = 120.0,
    scale: float = 1.0,
    progress: Callable[[Progress], None] | None = None,
) -> Maximum:
    """Search the shape of the highest rate for ``dtype`` (layout tn). ``device`` None: larger is taken for faster."""
    settings = settings or Settings()
    start = time.monotonic()
    found: dict[Shape, Measurement] = {}
    left = 0

    def run(shapes: list[Shape], precision: float, until: float) -> None:
        nonlocal left
        remaining = start + time_limit_s * until - time.monotonic()
        jobs = {_job(shape, dtype): shape for shape in shapes}
        chosen = replace(settings, precision=max(precision, settings.precision))
        sweep = measure(
            jobs, executor=executor, store=store, settings=chosen, time_limit_s=max(0.0, remaining), progress=progress
        )
        left += len(sweep.left)
        found.update({jobs[job]: sweep.results[job.key] for job in jobs if job.key in sweep.results})

    run(spread(grid(scale), dtype, device), COARSE, 0.5)
    while time.monotonic() - start < 0.75 * time_limit_s:
        near = [shape for leader in _fastest(found)[:LEADERS] for shape in neighbours(leader) if shape not in found]
        if not near:
            break
        run(list(dict.fromkeys(near)), COARSE, 0.75)
    run(_fastest(found)[: LEADERS + 2], settings.precision, 1.0)
    tried = sorted((one for one in found.values() if one.tflops), key=lambda one: -(one.tflops or 0.0))
    return Maximum(dtype, tuple(tried), left, time.monotonic() - start)


def grid(scale: float = 1.0) -> list[Shape]:
    """Every m, n, k of ``GRID`` times ``scale`` (multiples of 64), whose operands stay under 4 GiB in 16 bits."""
    sizes = sorted({max(64, round(size * scale / 64) * 64) for size in GRID})
    return [shape for shape in itertools.product(sizes, sizes, sizes) if _elements(shape) * 2 < 2**32]


def _elements(shape: Shape) -> int:
    m, n, k = shape
    return m * n + m * k + n * k


def spread(shapes: list[Shape], dtype: str, device: Device | None) -> list[Shape]:
    """The ``FIRST`` shapes of highest predicted rate, no two within a quarter of each other in every dimension."""
    if device is not None and dtype in device.peak_flops:
        from shapes.cost import predict_gemm

        m, n, k = np.array(shapes).T
        rates = 2.0 * m * n * k / predict_gemm(device, m, n, k, dtype=dtype)
        ranked = [shapes[index] for index in np.argsort(-rates, kind="stable")]
    else:
        ranked = sorted(shapes, key=lambda shape: -shape[0] * shape[1] * shape[2] / _elements(shape))
    chosen: list[Shape] = []
    for shape in ranked:
        if not any(all(abs(a - b) <= max(a, b) / 4 for a, b in zip(shape, other, strict=True)) for other in chosen):
            chosen.append(shape)
        if len(chosen) == FIRST:
            break
    return chosen


def neighbours(shape: Shape) -> list[Shape]:
    """``shape`` with one dimension an eighth smaller or larger, in steps of 256 (64 below 2048)."""
    out = []
    for axis, size in enumerate(shape):
        multiple = MULTIPLE if size >= 2048 else 64
        step = max(multiple, round(size / 8 / multiple) * multiple)
        for moved in (size - step, size + step):
            if moved >= 64:
                out.append((*shape[:axis], moved, *shape[axis + 1 :]))
    return [(m, n, k) for m, n, k in out]


def _fastest(found: dict[Shape, Measurement]) -> list[Shape]:
    return sorted((shape for shape in found if found[shape].tflops), key=lambda shape: -(found[shape].tflops or 0.0))


def _job(shape: Shape, dtype: str) -> Job:
    m, n, k = shape
    out = "bf16" if dtype == "fp8" else None
    return Job(Gemm("mamf", "forward", m, n, k, dtype=dtype, layout="tn", out_dtype=out), label="mamf")
