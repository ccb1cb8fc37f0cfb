"""NCCL's own tables (nccl_perf.parquet) -> latency and share of the link that collectives reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shapes.calibrate.data import parquet_columns
from shapes.calibrate.products import consensus
from shapes.cost.collective import collective_parts
from shapes.cost.constants import CollectiveConstants
from shapes.device import Device
from shapes.operators.types import Collective

Array = NDArray[np.float64]

_KINDS = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter"}

Messages = dict[tuple[str, int, int], float]


def read_collectives(paths: Iterable[Path]) -> Messages:
    """(what, ranks, bytes of the full buffer) -> seconds, the median over NCCL versions; 16-bit elements."""
    values = []
    for path in paths:
        columns = parquet_columns(path)
        names = ("op_name", "nccl_dtype", "num_gpus", "message_size", "latency")
        for what, dtype, ranks, elements, latency in zip(*(columns[name] for name in names), strict=True):
            if what in _KINDS and dtype == "half" and latency > 0:
                values.append(((_KINDS[what], ranks, 2 * elements), str(path), latency * 1e-3))
    return consensus(values)


def predicted(messages: Messages, device: Device, constants: CollectiveConstants) -> Array:
    """Seconds of each message by ``constants``."""
    operators = (Collective("", "forward", what, size, ranks) for what, ranks, size in messages)  # type: ignore[arg-type]  # names of _KINDS
    return np.array([sum(collective_parts(operator, device, constants)) for operator in operators])


def fit_collectives(messages: Messages, device: Device) -> CollectiveConstants:
    """Robust least squares on log time."""
    from scipy.optimize import least_squares

    guess = CollectiveConstants(latency_s=6e-6, latency_per_rank_s=1e-6, bandwidth_share=0.8, half_bytes=1e6)
    names = tuple(guess.__slots__)
    target = np.log(list(messages.values()))

    def constants(theta: Array) -> CollectiveConstants:
        return replace(guess, **dict(zip(names, np.exp(theta).tolist(), strict=True)))

    low, high = np.log([1e-7, 1e-8, 0.005, 1.0]), np.log([1e-4, 1e-4, 1.0, 1e9])
    begin = np.log([getattr(guess, name) for name in names])
    result = least_squares(
        lambda theta: np.log(predicted(messages, device, constants(theta))) - target,
        begin, bounds=(low, high), loss="soft_l1", f_scale=0.1,
    )  # fmt: skip
    return constants(result.x)
