"""Tables of NCCL (nccl_perf.parquet) and of serving engines' own kernels (custom_allreduce_perf.parquet, and DeepEP's

low-latency dispatch and combine, wideep_deepep_ll_perf.parquet) -> latency and share of the link that they reach.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fit.tables import parquet_columns
from shapes.calibrate import consensus
from shapes.cost.constants import CollectiveConstants
from shapes.cost.moving import collective_parts
from shapes.device import Device
from shapes.operators.types import Collective

Array = NDArray[np.float64]

_KINDS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}

#: Serving engines' own, replayed from CUDA graphs.
DIRECT = ("direct_all_reduce", "direct_all_to_all")
#: Bytes of an element that DeepEP's kernels send (the dispatch: fp8), and ranks of a node in its table, where not 8:
#: B200's fit takes GB200's rows too, whose nodes have 4 of the same dies on the same links.
SENT, NODE_RANKS = {"dispatch": 1, "combine": 2}, {"gb200": 4}
ALSO = {"b200_sxm": ("gb200",)}

Messages = dict[tuple[str, int, int], float]
Tables = dict[str, CollectiveConstants]


def read_collectives(paths: Iterable[Path]) -> Messages:
    """(what, ranks, bytes of the full buffer) -> seconds, the median over NCCL versions; 16-bit elements."""
    values = []
    for path in paths:
        columns = parquet_columns(path)
        names = ("op_name", "nccl_dtype", "num_gpus", "message_size", "latency")
        for what, dtype, ranks, elements, latency in zip(*(columns[name] for name in names), strict=True):
            if what in _KINDS and dtype == "half" and latency > 0:
                # oneCCL's all-gather says what a rank gives.
                whole = elements * ranks if what == "all_gather" and "oneccl" in path.parts else elements
                values.append(((_KINDS[what], ranks, 2 * whole), str(path), latency * 1e-3))
    return consensus(values)


def read_direct(folder: Path) -> Messages:
    """The same of engines' own: the median over frameworks and releases; DeepEP's by bytes of a rank's copies."""
    values = []
    for path in sorted(folder.glob("comm/*/*/custom_allreduce_perf.parquet")):
        columns = parquet_columns(path)
        names = ("kernel_source", "num_gpus", "message_size", "latency")
        for kernel, ranks, elements, latency in zip(*(columns[name] for name in names), strict=True):
            if "eager" not in kernel and latency > 0:
                values.append(((DIRECT[0], int(ranks), 2 * int(elements)), str(path), latency * 1e-3))
    folders = [folder, *(folder.parent / other for other in ALSO.get(folder.name, ()))]
    for path in sorted(path for own in folders for path in own.glob("comm/*/*/wideep_deepep_ll_perf.parquet")):
        columns = parquet_columns(path)
        for way, size in SENT.items():
            names = ("node_num", "num_token", "num_topk", "hidden_size", f"{way}_avg_t_us")
            for nodes, tokens, copies, hidden, latency in zip(*(columns[name] for name in names), strict=True):
                if nodes == 1 and latency > 0:
                    sent = int(tokens * copies * hidden * size)
                    ranks = NODE_RANKS.get(path.parts[-5], 8)
                    values.append(((DIRECT[1], ranks, sent), f"{path} {way}", latency * 1e-6))
    return consensus(values)


def predicted(messages: Messages, device: Device, tables: Tables) -> Array:
    """Seconds of each message by ``tables``."""

    def one(what: str, ranks: int, size: int) -> float:
        run = Collective("", "forward", what.removeprefix("direct_"), size, ranks)  # type: ignore[arg-type]  # names of _KINDS
        return float(sum(collective_parts(run, device, tables[what])))

    return np.array([one(*message) for message in messages])


def fit_collectives(messages: Messages, device: Device) -> Tables:
    """Robust least squares on log time, of each kind and number of ranks by itself."""
    found = {}
    for kind in (*_KINDS.values(), *DIRECT):
        groups = sorted({ranks for what, ranks, _ in messages if what == kind})
        if not groups:
            continue
        values = [
            _fitted({key: value for key, value in messages.items() if key[:2] == (kind, ranks)}, device)
            for ranks in groups
        ]
        found[kind] = CollectiveConstants(tuple(groups), *zip(*values, strict=True))
    return found


def _fitted(messages: Messages, device: Device) -> tuple[float, ...]:
    """Latency, share and half_bytes of one kind among one number of ranks."""
    from scipy.optimize import least_squares

    kind, ranks, _ = next(iter(messages))
    target = np.log(list(messages.values()))

    def deviations(theta: Array) -> Array:
        own = CollectiveConstants((ranks,), *((value,) for value in np.exp(theta).tolist()))
        return np.log(predicted(messages, device, {kind: own})) - target

    bounds = np.log([1e-7, 0.005, 1.0]), np.log([1e-3, 1.0, 1e9])
    result = least_squares(deviations, np.log([1e-5, 0.7, 1e6]), bounds=bounds, loss="soft_l1", f_scale=0.1)
    return tuple(float(f"{value:.4g}") for value in np.exp(result.x))
