"""Peers of the model: rooflines, gradient boosting, nvidia-matmul-heuristics, and the noise itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from accuracy_measures import Array, Rows, mape

from shapes.calibrate import Products, Record
from shapes.device import Device

#: The heuristics' name of each device.
HEURISTICS = {"a100-sxm": "A100_SXM_80GB", "h100-sxm": "H100_SXM", "h200": "H200_SXM", "l40s": "L40S", "b200": "B200"}

# Run by another interpreter, for the library crashes at exit: the result is printed before.
_SCRIPT = """
import json, sys, time
from nvMatmulHeuristics import *
gpu, shapes = json.load(sys.stdin)
target = NvMatmulHeuristicsTarget.CUTLASS3 if gpu[0] in "HB" else NvMatmulHeuristicsTarget.CUTLASS
h = NvMatmulHeuristicsInterface(backend=target, precision="HSH")
descriptor = h.createHardwareDescriptor()
h.setHardwarePredefinedGpu(descriptor, getattr(NvMatmulHeuristicsNvidiaGpu, gpu))
layout = NvMatmulHeuristicsMatmulLayout.TN_ROW_MAJOR
h.loadInternalDiscoverySet(layout, descriptor)
start = time.process_time()
out = []
for m, n, k in shapes:
    got = h.get_with_mnk(m, n, k, layout, 1, descriptor)
    out.append(got[0]["runtime"] if got else None)
print(json.dumps([out, time.process_time() - start]), flush=True)
"""


def heuristics(device: str, data: Products, python: Path) -> tuple[Array, float] | None:
    """Seconds by nvidia-matmul-heuristics and its shapes a second, or None where it does not run."""
    shapes = np.stack([data.m, data.n, data.k], axis=1).astype(int).tolist()
    done = subprocess.run(
        [str(python), "-c", _SCRIPT],
        input=json.dumps([HEURISTICS[device], shapes]),
        capture_output=True,
        text=True,
        check=False,
    )
    answers = [line for line in done.stdout.splitlines() if line.startswith("[[")]
    if not answers:
        return None
    seconds, wall = json.loads(answers[0])
    return np.array([value if value else np.nan for value in seconds]), len(shapes) / wall


def rescaled(predicted: Array, measured: Array) -> float:
    """Error after one global scale, the kindest reading of a model that was fitted to something else."""
    good = np.isfinite(predicted)
    return mape(predicted[good] * np.median(measured[good] / predicted[good]), measured[good])


def roofline(data: Products, peak: float, bandwidth: float, launch: float = 0.0) -> Array:
    moved = 2 * (data.m * data.n + data.m * data.k + data.n * data.k)
    seconds: Array = np.maximum(2 * data.m * data.n * data.k / peak, moved / bandwidth) + launch
    return seconds


def fitted_roofline(data: Products, seen: Rows, device: Device) -> Array:
    """Peak, bandwidth and launch by the same robust least squares on the same rows."""
    from scipy.optimize import least_squares

    train = data[seen]
    guess = np.log([0.7 * device.peak("bf16"), 0.8 * device.memory.bandwidth_bytes_per_s, 5e-6])
    result = least_squares(
        lambda theta: np.log(roofline(train, *np.exp(theta)) / train.seconds), guess, loss="soft_l1", f_scale=0.05
    )
    return roofline(data, *np.exp(result.x))


def boosting(data: Products, seen: Rows, units: int) -> Array:
    """Gradient boosting on log time over tile, wave and size features: what can be learned without knowing anything."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    logs = [np.log(getattr(data, name)) for name in "mnk"]
    waves = [np.ceil(data.m / bm) * np.ceil(data.n / bn) / units for bm, bn in ((128, 256), (256, 128), (128, 128))]
    features = np.stack([*logs, sum(logs), *(np.log(w) for w in waves), *(np.ceil(w) / w for w in waves)], axis=1)
    flops = sum(logs)
    model = HistGradientBoostingRegressor(max_iter=500, learning_rate=0.05, max_leaf_nodes=31, random_state=0)
    model.fit(features[seen], (np.log(data.seconds) - flops)[seen])
    seconds: Array = np.exp(model.predict(features) + flops)
    return seconds


def framework_noise(records: Iterable[Record], judged: Callable[[Record], bool]) -> float:
    """One framework against another on the same ``judged`` bf16 shapes, rescaled: mean over pairs of frameworks."""
    by_source: dict[str, dict[tuple[int, int, int], float]] = {}
    for record in records:
        if record.dtype == "bf16" and judged(record):
            by_source.setdefault(record.source, {})[record.m, record.n, record.k] = record.seconds
    errors = []
    names = sorted(by_source)
    for index, first in enumerate(names):
        for second in names[index + 1 :]:
            shared = by_source[first].keys() & by_source[second].keys()
            a, b = (np.array([by_source[name][shape] for shape in shared]) for name in (first, second))
            errors.append(rescaled(a, b))
    return float(np.mean(errors))


def by_framework(records: Iterable[Record], data: Products) -> dict[str, Array]:
    """Each framework's seconds of ``data``'s products where it timed all of them, else those it lacks are infinite."""
    found: dict[str, dict[tuple[float, float, float], float]] = {}
    for record in records:
        if record.dtype == "bf16":
            found.setdefault(record.source, {})[record.m, record.n, record.k] = record.seconds
    shapes = list(zip(data.m.tolist(), data.n.tolist(), data.k.tolist(), strict=True))
    answers = {name: np.array([times.get(shape, np.inf) for shape in shapes]) for name, times in found.items()}
    return {name: seconds for name, seconds in answers.items() if np.isfinite(seconds).mean() > 0.99}
