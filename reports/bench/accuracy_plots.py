"""Plots of the accuracy report: predicted against measured, and staircases over m."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from accuracy_measures import Array, Rows, tflops

from shapes.calibrate import Products
from shapes.cost.constants import gemm_constants
from shapes.cost.gemm import predict_gemm
from shapes.device import Device


def scatter(name: str, data: Products, predicted: Array, hidden: Rows, folder: Path) -> Path:
    """TFLOPS predicted against measured on held-out n."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(4.5, 4.5))
    x, y = tflops(data, data.seconds)[hidden], tflops(data, predicted)[hidden]
    axes.plot(x, y, ".", markersize=2, alpha=0.4)
    limit = 1.05 * max(x.max(), y.max())
    axes.plot([0, limit], [0, limit], linewidth=0.8, color="black")
    axes.set(xlabel="measured TFLOPS", ylabel="predicted TFLOPS", title=f"{name}, bf16, m, n, k >= 512, unseen n")
    return _saved(figure, folder / f"scatter-{name}.png")


def staircase(device: Device, data: Products, folder: Path) -> Path:
    """TFLOPS over m at n = k = 4096, with the edges of 128-row tiles and the crests of 128x256 waves."""
    import matplotlib.pyplot as plt

    rows = (data.n == 4096) & (data.k == 4096) & (data.m >= 512) & (data.m <= 4352)
    order = np.argsort(data.m[rows])
    m = np.arange(512, 4353, 8)
    seconds = predict_gemm(device, m, 4096, 4096)
    constants, _ = gemm_constants(device, "bf16")
    figure, axes = plt.subplots(figsize=(9, 4))
    for edge in range(512, 4353, 128):
        axes.axvline(edge, color="lightgrey", linewidth=0.4)
    for wave in range(1, 200):
        # The last m whose 128x256 tiles all fit into `wave` whole waves.
        crest = 128 * (wave * constants.units // 16)
        if 512 <= crest <= 4352:
            axes.axvline(crest, color="tab:red", linewidth=0.7, linestyle="--")
    axes.plot(m, 2 * m * 4096 * 4096 / seconds / 1e12, linewidth=1, label="predicted")
    axes.plot(data.m[rows][order], tflops(data, data.seconds)[rows][order], "o", markersize=3, label="measured")
    axes.set(xlabel="m", ylabel="TFLOPS", title=f"{device.name}, n = k = 4096, bf16 (grey: 128 rows; red: whole waves)")
    axes.legend()
    return _saved(figure, folder / f"staircase-{device.name}.png")


def _saved(figure: object, path: Path) -> Path:
    import matplotlib.pyplot as plt

    figure.tight_layout()  # type: ignore[attr-defined]  # matplotlib is untyped here
    figure.savefig(path, dpi=90)  # type: ignore[attr-defined]  # as above
    plt.close("all")
    return path
