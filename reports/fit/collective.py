"""Tables of NCCL and of serving engines' own kernels -> latency and share of the link that they reach.

NCCL's is nccl_perf.parquet, the engines' custom_allreduce_perf.parquet, and wideep_deepep_ll_perf.parquet DeepEP's
low-latency dispatch and combine.

    python reports/fit/collective.py --tables .../aiconfigurator_core/systems/data    # rows of kernels.md

Judged so: every second size of a kind and number of ranks is left out of the fit, which run.py makes of all.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fit.decode import FOLDERS
from fit.tables import parquet_columns
from shapes.calibrate import consensus
from shapes.cost.constants import CollectiveConstants
from shapes.cost.moving import collective_parts
from shapes.device import Device, load_device
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

#: Folder -> engine's rows that are taken for sums of more than two ranks. L40S' table of NCCL, and most engines' rows,
#: are of a machine whose ranks do not reach one another (5 and 1.5 GB/s among four and eight, of 32). SGLang 0.5.12's
#: are of another, 20.5 GB/s among either; TensorRT-LLM's published first tokens take 18 to 22 (tests/test_serving.py).
MACHINES = {"l40s": "comm/sglang/0.5.12"}

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


def read_messages(folder: Path) -> Messages:
    """What a device's constants are fitted on, of its ``folder`` of tables.

    Of frameworks' copies of NCCL's tables, only comm/nccl is NCCL's (oneCCL's: Intel's).
    """
    found = read_collectives(sorted((*folder.rglob("nccl/*/nccl_perf.parquet"), *folder.rglob("oneccl_perf.parquet"))))
    if folder.name not in MACHINES:
        return found | read_direct(folder)
    pairs = {key: seconds for key, seconds in found.items() if key[1] == 2}
    sums = read_direct(folder, MACHINES[folder.name])
    return pairs | {("all_reduce", ranks, size): one for (_, ranks, size), one in sums.items() if ranks > 2}


def read_direct(folder: Path, own: str = "comm/*/*") -> Messages:
    """Engines' ``own``: the median over frameworks and releases; DeepEP's by bytes of a rank's copies."""
    values = []
    for path in sorted(folder.glob(f"{own}/custom_allreduce_perf.parquet")):
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
    sums = found.get("all_reduce")
    # A kind that is known of two ranks alone grows as the sum does: a ring of as many.
    return {kind: _grown(one, sums) if sums and one.ranks == (2,) else one for kind, one in found.items()}


def _grown(pair: CollectiveConstants, sums: CollectiveConstants) -> CollectiveConstants:
    (latency,), (share,), (half,) = pair.latency_s, pair.bandwidth_share, pair.half_bytes
    values = [
        (
            latency * own / sums.latency_s[0],
            share * reached / sums.bandwidth_share[0],
            half * bytes_ / sums.half_bytes[0],
        )
        for own, reached, bytes_ in zip(sums.latency_s, sums.bandwidth_share, sums.half_bytes, strict=True)
    ]
    columns = (tuple(float(f"{value:.4g}") for value in column) for column in zip(*values, strict=True))
    return CollectiveConstants(sums.ranks, *columns)


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


def judged(messages: Messages, device: Device) -> Iterator[tuple[str, str, float, float]]:
    """Kind, device, and what it is off by on the sizes that its fit left out: on average, and in 95% of them."""
    out = {key for key in messages if _place(messages, key) % 2}
    found = fit_collectives({key: value for key, value in messages.items() if key not in out}, device)
    for kind in found:
        left = {key: messages[key] for key in sorted(out) if key[0] == kind}
        off = np.abs(predicted(left, device, found) / np.array(list(left.values())) - 1)
        name = kind.replace("direct", "engines'").replace("_", " ")
        yield name, device.name, float(off.mean()), float(np.quantile(off, 0.95))


def _place(messages: Messages, key: tuple[str, int, int]) -> int:
    """Which of its kind's and ranks' sizes it is."""
    return sorted(size for kind, ranks, size in messages if (kind, ranks) == key[:2]).index(key[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, required=True)
    tables, found = parser.parse_args().tables, defaultdict(list)
    for name, folder in FOLDERS.items():
        for kind, *rest in judged(read_messages(tables / folder), load_device(name)):
            found[kind].append(rest)
    rows = []
    for kind, each in sorted(found.items()):
        which, worst, _ = max(each, key=itemgetter(1))
        means = (float(np.mean([one[place] for one in each])) for place in (1, 2))
        mean, far = (f"{value:.1%}" for value in means)
        rows.append((kind, len(each), mean, f"{worst:.1%}", which, far))
    headers = ("kind", "devices", "mean error, left out", "worst device", "which", "within, of 95% (mean)")
    sys.stdout.write(tabulate(rows, headers, "github") + "\n")


if __name__ == "__main__":
    main()
